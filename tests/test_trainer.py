from __future__ import annotations

import copy
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ihdm import checkpoint, memory
from ihdm import model as model_module
from ihdm.config import TrainerConfig
from ihdm.errors import IhdmError, UsageError
from ihdm.model import Model
from ihdm.model_folder import CARD, CONFIG, READER, read_config
from ihdm.optimisation import Adam, FlatAdam, averaging_weight, learning_rate
from ihdm.run import locked, settings_of
from ihdm.trainer import Trainer
from ihdm.training import Training


def train(config, images, run) -> Trainer:
    trainer = Trainer(config, images, run)
    trainer.train()
    return trainer


def log(run):
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def test_the_loss_of_a_tiny_model_falls(tiny_config, tiny_images, tmp_path):
    config = tiny_config.with_settings(
        ["process.skip=identity", "trainer.steps=100", "trainer.checkpoint_every=1000", "trainer.sample_every=1000"]
    )
    losses = [line["loss"] for line in log(train(config, tiny_images, tmp_path / "run").run) if "loss" in line]
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])


def test_a_run_folder_holds_what_the_design_says(tiny_config, tiny_images, tmp_path):
    run = train(tiny_config, tiny_images, tmp_path / "run").run
    assert {path.name for path in run.iterdir()} >= {"config.toml", "checkpoints", "log.jsonl", "samples", "model"}
    assert [path.name for path in checkpoint.saved(run / "checkpoints")] == ["step-00000003", "step-00000006"]
    assert (run / "samples" / "step-00000006.png").exists()
    lines = log(run)
    assert {"loss", "gradient_norm", "lr", "images_per_second"} < set(lines[0])
    assert [line["step"] for line in lines if "held_out_loss" in line] == [3, 6]
    assert Model.from_pretrained(run / "model").config.steps == 6


@pytest.mark.parametrize(("stops", "precision"), [([3], "float32"), ([1, 2, 5], "float32"), ([2], "bf16")])
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(tiny_config, tiny_images, tmp_path, stops, precision):
    tiny_config = tiny_config.with_settings(
        ["network.dropout=0.2", "data.flip=true", "trainer.batch_size=5", f"engine.precision={precision}"]
    )
    whole = train(tiny_config, tiny_images, tmp_path / "whole").run
    for stop in [*stops, 6]:
        part = train(tiny_config.with_settings([f"trainer.steps={stop}"]), tiny_images, tmp_path / "part").run
    for name in ("network", "average", "optimizer"):
        one, two = (
            load_file(checkpoint.saved(run / "checkpoints")[-1] / f"{name}.safetensors") for run in (whole, part)
        )
        assert one.keys() == two.keys()
        assert all(torch.equal(one[key], two[key]) for key in one), name
    held_out = [[line["held_out_loss"] for line in log(run) if "held_out_loss" in line][-1] for run in (whole, part)]
    assert held_out[0] == held_out[1]


def test_a_run_that_broke_off_repeats_the_steps_after_its_checkpoint(tiny_config, tiny_images, tmp_path):
    whole = train(tiny_config, tiny_images, tmp_path / "whole").run
    trainer = Trainer(tiny_config, tiny_images, tmp_path / "part")
    trainer._picture = lambda log: (_ for _ in ()).throw(RuntimeError("power cut"))
    with pytest.raises(RuntimeError, match="power cut"):
        trainer.train()
    last = checkpoint.saved(tmp_path / "part" / "checkpoints")[-1]
    for file in last.iterdir():
        file.unlink()
    last.rmdir()
    part = train(tiny_config, tiny_images, tmp_path / "part").run
    weights = [load_file(run / "model" / "model.safetensors") for run in (whole, part)]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    steps = [line["step"] for line in log(part) if "loss" in line]
    assert steps == sorted(set(steps))


@pytest.mark.accident("a write that broke off", "in a line of the log; the log is whole again")
def test_a_line_that_a_crash_cut_off_does_not_stop_the_next_run(tiny_config, tiny_images, tmp_path):
    run = train(tiny_config, tiny_images, tmp_path / "run").run
    lines = log(run)
    with (run / "log.jsonl").open("a") as file:
        file.write('{"step": 6, "lo')
    train(tiny_config, tiny_images, run)
    assert log(run) == lines


