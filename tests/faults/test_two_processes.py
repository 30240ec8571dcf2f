"""Training by two processes, as torchrun starts them, on a CPU."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from archives import write_crosses
from safetensors.torch import load_file

from ihdm.cli import main
from ihdm.run import read_log

TINY = ["trainer.steps=6", "trainer.checkpoint_every=3", "trainer.samples=4", "trainer.batch_size=32", "process.K=10"]
TINY += ["network.channels=8", "network.dropout=0", "trainer.log_every=2", "data.flip=true", "engine.device=cpu"]


def start(run, count: int, *settings: str, options: tuple[str, ...] = ()) -> subprocess.Popen:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count), *options]
    words = ["-m", "--", "ihdm", "train", "digits", "--run", str(run), "--set", *TINY, *settings]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*launcher, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def alone(run, *settings: str) -> None:
    """The same by this process."""
    main(["train", "digits", "--run", str(run), "--set", *TINY, *settings])


def finished(process: subprocess.Popen) -> str:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out


def test_two_processes_take_the_steps_of_one(tmp_path):
    """The batch, its noise and its mirroring are those of one process, half of it each: the same loss and gradient."""
    alone(tmp_path / "1")
    assert finished(start(tmp_path / "2", 2)).count("done; the model is in") == 1  # one of them speaks
    logs = [[line for line in read_log(tmp_path / run) if "loss" in line] for run in ("1", "2")]
    for one, two in zip(*logs, strict=True):
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-4)
        assert two["gradient_norm"] == pytest.approx(one["gradient_norm"], rel=1e-3)
    one, two = (load_file(tmp_path / run / "model" / "model.safetensors") for run in ("1", "2"))
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, rtol=1e-3, atol=1e-4)


@pytest.mark.faults
@pytest.mark.accident("another number of processes", "a streamed run stopped and gone on with by two; the same run")
def test_two_processes_share_a_stream(tmp_path):
    """Each reads its own lanes; together they take the steps of one, also if they go on where it stopped."""
    write_crosses(tmp_path / "set", archives=5, images=40)
    words = [f"data.source={tmp_path / 'set'}", "data.stream=true", "data.buffer=64", "trainer.decay=0"]
    alone(tmp_path / "plain", *words)
    alone(tmp_path / "run", *words, "trainer.steps=3")
    assert "continuing from step 3" in finished(start(tmp_path / "run", 2, *words, "data.workers=1"))
    last = [[line for line in read_log(tmp_path / run) if "loss" in line][-1] for run in ("plain", "run")]
    assert last[1]["loss"] == pytest.approx(last[0]["loss"], rel=1e-3)
    files = [tmp_path / run / "checkpoints" / "step-00000006" / "manifest.json" for run in ("plain", "run")]
    one, two = (json.loads(file.read_text())["places"] for file in files)
    assert two == one and len(one) == 4


def workers_of(launcher: subprocess.Popen) -> list[int]:
    """The processes that the launcher has started."""
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(launcher.pid)], capture_output=True, text=True).stdout
    return [int(pid) for pid in listed.split()]


def kill_one_worker(launcher: subprocess.Popen, run) -> None:
    """Once there is a checkpoint."""
    deadline = time.time() + 60
    while not list((run / "checkpoints").glob("step-*")) and time.time() < deadline:
        assert launcher.poll() is None
        time.sleep(0.05)
    os.kill(workers_of(launcher)[-1], signal.SIGKILL)


LONG = ("trainer.steps=100000", "trainer.checkpoint_every=10", "trainer.sample_every=100000")


@pytest.mark.faults
@pytest.mark.accident("a dead worker", "one of two killed; the job ends instead of a hang")
@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for the processes")
def test_a_dead_worker_ends_the_job_instead_of_a_hang(tmp_path):
    launcher = start(tmp_path / "run", 2, *LONG)
    kill_one_worker(launcher, tmp_path / "run")
    _, err = launcher.communicate(timeout=60)
    assert launcher.returncode != 0 and "SIGKILL" in err


@pytest.mark.accident(
    "a dead worker", "one of two killed under torchrun --max-restarts; goes on from the checkpoint to the end"
)
@pytest.mark.faults
@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for the processes")
def test_torchruns_restart_goes_on_from_the_checkpoint(tmp_path):
    settings = ("trainer.steps=400", "trainer.checkpoint_every=10", "trainer.sample_every=100000")
    launcher = start(tmp_path / "run", 2, *settings, options=("--max-restarts", "3"))
    kill_one_worker(launcher, tmp_path / "run")
    out = finished(launcher)
    assert "continuing from step" in out and "done" in out


RESTARTED = """
import os, signal, time, torch
from ihdm.workers import together
attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
time.sleep(3 * attempt * rank)
with together() as workers:
    found = workers.join(torch.tensor([rank])).tolist()
    if attempt == 0 and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    workers.agree(True)
os.write(1, f"attempt {attempt} {found}\\n".encode())  # at one go, as two processes write
"""


@pytest.mark.faults
@pytest.mark.accident(
    "a dead worker", "one of two killed, and started again long after the other; they find each other"
)
def test_processes_that_are_started_again_do_not_wait_for_the_dead(tmp_path):
    """The one that is there first may find the address of the other as it was before."""
    (tmp_path / "job.py").write_text(RESTARTED)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = [*launcher, "--max-restarts", "1", str(tmp_path / "job.py")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("attempt 1 [0, 1]") == 2


@pytest.mark.faults
@pytest.mark.accident("another number of processes", "divided weights stopped and gone on with undivided; the same run")
def test_divided_weights_take_the_same_steps_and_go_on_from_a_checkpoint(tmp_path, capsys):
    """engine.shard: the run of one process, up to rounding, also if it stops in between; undivided it goes on too.

    Weights themselves are no measure: Adam takes steps of full length where the gradient is nothing but rounding.
    """
    words, divided = ["trainer.decay=0"], "engine.shard=true"
    alone(tmp_path / "plain", *words)
    finished(start(tmp_path / "run", 2, *words, divided, "trainer.steps=3"))
    (tmp_path / "run" / "model" / "prior.safetensors").unlink()
    assert "continuing from step 3" in finished(start(tmp_path / "run", 2, *words, divided))
    plain, run = ({line["step"]: {} for line in read_log(tmp_path / name)} for name in ("plain", "run"))
    for found, name in ((plain, "plain"), (run, "run")):
        for line in read_log(tmp_path / name):
            found[line["step"]] |= line
    for step, key in (
        (2, "loss"),
        (2, "gradient_norm"),
        (3, "held_out_loss"),
        (6, "gradient_norm"),
        (6, "held_out_loss"),
    ):
        assert run[step][key] == pytest.approx(plain[step][key], rel=1e-3), (step, key)
    assert (tmp_path / "run" / "samples" / "step-00000006.png").exists()
    alone(tmp_path / "run", *words, "trainer.steps=7")
    assert "continuing from step 6" in capsys.readouterr().out
    shutil.rmtree(tmp_path / "run" / "model")
    out = finished(start(tmp_path / "run", 2, *words, divided, "trainer.steps=5"))
    assert "is already at step 7; nothing to do for trainer.steps=5" in out and "done" in out
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()
    assert "\nsteps = 7\n" in (tmp_path / "run" / "config.toml").read_text()


def test_weights_can_be_divided_among_several_processes_only(tmp_path, capsys):
    with pytest.raises(SystemExit):
        alone(tmp_path / "run", "engine.shard=true")
    assert "start several, with torchrun" in capsys.readouterr().err
