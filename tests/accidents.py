"""`pytest -m accident` ends with a table of the accidents that were tried, and what came of each."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

AT_LENGTH = int(os.environ.get("IHDM_FUZZ", 60)) >= 1000  # as `make faults` has it
at_length = pytest.mark.skipif(not AT_LENGTH, reason="make faults tries it")

KINDS = ("passed", "failed", "error", "skipped")


SLOWEST = ("test_studies.py", "test_browser.py", "test_cli.py")  # files that come first, so that none ends last


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Let each report know what its test tries: the words of @pytest.mark.accident(fault, what was done)."""
    items.sort(key=lambda item: item.path.name not in SLOWEST)
    for item in items:
        if mark := item.get_closest_marker("accident"):
            item.user_properties.append(("accident", tuple(mark.args)))


def pytest_terminal_summary(terminalreporter: Any, config: Any) -> None:
    if "accident" in config.option.markexpr:
        stats = {kind: terminalreporter.stats.get(kind, []) for kind in KINDS}
        terminalreporter.section("accidents")
        terminalreporter.write_line("\n".join(table(stats)))


def table(stats: Mapping[str, Iterable[Any]]) -> list[str]:
    """Rows fault | what was done | outcome, in the order of the reports."""
    counts: dict[tuple[str, str], dict[str, list[Any]]] = {}
    for kind, reports in stats.items():
        for report in reports:
            for name, words in report.user_properties:
                if name == "accident":
                    counts.setdefault(tuple(words), {}).setdefault(kind, []).append(report)
    rows = [(*words, outcome(found)) for words, found in sorted(counts.items())]
    lines = ["| fault | what was done, and what must hold | outcome |", "|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    survived = sum(row[-1].startswith("survived") for row in rows)
    tried = [row for row in rows if not re.match(r"\d+ not tried", row[-1])]
    left_out = f"; {len(rows) - len(tried)} more not tried" if len(tried) < len(rows) else ""
    return [*lines, "", f"{survived} of {len(tried)} accidents tried were survived with nothing lost{left_out}"]


def outcome(found: Mapping[str, list[Any]]) -> str:
    """Of all tests of one accident; one that failed outweighs any that passed."""
    bad = [report.nodeid for kind in ("failed", "error") for report in found.get(kind, [])]
    if bad:
        return f"NOT SURVIVED: {', '.join(dict.fromkeys(bad))}"
    passed, skipped = len(found.get("passed", [])), found.get("skipped", [])
    left_out = f"{len(skipped)} not tried ({_reason(skipped[0])})" if skipped else ""
    times = f"survived{f', {passed} times' if passed > 1 else ''}" if passed else ""
    return "; ".join(part for part in (times, left_out) if part)


def _reason(report: Any) -> str:
    text = report.longrepr[-1] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return re.sub("^Skipped: ", "", text)