def test_a_finished_run_without_its_model_writes_it_again(tiny_config, tiny_images, tmp_path):
    run = train(tiny_config, tiny_images, tmp_path / "run").run
    before = (run / "model" / "model.safetensors").read_bytes()
    shutil.rmtree(run / "model")
    train(tiny_config, tiny_images, run)
    assert (run / "model" / "model.safetensors").read_bytes() == before


def test_another_number_of_steps_is_announced_where_it_matters(tiny_config, tiny_images, tmp_path, capsys):
    config = tiny_config.with_settings(["trainer.decay=0.5"])
    train(config, tiny_images, tmp_path / "run")
    train(config.with_settings(["trainer.steps=7"]), tiny_images, tmp_path / "run")
    assert "trainer.steps was 6, is 7" in capsys.readouterr().out


@pytest.mark.parametrize("steps", [4, 6])
@pytest.mark.parametrize("whole", [True, False])
def test_a_run_that_is_as_far_as_asked_stays_as_it_is(tiny_config, tiny_images, tmp_path, capsys, steps, whole):
    """It says so in a line, without a bar, and writes its model again if that is missing."""
    config = tiny_config.with_settings(["trainer.decay=0.5"])
    run = train(config, tiny_images, tmp_path / "run").run
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    if not whole:
        shutil.rmtree(run / "model")
    capsys.readouterr()
    trainer = Trainer(config.with_settings([f"trainer.steps={steps}"]), tiny_images, run)
    assert trainer.train() and trainer.step == 6
    again = "" if whole else "the model is written again; it samples in the paper's 10 steps, delta 0.0125\n"
    said = f"{run} is already at step 6; nothing to do for trainer.steps={steps}\n{again}"
    assert capsys.readouterr() == (said, "")
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_run_that_is_done_still_takes_another_way_of_sampling(tiny_config, tiny_images, tmp_path, capsys):
    """It changes what the model says of its sampling and nothing else, also not what other commands added."""
    run = train(tiny_config, tiny_images, tmp_path / "run").run
    model = Model.from_pretrained(run)
    model.guided_by(model, 1.75).save_pretrained(run / "model")
    (run / "model" / READER).write_bytes(b"what reads widths")
    before = {path.name: path.read_bytes() for path in (run / "model").iterdir()}
    config = tiny_config.with_settings(["sampling.eta=0.5", "sampling.steps=4"])
    written = "the model is written again; it samples in 4 exact steps, eta 0.5"
    train(config, tiny_images, run)
    assert written in capsys.readouterr().out
    after = {path.name: path.read_bytes() for path in (run / "model").iterdir()}
    assert set(after) == set(before) and {name for name in after if after[name] != before[name]} == {CONFIG, CARD}
    found = read_config(run / "model")
    assert (found.sampling, found.guidance, found.steps) == (config.sampling, 1.75, config.trainer.steps)
    assert settings_of(run).sampling == config.sampling
    train(config, tiny_images, run)
    assert "written again" not in capsys.readouterr().out
    (run / "model" / CONFIG).write_text("{")
    train(config, tiny_images, run)
    assert written in capsys.readouterr().out and read_config(run / "model").sampling == config.sampling


def poison(trainer: Trainer, bad: Callable[[int], bool]) -> None:
    """Let the network answer with nan at some steps."""
    training, network = trainer.training, trainer.training.network
    training.network = lambda u, k: network(u, k) * (float("nan") if bad(trainer.step) else 1)


def test_another_number_of_processes_is_announced(tiny_config, tiny_images, tmp_path, capsys):
    run = train(tiny_config, tiny_images, tmp_path / "run").run
    path = checkpoint.saved(run / "checkpoints")[-1] / "manifest.json"
    manifest = json.loads(path.read_text())
    assert manifest["processes"] == 1
    path.write_text(json.dumps(manifest | {"processes": 4}))
    train(tiny_config.with_settings(["trainer.steps=7"]), tiny_images, run)
    assert "the number of processes was 4, is 1" in capsys.readouterr().out


