"""How weights are updated: the learning rate, Adam with clipped gradients, and the moving average."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ihdm import kernels
from ihdm.config import TrainerConfig
from ihdm.flat import Flat
from ihdm.sharding import is_divided, own_part, whole

BETAS, EPS = (0.9, 0.999), 1e-8  # of Adam
TINY = 1e-6  # added to the norm that is divided by, as in torch
PROGRAMS, SIZE = 1024, 1024  # programs that sum squares; elements per program


def learning_rate(settings: TrainerConfig, step: int) -> float:
    """Linear warm-up (App. B.1), and a linear fall to zero where `decay` asks for one."""
    rise = min(1.0, (step + 1) / max(settings.warmup, 1))
    fall = min(1.0, (settings.steps - step) / max(settings.decay * settings.steps, 1))
    return settings.lr * rise * fall


def averaging_weight(settings: TrainerConfig, step: int) -> float:
    """What new weights count in the moving average: 1 - min(ema, (1 + step) / (10 + step)), and 1 in the first step."""
    return 1 - min(settings.ema, (1 + step) / (10 + step)) if step else 1.0


class Adam:
    """Adam with clipped gradients (Kingma and Ba 2015), then the moving average of the weights.

    Weights may be divided among processes, each of which updates its own part; see `FlatAdam` for whole weights.
    """

    def __init__(self, network: nn.Module, average: nn.Module, clip: float):
        self.network, self.average, self.clip = network, average, clip
        self.weights, self.averages = list(network.parameters()), list(average.parameters())
        self.taken = torch.zeros((), device=self.weights[0].device)  # steps taken
        self.first, self.second = self._moments()

    def _moments(self) -> Sequence[list[Tensor]]:
        return [[torch.zeros_like(weight) for weight in self.weights] for _ in range(2)]

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps, by the number of the weight, a dot and torch's name for the tensor."""
        names = {"step": [self.taken] * len(self.weights), "exp_avg": self.first, "exp_avg_sq": self.second}
        return {f"{number}.{name}": tensor for name, some in names.items() for number, tensor in enumerate(some)}

    def forget_gradients(self) -> None:
        self.network.zero_grad()

    def gradients(self) -> list[Tensor]:
        return [torch.zeros_like(w) if w.grad is None else w.grad for w in self.weights]

    @torch.no_grad()
    def update(self, rates: Tensor) -> Tensor:
        """Take a step with the rates of Adam and of the average; return the gradient's norm before clipping.

        If the gradient is not finite, nothing changes.
        """
        norm = whole(torch.nn.utils.get_total_norm(self.gradients())).float()
        finite = norm.isfinite()
        if norm.device.type == "mps" and not finite:
            return norm  # on mps older versions of torch know neither found_inf nor grad_scale
        self.taken += finite
        weights, gradients, first, second, averages = self._in_memory()
        torch._foreach_mul_(gradients, (self.clip / (norm + TINY)).clamp_max(1))
        for kind in {weight.dtype for weight in weights}:
            alike = [n for n, weight in enumerate(weights) if weight.dtype == kind]
            w, g, m, v = ([column[n] for n in alike] for column in (weights, gradients, first, second))
            torch._fused_adam_(
                *(w, g, m, v, [], [self.taken] * len(alike)),
                lr=rates[0],
                beta1=BETAS[0],
                beta2=BETAS[1],
                eps=EPS,
                weight_decay=0.0,
                amsgrad=False,
                maximize=False,
                found_inf=(~finite).float(),
            )
        for average, weight in zip(averages, weights):
            average.lerp_(weight, (rates[1] * finite).to(weight.dtype))
        self._copy_buffers()
        return norm

    def _copy_buffers(self) -> None:
        for kept, now in zip(self.average.buffers(), self.network.buffers()):  # such as a normalisation's averages
            kept.copy_(now)

    def _in_memory(self) -> Sequence[list[Tensor]]:
        """This process's part of each, looked up anew: FSDP moves it when a network first computes or is loaded."""
        columns = (self.weights, self.gradients(), self.first, self.second, self.averages)
        return [[own_part(tensor) for tensor in column] for column in columns]


