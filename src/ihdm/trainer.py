"""The training loop. A step depends on the settings and its own number alone, so a stopped run goes on exactly."""

from __future__ import annotations

import contextlib
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor
from torch.optim.swa_utils import AveragedModel
from tqdm import tqdm

from ihdm import checkpoint, pictures
from ihdm.config import Config, TrainerConfig, config_from_toml, config_to_toml, read_text
from ihdm.data import ImageSet, unit_batches
from ihdm.data.batches import Batches
from ihdm.engine import choose_device, choose_precision, inference
from ihdm.errors import IhdmError, UsageError
from ihdm.model import Model
from ihdm.model_folder import ModelConfig
from ihdm.noise import mix_seed
from ihdm.run import Log, check_run

STEP_STREAM, INIT_STREAM, HELD_OUT_STREAM = 2, 3, 4  # keep uses of one seed apart; see also data.batches


class Trainer:
    """Trains one model in one run folder, from its newest checkpoint if it has one."""

    def __init__(self, config: Config, images: ImageSet, run: Path):
        check_run(run, config)
        self.config, self.images, self.run = config, images, run
        device = choose_device(config.engine.device)
        self.precision = choose_precision(config.engine.precision, device, math.prod(images.shape[1:]))
        AcceleratorState._reset_state()  # accelerate would refuse a second run in this process with another precision
        self.accelerator = Accelerator(
            cpu=device.type == "cpu",
            mixed_precision="bf16" if self.precision == torch.bfloat16 else "no",
        )
        device = self.accelerator.device
        if config.trainer.batch_size % self.accelerator.num_processes:
            raise UsageError(
                f"trainer.batch_size={config.trainer.batch_size} must be a multiple of the number of processes, "
                f"{self.accelerator.num_processes}"
            )
        resident = _resident(images.train, device)
        model_config = ModelConfig(config.process, config.network, images.shape, images.name)
        with torch.random.fork_rng():
            torch.manual_seed(mix_seed(config.trainer.seed, INIT_STREAM))
            self.model = Model.from_images(model_config, resident if device.type == "cuda" else images.train)
        network = self.model.network.to(device)
        network.checkpoint = config.engine.checkpoint  # type: ignore[assignment]
        self.average = AveragedModel(network, multi_avg_fn=ramped_average(config.trainer.ema)).eval()
        optimizer = torch.optim.Adam(network.parameters(), lr=config.trainer.lr, fused=device.type == "cuda")
        self.network, self.optimizer = self.accelerator.prepare(network, optimizer)
        self.state = checkpoint.TrainingState(network, self.average, self.optimizer)
        self.batches = Batches(resident, config.trainer.batch_size, config.trainer.seed, config.data.flip, device)
        self.fingerprint = images.fingerprint()
        self.generator = torch.Generator(device)
        self.step = 0

    def train(self) -> bool:
        """Run to the last step and write the model; False if a signal stopped it earlier, with everything saved."""
        settings = self.config.trainer
        self._resume()
        log = Log(self.run, self.step) if self.accelerator.is_main_process else None
        with stop_requests() as asked, self._bar() as bar:
            while self.step < settings.steps:
                facts = self._train_steps(self._next_stop(), bar, asked)
                if log and facts:
                    log.write(self.step, facts)
                if self._agreed(asked()):
                    self._save()
                    break
                if self._due(settings.checkpoint_every):
                    self._save()
                    self._check(log)
                if self._due(settings.sample_every):
                    self._picture()
        if log:
            log.close()
        return self.step >= settings.steps

    def trained_model(self) -> Model:
        """The model with averaged weights, as it stands."""
        config = self.model.config
        config = ModelConfig(config.process, config.network, config.shape, config.data, self.step)
        return Model(config, self.model.process, self.average.module, self.model.prior)

    def _next_stop(self) -> int:
        """The next step after which there is something to write."""
        settings = self.config.trainer
        intervals = settings.log_every, settings.checkpoint_every, settings.sample_every
        return min(settings.steps, *(self.step - self.step % interval + interval for interval in intervals))

    def _due(self, interval: int) -> bool:
        return self.step % interval == 0 or self.step == self.config.trainer.steps

    def _agreed(self, asked: bool) -> bool:
        """Whether any process was asked to stop: all stop after the same step, or none."""
        if self.accelerator.num_processes == 1:
            return asked
        votes = torch.tensor([float(asked)], device=self.accelerator.device)
        return bool(self.accelerator.reduce(votes).item())

    def _train_steps(self, end: int, bar: tqdm[Any], asked: Callable[[], bool]) -> dict[str, float]:
        """Train up to step `end` without waiting for the device in between; the mean loss and the speed."""
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
        mean_loss, mean_norm = float(torch.stack(losses).mean()), float(torch.stack(norms).mean())
        if not math.isfinite(mean_loss):
            raise IhdmError(
                f"training diverged before step {self.step:,} (the loss is {mean_loss}); the last checkpoint is kept. "
                f"Try a smaller trainer.lr, a longer trainer.warmup, or another trainer.seed"
            )
        speed = (self.step - first) * self.config.trainer.batch_size / (time.perf_counter() - start)
        rate = learning_rate(self.config.trainer, self.step - 1)
        bar.set_postfix({"loss": f"{mean_loss:.4g}", "images/s": f"{speed:.0f}"})
        return {"loss": mean_loss, "gradient_norm": mean_norm, "lr": rate, "images_per_second": round(speed, 1)}

    def train_step(self) -> tuple[Tensor, Tensor]:
        """Alg. 1 on one batch, then Adam and the moving average."""
        rank, ranks = self.accelerator.process_index, self.accelerator.num_processes
        seed = mix_seed(self.config.trainer.seed, STEP_STREAM, self.step, rank)
        self.generator.manual_seed(seed)
        torch.manual_seed(seed)  # dropout draws from torch's own generator
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config.trainer, self.step)
        u_0 = self.batches.at(self.step, self.generator, rank, ranks)
        self.optimizer.zero_grad()
        loss = self._backward(u_0)
        norm = self.accelerator.clip_grad_norm_(self.network.parameters(), self.config.trainer.clip)
        self.optimizer.step()
        self.average.update_parameters(self.state.network)
        return loss, norm

    def _backward(self, u_0: Tensor) -> Tensor:
        """The mean loss of a batch and its gradient, computed in parts; processes exchange gradients in the last."""
        parts = u_0.chunk(self.config.trainer.accumulate)
        total = torch.zeros((), device=u_0.device)
        for number, part in enumerate(parts, start=1):
            with contextlib.nullcontext() if number == len(parts) else self.accelerator.no_sync(self.network):
                loss = self.model.process.loss(self.network, part, self.generator).sum() / len(u_0)
                self.accelerator.backward(loss)
                total += loss.detach()
        return total

    def _resume(self) -> None:
        """Go on from the newest checkpoint, or begin the run folder."""
        found = checkpoint.saved(self.run / "checkpoints")
        if found:
            facts = checkpoint.load(found[-1], self.state)
            if facts["data"] != self.fingerprint:
                raise UsageError(
                    f"the images of {self.images.name} are not those that {self.run} was started with; "
                    f"give the old ones, or another folder with --run"
                )
            self.step = facts["step"]
            self.say(f"going on from step {self.step:,} of {self.config.trainer.steps:,} in {self.run}")
            self._warn_of_another_end()
        if self.accelerator.is_main_process:
            self.run.mkdir(parents=True, exist_ok=True)
            (self.run / "config.toml").write_text(config_to_toml(self.config), encoding="utf-8")
            if found and not (self.run / "model").exists():
                self._write_model()
        self.accelerator.wait_for_everyone()

    def _warn_of_another_end(self) -> None:
        path = self.run / "config.toml"
        before, settings = config_from_toml(read_text(path), str(path)).trainer.steps, self.config.trainer
        if settings.decay > 0 and before != settings.steps:
            self.say(
                f"trainer.steps was {before:,}, is {settings.steps:,}: the learning rate now falls towards the new "
                f"end, and the result is not that of one uninterrupted run"
            )

    def _save(self) -> None:
        """Write the model folder and then a checkpoint, so that a checkpoint always has its model."""
        if self.accelerator.is_main_process:
            self._write_model()
            root, keep = self.run / "checkpoints", self.config.trainer.keep
            checkpoint.save(root, self.step, self.fingerprint, self.state, keep)
        self.accelerator.wait_for_everyone()

    def _write_model(self) -> None:
        with checkpoint.replaced_folder(self.run / "model") as folder:
            self.trained_model().save_pretrained(folder)

    def _check(self, log: Log | None) -> None:
        """Log the held-out loss."""
        if log and len(self.images.held_out):
            log.write(self.step, {"held_out_loss": self.held_out_loss()})
        self.accelerator.wait_for_everyone()

    @torch.no_grad()
    def held_out_loss(self) -> float:
        """The loss of the averaged weights on held-out images, always with the same levels and noise."""
        self.generator.manual_seed(mix_seed(self.config.trainer.seed, HELD_OUT_STREAM))
        network = inference(self.average.module, self.precision)
        losses = [
            self.model.process.loss(network, u_0.to(self.accelerator.device), self.generator)
            for u_0 in unit_batches(self.images.held_out, self.config.trainer.batch_size)
        ]
        return float(torch.cat(losses).mean())

    def _picture(self) -> None:
        if self.accelerator.is_main_process:
            images = self.trained_model().sample(self.config.trainer.samples, precision=self.precision)
            (self.run / "samples").mkdir(exist_ok=True)
            pictures.grid(images).save(self.run / "samples" / f"step-{self.step:08d}.png")
        self.accelerator.wait_for_everyone()

    def _bar(self) -> tqdm[Any]:
        return tqdm(
            initial=self.step,
            total=self.config.trainer.steps,
            desc="training",
            unit="step",
            disable=not self.accelerator.is_main_process,
            mininterval=0.3 if sys.stderr.isatty() else 15,
        )

    def say(self, message: str) -> None:
        """Print, in one process only."""
        if self.accelerator.is_main_process:
            print(message, flush=True)