def test_a_run_goes_on_in_smaller_parts_which_is_announced_where_it_matters(tiny_config, tiny_images, tmp_path, capsys):
    """As one that does not fit into memory is advised to."""
    runs = {}
    for dropout in (0, 0.1):
        config = tiny_config.with_settings([f"network.dropout={dropout}"])
        for name, parts in (("whole", 1), ("parts", 4)):
            runs[name] = tmp_path / f"{name} {dropout}"
            train(config.with_settings(["trainer.steps=3"]), tiny_images, runs[name])
            train(config.with_settings([f"trainer.accumulate={parts}"]), tiny_images, runs[name])
            announced = "trainer.accumulate was 1, is 4: network.dropout" in capsys.readouterr().out
            assert announced == (dropout > 0 and parts > 1)
        if not dropout:
            torch.testing.assert_close(weights(runs["parts"]), weights(runs["whole"]), atol=1e-4, rtol=0)


@pytest.mark.accident("no finite gradient", "from some step on; the run stops, its checkpoint is finite")
def test_a_run_that_diverges_stops_and_keeps_its_checkpoint(tiny_config, tiny_images, tmp_path):
    settings = ["process.skip=identity", "trainer.checkpoint_every=2", "trainer.steps=30", "trainer.skip_most=5"]
    trainer = Trainer(tiny_config.with_settings(settings), tiny_images, tmp_path / "run")
    poison(trainer, lambda step: step > 2)
    with pytest.raises(IhdmError, match=r"diverged.*6 steps in a row.*trainer\.lr"):
        trainer.train()
    assert all(bool(tensor.isfinite().all()) for tensor in weights(tmp_path / "run").values())


