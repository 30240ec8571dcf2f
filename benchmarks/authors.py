"""The authors' code (AaltoML/generative-inverse-heat-dissipation), from a checkout, driven by our settings."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import torch
from torch import Tensor, nn

from ihdm.config import Config
from ihdm.heat import GridLaplacian
from ihdm.networks.layers import Norm
from ihdm.networks.unet import UNetSettings


def use(checkout: str | Path) -> None:
    """Make the checkout importable, without the part that reads data sets and the packages that it needs."""
    if str(checkout) not in sys.path:
        sys.path.insert(0, str(checkout))
    sys.modules.setdefault("scripts.datasets", ModuleType("scripts.datasets"))


def namespace(config: Config, shape: tuple[int, int, int], device: torch.device) -> SimpleNamespace:
    """Their configuration object for one of ours."""
    channels, size, _ = shape
    optim = SimpleNamespace(
        optimizer="Adam",
        lr=config.trainer.lr,
        beta1=0.9,
        eps=1e-8,
        weight_decay=0,
        warmup=config.trainer.warmup,
        grad_clip=config.trainer.clip,
        automatic_mp=device.type == "cuda",
    )
    model = network_namespace(config.network)
    model.K, model.sigma, model.ema_rate = config.process.K, config.process.sigma, config.trainer.ema
    data = SimpleNamespace(image_size=size, num_channels=channels)
    return SimpleNamespace(model=model, data=data, optim=optim, device=device)


def network_namespace(network: UNetSettings) -> SimpleNamespace:
    return SimpleNamespace(
        model_channels=network.channels,
        channel_mult=network.multipliers,
        num_res_blocks=network.blocks,
        attention_levels=network.attention,
        dropout=network.dropout,
        conv_resample=network.resample == "conv",
        num_heads=1,
        num_heads_upsample=-1,
        num_head_channels=-1,
        use_fp16=False,
        use_new_attention_order=True,
        use_scale_shift_norm=False,
        resblock_updown=False,
    )


def build_network(config: UNetSettings, shape: tuple[int, int, int]) -> nn.Module:
    """Their U-Net, normalised in as many groups as ours, which has fewer than 32 where channels are few."""
    import model_code.unet as unet

    unet.normalization = lambda width: nn.GroupNorm(config.groups or Norm(width).num_groups, width)
    data = SimpleNamespace(image_size=shape[1], num_channels=shape[0])
    return unet.UNetModel(SimpleNamespace(model=network_namespace(config), data=data))


def training_step(config: Config, shape: tuple[int, int, int], device: torch.device) -> Callable[[], Any]:
    """One step of their training on a batch that is already on the device."""
    from model_code.ema import ExponentialMovingAverage
    from scripts import losses

    theirs = namespace(config, shape, device)
    network = build_network(config.network, shape).to(device)
    state = {
        "model": network,
        "optimizer": losses.get_optimizer(theirs, network.parameters()),
        "ema": ExponentialMovingAverage(network.parameters(), decay=theirs.model.ema_rate),
        "step": 0,
    }
    step = losses.get_step_fn(
        True, None, theirs, losses.optimization_manager(theirs), build_blur(config, shape, device), device
    )
    batch = torch.rand(config.trainer.batch_size, *shape, device=device)
    return lambda: step(state, batch)


def initial_state(config: Config, shape: tuple[int, int, int]) -> dict[str, Any]:
    """The state that their training starts with, on the CPU, as `save_checkpoint` takes it."""
    from model_code.ema import ExponentialMovingAverage
    from scripts import losses

    theirs = namespace(config, shape, torch.device("cpu"))
    network = nn.DataParallel(build_network(config.network, shape))
    optimizer = losses.get_optimizer(theirs, network.parameters())
    average = ExponentialMovingAverage(network.parameters(), decay=theirs.model.ema_rate)
    return {"optimizer": optimizer, "model": network, "step": 0, "ema": average}


def save_checkpoint(path: str | Path, state: dict[str, Any]) -> None:
    """Write what their training writes, without the packages that their file imports to draw pictures."""
    unneeded = {name: MagicMock() for name in ("cv2", "torchvision", "torchvision.utils")}
    with patch.dict(sys.modules, unneeded):
        from scripts.utils import save_checkpoint

        save_checkpoint(path, state)


def given_noise(*draws: Tensor) -> AbstractContextManager[Any]:
    """Let their code draw these noises, one after the other."""
    return patch("torch.randn_like", MagicMock(side_effect=list(draws)))


def build_blur(config: Config, shape: tuple[int, int, int], device: torch.device) -> nn.Module:
    from model_code.utils import DCTBlur

    return DCTBlur(config.process.schedule(GridLaplacian(shape[1:])).sigma_B.tolist(), shape[1], device)


def sampling(config: Config, network: nn.Module, u_K: Tensor) -> Callable[[], Tensor]:
    """Their reverse chain from u_K."""
    from scripts.sampling import get_sampling_fn_inverse_heat

    theirs = SimpleNamespace(model=SimpleNamespace(K=config.process.K), device=u_K.device)
    delta = config.sampling.delta_ratio * config.process.sigma
    chain = get_sampling_fn_inverse_heat(theirs, u_K, None, delta, u_K.device)
    return lambda: chain(network)[0]
