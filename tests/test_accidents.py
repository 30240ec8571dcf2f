"""The table at the end of `make faults` tells what happened, and docs/reliability.md names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import SimpleNamespace

from accidents import table

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "reliability.md"


def report(name: str, *words: str, reason: str = ""):
    return SimpleNamespace(nodeid=name, user_properties=[("accident", words)], longrepr=("file", 1, reason))


def test_the_table_follows_the_results():
    stats = {
        "passed": [report("a", "flood", "x"), report("b", "fire", "y"), report("c", "fire", "y")],
        "failed": [report("d", "flood", "x")],
        "error": [report("e", "storm", "z")],
        "skipped": [report("f", "frost", "w", reason="Skipped: too warm")],
    }
    assert table(stats)[2:] == [
        "| fire | y | survived, 2 times |",
        "| flood | x | NOT SURVIVED: d |",
        "| frost | w | 1 not tried (too warm) |",
        "| storm | z | NOT SURVIVED: e |",
        "",
        "1 of 3 accidents tried were survived with nothing lost; 1 more not tried",
    ]


def functions(file: str) -> dict[str, ast.FunctionDef]:
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def accident(node: ast.FunctionDef) -> ast.Call | None:
    """Its mark, if it has one."""
    calls = [mark for mark in node.decorator_list if isinstance(mark, ast.Call)]
    return next((mark for mark in calls if ast.unparse(mark.func) == "pytest.mark.accident"), None)


def promises() -> list[tuple[str, list[tuple[str, str]]]]:
    """The rows of the page's first table: a promise, and the tests (file, name) that keep it."""
    page = PAGE.read_text(encoding="utf-8")
    rows = page[page.index("| promise") :].split("\n\n")[0].splitlines()[2:]
    cells = [row.split("|")[1:3] for row in rows]
    return [(promise.strip(), re.findall(r"`([\w/]+\.py)::(test_\w+)`", tests)) for promise, tests in cells]


def test_every_promise_names_tests_that_exist():
    assert len(promises()) > 10
    for promise, tests in promises():
        assert tests, f"no test keeps this promise: {promise}"
        for file, name in tests:
            assert name in functions(file), f"{PAGE.name} names {file}::{name}, which is not there"
        marked = any(accident(functions(file)[name]) for file, name in tests)
        assert promise.endswith("*") == marked, f"an asterisk means that make faults tries it: {promise}"


def test_every_accident_has_two_texts_and_keeps_a_promise():
    kept = {test for _, tests in promises() for test in tests}
    for path in sorted(TESTS.rglob("test_*.py")):
        file = path.relative_to(TESTS).as_posix()
        for name, node in functions(file).items():
            if mark := accident(node):
                assert len(mark.args) == 2 and (file, name) in kept, f"{file}::{name}"
