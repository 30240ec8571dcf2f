"""The heat operator against closed forms, SciPy and its own laws, in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.fft
import scipy.ndimage
import torch

from ihdm.graph import GraphLaplacian
from ihdm.heat import LONGEST_MATRIX_AXIS, FiniteDifferences, GaussianFilter, GridLaplacian

LONG = LONGEST_MATRIX_AXIS + 88
GRIDS = [(7,), (8, 8), (5, 12), (3, 4, 6), (LONG, 3), (2, LONG + 1)]


def image(grid: tuple[int, ...], batch: int = 2, channels: int = 3, seed: int = 0) -> torch.Tensor:
    return torch.rand(batch, channels, *grid, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def cosine_mode(grid: tuple[int, ...], frequency: tuple[int, ...]) -> torch.Tensor:
    mode = torch.ones((), dtype=torch.float64)
    for n, m in zip(grid, frequency):
        mode = mode[..., None] * torch.cos(math.pi * m * (torch.arange(n).double() + 0.5) / n)
    return mode[None, None]


@pytest.mark.parametrize("grid", GRIDS)
def test_a_cosine_mode_decays_by_its_eigenvalue(grid):
    frequency = tuple(min(2, n - 1) for n in grid)
    eigenvalue = -(math.pi**2) * sum(m**2 / n**2 for m, n in zip(frequency, grid))
    mode = cosine_mode(grid, frequency)
    blurred = GridLaplacian(grid).dissipate(mode, 1.7)
    torch.testing.assert_close(blurred, math.exp(1.7 * eigenvalue) * mode, rtol=1e-10, atol=1e-12)


def test_eigenvalues_are_those_of_the_paper():
    eigenvalues = GridLaplacian((4, 6)).eigenvalues
    assert eigenvalues.shape == (4, 6)
    assert eigenvalues[3, 5].item() == pytest.approx(-(math.pi**2) * (3**2 / 4**2 + 5**2 / 6**2))
    assert eigenvalues.max() == 0


@pytest.mark.parametrize("grid", GRIDS)
def test_spectrum_is_scipys_orthonormal_dct_and_goes_back(grid):
    laplacian, u = GridLaplacian(grid), image(grid)
    u_hat = laplacian.to_spectrum(u)
    expected = scipy.fft.dctn(u.numpy(), norm="ortho", axes=range(2, 2 + len(grid)))
    np.testing.assert_allclose(u_hat, expected, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(laplacian.from_spectrum(u_hat), u)


@pytest.mark.parametrize("grid", GRIDS)
def test_dissipation_is_decay_of_the_spectrum(grid):
    laplacian, u, t = GridLaplacian(grid), image(grid), torch.tensor([0.3, 5.0], dtype=torch.float64)
    expected = laplacian.from_spectrum(laplacian.decay(t, u) * laplacian.to_spectrum(u))
    torch.testing.assert_close(laplacian.dissipate(u, t), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("grid", GRIDS)
def test_semigroup_mean_and_identity(grid):
    laplacian, u = GridLaplacian(grid), image(grid)
    s, t = torch.tensor([0.2, 3.0]).double(), torch.tensor([1.1, 0.4]).double()
    twice = laplacian.dissipate(laplacian.dissipate(u, s), t)
    torch.testing.assert_close(twice, laplacian.dissipate(u, s + t))
    space = tuple(range(2, u.ndim))
    torch.testing.assert_close(twice.mean(space), u.mean(space))
    torch.testing.assert_close(laplacian.dissipate(u, 0.0), u)
    torch.testing.assert_close(
        laplacian.dissipate(u, 1e7), u.mean(space, keepdim=True).expand_as(u), atol=1e-10, rtol=0
    )


def test_each_sample_has_its_own_time():
    laplacian, u = GridLaplacian((8, 6)), image((8, 6), batch=3)
    t = torch.tensor([0.0, 0.5, 40.0]).double()
    together = laplacian.dissipate(u, t)
    for i in range(3):
        torch.testing.assert_close(together[i : i + 1], laplacian.dissipate(u[i : i + 1], float(t[i])))


@pytest.mark.parametrize("grid", [(7,), (6, 6), (5, 9), (3, 4, 6), (LONG, 3)])
@pytest.mark.parametrize("operator", [GridLaplacian, GaussianFilter, FiniteDifferences])
def test_several_times_for_each_sample_are_as_one_after_the_other(grid, operator):
    blur, u = operator(grid), image(grid)
    t = torch.tensor([[0.3, 2.0], [0.0, 1.0], [2.5, 0.5]]).double()
    together = blur.dissipate(u, t)
    assert together.shape == (3, *u.shape)
    one_by_one = blur.dissipate(torch.cat([u, u, u]), t.flatten())
    torch.testing.assert_close(together.flatten(0, 1), one_by_one, rtol=1e-9, atol=1e-12)


def test_dissipation_is_differentiable_in_image_and_time():
    laplacian = GridLaplacian((4, 3))
    u = image((4, 3), channels=1).requires_grad_()
    t = torch.tensor([0.3, 2.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(laplacian.dissipate, (u, t))


@pytest.mark.parametrize("n", [8, 9])
def test_long_axes_are_differentiable_too(n, monkeypatch):
    monkeypatch.setattr("ihdm.heat.LONGEST_MATRIX_AXIS", 4)
    u, t = image((n,), channels=1).requires_grad_(), torch.tensor([0.3, 2.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(GridLaplacian((n,)).dissipate, (u, t))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_in_low_precision_out_float32_between(dtype):
    laplacian, u = GridLaplacian((8, 8)), image((8, 8)).to(dtype)
    blurred = laplacian.dissipate(u, torch.tensor([0.5, 8.0]))
    assert blurred.dtype == dtype
    exact = laplacian.dissipate(u.double(), torch.tensor([0.5, 8.0]))
    torch.testing.assert_close(blurred.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-6)


def test_wrong_shapes_and_types_are_refused():
    laplacian = GridLaplacian((8, 6))
    with pytest.raises(ValueError, match=r"\(B, C, 8, 6\)"):
        laplacian.dissipate(torch.zeros(1, 1, 6, 8), 1.0)
    with pytest.raises(TypeError, match="floating point"):
        laplacian.dissipate(torch.zeros(1, 1, 8, 6, dtype=torch.uint8), 1.0)
    with pytest.raises(ValueError, match="one for each of 2 samples"):
        laplacian.dissipate(torch.zeros(2, 1, 8, 6), torch.ones(3))
    with pytest.raises(ValueError, match="1, 2 or 3 axes"):
        GridLaplacian(())
    with pytest.raises(ValueError, match=r"each axis of a grid must be a whole number, not 8\.7"):
        GridLaplacian((8.7, 8))
    assert GridLaplacian(np.array([8, 6])).grid == (8, 6)


@pytest.mark.parametrize("operator", [GridLaplacian, GaussianFilter])
@pytest.mark.parametrize("grid", [(7,), (8, 6)])
def test_no_samples_at_all_are_blurred_too(operator, grid):
    u = image(grid)[:0]
    assert operator(grid).dissipate(u, torch.zeros(0)).shape == u.shape
    assert operator(grid).dissipate(u, torch.zeros(3, 0)).shape == (3, *u.shape)


def test_tracing_a_program_before_the_first_use_leaves_nothing_behind():
    laplacian, u = GridLaplacian((8, 6)), image((8, 6)).float()

    class Module(torch.nn.Module):
        def forward(self, u: torch.Tensor) -> torch.Tensor:
            return laplacian.from_spectrum(laplacian.to_spectrum(u))

    program = torch.export.export(Module(), (u,))
    torch.testing.assert_close(laplacian.dissipate(u, 0.0), u)
    torch.testing.assert_close(program.module()(u), u)


LINES = GridLaplacian((4,)), GaussianFilter((4,)), FiniteDifferences((4,)), GraphLaplacian(4, [[0, 1], [1, 2], [2, 3]])


@pytest.mark.parametrize("operator", LINES, ids=lambda one: type(one).__name__)
def test_arrays_are_refused_as_data_in_words(operator):
    u = np.zeros((1, 1, 4), np.float32)
    with pytest.raises(TypeError, match=r"expected a tensor, got ndarray; torch\.as_tensor makes one"):
        operator.dissipate(u, 1.0)
    assert operator.dissipate(torch.as_tensor(u), 1.0).shape == (1, 1, 4)


def test_gaussian_filter_is_a_zero_padded_convolution():
    u, sigma_B = image((9, 9)), 1.3
    radius = 8
    expected = scipy.ndimage.gaussian_filter(
        u.numpy(), (0, 0, sigma_B, sigma_B), mode="constant", truncate=radius / sigma_B
    )
    np.testing.assert_allclose(GaussianFilter((9, 9)).dissipate(u, sigma_B**2 / 2), expected, atol=1e-12)
    torch.testing.assert_close(GaussianFilter((9, 9)).dissipate(u, 0.0), u)


def test_gaussian_filter_agrees_with_heat_away_from_the_boundary():
    u = torch.zeros(1, 1, 41, 41, dtype=torch.float64)
    u[..., 17:24, 15:25] = 1
    t = torch.tensor([2.0]).double()
    heat, gauss = GridLaplacian((41, 41)).dissipate(u, t), GaussianFilter((41, 41)).dissipate(u, t)
    torch.testing.assert_close(heat, gauss, atol=1e-6, rtol=0)


@pytest.mark.parametrize("grid", [(7,), (6, 9), (3, 4, 5)])
def test_finite_differences_decay_by_their_own_eigenvalue(grid):
    """A cosine mode is an eigenvector of the mirrored stencil too, with eigenvalue sum of 2 cos(pi m / n) - 2."""
    frequency, t = tuple(1 for _ in grid), 2.3
    mode = cosine_mode(grid, frequency)
    eigenvalue = sum(2 * math.cos(math.pi * m / n) - 2 for m, n in zip(frequency, grid))
    steps = math.ceil(t * 2 * len(grid))
    expected = (1 + t / steps * eigenvalue) ** steps * mode
    torch.testing.assert_close(FiniteDifferences(grid).dissipate(mode, t), expected)


def test_finite_differences_approach_the_exact_solution_for_smooth_images():
    mode = cosine_mode((64, 64), (1, 2))
    exact = GridLaplacian((64, 64)).dissipate(mode, 20.0)
    torch.testing.assert_close(FiniteDifferences((64, 64)).dissipate(mode, 20.0), exact, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("operator", [GridLaplacian, GaussianFilter, FiniteDifferences])
def test_times_may_be_numbers_lists_or_arrays(operator):
    u, blur = image((6, 5)), operator((6, 5))
    several = [[0.1, 0.2], [0.5, 1.0], [2.0, 3.0]]
    wanted = blur.dissipate(u, torch.tensor(several, dtype=torch.float64))
    assert wanted.shape == (3, 2, 3, 6, 5)
    for given in (several, np.array(several)):
        torch.testing.assert_close(blur.dissipate(u, given), wanted, rtol=0, atol=0)
    torch.testing.assert_close(blur.dissipate(u, [0.5, 0.5]), blur.dissipate(u, np.float64(0.5)))


@pytest.mark.parametrize("operator", [GridLaplacian, GaussianFilter, FiniteDifferences])
@pytest.mark.parametrize("t", [-0.1, math.inf, math.nan, [0.1, -1.0], np.array([[0.0, 1.0], [np.inf, 1.0]])])
def test_times_that_are_none_are_refused(operator, t):
    with pytest.raises(ValueError, match="finite and not negative"):
        operator((6, 5)).dissipate(image((6, 5)), t)
