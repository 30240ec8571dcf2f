"""The paper's process: blur and a little noise forward, deblurring and a little noise back (Eq. 3-4, Alg. 1-2).

Its network can be sampled in two ways: by the paper's steps, from each level to the next with noise delta, or by exact
steps between any two levels, those of a Markov chain with the same marginals (docs/exact-steps.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from ihdm.basis import Laplacian
from ihdm.constant import Constant, rows
from ihdm.domains import Domain
from ihdm.errors import UsageError
from ihdm.heat import GaussianFilter, GridLaplacian
from ihdm.noise import InterpolatedNoise, SeededNoise
from ihdm.prior import Prior
from ihdm.processes.diagonal import Diagonal
from ihdm.processes.heat_bound import HeatBound
from ihdm.processes.linear import LEAST_SIGMA, LinearPredictor
from ihdm.processes.process import Batches, Network, Steps, evenly, fitting
from ihdm.processes.skip import IdentitySkip, LinearSkip, Skip
from ihdm.processes.spectrum import SPECTRUM_MOST, Spectrum, guesses
from ihdm.processes.widths import BlurWidths
from ihdm.schedule import Schedule
from ihdm.settings import setting

if TYPE_CHECKING:
    from ihdm.restoration import Hold

FILTERED_MOST = 5000  # images in the prior of a model that blurs with a filter
LIMIT = 10.0  # standard deviations of the linear predictor by which a network output of 1 may move a coefficient
AHEAD = 1.0  # the logarithm of the most by which second order amplifies a change of the prediction


@dataclass(frozen=True)
class HeatSettings(BlurWidths):
    """The forward process, and what the network learns (App. B.4-B.5)."""

    K: int = setting(200, "number of levels", least=1, most=100_000)
    sigma: float = setting(0.01, "noise in training", least=0, most=100)
    sigma_B_min: float = setting(0.5, "blur width of level 1, in pixels", least=1e-6)
    sigma_B_max: float | None = setting(
        None, "blur width of level K, in pixels; auto: 3/4 of the longer side", above=0, most=1e6
    )
    skip: Literal["identity", "linear"] = setting(
        "identity", "the network's output is added to the state, as in the paper, or to the best linear prediction"
    )
    units: Literal["data", "level"] = setting(
        "data", "scale of the network's input and of its errors: the data's, or what is usual at each level"
    )
    blur: Literal["heat", "gaussian"] = setting(
        "heat", "the heat equation, or a Gaussian filter with black outside the image"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.skip == "linear" and self.sigma < LEAST_SIGMA:
            raise UsageError(
                "process.skip=linear needs process.sigma of at least 1e-6; for less, set process.skip=identity"
            )
        if self.skip == "linear" and self.blur == "gaussian":
            raise UsageError(
                "process.skip=linear works only with the heat equation; with process.blur=gaussian, set it to identity"
            )
        if self.units == "level" and self.skip != "linear":
            raise UsageError("process.units=level takes its units from the linear prediction: set process.skip=linear")


@dataclass(frozen=True)
class HeatSampling(Steps):
    """The paper's steps, with delta, or exact steps, with eta and order."""

    sampler: Literal["paper", "exact"] = setting("paper", "the paper's steps, or exact posterior steps")
    delta_ratio: float = setting(1.25, "paper: noise delta per step, in units of sigma", least=0, most=1e6)
    eta: float = setting(1.0, "exact: fresh noise per step, 1 as in the posterior, 0 none", least=0, most=1)
    order: int = setting(2, "exact: with 2, steps also use the one before, better with few steps", least=1, most=2)
    corrected: bool = setting(False, "exact: steps correct those before: usually better with few, and as fast")