def test_two_runs_in_one_process_may_differ_in_precision(tiny_config, tiny_images, tmp_path):
    train(tiny_config, tiny_images, tmp_path / "one")
    train(tiny_config.with_settings(["engine.precision=bf16"]), tiny_images, tmp_path / "two")
    weights = [load_file(tmp_path / run / "model" / "model.safetensors") for run in ("one", "two")]
    assert any(not torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def test_a_signal_stops_after_the_step_and_saves(tiny_config, tiny_images, tmp_path):
    trainer = Trainer(tiny_config.with_settings(["trainer.steps=1000"]), tiny_images, tmp_path / "run")
    step = trainer.train_step

    def interrupted():
        if trainer.step == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return step()

    trainer.train_step = interrupted
    before = signal.getsignal(signal.SIGINT)  # ignored, if the tests run in the background
    assert trainer.train() is False
    assert trainer.step == 2
    assert checkpoint.saved(tmp_path / "run" / "checkpoints")[-1].name == "step-00000002"
    assert signal.getsignal(signal.SIGINT) is before


def test_other_settings_or_images_in_the_same_folder_are_refused(tiny_config, tiny_images, tmp_path):
    train(tiny_config, tiny_images, tmp_path / "run")
    with pytest.raises(UsageError, match=r"process\.K was 10, is 11"):
        Trainer(tiny_config.with_settings(["process.K=11"]), tiny_images, tmp_path / "run")
    other = type(tiny_images)("blobs", 255 - tiny_images.train, tiny_images.held_out)
    with pytest.raises(UsageError, match="not those"):
        train(tiny_config.with_settings(["trainer.steps=9"]), other, tmp_path / "run")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    with pytest.raises(UsageError, match="not empty"):
        Trainer(tiny_config, tiny_images, tmp_path / "mine")


@pytest.mark.accident(
    "a damaged checkpoint",
    "emptied, cut, a bit flipped, a file missing; named, the one before used, to the bit the same run",
)
@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "missing", "manifest"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_used(tiny_config, tiny_images, tmp_path, damage, capsys):
    config = tiny_config.with_settings(["trainer.steps=9"])
    whole = weights(train(config, tiny_images, tmp_path / "whole").run)
    run = train(tiny_config, tiny_images, tmp_path / "run").run
    file = checkpoint.saved(run / "checkpoints")[-1] / (
        "manifest.json" if damage == "manifest" else "average.safetensors"
    )
    content = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        file.write_bytes({"empty": b"", "cut": content[:-7], "flipped": flipped, "manifest": b"[1]"}[damage])
    train(config, tiny_images, run)
    captured = capsys.readouterr()
    assert "step-00000006" in captured.err and "continuing from step 3" in captured.out
    for name, tensor in weights(run).items():
        assert tensor.equal(whole[name])


@pytest.mark.accident("a damaged checkpoint", "all of them; refused in words, nothing overwritten")
def test_without_any_readable_checkpoint_nothing_is_overwritten(tiny_config, tiny_images, tmp_path):
    run = train(tiny_config, tiny_images, tmp_path / "run").run
    for path in checkpoint.saved(run / "checkpoints"):
        (path / "network.safetensors").write_bytes(b"")
    with pytest.raises(IhdmError, match=r"no checkpoint in .* can be read"):
        train(tiny_config.with_settings(["trainer.steps=9"]), tiny_images, run)


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(checkpoint.saved(run / "checkpoints")[-1] / "network.safetensors")


def test_some_checkpoints_are_kept_for_good(tiny_config, tiny_images, tmp_path):
    settings = ["trainer.steps=10", "trainer.checkpoint_every=1", "trainer.keep=2", "trainer.keep_every=3"]
    run = train(tiny_config.with_settings(settings), tiny_images, tmp_path / "run").run
    kept = [int(path.name[5:]) for path in checkpoint.saved(run / "checkpoints")]
    assert kept == [3, 6, 9, 10]


def test_only_checkpoints_of_the_past_are_ever_deleted(tiny_config, tiny_images, tmp_path):
    run = train(tiny_config, tiny_images, tmp_path / "run").run
    newest = checkpoint.saved(run / "checkpoints")[-1]
    shutil.copytree(newest, newest.with_name("step-00000006.good"))  # a user's own
    (newest / "network.safetensors").write_bytes(b"")
    train(tiny_config.with_settings(["trainer.steps=4", "trainer.keep=1"]), tiny_images, run)
    names = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert names == ["step-00000004", "step-00000006", "step-00000006.good"]


def test_what_is_written_is_the_moment_of_saving(tiny_config, tiny_images, tmp_path, monkeypatch):
    """Training goes on while a checkpoint is written; it must not be seen there."""
    written, real = [], checkpoint.save

    def slow(root, snapshot, *rest):
        while trainer.step < min(snapshot.step + 1, 6):
            time.sleep(0.01)
        written.append({name: tensor.clone() for name, tensor in snapshot.files["network.safetensors"].items()})
        return real(root, snapshot, *rest)

    monkeypatch.setattr(checkpoint, "save", slow)
    settings = ["trainer.checkpoint_every=1", "trainer.log_every=1", "trainer.keep=10"]
    trainer = Trainer(tiny_config.with_settings(settings), tiny_images, tmp_path / "run")
    seen, step = [], trainer.train_step

    def watched():
        seen.append({name: tensor.clone() for name, tensor in trainer.training.optimizer.network.state_dict().items()})
        return step()

    trainer.train_step = watched
    trainer.train()
    for after, snapshot in zip(seen[1:], written):
        assert all(snapshot[name].equal(tensor) for name, tensor in after.items())


@pytest.mark.accident("a full disk", "in the background; the run stops soon, not at its end")
def test_a_failed_write_is_reported_at_the_next_stop(tiny_config, tiny_images, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "save", full)
    settings = ["trainer.steps=40", "trainer.checkpoint_every=10", "trainer.log_every=2"]
    trainer = Trainer(tiny_config.with_settings(settings), tiny_images, tmp_path / "run")
    step = trainer.train_step
    trainer.train_step = lambda: (time.sleep(0.05), step())[1]
    with pytest.raises(IhdmError, match="Free some space"):
        trainer.train()
    assert trainer.step < 20


@pytest.mark.accident("a file system without locks", "a warning, and the run ends")
def test_file_systems_without_locks_are_put_up_with(tiny_config, tiny_images, tmp_path, monkeypatch, capsys):
    def no_locks(*arguments):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("ihdm.run.fcntl.flock", no_locks)
    assert Trainer(tiny_config, tiny_images, tmp_path / "run").train()
    assert "cannot be locked" in capsys.readouterr().err


@pytest.mark.accident("two runs in one folder", "the second is refused, the first goes on")
def test_a_second_run_in_the_same_folder_is_refused(tiny_config, tiny_images, tmp_path):
    trainer = Trainer(tiny_config, tiny_images, tmp_path / "run")
    with locked(tmp_path / "run"), pytest.raises(UsageError, match="another process"):
        trainer.train()
    assert trainer.train()


@pytest.mark.accident(
    "a full disk", "while the model or a checkpoint is written; said in words, to the bit the same run after"
)
@pytest.mark.parametrize("place", ["model", "checkpoint"])
def test_a_full_disk_stops_the_run_and_leaves_the_checkpoint_before(
    tiny_config, tiny_images, tmp_path, place, monkeypatch
):
    run = train(tiny_config, tiny_images, tmp_path / "run").run
    before = weights(run)
    real = checkpoint.save_file

    def broken(path):
        Path(path).write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    if place == "model":
        monkeypatch.setattr(model_module, "write_tensors", lambda path, tensors: broken(path))
    else:
        last = "optimizer.safetensors"
        monkeypatch.setattr(
            checkpoint, "save_file", lambda tensors, path: broken(path) if path.name == last else real(tensors, path)
        )
    config = tiny_config.with_settings(["trainer.steps=12"])
    with pytest.raises(IhdmError, match="Free some space"):
        train(config, tiny_images, run)
    assert not list(run.rglob(".*.new"))  # what was half written is gone
    assert all(tensor.equal(before[name]) for name, tensor in weights(run).items())
    monkeypatch.undo()
    train(config, tiny_images, run)
    whole = weights(train(config, tiny_images, tmp_path / "whole").run)
    assert all(tensor.equal(whole[name]) for name, tensor in weights(run).items())


@pytest.mark.parametrize("killed", [True, False])
def test_a_run_that_could_not_begin_can_be_begun_again(killed, tiny_config, tiny_images, tmp_path, monkeypatch):
    run = tmp_path / "run"
    if killed:
        run.mkdir()
        (run / ".lock").touch()
        (run / ".config.toml.new").write_text("[pro")
    else:
        monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left")))
        with pytest.raises(OSError, match="No space"):
            train(tiny_config, tiny_images, run)
        monkeypatch.undo()
    assert train(tiny_config, tiny_images, run).step == 6


@pytest.mark.accident("no finite gradient", "for some steps; they change nothing and are counted")
def test_steps_without_a_finite_gradient_change_nothing_and_are_counted(tiny_config, tiny_images, tmp_path, capsys):
    trainer = Trainer(tiny_config, tiny_images, tmp_path / "run")
    poison(trainer, lambda step: step in (2, 3))
    training, states = trainer.training, []
    for _ in range(5):
        trainer.train_step()
        trainer.step += 1
        both = training.optimizer.network, training.average
        states.append([p.detach().clone() for m in both for p in m.parameters()])
    assert all(one.equal(other) for state in states[2:4] for one, other in zip(states[1], state))
    assert not all(one.equal(other) for one, other in zip(states[1], states[4]))
    assert float(training.optimizer.taken) == 3  # of Adam, which knows nothing of the two others

    trainer = Trainer(tiny_config, tiny_images, tmp_path / "other")
    poison(trainer, lambda step: step in (1, 2))
    trainer.train()
    assert "skipped 1 of 2 steps before step 2" in capsys.readouterr().out
    assert sum(line.get("skipped_steps", 0) for line in log(trainer.run)) == 2


@pytest.mark.accident("a user's own files", "in model folders and checkpoints; they stay")
def test_files_of_a_users_own_stay_where_they_are(tiny_config, tiny_images, tmp_path):
    trainer = Trainer(tiny_config.with_settings(["trainer.steps=2", "trainer.keep=1"]), tiny_images, tmp_path / "run")
    trainer.train()
    model, first = tmp_path / "run" / "model", checkpoint.saved(tmp_path / "run" / "checkpoints")[-1]
    (model / "samples").mkdir()
    for file in (model / "notes.txt", model / "samples" / "best.png", first / "why.txt"):
        file.write_text(file.name)
    weights = (model / "model.safetensors").read_bytes()
    Trainer(tiny_config.with_settings(["trainer.steps=8", "trainer.keep=1"]), tiny_images, tmp_path / "run").train()
    assert (model / "model.safetensors").read_bytes() != weights
    for file in (model / "notes.txt", model / "samples" / "best.png", first / "why.txt"):
        assert file.read_text() == file.name
    assert [int(path.name[5:]) for path in checkpoint.saved(first.parent)] == [2, 8]


def test_a_checkpoint_that_was_moved_and_linked_stays_where_it_is(tiny_config, tiny_images, tmp_path):
    config = tiny_config.with_settings(["trainer.keep=1"])
    run = train(config.with_settings(["trainer.steps=2"]), tiny_images, tmp_path / "run").run
    (first,) = checkpoint.saved(run / "checkpoints")
    first.rename(tmp_path / "elsewhere")
    first.symlink_to(tmp_path / "elsewhere")
    train(config, tiny_images, run)
    assert [int(path.name[5:]) for path in checkpoint.saved(run / "checkpoints")] == [2, 6]
    assert {path.name for path in (tmp_path / "elsewhere").iterdir()} == set(checkpoint.FILES)


@pytest.mark.accident("a link in place of RUN/model", "saves go where it leads")
def test_a_model_folder_may_be_a_link(tiny_config, tiny_images, tmp_path):
    train(tiny_config.with_settings(["trainer.steps=2"]), tiny_images, tmp_path / "run")
    (tmp_path / "large disk").mkdir()
    (tmp_path / "run" / "model").rename(tmp_path / "large disk" / "model")
    (tmp_path / "run" / "model").symlink_to(tmp_path / "large disk" / "model")
    train(tiny_config, tiny_images, tmp_path / "run")
    assert (tmp_path / "run" / "model").is_symlink()
    assert Model.from_pretrained(tmp_path / "large disk" / "model").config.steps == tiny_config.trainer.steps


@pytest.mark.parametrize("name", ["model", "checkpoints", "samples", "log.jsonl"])
def test_a_file_in_place_of_a_folder_is_refused_before_work_starts(name, tiny_config, tiny_images, tmp_path):
    train(tiny_config, tiny_images, tmp_path / "run")
    there = tmp_path / "run" / name
    there.rename(tmp_path / "away")
    there.mkdir() if there.suffix else there.write_text("mine")
    with pytest.raises(UsageError, match=f"{name} is a .* move it away"):
        Trainer(tiny_config.with_settings(["trainer.steps=9"]), tiny_images, tmp_path / "run")
    assert there.is_dir() or there.read_text() == "mine"


def test_a_file_that_takes_the_models_place_during_a_run_is_left_alone(tiny_config, tiny_images, tmp_path):
    trainer = Trainer(tiny_config, tiny_images, tmp_path / "run")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "model").write_text("mine")
    with pytest.raises(IhdmError, match="is a file where a folder is to be written"):
        trainer.train()
    assert (tmp_path / "run" / "model").read_text() == "mine"


