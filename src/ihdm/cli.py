"""The command line: a table from verb to function."""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import select
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import NoneType
from typing import Any, get_args

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    UnsupportedTypeAnnotationError,
)

from ihdm import __version__
from ihdm.config import presets, setting_rows, shipped
from ihdm.disk import FULL
from ihdm.errors import IhdmError, UsageError, unknown
from ihdm.verbs.app import app
from ihdm.verbs.calibrate import calibrate
from ihdm.verbs.convert import convert
from ihdm.verbs.demo import demo
from ihdm.verbs.doctor import doctor
from ihdm.verbs.evaluate import evaluate
from ihdm.verbs.export import export
from ihdm.verbs.guide import guide
from ihdm.verbs.info import info
from ihdm.verbs.likelihood import likelihood
from ihdm.verbs.pack import pack, unpack
from ihdm.verbs.push import push
from ihdm.verbs.restore import restore
from ihdm.verbs.sample import sample
from ihdm.verbs.settings import settings
from ihdm.verbs.study import study
from ihdm.verbs.train import train
from ihdm.verbs.words import aligned

LESS_MEMORY = (
    "to need less, raise trainer.accumulate or set engine.checkpoint=true in training, lower --batch-size in sampling, "
    "or use smaller images or networks; ihdm info says how much is needed"
)

OPTIONS = ConstructorRegistry()  # what differs from tyro in how options are typed
AS_TYPED = (tyro.conf.FlagCreatePairsOff,)  # offer --open without a --no-open
COMPLETION = "--tyro-print-completion"
FILES_TOO = {  # changes to tyro's scripts, which complete file names only after an option
    "bash": (
        "complete -F _tyro_ihdm ihdm",
        "_ihdm() { _tyro_ihdm; [[ ${COMPREPLY[*]} ]] || COMPREPLY=(); }\ncomplete -o default -F _ihdm ihdm",
    ),
    "zsh": ('\n_tyro_ihdm "$@"', '\n_tyro_ihdm "$@" || _files'),
}
VERBS: dict[str, Callable[..., None]] = {
    "train": train,
    "sample": sample,
    "restore": restore,
    "calibrate": calibrate,
    "guide": guide,
    "likelihood": likelihood,
    "evaluate": evaluate,
    "study": study,
    "info": info,
    "settings": settings,
    "app": app,
    "doctor": doctor,
    "pack": pack,
    "unpack": unpack,
    "convert": convert,
    "push": push,
    "export": export,
    "demo": demo,
}
NOBODY_READS = 141  # the exit code of programs that write to a pipe whose reader has gone
FREE_SOME_SPACE = "; free some space, or write elsewhere, and run the command again: what it was writing is incomplete"
RARER = ("calibrate", "guide", "settings", "doctor", "pack", "unpack", "convert", "export", "push")  # only named


