"""The blur widths of levels: settings that several processes share."""

from __future__ import annotations

from ihdm.basis import Laplacian
from ihdm.errors import UsageError
from ihdm.schedule import Schedule


class BlurWidths:
    """K levels, from sigma_B_min pixels at level 1 to sigma_B_max at level K; None: chosen by the size of images."""

    K: int
    sigma_B_min: float
    sigma_B_max: float | None

    def __post_init__(self) -> None:
        if self.sigma_B_max is not None and self.sigma_B_max <= self.sigma_B_min:
            raise UsageError(
                f"process.sigma_B_max ({self.sigma_B_max:g}) must be larger than "
                f"process.sigma_B_min ({self.sigma_B_min:g})"
            )

    def schedule(self, laplacian: Laplacian) -> Schedule:
        """The schedule on a domain; without a largest blur width, three quarters of the longest side."""
        widest = self.sigma_B_max or 0.75 * laplacian.side
        if widest <= self.sigma_B_min:
            raise UsageError(
                f"process.sigma_B_max is {widest:g} for data of {laplacian.grid}, but must be larger than "
                f"process.sigma_B_min ({self.sigma_B_min:g})"
            )
        return Schedule(self.K, widest, self.sigma_B_min)