def test_training_into_a_file_says_something_at_once_and_in_lines(tmp_path):
    """Before torch is loaded, which takes seconds."""
    words = ["train", "digits", "--run", str(tmp_path / "run"), "--set", "trainer.steps=3", "trainer.batch_size=4"]
    process = subprocess.Popen(
        [sys.executable, "-m", "ihdm", *words], stdout=subprocess.PIPE, stderr=(tmp_path / "errors").open("w")
    )
    assert process.stdout
    assert process.stdout.readline().startswith(b"training digits in ") and not (tmp_path / "run").exists()
    process.communicate()
    said = (tmp_path / "errors").read_text()
    assert "\r" not in said and "training: 3 of 3 steps" in said.splitlines()[-1]


def test_without_held_out_images_training_works(tiny_config, tiny_images, tmp_path):
    alone = type(tiny_images)("blob", tiny_images.train[:1], tiny_images.held_out[:0])
    lines = log(train(tiny_config, alone, tmp_path / "run").run)
    assert lines and not any("held_out_loss" in line for line in lines)


@pytest.mark.parametrize("parts", [2, 3, 8])
def test_a_batch_in_parts_has_the_gradient_of_the_whole(tiny_config, tiny_images, tmp_path, parts):
    found = []
    for name, accumulate in (("whole", 1), ("parts", parts)):
        settings = [f"trainer.accumulate={accumulate}", "network.dropout=0", "data.flip=true"]
        trainer = Trainer(tiny_config.with_settings(settings), tiny_images, tmp_path / name)
        trainer.step = 3
        loss, _ = trainer.train_step()
        found.append([loss, *(p.grad for p in trainer.model.network.parameters() if p.grad is not None)])
    for whole, part in zip(*found, strict=True):
        torch.testing.assert_close(part, whole, rtol=1e-4, atol=1e-6)


