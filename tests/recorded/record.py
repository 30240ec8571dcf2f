"""What the authors' code gives for a small network of theirs, for `tests/test_convert.py`.

    PYTHONPATH=benchmarks python tests/recorded/record.py PATH

with a checkout of AaltoML/generative-inverse-heat-dissipation writes a checkpoint, by their `save_checkpoint`, and what
they compute with it. All weights are windows into one storage of random numbers, each at its own place, so that the
file is small.
"""

from __future__ import annotations

import sys
from pathlib import Path

import authors
import numpy as np
import torch

from ihdm.config import load_config

HERE = Path(__file__).parent
SHAPE, POOL, STEP = (1, 8, 8), 24_000, 1234
PROCESS = ["process.K=6", "process.sigma_B_max=6"]
NETWORK = ["network.channels=32", "network.multipliers=1,1", "network.attention=1"]
SIZE = ["data.size=8", "data.channels=1"]
FOUND = ["network.blocks=1", "network.resample=conv", "network.groups=32"]  # which the checkpoint itself tells


def filled(tensors, pool: torch.Tensor, place: int) -> int:
    """Let tensors be windows into the pool; give back the place of the next."""
    for tensor in tensors:
        place = (place * 7919 + 101) % (len(pool) - tensor.numel())
        tensor.data = pool[place : place + tensor.numel()].view(tensor.shape)
    return place


def main(checkout: str) -> None:
    authors.use(checkout)
    from scripts.losses import get_inverse_heat_loss_fn, optimization_manager
    from scripts.sampling import get_sampling_fn_inverse_heat

    torch.manual_seed(0)
    config = load_config("mnist", [*PROCESS, *NETWORK, *SIZE, *FOUND])
    theirs = authors.namespace(config, SHAPE, torch.device("cpu"))
    state = authors.initial_state(config, SHAPE) | {"step": STEP}
    pool, place = torch.randn(POOL) * 0.2, 1
    place = filled(state["model"].parameters(), pool, place)
    filled(state["ema"].shadow_params, pool, place)
    state["ema"].num_updates = STEP
    optimization_manager(theirs)(state["optimizer"], [], STEP)  # a learning rate as they leave it behind, of NumPy
    authors.save_checkpoint(HERE / "authors.pth", state)

    network, K, sigma = state["model"].eval(), config.process.K, config.process.sigma
    for parameter, average in zip(network.parameters(), state["ema"].shadow_params, strict=True):
        parameter.data = average.clone()  # as their copy_to does, which windows do not allow
    blur = authors.build_blur(config, SHAPE, torch.device("cpu"))
    u_0, levels = torch.rand(K + 1, *SHAPE), torch.arange(K + 1)
    with torch.no_grad():
        u_k = blur(u_0, levels).float()
        output = network(u_k[1:], levels[1:])
        loss_eps, sample_eps = torch.randn(u_0.shape), torch.randn(K, *u_0.shape)  # the latter of levels K..1
        loss_of = get_inverse_heat_loss_fn(theirs, False, None, "cpu", blur)
        with authors.given_noise(loss_eps):
            _, losses, loss_levels = loss_of(network, u_0)
        u_K = blur(u_0, torch.full((K + 1,), K)).float()
        with authors.given_noise(*sample_eps):
            sample, *_ = get_sampling_fn_inverse_heat(theirs, u_K, None, 1.25 * sigma, "cpu")(network)
    found = {"u_0": u_0, "u_k": u_k, "output": output, "losses": losses, "loss_levels": loss_levels}
    found |= {"loss_eps": loss_eps, "u_K": u_K, "sample": sample, "sample_eps": sample_eps}
    np.savez_compressed(HERE / "authors.npz", **{name: tensor.numpy() for name, tensor in found.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