def main(words: list[str] | None = None) -> None:
    """Run the verb that was typed; print errors without a traceback."""
    words = sys.argv[1:] if words is None else words
    warnings.filterwarnings("ignore", "Image size")  # Pillow's, of attacks; what is really too large is an error
    for stream in (sys.stdout, sys.stderr):  # whose encoding may lack letters of a file's name
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            _run(words)
        finally:
            if sys.stdout:  # it may be closed
                sys.stdout.flush()  # not left to Python's end, whose error messages are no help
    except IhdmError as error:
        print(f"ihdm: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _nobody_reads():
            sys.exit(NOBODY_READS)
        print(f"ihdm: {error}{FREE_SOME_SPACE if error.errno in FULL else ''}", file=sys.stderr)
        sys.exit(1)
    except (MemoryError, RuntimeError) as error:
        from ihdm.memory import ran_out

        if not ran_out(error):
            raise
        print(f"ihdm: there is not enough memory; {LESS_MEMORY}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("ihdm: stopped", file=sys.stderr)
        sys.exit(130)


def _run(words: list[str]) -> None:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_overview())
    elif words[0] == "--version":
        print(__version__)
    elif words[0] == COMPLETION:
        print(_completion(*words[1:2] or [""]))
    elif words[0] not in VERBS:
        raise unknown("command", words[0], VERBS)
    else:
        verb = VERBS[words[0]]
        try:
            with OPTIONS:
                tyro.cli(verb, prog=f"ihdm {words[0]}", args=words[1:], config=AS_TYPED)
        except SystemExit as refused:
            options = inspect.signature(verb).parameters
            if refused.code and "settings" in options:
                _point_to_settings(words[1:], options)
            raise


def _point_to_settings(words: list[str], options: Iterable[str]) -> None:
    """Say how settings are given, if some were typed like options of the command, such as --steps 1000."""
    names = {name for name, _ in setting_rows() if name.partition(".")[2] not in options}
    for word, value in zip(words, [*words[1:], "VALUE"]):
        option, equals, behind = word.partition("=")
        leaf = option.removeprefix("--").replace("-", "_")
        meant = sorted((name for name in names if name.partition(".")[2] == leaf), reverse=True)  # trainer.* first
        if option.startswith("--") and meant:
            shown = " or ".join(f"--set {name}={behind if equals else value}" for name in meant)
            print(f"ihdm: {leaf} is a setting; give it with {shown}", file=sys.stderr)


@OPTIONS.primitive_rule
def _left_out(option: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | UnsupportedTypeAnnotationError | None:
    """How an option is typed that has None for "left out"; tyro by itself would take the word None, and offer it.

    What is true or false is typed as in settings, not as in Python.
    """
    kinds = get_args(option.type)
    if len(kinds) != 2 or NoneType not in kinds:
        return None
    kind = kinds[0] if kinds[1] is NoneType else kinds[1]
    spec = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(kind, option.markers))
    if not isinstance(spec, PrimitiveConstructorSpec):
        return spec
    if kind is bool:
        spec = replace(spec, choices=("true", "false"), instance_from_str=lambda words: words[0] == "true")
    return replace(spec, is_instance=lambda value: value is None or spec.is_instance(value))


def _nobody_reads() -> bool:
    """Whether the reader of the output has gone, as in `ihdm settings | head`; then the rest of it is dropped."""
    if not hasattr(select, "poll"):  # on Windows
        return False
    poll = select.poll()
    poll.register(sys.stdout, 0)
    gone = any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    if gone:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return gone


def _completion(shell: str) -> str:
    """The script that lets a shell complete what is typed after ihdm."""
    if shell not in FILES_TOO:
        raise UsageError(f"{COMPLETION} takes the name of a shell, {' or '.join(FILES_TOO)}")
    with contextlib.redirect_stdout(io.StringIO()) as script, contextlib.suppress(SystemExit), OPTIONS:
        tyro.extras.subcommand_cli_from_dict(VERBS, prog="ihdm", args=[COMPLETION, shell], config=AS_TYPED)
    lines = script.getvalue().replace(*FILES_TOO[shell]).splitlines()
    # The script would take each line of a help text in tyro's table of options for a completion of its own.
    return "\n".join(line.replace("\\n", " ") if line.startswith("COMPLETION_SPEC") else line for line in lines)


def _overview() -> str:
    def wrapped(title: str, names: Iterable[str]) -> str:
        return textwrap.fill(f"{title}: {', '.join(names)}", 80, subsequent_indent="  ", break_on_hyphens=False)

    verbs = {verb: (VERBS[verb].__doc__ or "").splitlines()[0] for verb in VERBS if verb not in RARER}
    return f"""ihdm {__version__}: generative modelling with inverse heat dissipation
usage: ihdm COMMAND ...      (more: ihdm COMMAND --help)

{aligned(verbs.items(), indent="  ")}
{wrapped("  and", RARER)}

{wrapped("included models", shipped())}
{wrapped("presets to train", presets())}
ihdm info describes each; ihdm settings lists what --set can change."""