def learning_rate(settings: TrainerConfig, step: int) -> float:
    """Linear warm-up (App. B.1), and a linear fall to zero where `decay` asks for one."""
    rise = min(1.0, (step + 1) / max(settings.warmup, 1))
    fall = min(1.0, (settings.steps - step) / max(settings.decay * settings.steps, 1))
    return settings.lr * rise * fall


def ramped_average(decay: float) -> Callable[[Any, Any, Any], None]:
    """The update of a moving average whose decay grows with the number n of updates, min(decay, (1 + n) / (10 + n)).

    The decay stays a tensor: reading it would make the host wait for the device at every step.
    """

    @torch.no_grad()
    def update(averages: list[Tensor], current: list[Tensor], n: Tensor) -> None:
        weight = 1 - ((1 + n) / (10 + n)).clamp_max(decay)
        steps = torch._foreach_sub(current, averages)
        torch._foreach_mul_(steps, weight.to(averages[0].dtype))
        torch._foreach_add_(averages, steps)

    return update


@contextlib.contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C or SIGTERM has asked to stop; a second Ctrl-C stops at once."""
    received: list[int] = []

    def receive(number: int, frame: Any) -> None:
        if received and number == signal.SIGINT:
            raise KeyboardInterrupt
        received.append(number)

    in_main_thread = threading.current_thread() is threading.main_thread()  # Python allows handlers only there
    numbers = (signal.SIGINT, signal.SIGTERM) if in_main_thread else ()
    before = {number: signal.signal(number, receive) for number in numbers}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _resident(images: Tensor, device: torch.device) -> Tensor:
    """The images on the device if they leave most of its memory free, else where they are."""
    if device.type == "cuda" and images.nbytes > 0.4 * torch.cuda.mem_get_info(device)[0]:
        return images
    return images.to(device)
