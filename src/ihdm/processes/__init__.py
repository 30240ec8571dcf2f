"""Processes: how images are destroyed, and how a network is used to make them again."""

from ihdm.processes.ddpm import DDPM
from ihdm.processes.diagonal import Diagonal, EtaSteps
from ihdm.processes.inverse_heat import InverseHeat
from ihdm.processes.linear import LinearPredictor
from ihdm.processes.process import Bounded, FromImages, Network, Process, Restoring, Steps, bounded, restoring
from ihdm.processes.skip import IdentitySkip, LinearSkip
from ihdm.processes.spectrum import Spectrum

__all__ = [
    "DDPM",
    "Bounded",
    "Diagonal",
    "EtaSteps",
    "FromImages",
    "IdentitySkip",
    "InverseHeat",
    "LinearPredictor",
    "LinearSkip",
    "Network",
    "Process",
    "Restoring",
    "Spectrum",
    "Steps",
    "bounded",
    "restoring",
]
