"""How the reverse mean mu is made from the network's output: what the network does not have to learn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ihdm.processes.linear import LinearPredictor
from ihdm.processes.process import Network


class Skip(Protocol):
    """mu(u_k, k) from a network, and how its errors count in training."""

    def __call__(self, network: Network, u_k: Tensor, k: Tensor) -> Tensor: ...

    def beyond(self, network: Network, u_k: Tensor, k: Tensor, linear: LinearPredictor, deviation: Tensor) -> Tensor:
        """What mu adds to the linear prediction of level k - 1, along the colour axes; deviation: that of u_k there."""
        ...

    def counted(self, errors: Tensor, k: Tensor) -> Tensor:
        """The loss of each sample, (B,), from its errors."""
        ...


class IdentitySkip:
    """mu = u_k + f(u_k, k), the paper's parametrisation (section 2.1)."""

    def __call__(self, network: Network, u_k: Tensor, k: Tensor) -> Tensor:
        return u_k + network(u_k, k.expand(u_k.shape[0]))

    def beyond(self, network: Network, u_k: Tensor, k: Tensor, linear: LinearPredictor, deviation: Tensor) -> Tensor:
        mu_hat = linear.laplacian.to_spectrum(self(network, u_k, k))
        return linear.deviation(mu_hat, k - 1) - linear.predict(deviation, k, k - 1)

    def counted(self, errors: Tensor, k: Tensor) -> Tensor:
        return squares(errors)


@dataclass(frozen=True)
class LinearSkip:
    """mu = the best linear prediction of level k - 1 + its rms error c_k x f(u_k, k).

    scaled: f sees how far u_k is from its mean, in units of what is usual at level k, instead of u_k itself, and errors
    are counted in units of c_k and averaged over pixels, so that all levels count alike.
    """

    predictor: LinearPredictor
    scaled: bool = False

    def __call__(self, network: Network, u_k: Tensor, k: Tensor) -> Tensor:
        return self.predict(u_k, k) + self._added(network, u_k, k)

    def beyond(self, network: Network, u_k: Tensor, k: Tensor, linear: LinearPredictor, deviation: Tensor) -> Tensor:
        return linear.along_axes(linear.laplacian.to_spectrum(self._added(network, u_k, k)))

    def _added(self, network: Network, u_k: Tensor, k: Tensor) -> Tensor:
        """c_k f(u_k, k)."""
        shown = self.predictor.scaled(u_k, k) if self.scaled else u_k
        return self.predictor.rms_error(k, u_k) * network(shown, k.expand(u_k.shape[0]))

    def counted(self, errors: Tensor, k: Tensor) -> Tensor:
        if not self.scaled:
            return squares(errors)
        return squares(errors / self.predictor.rms_error(k, errors)) / errors[0].numel()

    def predict(self, u_k: Tensor, k: Tensor) -> Tensor:
        """The linear prediction of level k - 1."""
        predictor, basis = self.predictor, self.predictor.laplacian
        deviation = predictor.predict(predictor.deviation(basis.to_spectrum(u_k), k), k, k - 1)
        return basis.from_spectrum(predictor.coefficients(deviation, k - 1))


def squares(errors: Tensor) -> Tensor:
    """The squared errors of each sample, summed over pixels."""
    return errors.square().flatten(1).sum(1)
