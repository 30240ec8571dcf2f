"""Generative modelling with inverse heat dissipation (Rissanen, Heinonen, Solin, ICLR 2023).

Public names are imported when they are first used, so that the command line answers at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ihdm.config import Config, load_config
    from ihdm.data import load_images
    from ihdm.graph import GraphLaplacian
    from ihdm.heat import GridLaplacian
    from ihdm.model import Model
    from ihdm.networks.unet import UNet
    from ihdm.noise import SeededNoise
    from ihdm.prior import Prior
    from ihdm.processes import InverseHeat
    from ihdm.sampler import sample, trajectory
    from ihdm.schedule import Schedule

__version__ = "0.2.0"

_HOME = {
    "Config": "config",
    "GraphLaplacian": "graph",
    "GridLaplacian": "heat",
    "InverseHeat": "processes",
    "Model": "model",
    "Prior": "prior",
    "Schedule": "schedule",
    "SeededNoise": "noise",
    "UNet": "networks.unet",
    "load_config": "config",
    "load_images": "data",
    "sample": "sampler",
    "trajectory": "sampler",
}

__all__ = [
    "Config",
    "GraphLaplacian",
    "GridLaplacian",
    "InverseHeat",
    "Model",
    "Prior",
    "Schedule",
    "SeededNoise",
    "UNet",
    "__version__",
    "load_config",
    "load_images",
    "sample",
    "trajectory",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'ihdm' has no attribute {name!r}")
    return getattr(import_module(f"ihdm.{_HOME[name]}"), name)