@dataclass(frozen=True)
class InverseHeat(Diagonal):
    """q(u_k | u_0) = N(F(t_k) u_0, sigma^2 I) (Eq. 3); the paper's p(u_prev | u_k) = N(mu(u_k, k), delta^2 I) (Eq. 4).

    skip: how mu is made from the network's output, added to the state as in the paper or to the best linear prediction.
    prior: p(u_K); None: chains must be given a start.
    spectra: the spectrum as measured on the data, or several guesses of it, of which exact steps use the first.
    filter: blurs instead of the heat equation, if given (App. C.6).
    hold: corrects predictions, for example by an image that is to be restored.
    """

    laplacian: Laplacian
    schedule: Schedule
    sigma: float
    skip: Skip = field(default_factory=IdentitySkip)
    sampling: HeatSampling = HeatSampling()
    prior: Prior = None  # type: ignore[assignment]
    spectra: tuple[Spectrum, ...] = ()
    filter: GaussianFilter | None = None
    hold: Hold | None = None
    _t: Constant = field(init=False, repr=False)

    Settings = HeatSettings
    Sampling = HeatSampling  # type: ignore[assignment]
    title = "inverse heat dissipation"
    grown = "grown from blur"
    samplers = {"paper": ("delta_ratio",), "exact": ("eta", "order", "corrected")}  # noqa: RUF012 -- never changed
    restored_by = {"sampler": "paper"}  # noqa: RUF012 -- never changed; nearer to the truth by 0.3 dB (docs/exact-steps.md)
    judged_by = {"sampler": "exact", "steps": 8, "eta": 1.0, "order": 2}  # noqa: RUF012
    method = "Rissanen, Heinonen, Solin, *Generative Modelling with Inverse Heat Dissipation*, ICLR 2023"

    def __post_init__(self) -> None:
        if not 0 <= self.sigma < float("inf"):
            raise ValueError(f"the noise must be finite and not negative, but sigma is {self.sigma}")
        t_K = float(self.schedule.t[-1])
        if self.prior is not None and not math.isclose(self.prior.t_K, t_K, rel_tol=1e-6):
            raise ValueError(
                f"the prior is blurred for a time of {self.prior.t_K:g}, but level K is at {t_K:g}; make it with "
                f"float(schedule.t[-1])"
            )
        object.__setattr__(self, "_t", Constant(self.schedule.t))

    @property
    def K(self) -> int:  # type: ignore[override]
        return self.schedule.K

    @property
    def basis(self) -> Laplacian:  # type: ignore[override]
        return self.laplacian

    @property
    def exact(self) -> bool:
        return self.sampling.sampler == "exact"

    @property
    def delta(self) -> float:
        """The noise of the paper's steps."""
        return self.sampling.delta_ratio * self.sigma

    @property
    def start_noise(self) -> float:
        """The noise of u_K, and of any other state that a chain starts from."""
        return self.sigma if self.exact else self.delta

    # How it is made

    @classmethod
    def check(cls, settings: HeatSettings, sampling: HeatSampling) -> None:
        _check_sampler(sampling, settings.K, settings.sigma, settings.blur == "heat")

    @classmethod
    def from_images(
        cls, settings: HeatSettings, sampling: HeatSampling, domain: Domain, batches: Batches
    ) -> InverseHeat:
        """Measure the spectrum of the images, and blur them for the prior; under a filter only the latter."""
        laplacian, filter, spectrum = domain.laplacian, _filter(settings, domain), None
        if filter is None:
            spectrum = Spectrum.from_images(laplacian, batches(SPECTRUM_MOST, "measuring the spectrum"))
        t_K, most = float(settings.schedule(laplacian).t[-1]), None if filter is None else FILTERED_MOST
        prior = Prior.from_images(laplacian, t_K, batches(most, "blurring for the prior"), filter)
        return cls._built(settings, sampling, prior, spectrum)

    @classmethod
    def from_state(
        cls, settings: HeatSettings, sampling: HeatSampling, domain: Domain, state: Mapping[str, Tensor]
    ) -> InverseHeat:
        """Models that 0.1.0 saved with the identity skip lack their spectrum."""
        shapes: dict[str, tuple[int | None, ...]] = {"prior.coefficients": (None, domain.shape[0], None)}
        measured = settings.skip == "linear" or any(name in state for name in Spectrum.shapes(domain.shape))
        shapes |= Spectrum.shapes(domain.shape) if measured else {}
        fitting(state, shapes)
        t_K = float(settings.schedule(domain.laplacian).t[-1])
        prior = Prior(domain.laplacian, t_K, state["prior.coefficients"], _filter(settings, domain))
        return cls._built(settings, sampling, prior, Spectrum.from_state(state) if measured else None)

    @classmethod
    def _built(
        cls, settings: HeatSettings, sampling: HeatSampling, prior: Prior, spectrum: Spectrum | None
    ) -> InverseHeat:
        laplacian, schedule = prior.laplacian, settings.schedule(prior.laplacian)
        skip: Skip = IdentitySkip()
        if settings.skip == "linear" and spectrum is not None:
            skip = LinearSkip(LinearPredictor(laplacian, schedule, settings.sigma, spectrum), settings.units == "level")
        spectra = () if prior.blur is not None else (spectrum,) if spectrum else tuple(guesses(prior))
        return cls(laplacian, schedule, settings.sigma, skip, sampling, prior, spectra, prior.blur)

    def state(self) -> dict[str, Tensor]:
        measured = self.spectra[0].state() if len(self.spectra) == 1 else {}
        return measured | {"prior.coefficients": self.prior.coefficients}

    # Forward, and what the network learns

    def blur(self, u_0: Tensor, k: Tensor) -> Tensor:
        """F(t_k) u_0 (Eq. 2) for one level per sample, (B,), or several, (L, B), for which u_0 is read only once."""
        return (self.filter or self.laplacian).dissipate(u_0, self._t.like(u_0)[k])

    def noised(self, u_0: Tensor, k: Tensor, eps: Tensor) -> Tensor:
        """u_k = F(t_k) u_0 + sigma eps, a draw from q(u_k | u_0) (Eq. 3)."""
        return self.blur(u_0, k) + self.sigma * eps

    def errors(self, network: Network, u_0: Tensor, k: Tensor, eps: Tensor) -> Tensor:
        """mu(F(t_k) u_0 + sigma eps, k) - F(t_{k-1}) u_0."""
        coarse, fine = self.blur(u_0, torch.stack([k, k - 1]))
        return self.skip(network, coarse + self.sigma * eps, k) - fine

    def loss(self, network: Network, u_0: Tensor, k: Tensor, eps: Tensor) -> Tensor:
        """|| mu(F(t_k) u_0 + sigma eps, k) - F(t_{k-1}) u_0 ||^2, summed over pixels, for each sample (Eq. 9-10).

        With process.units=level, in other units (`LinearSkip`).
        """
        return self.skip.counted(self.errors(network, u_0, k, eps), k)

    def surprise(self, network: Network, u_0: Tensor, k: Tensor, eps: Tensor) -> Tensor:
        """sum (1 - a^2) |e_hat|^2 / (2 sigma^2), a = alpha_k / alpha_{k-1}: the exact bound's term of level k."""
        return self.chain_term(self.laplacian.to_spectrum(self.errors(network, u_0, k, eps)), k).flatten(1).sum(1)

    def chain_term(self, errors_hat: Tensor, k: Tensor) -> Tensor:
        """The same for each coefficient, from the coefficients of the errors."""
        fresh = 1 - self.ratio(k, k - 1, errors_hat).square()
        return fresh * errors_hat.square() / (2 * max(self.sigma, LEAST_SIGMA) ** 2)

    def signal_to_noise(self, k: int) -> Tensor | None:
        """exp(2 t_k eigenvalues) P / sigma^2."""
        if len(self.spectra) != 1:
            return None
        return self.spectra[0].signal_to_noise(self.laplacian.left(self.schedule.t[k]), self.sigma)

    # Back

    def levels(self, top: int | None = None) -> list[int]:
        _check_sampler(self.sampling, self.K, self.sigma, self.filter is None)
        levels = super().levels(top)
        if self.exact and len(levels) > 2:  # via level 1: from farther away the last step leaves a haze
            levels = [*evenly(levels[0], 1, len(levels) - 2), 0]
        if self.exact and not self.spectra and any(k - j > 1 for k, j in zip(levels, levels[1:])):
            raise UsageError("to leave out levels, exact steps need the spectrum of the data")
        return levels

    @classmethod
    def with_sampler(cls, sampling: HeatSampling, changes: dict[str, Any]) -> dict[str, Any]:
        """A change to the paper's steps makes them as many as there are levels, unless their number is given."""
        changes = super().with_sampler(sampling, changes)
        to_paper = sampling.sampler == "exact" and changes.get("sampler") == "paper"
        return {"steps": None} | changes if to_paper else changes

    def mean(self, network: Network, u_k: Tensor, k: Tensor) -> Tensor:
        """mu(u_k, k) (Eq. 4), corrected by `hold` if there is one."""
        mu = self.skip(network, u_k, k)
        if self.hold is None:
            return mu
        return self.laplacian.from_spectrum(self.hold(self.laplacian.to_spectrum(mu), k, k - 1))

    def step(self, network: Network, u_k: Tensor, k: Tensor, j: Tensor, eps: Tensor) -> Tensor:
        """Alg. 2: u_prev = mu(u_k, k) + delta eps, or an exact step to any level."""
        if self.exact:
            return super().step(network, u_k, k, j, eps)
        return self.mean(network, u_k, k.view(-1)) + self.delta * eps

    def predict(self, network: Network, u_k: Tensor, u_hat_k: Tensor, k: Tensor, j: Tensor) -> Tensor:
        """m_j = E[F(t_j) u_0 | u_k] = exp((t_j - t_{k-1}) eigenvalues) mu, in the spectrum.

        The exponential would amplify the network's mistakes. So it is applied only to what mu adds to the linear
        prediction, and only up to a limit; the linear prediction itself is known at any level.
        """
        if self._predictor is None:
            m = self.laplacian.to_spectrum(self.skip(network, u_k, k))
        else:
            linear, t = self._predictor, self._t.like(u_k)
            deviation = linear.deviation(u_hat_k, k)
            beyond = self.skip.beyond(network, u_k, k, linear, deviation)
            most = LIMIT * linear.variance(k, j, u_hat_k).sqrt() / linear.rms_error(k, u_hat_k)
            growth = torch.minimum(self.laplacian.decay(t[j] - t[k - 1], u_hat_k), most.clamp_min(1))
            m = linear.coefficients(linear.predict(deviation, k, j) + growth * beyond, j)
        return m if self.hold is None else self.hold(m, k, j)

    @cached_property
    def _predictor(self) -> LinearPredictor | None:
        if isinstance(self.skip, LinearSkip):
            return self.skip.predictor
        return LinearPredictor(self.laplacian, self.schedule, self.sigma, self.spectra[0]) if self.spectra else None

    def ratio(self, k: Tensor, j: Tensor, like: Tensor) -> Tensor:
        """exp((t_k - t_j) eigenvalues)."""
        t = self._t.like(like)
        return self.laplacian.decay(t[k] - t[j], like)

    def sigma_at(self, k: Tensor, like: Tensor) -> Tensor:
        """sigma at every level except 0, because the last step leaves no noise."""
        return rows(self.sigma * (k > 0), like)

    def slope(self, i: Tensor, k: Tensor, j: Tensor, like: Tensor) -> Tensor:
        """Half the ratio of the steps, times alpha_j / alpha_k up to a limit; 0 in the first step and in the last.

        Steps are measured in levels, that is, in log t, over which predictions change evenly.
        """
        t = self._t.like(like)
        ahead = torch.where((i > k) & (j > 0), (k - j) / (i - k).clamp_min(1) / 2, 0.0)
        growth = (rows(t[j] - t[k], like) * self.laplacian.eigenvalues_like(like)).clamp_max(AHEAD).exp()
        return rows(ahead, like) * growth

    @property
    def noisy(self) -> bool:
        return super().noisy if self.exact else self.delta > 0

    @property
    def remembers(self) -> bool:
        return self.exact and super().remembers

    # Where it starts

    def start(self, noise: SeededNoise | InterpolatedNoise) -> Tensor:
        """u_K = F(t_K) u_0 + noise, where each row chooses its own training image u_0."""
        if self.prior is None:
            raise UsageError(
                "a process without a prior draws no starts: give it one, prior=Prior.from_images(...), or start the "
                "chain at a u_K of your own"
            )
        return self.near(noise.choice(len(self.prior)), noise(self.K + 1))

    def near(self, index: Tensor, eps: Tensor) -> Tensor:
        """The same, where u_0 are the training images with the given numbers."""
        return self.prior.near(index, eps, self.start_noise)

    def between(self, one: SeededNoise, other: SeededNoise, weight: Tensor) -> Tensor:
        """Blurred starts are interpolated linearly."""
        start, end = self.start(one), self.start(other)
        return torch.lerp(start, end, rows(weight, start))

    def guided(self, hold: Hold) -> InverseHeat:
        """The same process, with its predictions corrected by `hold` at every step."""
        return replace(self, hold=hold)

    def bounding(self, **options: Any) -> HeatBound:
        return HeatBound(self, **options)

    # In words

    @classmethod
    def summary(cls, settings: HeatSettings, sampling: HeatSampling, domain: Domain) -> str:
        schedule = settings.schedule(domain.laplacian)
        filter = ", Gaussian filter" if settings.blur == "gaussian" else ""
        return (
            f"{cls.title}, K = {settings.K}, sigma_B {schedule.sigma_B_min:g} to {schedule.sigma_B_max:g} "
            f"{domain.unit}s, sigma {settings.sigma:g}, {settings.skip} skip{filter}"
        )

    @classmethod
    def remarks(cls, settings: HeatSettings, domain: Domain) -> list[str]:
        found, widest, unit = [], settings.schedule(domain.laplacian).sigma_B_max, f"{domain.unit}s"
        if settings.sigma == 0:
            found.append("warning: without noise (process.sigma=0) the reverse process is unstable (App. C.5)")
        if widest < domain.longest / 2:
            found.append(
                f"note: the widest blur, {widest:g} {unit}, does not blank data that are {domain.longest:g} {unit} "
                f"long; the paper blurs by half the size or more: --set process.sigma_B_max=auto"
            )
        return found

    def facts(self) -> dict[str, str]:
        return {"prior": self.prior.words}

    def level_words(self, k: int) -> str:
        return f"as if blurred over {float(self.schedule.sigma_B[k]):.1f} pixels" if k else "sharp"

    def sampling_words(self) -> str:
        if not self.exact:
            return f"the paper's {self.K} steps, delta {self.delta:g}"
        return f"{len(self.levels()) - 1} exact steps, eta {self.sampling.eta:g}{self.refinements()}"


