"""Whatever is typed ends in words: see `fuzz_cli.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from accidents import AT_LENGTH

SCRIPT = Path(__file__).parent.parent / "fuzz_cli.py"
LINES = 600 if AT_LENGTH else 25


@pytest.mark.accident("random command lines", f"{LINES} of them; each works, or is refused in words")
@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux does it")
def test_random_command_lines_end_in_words(tmp_path):
    environment = os.environ | {"IHDM_CACHE": str(tmp_path / "cache")}
    words = [sys.executable, str(SCRIPT), str(LINES), "0", str(tmp_path / "work")]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, errors="replace", timeout=1800)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert f"{LINES} command lines" in done.stdout
