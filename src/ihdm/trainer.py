"""A training run. A step depends on the settings and its own number alone, so a stopped run continues exactly.

On a CPU it does so to the bit; on a GPU up to rounding, because algorithms are chosen by speed at each start.
"""

from __future__ import annotations

import contextlib
import copy
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor
from tqdm import tqdm

from ihdm import checkpoint, memory, pictures, trackers
from ihdm.config import Config, config_from_toml, config_to_toml, read_text
from ihdm.data import Images, ImageSet
from ihdm.data.batches import Batches, resident
from ihdm.data.streamed import StreamedBatches
from ihdm.disk import replaced_folder, replaced_text
from ihdm.engine import Frozen, choose_device, choose_precision
from ihdm.errors import IhdmError, UsageError
from ihdm.evaluation import quality
from ihdm.execution import Execution
from ihdm.held_out import by_band, held_out_losses
from ihdm.metrics.inception import Inception, find_inception
from ihdm.model import Model
from ihdm.model_folder import GUIDE, ModelConfig, read_config
from ihdm.noise import Purpose, generator, mix_seed
from ihdm.optimisation import learning_rate
from ihdm.progress import progress_bar
from ihdm.run import Log, check_run, locked
from ihdm.stopping import stop_requests
from ihdm.training import Training
from ihdm.workers import meet
from ihdm.writer import Writer, advice_on_room

FEEDING_A_GPU = 4  # processes that read a stream fast enough for the CIFAR-10 model on an H200 (docs/reliability.md)