class FlatAdam(Adam):
    """The same with weights, gradients, moments and averages each in one piece of memory, as views of it."""

    @staticmethod
    def suits(network: nn.Module) -> bool:
        """Whether the weights can lie in one piece of memory."""
        weights = list(network.parameters())
        kinds = {(weight.dtype, weight.device, weight.requires_grad) for weight in weights}
        return kinds == {(torch.float32, weights[0].device, True)} and not any(map(is_divided, weights))

    def _moments(self) -> Sequence[list[Tensor]]:
        self.piece = _Piece(self.weights, self.averages)
        self._gradients = self.piece.views(self.piece.gradients)
        return [self.piece.views(memory) for memory in (self.piece.first, self.piece.second)]

    def forget_gradients(self) -> None:
        """Also let the gradients of the next step be summed in their places."""
        self.piece.gradients.zero_()
        for weight, gradient in zip(self.weights, self._gradients):
            weight.grad = gradient

    def gradients(self) -> list[Tensor]:
        return [self.piece.gradients]

    def _in_memory(self) -> Sequence[list[Tensor]]:
        piece = self.piece
        return [[memory] for memory in (piece.weights, piece.gradients, piece.first, piece.second, piece.averages)]


class LoweredAdam(Adam):
    """The same for a network that computes in lower precision with the GPU's kernels, in five launches.

    The network takes its matrices from here, in its precision, and leaves its gradients here (`engine.Lowered`): those
    of matrices in its precision, those of vectors in float32.
    """

    def __init__(self, network: nn.Module, average: nn.Module, clip: float, precision: torch.dtype):
        self.precision = precision
        super().__init__(network, average, clip)
        device, self._given = self.taken.device, set[int]()
        self._sums, self._numbers = (torch.zeros(n, device=device) for n in (2 * PROGRAMS, 4))
        self._norm = torch.zeros((), device=device)
        self._convert()
        network.register_load_state_dict_post_hook(self._convert)

    @staticmethod
    def suits(network: nn.Module) -> bool:
        return FlatAdam.suits(network) and {weight.ndim == 1 for weight in network.parameters()} == {True, False}

    def _moments(self) -> Sequence[list[Tensor]]:
        def side_by_side(vectors: bool, precision: torch.dtype) -> _Piece:
            chosen = [n for n, weight in enumerate(self.weights) if (weight.ndim == 1) is vectors]
            return _Piece([self.weights[n] for n in chosen], [self.averages[n] for n in chosen], precision)

        self._vectors, self._matrices = side_by_side(True, torch.float32), side_by_side(False, self.precision)
        self.of_vectors = self._vectors.views(self._vectors.gradients)
        self.of_matrices = self._matrices.views(self._matrices.gradients)
        self._lower = self._matrices.flat.new(self.precision)
        self.lower = self._matrices.views(self._lower)
        found = []
        for name in ("first", "second"):
            vectors, matrices = (iter(piece.views(getattr(piece, name))) for piece in (self._vectors, self._matrices))
            found.append([next(vectors if weight.ndim == 1 else matrices) for weight in self.weights])
        return found

    def _convert(self, *_: Any) -> None:
        """Bring the matrices into lower precision; also after weights were loaded."""
        self._lower.copy_(self._matrices.weights)

    def forget_gradients(self) -> None:
        self._given.clear()

    def put(self, places: list[Tensor], gradients: Sequence[Tensor]) -> None:
        """Put gradients in their places, `of_vectors` or `of_matrices`; those of a further call are added."""
        (torch._foreach_add_ if id(places) in self._given else torch._foreach_copy_)(places, list(gradients))
        self._given.add(id(places))

    def gradients(self) -> list[Tensor]:
        return [self._vectors.gradients, self._matrices.gradients]

    @torch.no_grad()
    def update(self, rates: Tensor) -> Tensor:
        pieces = (self._vectors, self._matrices)
        for piece, places in zip(pieces, (self.of_vectors, self.of_matrices)):
            if id(places) not in self._given:
                piece.gradients.zero_()
        for piece, sums in zip(pieces, self._sums.split(PROGRAMS)):
            kernels.launch("adam.square_sums", (PROGRAMS,), piece.gradients, sums, piece.flat.size, SIZE=SIZE)
        outputs = (self._norm, self._numbers, self.clip, *map(math.log, BETAS))
        kernels.launch("adam.rates_now", (1,), self._sums, self.taken, rates, *outputs, COUNT=2 * PROGRAMS)
        for piece, lower in zip(pieces, (None, self._lower)):
            state = (piece.weights, piece.gradients, piece.first, piece.second, piece.averages, lower)
            grid = (-(-piece.flat.size // SIZE),)
            kernels.launch("adam.adam", grid, *state, self._numbers, piece.flat.size, *BETAS, EPS, SIZE=SIZE)
        self._copy_buffers()
        return self._norm.clone()


class _Piece:
    """Weights in one piece of memory, and all that belongs to them."""

    def __init__(self, weights: Sequence[Tensor], averages: Sequence[Tensor], precision: torch.dtype = torch.float32):
        self.flat = flat = Flat(weights)
        self.weights, self.averages, self.views = flat.taken(weights), flat.taken(averages), flat.views
        self.first, self.second, self.gradients = flat.new(), flat.new(), flat.new(precision)