class Told(torch.nn.Module):
    """A network that is told something of each image, and remembers it."""

    def __init__(self):
        super().__init__()
        self.weight, self.seen = torch.nn.Parameter(torch.ones(())), []

    def forward(self, u, k, condition=None):
        self.seen.append(condition)
        return self.weight * condition[:, :, None, None] * u


def test_what_a_network_is_told_arrives_in_every_part_of_a_batch(tiny_config, tiny_images, tmp_path):
    gradients = []
    for parts in (1, 2, 3):
        config = tiny_config.with_settings([f"trainer.accumulate={parts}"])
        trainer, network = Trainer(config, tiny_images, tmp_path / str(parts)), Told()
        model = Model(trainer.model.config, trainer.model.process, network)
        training = Training(config, model, trainer.accelerator, torch.float32)
        condition = torch.arange(8.0)[:, None]
        training.step(3, tiny_images.train[:8], condition)
        assert len(network.seen) == parts
        assert all(seen.equal(condition[part::parts]) for part, seen in enumerate(network.seen))
        gradients.append(network.weight.grad.clone())
        training.step(3, tiny_images.train[:8], 2 * condition)
        assert not network.weight.grad.isclose(gradients[-1], rtol=1e-3)
    assert gradients[0] != 0
    torch.testing.assert_close(gradients[1:], [gradients[0]] * 2)


