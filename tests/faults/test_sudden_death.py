"""A run that is killed at any moment, however often, ends as if nothing had happened."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest
from accidents import at_length
from archives import write_crosses
from safetensors.torch import load_file

from ihdm import checkpoint

WORDS = [sys.executable, "-m", "ihdm", "train", "digits", "--set"]
SETTINGS = [
    "trainer.steps=60",
    "trainer.checkpoint_every=5",
    "trainer.sample_every=20",
    "trainer.samples=4",
    "process.K=10",
]
SETTINGS += ["network.channels=8", "trainer.batch_size=16", "trainer.log_every=5", "engine.device=cpu"]


def command(run, *more: str) -> list[str]:
    return [*WORDS, *SETTINGS, "--run", str(run), *more]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run without any accident."""
    run = tmp_path_factory.mktemp("whole") / "run"
    subprocess.run(command(run), check=True, capture_output=True)
    return run


def reached(run) -> int:
    """The step of the newest checkpoint."""
    return max((int(path.name[5:]) for path in checkpoint.saved(run / "checkpoints")), default=0)


def assert_same(run, whole) -> None:
    """All tensors of the last checkpoint and of the model, to the bit."""
    folders = [(checkpoint.saved(folder / "checkpoints")[-1], folder / "model") for folder in (run, whole)]
    for one, other in zip(*folders):
        assert one.name == other.name
        for file in other.glob("*.safetensors"):
            found, expected = load_file(one / file.name), load_file(file)
            assert found.keys() == expected.keys()
            assert all(found[name].equal(expected[name]) for name in expected), file.name
    assert not list(run.rglob(".*.new")) and not list(run.rglob(".*.old"))


def killed_until_done(run, kills: int, number: signal.Signals, seed: int, more: tuple[str, ...] = ()) -> int:
    """Start the run again and again, end it at random moments, and at last let it finish; how often that happened.

    A moment is counted from a checkpoint, or from the start, and so is the same on slow and on busy machines.
    """
    moments = random.Random(seed)
    happened = 0
    for goal in sorted(moments.sample(range(0, 50, 5), kills)):
        process = subprocess.Popen(command(run, *more), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while reached(run) < goal and process.poll() is None:
            time.sleep(0.002)
        time.sleep(moments.uniform(0, 0.2 if goal else 5))
        happened += process.poll() is None
        process.send_signal(number)
        process.communicate()
    done = subprocess.run(command(run, *more), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return happened


@at_length
@pytest.mark.accident("killed (SIGKILL)", "at two random moments; to the bit the same run")
def test_a_run_that_was_killed_twice(whole, tmp_path):
    assert killed_until_done(tmp_path / "run", 2, signal.SIGKILL, seed=1) > 0
    assert_same(tmp_path / "run", whole)


@pytest.mark.accident("killed (SIGKILL)", "at five random moments; to the bit the same run")
@pytest.mark.faults
@pytest.mark.parametrize("seed", range(4))
def test_a_run_that_was_killed_five_times(whole, tmp_path, seed):
    assert killed_until_done(tmp_path / "run", 5, signal.SIGKILL, seed) > 0
    assert_same(tmp_path / "run", whole)


@pytest.mark.accident("asked to stop (SIGTERM)", "saved, exit code 0; to the bit the same run")
def test_a_run_that_was_asked_to_stop(whole, tmp_path):
    """SIGTERM, as batch systems send it: saved, exit code 0, and a line that says how to go on."""
    process = subprocess.Popen(command(tmp_path / "run"), stdout=subprocess.PIPE, text=True)
    while not checkpoint.saved(tmp_path / "run" / "checkpoints") and process.poll() is None:
        time.sleep(0.01)
    process.terminate()
    out, _ = process.communicate()
    assert process.returncode == 0
    assert "run the same command to resume" in out or "done" in out
    subprocess.run(command(tmp_path / "run"), check=True, capture_output=True)
    assert_same(tmp_path / "run", whole)


@pytest.fixture(scope="module")
def archives(tmp_path_factory) -> tuple[str, ...]:
    """The words of a run that reads its images as a stream."""
    folder = tmp_path_factory.mktemp("archives")
    write_crosses(folder, archives=4, images=150)
    return "--data", str(folder), "--set", "data.stream=true", "data.buffer=64"


@at_length
@pytest.mark.accident("killed (SIGKILL)", "at two random moments, with processes that read a stream; the same run")
def test_a_run_on_a_stream_that_was_killed(archives, tmp_path):
    subprocess.run(command(tmp_path / "whole", *archives), check=True, capture_output=True)
    assert killed_until_done(tmp_path / "run", 2, signal.SIGKILL, 5, (*archives, "data.workers=2")) > 0
    assert_same(tmp_path / "run", tmp_path / "whole")


@pytest.mark.accident("asked to stop (Ctrl-C, SIGTERM)", "also the processes that read a stream; saved, exit code 0")
@pytest.mark.skipif(sys.platform == "win32", reason="sends a signal to a group of processes")
@pytest.mark.parametrize(
    ("number", "step"),
    [
        pytest.param(signal.SIGINT, 0, marks=at_length),
        pytest.param(signal.SIGINT, 5, marks=at_length),
        pytest.param(signal.SIGTERM, 5, marks=at_length),
    ],
)
def test_all_processes_are_asked_to_stop(archives, tmp_path, number, step):
    """As a terminal or a batch system does it: while they start, or later."""
    words = command(tmp_path / "run", *archives, "data.workers=2", "trainer.steps=1000000")
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    assert "training digits" in process.stdout.readline() and "learning from" in process.stdout.readline()
    while reached(tmp_path / "run") < step and process.poll() is None:
        time.sleep(0.01)
    time.sleep(0.5)
    os.killpg(process.pid, number)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 0, error
    assert "everything saved" in out and "Traceback" not in error
