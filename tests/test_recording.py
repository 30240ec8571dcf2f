"""Steps of every process and every network can be recorded, which needs no GPU to find out."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from recording import Recording, Replayed, record, recorded_training

from ihdm.engine import lowered
from ihdm.execution import Execution
from ihdm.model import Model
from ihdm.model_folder import ModelConfig
from ihdm.networks import told
from ihdm.noise import SeededNoise
from ihdm.registry import PROCESSES
from ihdm.sampler import reverse_step
from ihdm.trainer import Trainer

SETTINGS = [
    *([f"process.kind={kind}"] for kind in PROCESSES),
    ["process.kind=growing", "process.skip=plain"],
    ["process.skip=identity"],
    ["process.units=level", "network.pyramid=5", "trainer.batch_size=16"],
    ["data.flip=true", "network.dropout=0.3", "trainer.accumulate=2"],
]
WAYS = [{}, {"sampler": "exact", "order": 2, "corrected": True, "eta": 0.5, "steps": 7}]
GPU = torch.device("meta")  # in the place of one


@pytest.fixture(params=SETTINGS, ids=" ".join)
def config(request, tiny_config):
    return tiny_config.with_settings(request.param)


@pytest.fixture
def model(config, labelled) -> Model:
    """Guided away from a weaker network; both have random weights."""
    torch.manual_seed(0)
    one, other = (
        Model.from_images(ModelConfig.of(config, labelled.shape, labels=labelled.labels), labelled.train)
        for _ in range(2)
    )
    for weight in (*one.network.parameters(), *other.network.parameters()):
        torch.nn.init.normal_(weight, std=0.1)
    return one.guided_by(other, 1.5).eval()


def sampled(model, way) -> Model:
    known = {f.name for f in fields(model.process.sampling)}
    return model.sampled(**{name: value for name, value in way.items() if name in known})


@pytest.mark.parametrize("way", WAYS, ids=["usual", "refined"])
def test_replayed_steps_are_plain_ones(model, way, monkeypatch):
    """In batches, each with numbers and labels of its own."""
    model, asked = sampled(model, way), {"n": 6, "seed": 3, "labels": torch.tensor([0, 1, 2, 2, 1, 0])}
    plain = model.sample(**asked, execution=Execution(batch_size=2))
    record(monkeypatch)
    assert torch.equal(model.sample(**asked, execution=Execution(batch_size=2)), plain)


def test_replayed_training_is_training(config, labelled, tmp_path, monkeypatch):
    plain, replayed = (Trainer(config, labelled, tmp_path / name) for name in ("plain", "replayed"))
    record(monkeypatch)
    recorded_training(replayed)
    for trainer in (plain, replayed):
        for trainer.step in range(config.trainer.steps):
            trainer.train_step()
    averages = (trainer.training.optimizer.average.parameters() for trainer in (plain, replayed))
    for one, other in zip(*averages):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
    assert isinstance(replayed.training._update, Replayed) and len(replayed.training._update._graph.operations) > 5


@pytest.mark.parametrize("way", WAYS, ids=["usual", "refined"])
def test_all_of_a_step_is_on_the_gpu(model, way, monkeypatch):
    """In training with weights in lower precision, and in sampling. Constants come there the first time."""
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: tensor.is_meta), raising=False)
    model, shape = sampled(model, way).to(GPU), (16, *model.config.shape)
    process, network = model.process, lowered(model.network.train(), torch.bfloat16)
    network.network.expect_levels(process.K, shape[0])
    k, label = torch.ones(2, shape[0], dtype=torch.long, device=GPU)
    step = reverse_step(process, network, SeededNoise(3, label, shape[1:]))
    levels = [torch.full((), level, device=GPU) for level in (5, 4, 6)]

    u, eps = torch.empty(2, *shape, device=GPU)

    def work() -> None:
        process.losses(told(network, label), u, k, eps).sum().backward()
        with torch.no_grad():
            step(process.begin(u), *levels, label)

    work()
    with Recording("meta"):
        work()


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (lambda u: u * float(u.sum()), "waits"),
        (lambda u: u[u > 0], "waits"),
        (lambda u: u + torch.tensor([1.0, 2.0]), "same in every replay"),
    ],
)
def test_what_cannot_be_recorded_is_found(work, said):
    with pytest.raises(AssertionError, match=said), Recording():
        work(torch.ones(2))
    with pytest.raises(AssertionError, match="elsewhere"), Recording("meta"):
        torch.ones(2, device="meta") * torch.ones(())


def test_what_python_does_between_operations_is_not_replayed():
    seen, numbers = [], torch.arange(2.0)
    replayed = Replayed(lambda u: seen.append(u) or u * numbers + len(seen), torch.device("cpu"), warmup=0)
    assert [replayed(torch.ones(2)).tolist() for _ in range(2)] == [[1.0, 2.0]] * 2
    numbers += 1
    assert replayed(2 * torch.ones(2)).tolist() == [3.0, 5.0] and len(seen) == 1
