"""What shells complete after `ihdm`."""

from __future__ import annotations

import subprocess

import pytest

from ihdm.cli import COMPLETION, FILES_TOO, VERBS, main


@pytest.mark.parametrize("shell", FILES_TOO)
def test_shells_can_complete_verbs_options_and_files(shell, capsys):
    main([COMPLETION, shell])
    script = capsys.readouterr().out
    assert all(f"'{verb}'" in script for verb in VERBS) and "--delta-ratio" in script
    assert FILES_TOO[shell][1] in script  # tyro's script is as it is known to be


def test_bash_completes(capsys, tmp_path):
    main([COMPLETION, "bash"])
    (tmp_path / "ihdm.bash").write_text(capsys.readouterr().out)
    code = 'source ihdm.bash; COMP_WORDS=(ihdm "$@"); COMP_CWORD=$#; _ihdm; echo "${COMPREPLY[@]}"'
    expected = {("sam",): "sample", ("evaluate", "--me"): "--metrics", ("sample", "--lab"): "--label"}
    for words, completed in (expected | {("sample", "runs/"): ""}).items():
        done = subprocess.run(["bash", "-c", code, "bash", *words], cwd=tmp_path, capture_output=True, text=True)
        assert done.stdout.strip() == completed, done.stderr


def test_a_shell_that_is_not_known_is_refused(capsys):
    for words in ([], ["nush"]):
        with pytest.raises(SystemExit, match="2"):
            main([COMPLETION, *words])
        assert "takes the name of a shell, bash or zsh" in capsys.readouterr().err