def as_published(settings: Any) -> bool:
    """Whether it is the process of the authors' code: the heat equation, and a network whose output is added to u_k."""
    return isinstance(settings, HeatSettings) and (settings.skip, settings.blur) == ("identity", "heat")


def _filter(settings: HeatSettings, domain: Domain) -> GaussianFilter | None:
    """What blurs instead of the heat equation, if anything."""
    if settings.blur == "heat":
        return None
    if not isinstance(domain.laplacian, GridLaplacian):
        raise UsageError(
            f"a Gaussian filter (process.blur=gaussian) is for grids, not for {domain.kind}; use process.blur=heat"
        )
    return GaussianFilter(domain.grid)


def _check_sampler(sampling: HeatSampling, K: int, sigma: float, heat: bool) -> None:
    """Refuse a sampler that does not work with the process."""
    if sampling.sampler == "paper" and (sampling.steps or K) < K:
        raise UsageError(
            f"the paper's steps go from each level to the next, {K} in all: leave out --steps "
            f"(or --set sampling.steps=auto), or take {sampling.steps} exact steps "
            f"(--sampler exact, or --set sampling.sampler=exact)"
        )
    if sampling.sampler == "exact" and (sigma < LEAST_SIGMA or not heat):
        why = "noise (process.sigma of 1e-6 or more)" if heat else "the heat equation (process.blur=heat)"
        raise UsageError(
            f"exact steps need {why}; "
            f"take the paper's steps (--sampler paper, or --set sampling.sampler=paper sampling.steps=auto)"
        )
