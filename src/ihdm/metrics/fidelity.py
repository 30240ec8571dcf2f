"""How close images are to the true ones."""

from __future__ import annotations

from torch import Tensor

from ihdm.heat import GridLaplacian

WINDOW = 1.5  # the width of SSIM's window in pixels
LUMINANCE, CONTRAST = 0.01**2, 0.03**2  # SSIM's constants for images in [0, 1]


def psnr(images: Tensor, truth: Tensor) -> Tensor:
    """Peak signal-to-noise ratio, in decibels, of each of the images (B, C, H, W) in [0, 1]."""
    return -10 * (images - truth).square().flatten(1).mean(1).clamp_min(1e-10).log10()


def ssim(images: Tensor, truth: Tensor) -> Tensor:
    """Structural similarity (Wang et al. 2004) of each of the images (B, C, H, W) in [0, 1].

    The Gaussian window is that of the heat equation, which reflects at the border of the image.
    """
    laplacian = GridLaplacian(images.shape[2:])

    def local(u: Tensor) -> Tensor:
        return laplacian.dissipate(u, WINDOW**2 / 2)

    a, b = local(images), local(truth)
    var_a, var_b = local(images.square()) - a.square(), local(truth.square()) - b.square()
    covariance = local(images * truth) - a * b
    likeness = (2 * a * b + LUMINANCE) * (2 * covariance + CONTRAST)
    return (likeness / ((a.square() + b.square() + LUMINANCE) * (var_a + var_b + CONTRAST))).flatten(1).mean(1)