class Trainer:
    """Trains one model in one run folder, from the newest checkpoint if there is one."""

    def __init__(self, config: Config, images: ImageSet, run: Path):
        check_run(run, config)
        trackers.check(config.trainer.tracker)
        self.config, self.images, self.run = config, images, run
        self.inception = self._to_measure_with()
        device = choose_device(config.engine.device)
        self.precision = choose_precision(config.engine.precision, device, images.shape[1:])
        meet("nccl" if device.type == "cuda" else "gloo")
        AcceleratorState._reset_state(reset_partial_state=True)  # left by another run in this process
        self.accelerator = Accelerator(cpu=device.type == "cpu", mixed_precision="no")
        self.device = device = self.accelerator.device
        if config.trainer.batch_size % self.accelerator.num_processes:
            raise UsageError(
                f"trainer.batch_size={config.trainer.batch_size} must be a multiple of the number of processes, "
                f"{self.accelerator.num_processes}"
            )
        at_hand = resident(images.train, device)
        model_config = ModelConfig.of(config, images.domain, images.name, images.labels)
        with torch.random.fork_rng():
            torch.manual_seed(mix_seed(config.trainer.seed, Purpose.INIT))
            known = at_hand if device.type == "cuda" else images.train
            self.model = Model.from_images(model_config, known, images.train_labels)
        self.training = Training(config, self.model, self.accelerator, self.precision)
        self.batches = self._batches(at_hand)
        self.fingerprint = images.fingerprint()
        self.step = 0
        self.skipped = 0  # steps in a row, up to this one
        self.writer = Writer()

    def _to_measure_with(self) -> Path | None:
        """The file of the network that measures samples, if they are to be measured and need one."""
        settings = self.config.trainer
        if not settings.measure_every:
            return None
        if self.images.stream:
            raise UsageError(
                "trainer.measure_every compares samples with all training images, and a stream never has all of them"
            )
        quality.check_images([self.measure], settings.measured, self.images, "train", allow_few=False)
        return find_inception() if quality.needs_inception([self.measure], self.images.domain) else None

    @property
    def measure(self) -> str:
        """The metric that measures samples in training."""
        return "kid" if self.images.domain.kind == "images" else "modes"

    def train(self) -> bool:
        """Run to the last step and write the model. False if a signal stopped it earlier; then everything is saved."""
        with locked(self.run) if self.accelerator.is_main_process else contextlib.nullcontext():
            self._resume()
            try:
                self._train()
            finally:
                self.batches.close()
                self.writer.wait()
        return self.ended

    @property
    def ended(self) -> bool:
        """Whether the last step, or one beyond, has been taken."""
        return self.step >= self.config.trainer.steps

    def _batches(self, images: Images) -> Batches | StreamedBatches:
        size, seed, stream = self.config.trainer.batch_size, self.config.trainer.seed, self.images.stream
        if stream is None:
            return Batches(images, size, seed, self.device, self.images.train_labels)
        workers = self.config.data.workers
        if workers is None:
            workers = min(FEEDING_A_GPU, os.cpu_count() or 1) if self.device.type == "cuda" else 0
        return StreamedBatches(stream, size, seed, self.device, workers)

    def _train(self) -> None:
        settings = self.config.trainer
        log = None
        if self.accelerator.is_main_process:
            config, kind = self.config.tree(), "none" if self.ended else settings.tracker
            log = Log(self.run, self.step, trackers.started(kind, self.run, self.step, config))
        with stop_requests() as asked, self._bar() as bar:
            while not self.ended:
                with memory.advice(self.training.smaller_parts):
                    facts = self._train_steps(self._next_stop(), bar, asked)
                if log and facts:
                    log.write(self.step, facts)
                self.writer.check()
                stopping = self._agreed(asked())
                if stopping or self._due(settings.checkpoint_every):
                    self._save()
                if self._due(settings.checkpoint_every):
                    self._log_held_out_loss(log)
                if self._due(settings.sample_every):
                    self._picture(log)
                if self._due(settings.measure_every):
                    self._measure(log)
                if stopping:
                    break
            self.writer.wait()  # while signals are still caught
        if log:
            log.close()

    def trained_model(self) -> Model:
        """The model with the averaged weights of this step."""
        config, start_labels = replace(self.model.config, steps=self.step), self.model.start_labels
        return Model(config, self.model.process, copy.deepcopy(self.training.averaged()), start_labels)

    def _next_stop(self) -> int:
        """The next step after which there is something to write."""
        settings = self.config.trainer
        intervals = settings.log_every, settings.checkpoint_every, settings.sample_every, settings.measure_every
        return min(settings.steps, *(self.step - self.step % interval + interval for interval in intervals if interval))

    def _due(self, interval: int) -> bool:
        """Whether it is time for something that is done after so many steps, and after the last; 0: never."""
        return bool(interval) and (self.step % interval == 0 or self.step == self.config.trainer.steps)

    def _agreed(self, asked: bool) -> bool:
        """Whether any process was asked to stop, so that all stop after the same step."""
        if self.accelerator.num_processes == 1:
            return asked
        votes = torch.tensor([float(asked)], device=self.accelerator.device)
        return bool(self.accelerator.reduce(votes).item())

    def _train_steps(self, end: int, bar: tqdm[Any], asked: Callable[[], bool]) -> dict[str, float]:
        """Train up to step `end` without waiting for the device in between. What to log: mean loss, speed and so on."""
        start, first = time.perf_counter(), self.step
        alone = self.accelerator.num_processes == 1
        losses, norms = [], []
        while self.step < end and not (alone and asked()):
            loss, norm = self.train_step()
            losses.append(loss)
            norms.append(norm)
            self.step += 1
            bar.update()
        if not losses:
            return {}
        own = torch.stack(losses)
        everyone = own if alone else self.accelerator.reduce(own, reduction="mean")
        mean_loss, mean_norm, skipped = self._means(everyone, torch.stack(norms))
        speed = (self.step - first) * self.config.trainer.batch_size / (time.perf_counter() - start)
        rate = learning_rate(self.config.trainer, self.step - 1)
        bar.set_postfix({"loss": f"{mean_loss:.4g}", f"{self.images.domain.noun}s/s": f"{speed:.0f}"})
        facts = {"loss": mean_loss, "gradient_norm": mean_norm, "lr": rate, "images_per_second": round(speed, 1)}
        if self.device.type == "cuda":
            facts["gpu_memory_gb"] = round(torch.cuda.max_memory_allocated(self.device) / 1e9, 3)
        facts |= {"skipped_steps": skipped} if skipped else {}
        return {name: value for name, value in facts.items() if math.isfinite(value)}  # no loss if all were skipped

    def _means(self, losses: Tensor, norms: Tensor) -> tuple[float, float, int]:
        """Mean loss and norm of the steps that were taken, and how many were skipped. Too many in a row end the run."""
        taken = norms.isfinite().cpu()
        for good in taken.tolist():
            self.skipped = 0 if good else self.skipped + 1
            if self.skipped > self.config.trainer.skip_most:
                raise IhdmError(
                    f"training diverged before step {self.step:,}: {self.skipped} steps in a row had no finite "
                    f"gradient. The last checkpoint is kept; try a smaller trainer.lr, a longer trainer.warmup or "
                    f"another trainer.seed"
                )
        skipped = int((~taken).sum())
        if skipped:
            self.say(f"skipped {skipped} of {len(taken)} steps before step {self.step:,}: the gradient was not finite")
        return float(losses.cpu()[taken].mean()), float(norms.cpu()[taken].mean()), skipped

    def train_step(self) -> tuple[Tensor, Tensor]:
        """The next step: its loss, and the norm of its gradient."""
        place = self.step, self.accelerator.process_index, self.accelerator.num_processes
        return self.training.step(self.step, self.batches.at(*place), self.batches.labels_at(*place))

    def _resume(self) -> None:
        """Continue from the newest checkpoint, or start the run folder."""
        facts, config = checkpoint.resume(self.run / "checkpoints", self.training.optimizer), self.config
        if facts is not None:
            if facts["data"] != self.fingerprint:
                raise UsageError(
                    f"the images of {self.images.name} are not those that {self.run} was started with; "
                    f"give the same images, or another folder with --run"
                )
            self.step = facts["step"]
            self.batches.go_on(self.step, facts["places"])
            path = self.run / "config.toml"
            before, steps = config_from_toml(read_text(path), str(path)).trainer, config.trainer.steps
            if not self.ended:
                self.say(f"continuing from step {self.step:,} of {steps:,} in {self.run}")
                self._warn_of_another_end(before.steps)
                self._warn_of_another_division(facts["processes"], before.accumulate)
            else:
                self.say(f"{self.run} is already at step {self.step:,}; nothing to do for trainer.steps={steps}")
                config = config.with_settings([f"trainer.steps={before.steps}"])  # those that it was trained for
        if self.accelerator.is_main_process:
            self.run.mkdir(parents=True, exist_ok=True)
            replaced_text(self.run / "config.toml", config_to_toml(config))
        if facts is not None and self._agreed(self.accelerator.is_main_process and not self._model_is_current()):
            model = self.trained_model()
            if self.accelerator.is_main_process:
                _write_model(self.run, model)
                self.say(f"the model is written again; it samples in {model.process.sampling_words()}")
        self.accelerator.wait_for_everyone()

    def _model_is_current(self) -> bool:
        """Whether the model is there and samples as is asked for now."""
        folder = self.run / "model"
        if not all((folder / name).exists() for name in self.model.file_names()):
            return False
        try:
            return bool(read_config(folder, guided=False).sampling == self.config.sampling)
        except IhdmError:
            return False  # it is damaged, and can be made again

    def _warn_of_another_end(self, before: int) -> None:
        settings = self.config.trainer
        if settings.decay > 0 and before != settings.steps:
            self.say(
                f"trainer.steps was {before:,}, is {settings.steps:,}: the learning rate now falls towards the new "
                f"end, so the result will differ from that of one uninterrupted run"
            )

    def _warn_of_another_division(self, processes: int, parts: int) -> None:
        """Warn if batches are divided in another way, among processes or in parts, where that changes the gradient.

        It does not if the network treats all images alike.
        """
        own = [name for name in ("dropout", "pyramid") if getattr(self.config.network, name, None)]
        divisions = {
            "the number of processes": (processes, self.accelerator.num_processes),
            "trainer.accumulate": (parts, self.config.trainer.accumulate),
        }
        for name, (before, now) in divisions.items():
            if before != now and own:
                self.say(
                    f"{name} was {before}, is {now}: network.{own[0]} acts on each part of a batch by itself, so the "
                    f"result will differ from that of one uninterrupted run"
                )

    def _save(self) -> None:
        """Start to write the model folder and then a checkpoint, so that a checkpoint always has its model."""
        places = self._places()
        if self.accelerator.is_main_process or self.training.sharded:
            self.writer.wait()
            facts = self.step, self.fingerprint, self.accelerator.num_processes, places
            snapshot = checkpoint.Snapshot.of(self.training.optimizer, *facts)
            model = self.trained_model()
        if self.accelerator.is_main_process:
            settings, run = self.config.trainer, self.run
            model.network = model.network.cpu()

            def write() -> None:
                with advice_on_room(run):
                    _write_model(run, model)
                    checkpoint.save(run / "checkpoints", snapshot, settings.keep, settings.keep_every)

            self.writer.start(write)
            if self.ended:
                self.writer.wait()
        self.accelerator.wait_for_everyone()

    def _places(self) -> list[list[int]] | None:
        """Where a stream of images stands, gathered from all processes; None if the images are no stream."""
        places = self.batches.places(self.accelerator.process_index, self.accelerator.num_processes)
        return None if places is None else self.accelerator.reduce(places.to(self.device)).tolist()

    def _log_held_out_loss(self, log: Log | None) -> None:
        """Log the held-out loss of all levels, and by band."""
        if (log or self.training.sharded) and len(self.images.held_out):
            losses, levels = self._held_out_losses()
            if log:
                bands = by_band(losses, levels, self.model.process.K)
                log.write(self.step, {"held_out_loss": float(losses.mean())} | bands)
        self.accelerator.wait_for_everyone()

    def held_out_loss(self) -> float:
        """The loss of the averaged weights on held-out images."""
        return float(self._held_out_losses()[0].mean())

    def _held_out_losses(self) -> tuple[Tensor, Tensor]:
        """The loss of each held-out image by the averaged weights, and its level: the same levels and noise each time.

        As many images are computed at a time as in training, which are known to fit into memory.
        """
        settings, images = self.config.trainer, self.images
        chance = generator(settings.seed, Purpose.HELD_OUT, device=self.device)
        network = Frozen(self.training.averaged(), self.precision, self.config.engine.compile)
        sizes, labels = (settings.batch_size, self.training.part), images.held_out_labels
        return held_out_losses(self.model.process, network, images.held_out, labels, chance, *sizes)

    def _measure(self, log: Log | None) -> None:
        """Log the distance of samples from the training images: KID, or for other data the distance of modes."""
        model = self.trained_model() if self.training.sharded or log else None
        if model and log:
            execution = Execution(self.precision, self.config.engine.compile)
            network = Inception(self.inception, "clean").to(self.device) if self.inception else None
            n = self.config.trainer.measured
            found = quality.evaluate(model, self.images, network, n, [self.measure], execution=execution)
            figures = {"kid": found.kid[0] if found.kid else None, "modes": found.modes_distance} if found else {}
            if (figure := figures.get(self.measure)) is not None:
                log.write(self.step, {self.measure: figure})
        self.accelerator.wait_for_everyone()

    def _picture(self, log: Log | None) -> None:
        model = self.trained_model() if self.training.sharded or log else None
        if model and log:
            execution = Execution(self.precision, self.config.engine.compile)
            images = model.sample(self.config.trainer.samples, execution=execution)
            (self.run / "samples").mkdir(exist_ok=True)
            page = pictures.grid(model.config.domain.pictures(images))
            page.save(self.run / "samples" / f"step-{self.step:08d}.png")
            log.picture(self.step, "samples", page)
        self.accelerator.wait_for_everyone()

    def _bar(self) -> tqdm[Any]:
        return progress_bar(
            initial=self.step,
            total=self.config.trainer.steps,
            desc="training",
            unit="step",
            disable=not self.accelerator.is_main_process or self.ended,
            mininterval=0.3,
            leave=True,
        )

    def say(self, message: str, file: TextIO | None = None) -> None:
        """Print in one process only."""
        if self.accelerator.is_main_process:
            print(message, flush=True, file=file)


def _write_model(run: Path, model: Model) -> None:
    """Replace the model of a run. A weaker network that it was given (ihdm guide) stays."""
    before = run / "model"
    with replaced_folder(before) as folder:
        if (before / GUIDE).exists():
            try:
                model = model.guided_like(before)
            except (IhdmError, OSError) as error:
                print(f"warning: the model is written without its weaker network: {error}", file=sys.stderr)
        model.save_pretrained(folder)
