"""One training step (Alg. 1): a function of the settings, its own number and the images, and nothing else."""

from __future__ import annotations

import contextlib
import copy
from functools import partial

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from ihdm import memory
from ihdm.config import Config
from ihdm.data.batches import mirrored
from ihdm.engine import Lowered, Recorded, compile_ahead, lowered, placed, recorded
from ihdm.errors import UsageError
from ihdm.model import Model
from ihdm.networks import build_network, expect_levels, told
from ihdm.noise import Purpose, mix_seed
from ihdm.optimisation import Adam, FlatAdam, LoweredAdam, averaging_weight, learning_rate
from ihdm.pixels import to_unit
from ihdm.sharding import divide, whole


class Training:
    """Network, optimiser and average, and the step that updates them, on the accelerator's device."""

    def __init__(self, config: Config, model: Model, accelerator: Accelerator, precision: torch.dtype):
        self.config, self.model, self.accelerator, self.precision = config, model, accelerator, precision
        self.device = device = accelerator.device
        network = placed(model.network, device)
        network.checkpoint = config.engine.checkpoint  # type: ignore[assignment]
        images = config.trainer.batch_size // accelerator.num_processes
        self.part = -(-images // config.trainer.accumulate)  # images that are computed at a time
        expect_levels(network, model.process.K, max(1, images // config.trainer.accumulate))
        self.average = copy.deepcopy(network).eval().requires_grad_(False)
        self.sharded = config.engine.shard
        if self.sharded:
            if accelerator.num_processes == 1:
                raise UsageError("engine.shard=true divides weights among processes; start several, with torchrun")
            divide(network, device, precision)
            divide(self.average, device, precision)
        self.compiled = config.engine.compile and device.type == "cuda" and not self.sharded
        self.network, self.optimizer = self._with_optimizer(network)
        self.generator = torch.Generator(device)
        self.rates, self._update = torch.zeros(2, device=device), self.optimizer.update
        if self.compiled:
            part = torch.zeros(self.part, *model.config.shape, device=device)
            compile_ahead(network, part, precision, isinstance(self.optimizer, LoweredAdam))
            self._gradients = recorded(self._gradients, device, [self.generator])  # type: ignore[method-assign]
            self._update = recorded(self._update, device)

    def _with_optimizer(self, network: nn.Module) -> tuple[nn.Module, Adam]:
        """The network as it computes, and the optimiser of its weights."""
        settings, arguments = self.config.trainer, (network, self.average, self.config.trainer.clip)
        if self.sharded:
            return network, Adam(*arguments)
        lower = lowered(network, self.precision, self.config.engine.compile)
        at_once = self.accelerator.num_processes == 1 and settings.accumulate == 1
        suits = self.compiled and at_once and LoweredAdam.suits(network)
        if suits and isinstance(lower, Lowered) and lower.by_kernels(self.device):
            lower.optimizer = LoweredAdam(*arguments, self.precision)
            return lower, lower.optimizer
        if not self.compiled and self.accelerator.num_processes > 1:
            return self.accelerator.prepare(lower), Adam(*arguments)  # DDP keeps gradients in memory of its own
        return lower, (FlatAdam if FlatAdam.suits(network) else Adam)(*arguments)

    def step(self, number: int, images: Tensor, condition: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Alg. 1 on one batch, then Adam and the moving average; returns the loss and the norm of its gradient.

        images: uint8, those of this process. condition: what the network is told about each, if anything.
        """
        settings, rank = self.config.trainer, self.accelerator.process_index
        self.generator.manual_seed(mix_seed(settings.seed, Purpose.STEP, number))
        torch.manual_seed(mix_seed(settings.seed, Purpose.DROPOUT, number, rank))  # for torch's own generator
        self.rates[0].fill_(learning_rate(settings, number))
        self.rates[1].fill_(averaging_weight(settings, number))
        loss = self._gradients(images, condition)
        self._exchange()
        return loss, self._update(self.rates)

    def _gradients(self, images: Tensor, condition: Tensor | None) -> Tensor:
        """The mean loss of a batch and its gradient, computed in parts; processes exchange gradients in the last.

        Levels, noise, mirroring and the choice of dropped labels are drawn for the whole batch, and each process and
        each part takes its own. So a step is the same, up to rounding, however it is divided. Only dropout is not; nor,
        in a network that sees coarse levels on small grids, the depth at which it sees an image or two of each part.
        """
        self.optimizer.forget_gradients()
        rank, ranks = self.accelerator.process_index, self.accelerator.num_processes
        u_0, process = to_unit(images), self.model.process
        whole_batch = (ranks * len(u_0), *u_0.shape[1:])
        k, eps = (drawn[rank::ranks] for drawn in process.draw(whole_batch, self.generator))
        if self.config.data.flip:
            chosen = torch.rand(len(u_0) * ranks, generator=self.generator, device=u_0.device) < 0.5
            u_0 = mirrored(u_0, chosen[rank::ranks])
        if condition is not None and (labels := self.model.config.labels):
            chosen = torch.rand(len(u_0) * ranks, generator=self.generator, device=u_0.device)[rank::ranks]
            condition = condition.masked_fill(chosen < self.config.trainer.drop_labels, labels.none)
        count = min(self.config.trainer.accumulate, len(u_0))
        total = torch.zeros((), device=u_0.device)
        for number in range(count):
            own = slice(number, None, count)  # every count-th, so that levels are evenly spread in each part, too
            known = None if condition is None else condition[own]
            with contextlib.nullcontext() if number == count - 1 else self.accelerator.no_sync(self.network):
                loss = process.losses(told(self.network, known), u_0[own], k[own], eps[own]).sum() / len(u_0)
                loss.backward()
                total += loss.detach()
        return total

    def _exchange(self) -> None:
        """Average gradients over all processes, where accelerate's wrapper has not done so already."""
        if self.accelerator.num_processes > 1 and isinstance(self._gradients, Recorded):
            for gradient in self.optimizer.gradients():
                torch.distributed.all_reduce(gradient)
                gradient /= self.accelerator.num_processes

    def averaged(self) -> nn.Module:
        """The network with averaged weights; if they are divided, all processes must call this together."""
        if not self.sharded:
            return self.average
        network = build_network(self.model.config)
        network.load_state_dict({name: whole(tensor) for name, tensor in self.average.state_dict().items()})
        return placed(network, self.device).eval().requires_grad_(False)

    def smaller_parts(self) -> str:
        """What to do about a batch that does not fit into memory."""
        images = self.config.trainer.batch_size // self.accelerator.num_processes

        def fitting(again: bool) -> int:
            build = partial(build_network, self.model.config, again)
            needed = partial(memory.to_train, build, self.model.config.shape)
            needed = partial(needed, precision=self.precision, fused=self.compiled)
            most = self.part // 2 if again == known else max(1, self.part // 2)
            return memory.largest_batch(needed, most, memory.all_bytes(self.device))

        known = self.config.engine.checkpoint
        plain, again = fitting(known), fitting(True)
        message = f"not enough memory for {self.part} images at a time"
        if plain:
            message += f"; {plain} should fit, with --set trainer.accumulate={-(-images // plain)}"
        if again > plain:
            message += f"; {again} with --set engine.checkpoint=true trainer.accumulate={-(-images // again)}"
        return message if again else f"{message}, or even for one; use smaller images or a smaller network"
