"""What settings describe, built: the process and the untrained network."""

from __future__ import annotations

from collections.abc import Sequence

from ihdm.config import ProcessConfig
from ihdm.errors import UsageError
from ihdm.heat import GaussianFilter, GridLaplacian
from ihdm.model_folder import ModelConfig
from ihdm.network import UNet
from ihdm.processes import DDPM, IdentitySkip, InverseHeat, LinearSkip, Spectrum
from ihdm.schedule import Schedule


def build_schedule(config: ProcessConfig, grid: Sequence[int]) -> Schedule:
    """The schedule on a grid; without a largest blur width, three quarters of the longer side."""
    sigma_B_max = config.sigma_B_max or 0.75 * max(grid)
    if sigma_B_max <= config.sigma_B_min:
        raise UsageError(
            f"process.sigma_B_max is {sigma_B_max:g} for images of {tuple(grid)}, which must be larger than "
            f"process.sigma_B_min ({config.sigma_B_min:g})"
        )
    return Schedule(config.K, sigma_B_max, config.sigma_B_min)


def build_process(config: ProcessConfig, laplacian: GridLaplacian, spectrum: Spectrum | None) -> InverseHeat:
    """The process on a grid; `spectrum` is that of the training set, for the linear skip."""
    schedule = build_schedule(config, laplacian.grid)
    skip = IdentitySkip() if spectrum is None else LinearSkip(laplacian, schedule, config.sigma, spectrum)
    filter = GaussianFilter(laplacian.grid) if config.blur == "gaussian" else None
    return InverseHeat(laplacian, schedule, config.sigma, config.delta_ratio * config.sigma, skip, filter)


def build_ddpm(config: ProcessConfig) -> DDPM:
    """The baseline's process; `delta_ratio` is its eta."""
    return DDPM(config.K, config.betas, config.delta_ratio)


def build_network(config: ModelConfig, checkpoint: bool = False) -> UNet:
    """The untrained network; `checkpoint`: whether it computes activations again in the backward pass."""
    channels = config.shape[0]
    network = UNet(channels, channels, **vars(config.network))
    network.checkpoint = checkpoint
    return network
