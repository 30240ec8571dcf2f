"""A model as tensor programs, which do not need ihdm and have the same interface for every process.

`start` makes a state from a choice and noise, `step` takes one step of the chain, `network` is the network alone. A
state is what the process carries along a chain; with each comes the image that it shows, in [0, 1]. If the model knows
labels, all three programs take them, and `step` also takes the guidance: how much they count.
"""

from __future__ import annotations

import contextlib
import copy
import io
import itertools
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule

from ihdm.errors import IhdmError, UsageError
from ihdm.labels import Starts
from ihdm.model import Model
from ihdm.networks.guidance import beyond, guided_in_programs
from ihdm.processes import Process
from ihdm.sampler import reverse_step

TRIED = (1, 3)  # numbers of images with which a written program is tried

Outputs = Tensor | Sequence[Tensor]


@dataclass(frozen=True)
class Program:
    """A function of tensors.

    example: makes inputs, by name, for a number of images. outputs: the names of its results.
    """

    name: str
    function: nn.Module
    example: Callable[[int], dict[str, Tensor]]
    outputs: tuple[str, ...]

    def traced(self) -> ExportedProgram:
        """Its operations on tensors, for any number of images, without anything that tells where they were traced."""
        one, other = (tuple(self.example(n).values()) for n in (2, 3))
        images = Dim("images", min=1)
        differing = tuple(
            {dim: images for dim, sizes in enumerate(zip(a.shape, b.shape)) if sizes[0] != sizes[1]}
            for a, b in zip(one, other)
        )
        self.function(*one)  # makes the constants that are made on first use, which are then not part of the program
        try:
            with quiet():
                program = torch.export.export(self.function, one, dynamic_shapes=differing)
        except Exception as error:  # torch raises many kinds
            raise IhdmError(
                f"the {self.name} of this model cannot be exported: {self._obstacle(one, error)}"
            ) from error
        graphs = [part.graph for part in program.graph_module.modules() if isinstance(part, GraphModule)]
        for node in itertools.chain(*(graph.nodes for graph in graphs)):
            kept = {"val": node.meta["val"]} if "val" in node.meta else {}
            node.meta = kept  # the rest is source lines and paths of this machine
        program.example_inputs = None  # which would be pickled
        return program

    def _obstacle(self, inputs: tuple[Tensor, ...], error: Exception) -> str:
        """Why the function cannot be traced. torch.export does not say what fixed the number of images."""
        try:
            with quiet():
                torch.export.export(self.function, inputs)  # for this number of images only
        except Exception:
            return f"it must be tensor arithmetic that reads no values; torch.export says: {first_line(error)}"
        return (
            "something in it fixes the number of images; take that number from u.shape[0], not from len(u), "
            "which is a constant to torch.export, and let nothing else depend on it"
        )

    def difference(self, run: Callable[..., Outputs]) -> float:
        """How far the results of `run` are from those of the function, in units of the largest value (at least 1)."""
        worst = 0.0
        for n in TRIED:
            inputs = self.example(n)
            for ours, theirs in zip(*(_several(f(*inputs.values())) for f in (self.function, run))):
                if ours.shape != theirs.shape:
                    raise IhdmError(f"{self.name} gives {tuple(theirs.shape)} instead of {tuple(ours.shape)}")
                scale = ours.abs().max().clamp_min(1)
                worst = max(worst, float(((ours - theirs).abs().max() / scale).nan_to_num(torch.inf)))
        return worst