def test_held_out_images_are_computed_in_parts_too(tiny_config, labelled, tmp_path):
    """Else a run that trains would run out of memory at its first checkpoint."""
    losses, seen = [], []
    images = replace(labelled, held_out=labelled.held_out[:7], held_out_labels=labelled.held_out_labels[:7])
    for parts in (1, 3):
        config = tiny_config.with_settings([f"trainer.accumulate={parts}"])
        trainer = Trainer(config, images, tmp_path / str(parts))
        network = trainer.training.average
        network.register_forward_hook(lambda module, inputs, answer: seen.append(len(answer)))
        losses.append(trainer.held_out_loss())
    assert seen == [7, 3, 3, 1]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.accident("out of memory", "answered with a batch that fits")
def test_a_batch_that_does_not_fit_is_answered_with_one_that_does(tiny_config, tiny_images, tmp_path, monkeypatch):
    config = tiny_config.with_settings(["trainer.batch_size=8", "trainer.accumulate=2"])
    trainer = Trainer(config, tiny_images, tmp_path / "run")

    def exhausted():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    trainer.train_step = exhausted
    with pytest.raises(IhdmError, match=r"4 images at a time; 2 should fit, with --set trainer\.accumulate=4"):
        trainer.train()
    monkeypatch.setattr(memory, "all_bytes", lambda device: 10)
    with pytest.raises(IhdmError, match="4 images at a time, or even for one"):
        trainer.train()


def test_one_image_that_does_not_fit_is_not_answered_with_one_image(tiny_config, tiny_images, tmp_path):
    """If others use the device, more might seem to fit than does."""
    config = tiny_config.with_settings(["trainer.accumulate=8"])
    training = Trainer(config, tiny_images, tmp_path / "plain").training
    assert training.smaller_parts().endswith("at a time; 1 with --set engine.checkpoint=true trainer.accumulate=8")
    config = config.with_settings(["engine.checkpoint=true"])
    trainer = Trainer(config, tiny_images, tmp_path / "again")
    assert "or even for one; use smaller images" in trainer.training.smaller_parts()
    with pytest.raises(IhdmError, match=r"or even for one$"), trainer.trained_model().runner().advice(1):
        raise MemoryError


