"""In the place of CUDA graphs where there is no GPU: what one could not record is refused, all else is repeated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ihdm import execution, graph, heat
from ihdm.engine import Recorded

WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "bincount", "equal"}  # for the GPU
FROM_HOST = {"lift_fresh"}  # as torch.tensor does with numbers


def tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


class Recording(TorchDispatchMode):
    """Operations on one device, which `replay` repeats with the tensors that they had: as a CUDA graph, in the same
    memory, and without what Python did between them."""

    def __init__(self, device: str = "cpu"):
        super().__init__()
        self.device, self.operations, self.taken = device, list[Any](), False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, given = func.overloadpacket.__name__, tensors((args, kwargs))
        masked = name.startswith("index") and any(tensor.dtype == torch.bool for tensor in tensors(args[1:2]))
        assert name not in WAITING and not masked, f"{func} waits for the GPU"
        assert name not in FROM_HOST, f"{func} copies numbers from the host, which are the same in every replay"
        found = func(*args, **(kwargs or {}))
        made = tensors(found)
        assert all(tensor.device.type == self.device for tensor in given + made), f"{func} has tensors elsewhere"
        places = {tensor.untyped_storage()._cdata for tensor in given}
        if func._schema.is_mutable:
            self.operations.append((func, args, kwargs or {}, []))
        elif any(tensor.untyped_storage()._cdata not in places for tensor in made):  # else it is only a view
            self.operations.append((func, args, kwargs or {}, made))
        return found

    def replay(self) -> None:
        """The first time there is nothing to do: unlike a GPU, it computed while it recorded."""
        with torch.inference_mode():
            for func, args, kwargs, made in self.operations if self.taken else ():
                for old, new in zip(made, tensors(func(*args, **kwargs))):
                    old.copy_(new)
        self.taken = True


class Replayed(Recorded):
    """`engine.Recorded` with such a recording, on a CPU."""

    def __init__(self, work: Any, device: torch.device, generators: Any = (), warmup: int = 2):
        self.work, self.device, self.warmup, self._graph = work, device, warmup, None

    def __call__(self, *inputs: Tensor | None) -> Tensor:
        return self._call(inputs)

    def _aside(self, inputs: Sequence[Tensor | None]) -> Tensor:
        return self.work(*inputs).clone()

    def _record(self, inputs: Sequence[Tensor | None]) -> None:
        self._inputs = [None if given is None else given.clone() for given in inputs]
        with Recording() as recording:
            self._outputs = self.work(*self._inputs)
        self._graph = recording


def record(monkeypatch: Any) -> None:
    """From now on sampling records its steps, and times of the heat equation are not looked at, as on a GPU."""
    monkeypatch.setattr(execution, "recorded", Replayed)
    for module in (heat, graph):
        monkeypatch.setattr(module, "checked_times", lambda u, t: torch.as_tensor(t, dtype=u.dtype))


def recorded_training(trainer: Any) -> Any:
    """A trainer whose steps are recorded."""
    training = trainer.training
    training._gradients, training._update = (
        Replayed(work, trainer.device) for work in (training._gradients, training._update)
    )
    return trainer