def programs(model: Model) -> dict[str, Program]:
    """The programs of a model, by name, in float32 on the CPU."""
    if any(getattr(settings, "pyramid", ()) for settings in (model.config.network, model.config.guide)):
        raise UsageError(
            "the model sees coarse levels on small grids (network.pyramid), so its network branches on levels, which "
            "an exported program cannot; train one with network.pyramid=none"
        )
    model = copy.deepcopy(model).cpu().float().eval().requires_grad_(False)
    shape, chain, labels = model.config.shape, steps(model.process), model.config.labels
    of_label = None if model.start_labels is None else Starts(model.start_labels, len(labels) + 1)
    network = model.network if model.guide is None else _Guided(model.network, model.guide, model.guidance())
    start, step = _Start(model.process, of_label), _Step(model.process, network, labels.none)

    def told(n: int) -> dict[str, Tensor]:
        """Labels of n images, among them the number that means none."""
        return {"label": (labels.none - torch.arange(n)) % (labels.none + 1)} if labels else {}

    def drawn(n: int) -> dict[str, Tensor]:
        chance = torch.Generator().manual_seed(n)
        choice = torch.randint(2**62, (n,), generator=chance)
        return {"choice": choice, "eps": torch.randn(n, *shape, generator=chance), **told(n)}

    def first(n: int) -> dict[str, Tensor]:
        levels = dict(zip("kji", torch.tensor(chain[0])))
        guidance = {"guidance": torch.tensor(1.0 if n == 1 else 1.5)} if labels else {}  # programs treat 1 differently
        return {"state": start(**drawn(n))[0], **levels, "eps": drawn(n + 1)["eps"][:n], **told(n), **guidance}

    def second(n: int) -> dict[str, Tensor]:
        """Inputs of the second step, if there is one: only in that step can the one before it matter."""
        return first(n) | (
            {"state": step(**first(n))[0], **dict(zip("kji", torch.tensor(chain[1])))} if chain[1:] else {}
        )

    def alone(n: int) -> dict[str, Tensor]:
        return {"u": start(**drawn(n))[1], "k": torch.full((n,), chain[0][0]), **told(n)}

    found = [
        Program("start", start, drawn, ("state", "image")),
        Program("step", step, second, ("next", "image")),
        Program("network", model.network, alone, ("answer",)),
    ]
    return {program.name: program for program in found}


def steps(process: Process) -> list[tuple[int, int, int]]:
    """(k, j, i) of each step of a chain: from level k to level j, where i is the level before k (`sampler.chain`)."""
    levels = process.levels()
    return list(zip(levels[:-1], levels[1:], [levels[0], *levels]))


@dataclass(frozen=True)
class _Given:
    """Noise that is given: a choice for each image (any number from 0 up), and eps."""

    chosen: Tensor
    eps: Tensor

    def __call__(self, k: Tensor | int) -> Tensor:
        return self.eps

    def choice(self, n: int | Tensor) -> Tensor:
        return self.chosen % n


@dataclass(frozen=True)
class _GivenOfLabel(_Given):
    """The same for images with labels, which start from training images of their own label."""

    labels: Tensor
    starts: Starts

    def choice(self, n: int | Tensor) -> Tensor:
        return self.starts.choice(self.labels, n, super().choice)


class _Start(nn.Module):
    """Makes the first state of a chain, from u_K."""

    def __init__(self, process: Process, starts: Starts | None):
        super().__init__()
        self.process, self.starts = process, starts

    def forward(self, choice: Tensor, eps: Tensor, label: Tensor | None = None) -> tuple[Tensor, Tensor]:
        noise = _Given(choice, eps)
        if label is not None and self.starts is not None:
            noise = _GivenOfLabel(choice, eps, label, self.starts)
        u_K = self.process.start(noise)  # type: ignore[arg-type]
        return self.process.begin(u_K), u_K.clamp(0, 1)


class _Guided(nn.Module):
    """A network guided away from a weaker one, as much as the model is by default."""

    def __init__(self, network: nn.Module, weaker: nn.Module, guidance: float):
        super().__init__()
        self.network, self.weaker, self.guidance = network, weaker, guidance

    def forward(self, u: Tensor, k: Tensor, *condition: Tensor) -> Tensor:
        return beyond(self.network, self.weaker, self.guidance)(u, k, *condition)


class _Step(nn.Module):
    """Makes the next state of a chain (Alg. 2). none: the number that means no label."""

    def __init__(self, process: Process, network: nn.Module, none: int):
        super().__init__()
        self.process, self.network, self.none = process, network, none

    def forward(
        self,
        state: Tensor,
        k: Tensor,
        j: Tensor,
        i: Tensor,
        eps: Tensor,
        label: Tensor | None = None,
        guidance: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        network = self.network if guidance is None else guided_in_programs(self.network, guidance, self.none)
        state = reverse_step(self.process, network, lambda _: eps)(state, k, j, i, label)
        return state, self.process.shown(state).clamp(0, 1)


def _several(outputs: Outputs) -> Sequence[Tensor]:
    return (outputs,) if isinstance(outputs, Tensor) else outputs


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the exporters' remarks on packages that they do not need and on what they did before an error."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def first_line(error: BaseException) -> str:
    """The first line of what an error says."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:300]