def test_a_step_is_clipping_then_adam_then_the_moving_average(tiny_config, tiny_images, tmp_path):
    """Against the formulas, written out, from the gradients that the trainer finds; both rates ramp."""
    config = tiny_config.with_settings(["trainer.clip=0.001", "trainer.ema=0.5", "trainer.warmup=4"])
    trainer = Trainer(config, tiny_images, tmp_path / "run")
    training = trainer.training
    weights, averages = (
        [p.detach().clone().double() for p in m.parameters()] for m in (training.optimizer.network, training.average)
    )
    first, second = ([torch.zeros_like(w) for w in weights] for _ in range(2))
    update, gradients = training._update, []

    def watched(rates):
        gradients[:] = [p.grad.clone().double() for p in training.optimizer.network.parameters()]
        return update(rates)

    training._update = watched
    for step in range(4):
        _, norm = trainer.train_step()
        trainer.step += 1
        expected_norm = torch.cat([g.flatten() for g in gradients]).norm()
        assert float(norm) == pytest.approx(float(expected_norm), rel=1e-5) and norm > 0.001
        decay = min(0.5, (1 + step) / (10 + step)) if step else 0.0
        for i, gradient in enumerate(gradients):
            clipped = gradient * 0.001 / expected_norm
            first[i] = 0.9 * first[i] + 0.1 * clipped
            second[i] = 0.999 * second[i] + 0.001 * clipped**2
            mean, square = first[i] / (1 - 0.9 ** (step + 1)), second[i] / (1 - 0.999 ** (step + 1))
            weights[i] -= 0.002 * (step + 1) / 4 * mean / (square.sqrt() + 1e-8)
            averages[i] = decay * averages[i] + (1 - decay) * weights[i]
        for found, expected in ((training.optimizer.network, weights), (training.average, averages)):
            for one, other in zip(found.parameters(), expected):
                torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=2e-6)


@pytest.mark.parametrize("kind", [Adam, FlatAdam])
def test_a_loaded_optimizer_keeps_the_memory_order_and_place_of_its_tensors(kind, tmp_path):
    """Fused Adam asks for the one, a recorded step for the other."""
    network = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    average = copy.deepcopy(network).requires_grad_(False)
    optimizer = kind(network, average, clip=1.0)
    rates = torch.tensor([0.01, 0.5])

    def step() -> None:
        optimizer.forget_gradients()
        network(torch.ones(1, 3, 5, 5)).square().sum().backward()
        optimizer.update(rates)

    step()
    path = checkpoint.save(tmp_path, checkpoint.Snapshot.of(optimizer, 1, "data"), keep=1)
    saved = {name: value.clone() for name, value in optimizer.tensors().items()}
    step()
    assert not any(saved[name].equal(value) for name, value in optimizer.tensors().items())
    places = {name: value.data_ptr() for name, value in optimizer.tensors().items()}
    checkpoint.load(path, optimizer)
    assert {name: value.data_ptr() for name, value in optimizer.tensors().items()} == places
    assert optimizer.tensors()["0.exp_avg"].stride() == network.weight.stride()
    for name, value in saved.items():
        torch.testing.assert_close(optimizer.tensors()[name], value)


def test_learning_rate_rises_holds_and_falls():
    settings = TrainerConfig(steps=100, lr=1.0, warmup=10, decay=0.5)
    rates = [learning_rate(settings, step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1) and rates[9] == 1.0 and rates[49] == 1.0
    assert rates[75] == pytest.approx(0.5) and rates[99] == pytest.approx(0.02)
    constant = TrainerConfig(steps=100, lr=1.0, warmup=0, decay=0.0)
    assert {learning_rate(constant, step) for step in range(100)} == {1.0}


def test_the_average_follows_the_ramp():
    """Against the recursion written out: decay min(d, (1 + n) / (10 + n)) with n updates before."""
    network = torch.nn.Linear(2, 2)
    average = copy.deepcopy(network).requires_grad_(False)
    optimizer = Adam(network, average, clip=1.0)
    expected = [p.detach().clone() for p in average.parameters()]
    for n in range(12):
        network(torch.randn(3, 2)).square().sum().backward()
        optimizer.update(torch.tensor([0.1, averaging_weight(TrainerConfig(ema=0.5), n)]))
        decay = min(0.5, (1 + n) / (10 + n)) if n else 0.0
        expected = [decay * old + (1 - decay) * new for old, new in zip(expected, network.parameters())]
        for found, wanted in zip(average.parameters(), expected):
            torch.testing.assert_close(found, wanted)
