"""Checkpoints of the authors' code: the same numbers as theirs come out, and nothing in a file is executed.

What they computed with a small network is recorded in `recorded/`. Where $IHDM_REFERENCE names a checkout of
AaltoML/generative-inverse-heat-dissipation, networks of its own configurations are compared as well.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import struct
import sys
import zipfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import patch

import authors
import numpy as np
import pytest
import torch

from ihdm.cli import main
from ihdm.config import load_config
from ihdm.convert import Checkpoint, convert, fitting, read_checkpoint
from ihdm.data import ImageSet
from ihdm.errors import IhdmError, UsageError
from ihdm.model import Model
from ihdm.sampler import sample
from ihdm.torch_archive import StoredTensor, read_archive

REFERENCE = os.environ.get("IHDM_REFERENCE")
beside = pytest.mark.skipif(not REFERENCE, reason="$IHDM_REFERENCE names no checkout of the authors' code")

RECORDED = Path(__file__).parent / "recorded"
CHECKPOINT = RECORDED / "authors.pth"
SETTINGS = [
    *("process.K=6", "process.sigma_B_max=6", "data.size=8", "data.channels=1"),
    *("network.channels=32", "network.multipliers=1,1", "network.attention=1"),
]


@pytest.fixture(scope="module")
def recorded() -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in np.load(RECORDED / "authors.npz").items()}


@pytest.fixture
def images(tmp_path) -> str:
    np.save(tmp_path / "images.npy", np.random.default_rng(0).integers(0, 256, (20, 8, 8), dtype=np.uint8))
    return str(tmp_path / "images.npy")


def words(checkpoint: Path, out: Path, data: str) -> list[str]:
    return ["convert", str(checkpoint), str(out), "--preset", "mnist", "--data", data, "--set", *SETTINGS]


def test_the_recorded_numbers_come_out(recorded, images, tmp_path, capsys):
    main(words(CHECKPOINT, tmp_path / "model", images))
    assert "step 1,234" in capsys.readouterr().out
    model = Model.from_pretrained(tmp_path / "model")
    process, network, K = model.process, model.network, 6
    levels = torch.arange(K + 1)
    with torch.no_grad():
        torch.testing.assert_close(process.blur(recorded["u_0"], levels), recorded["u_k"], atol=1e-5, rtol=0)
        output = network(recorded["u_k"][1:], levels[1:])
        torch.testing.assert_close(output, recorded["output"], atol=1e-5, rtol=1e-5)
        loss = process.loss(network, recorded["u_0"], recorded["loss_levels"], recorded["loss_eps"])
        torch.testing.assert_close(loss, recorded["losses"], atol=1e-5, rtol=1e-5)
        found = sample(process, network, recorded["u_K"], lambda k: recorded["sample_eps"][K - int(k)])
        torch.testing.assert_close(found, recorded["sample"], atol=1e-5, rtol=1e-5)


def test_the_folder_says_where_it_comes_from(images, tmp_path, capsys):
    main(words(CHECKPOINT, tmp_path / "model", images))
    told = capsys.readouterr().out
    assert "network.blocks=1, network.resample=conv, network.groups=32" in told
    model = Model.from_pretrained(tmp_path / "model")
    assert (model.config.steps, model.config.origin, model.config.data) == (1234, "authors.pth", "images.npy")
    assert len(model.process.prior) == 19 and model.sample(2).shape == (2, 1, 8, 8)
    card = (tmp_path / "model" / "README.md").read_text()
    assert "Converted by ihdm" in card and "`authors.pth`" in card and "`images.npy`" in card
    main(["info", str(tmp_path / "model")])
    assert "1,234 steps with the authors' code; converted from authors.pth" in capsys.readouterr().out


def test_a_folder_without_settings_that_came_later_is_read(images, tmp_path):
    config, checkpoint = load_config("mnist", SETTINGS), read_checkpoint(CHECKPOINT)
    described = fitting(config, checkpoint)
    model = convert(checkpoint, described, ImageSet("x", torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.empty(0)))
    model.save_pretrained(tmp_path)
    tree = json.loads((tmp_path / "config.json").read_text())
    del tree["network"]["groups"]
    (tmp_path / "config.json").write_text(json.dumps(tree))
    assert Model.from_pretrained(tmp_path).config.network.groups is None
    del tree["network"]["blocks"]  # the default is another number, for which there are not enough weights
    (tmp_path / "config.json").write_text(json.dumps(tree))
    with pytest.raises(IhdmError, match=r"model\.safetensors does not fit config\.json.* is missing"):
        Model.from_pretrained(tmp_path)
    del tree["network"]
    (tmp_path / "config.json").write_text(json.dumps(tree))
    with pytest.raises(IhdmError, match=r"config\.json is not the config of a model .*network"):
        Model.from_pretrained(tmp_path)


def refused(arguments, code, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    error = capsys.readouterr().err
    assert stop.value.code == code and message in error and "Traceback" not in error, error


def test_wrong_words_are_refused_before_work_starts(images, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("IHDM_DATA", raising=False)
    out = tmp_path / "model"
    good = words(CHECKPOINT, out, images)
    plain = good[: -len(SETTINGS)]
    refused(["convert", str(CHECKPOINT), str(out), "--preset", "mnst"], 2, "did you mean 'mnist'?", capsys)
    refused([*good, "process.skip=linear"], 2, "process.skip=identity", capsys)
    refused([*plain, "network.kind=graph"], 2, "U-Nets for images, not network.kind=graph", capsys)
    refused([*plain, "data.kind=signals", "data.size=64"], 2, "not network.kind=unet for signals", capsys)
    refused([*good, "network.channels=48"], 2, "cannot be divided into network.groups=32", capsys)
    refused(words(CHECKPOINT, tmp_path, images), 2, "give the name of a new folder", capsys)
    refused(words(tmp_path / "no.pth", out, images), 1, "there is no file", capsys)
    refused(words(tmp_path, out, images), 1, "is a folder", capsys)
    missing = words(CHECKPOINT, out, str(tmp_path / "no.zip"))
    refused(missing, 1, "the prior is made from the training images (--data SOURCE), but there is no", capsys)
    assert not out.exists()


def test_a_preset_that_does_not_fit_is_refused_with_one_that_does(capsys, images, tmp_path):
    found = read_checkpoint(CHECKPOINT)
    with pytest.raises(IhdmError, match=r"time_embed\.0\.weight is 128x32, not 512x128.* and \d+ more.*no preset"):
        fitting(load_config("mnist"), found)
    with pytest.raises(IhdmError, match=r"input_blocks\.0\.0\.weight is 32x1x3x3, not 32x3x3x3"):
        fitting(load_config("mnist", [*SETTINGS, "data.channels=3"]), found)
    with pytest.raises(IhdmError, match=r"input_blocks\.3\.1\.norm\.weight' is not expected"):
        fitting(load_config("mnist", [*SETTINGS, "network.attention=none"]), found)
    with pytest.raises(UsageError, match="heat equation"):
        fitting(load_config("mnist-ddpm"), found)


def test_images_of_another_shape_are_refused():
    found = read_checkpoint(CHECKPOINT)
    described = fitting(load_config("mnist", SETTINGS), found)
    with pytest.raises(IhdmError, match=r"\(1, 9, 9\)"):
        convert(found, described, ImageSet("x", torch.zeros(2, 1, 9, 9, dtype=torch.uint8), torch.empty(0)))


def test_read_archive_gives_what_torch_saved(tmp_path):
    tree = {
        "a": [torch.arange(6.0).view(2, 3).T, torch.tensor(3)],
        "b": {"x": 1.5, 7: (None, True, -300, 2**40, "word", ())},
        "half": torch.ones(0, 4, dtype=torch.bfloat16),
        "parameter": torch.nn.Parameter(torch.eye(2, dtype=torch.float64)),
    }
    torch.save(tree, tmp_path / "x.pth")
    found = read_archive(tmp_path / "x.pth")
    assert found["b"] == tree["b"]
    pairs = [(found["a"][0], tree["a"][0]), (found["a"][1], tree["a"][1]), (found["half"], tree["half"])]
    for stored, tensor in [*pairs, (found["parameter"], tree["parameter"].data)]:
        assert type(stored) is StoredTensor
        assert stored.read().equal(tensor) and stored.read().dtype == tensor.dtype


class Evil:
    """Makes a folder when unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_nothing_in_a_file_is_executed(tmp_path, protocol):
    torch.save({"model": Evil(tmp_path / "made")}, tmp_path / "x.pth", pickle_protocol=protocol)
    with pytest.raises(IhdmError):
        read_checkpoint(tmp_path / "x.pth")
    assert not (tmp_path / "made").exists()
    pickle.loads(pickle.dumps(Evil(tmp_path / "made")))
    assert (tmp_path / "made").exists()  # it would have worked


def test_what_a_file_asks_for_is_named(tmp_path):
    torch.save({"model": Evil(tmp_path / "made")}, tmp_path / "x.pth")
    with pytest.raises(IhdmError, match=r"asks for '(posix|nt)\.mkdir'.*nothing in it was executed"):
        read_checkpoint(tmp_path / "x.pth")


def members() -> dict[str, bytes]:
    with zipfile.ZipFile(CHECKPOINT) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def written(path: Path, parts: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return path


def test_a_checkpoint_from_a_gpu_and_an_older_numpy_is_read(tmp_path):
    parts = members()
    program = parts["authors/data.pkl"]
    for now, then in [
        (b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n"),
        (b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0"),
    ]:
        assert now in program
        program = program.replace(now, then)
    found = read_checkpoint(written(tmp_path / "x.pth", parts | {"authors/data.pkl": program}))
    for name, tensor in read_checkpoint(CHECKPOINT).weights.items():
        assert found.weights[name].read().equal(tensor.read())


def test_an_archive_that_unpacks_to_more_than_itself_is_refused(tmp_path):
    parts = members()
    assert read_checkpoint(written(tmp_path / "good.pth", parts)).steps == 1234
    bomb = written(tmp_path / "bomb.pth", parts | {"authors/data/0": bytes(2**26)}, zipfile.ZIP_DEFLATED)
    assert bomb.stat().st_size < 2**18
    with pytest.raises(IhdmError, match=r"declares 67,\d+,\d+ bytes.*that are compressed"):
        read_checkpoint(bomb)
    content = bytearray(CHECKPOINT.read_bytes())
    entry = content.rindex(b"authors/data/0") - 46  # in the directory at the end, sizes 20 bytes after its beginning
    content[entry + 20 : entry + 28] = struct.pack("<II", 2**31, 2**31)
    (tmp_path / "liar.pth").write_bytes(content)
    with pytest.raises(IhdmError, match="declares 2,147,"):
        read_checkpoint(tmp_path / "liar.pth")
    long = parts | {"authors/data.pkl": b"]" * 2**23}
    with pytest.raises(IhdmError, match=r"far more in its data\.pkl"):
        read_checkpoint(written(tmp_path / "long.pth", long))


def long1(number: int) -> bytes:
    content = number.to_bytes((number.bit_length() + 8) // 8, "little")
    return b"\x8a" + bytes([len(content)]) + content


COLLIDING = b"\x80\x02}(" + b"".join(long1(i * (2**61 - 1)) + b"N" for i in range(1, 200_000)) + b"u."


def huge_shape(axes: int) -> bytes:
    """A tensor of that many axes, each as long as a pickle can say in few bytes."""
    shape = b"(" + long1(2**1500) * axes + b"tq\x00"
    storage = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x02tQ"
    return b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\x00" + shape + b"h\x00\x89}tR."


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (b"\x80\x02}q\x00.", "no checkpoint of the authors' code"),
        (b"\x80\x02]q\x00.", "no checkpoint of the authors' code"),
        (
            b"\x80\x02}(X\x05\x00\x00\x00modelX\x01\x00\x00\x00au.",
            "no checkpoint of the authors' code.*; this file has 'model'",
        ),
        (b"\x80\x02}q\x00", "cannot be read"),  # no end
        (b"\x80\x02.", "cannot be read"),  # nothing made
        (b"\x80\x02(t\x85.", "no checkpoint of the authors' code"),
        (b"\x80\x02\x87.", "cannot be read"),
        (b"\x80\x02Nr\xff\xff\xff\x7f.", "numbers what it remembers"),  # a memo with a distant place
        (b"\x80\x02NN\x86q\x00" + b"h\x00h\x00\x86q\x00" * 60 + b"}h\x00Ns.", "keys that are neither"),  # 2^60 Nones
        (COLLIDING, "keys that are neither"),
        (b"\x80\x02N" + b"".join(b"r" + struct.pack("<I", i << 12) for i in range(2**16)) + b".", "remembers"),
        (huge_shape(20_000), "an impossible shape"),
        (b"\x80\x02X\xff\xff\xff\x7fabc.", "cannot be read"),  # text of two gigabytes
        (b"\x80\x02cbuiltins\neval\nX\x01\x00\x00\x001\x85R.", "asks for 'builtins.eval'"),
        (b"\x80\x02ctorch\nFloatStorage\n)R.", "which torch.save does not do"),
        (b"\x80\x02ccollections\nOrderedDict\n)\x81.", "NEWOBJ"),
    ],
)
def test_programs_that_are_no_checkpoint_are_refused(tmp_path, program, message):
    with pytest.raises(IhdmError, match=message):
        read_checkpoint(written(tmp_path / "x.pth", {"x/data.pkl": program, "x/data/0": bytes(8)}))


def test_files_that_are_no_archive_are_refused(tmp_path):
    path = tmp_path / "x.pth"
    content = CHECKPOINT.read_bytes()
    for damaged in (b"", b"some words", content[:1000], content[: len(content) // 2], content[:-1], content[9:]):
        path.write_bytes(damaged)
        with pytest.raises(IhdmError, match=r"x\.pth"):
            read_checkpoint(path)
    torch.save({"model": {}}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(IhdmError, match=r"from torch 1\.6 on"):
        read_checkpoint(path)
    written(path, {"a.txt": b"text"})
    with pytest.raises(IhdmError, match=r"no data\.pkl"):
        read_checkpoint(path)


def test_a_flipped_bit_in_the_weights_is_found(tmp_path):
    content = bytearray(CHECKPOINT.read_bytes())
    with zipfile.ZipFile(CHECKPOINT) as archive:
        content[archive.getinfo("authors/data/0").header_offset + 5000] ^= 16
    (tmp_path / "x.pth").write_bytes(content)
    found = read_checkpoint(tmp_path / "x.pth")
    with pytest.raises(IhdmError, match="damaged"):
        found.weights["time_embed.0.weight"].read()


def test_a_damaged_program_is_read_or_refused_in_words(tmp_path):
    """Some hundred programs with a few random bytes each."""
    random, parts = np.random.default_rng(0), members()
    outcomes = {True: 0, False: 0}
    for _ in range(150):
        program = np.frombuffer(parts["authors/data.pkl"], np.uint8).copy()
        places = random.integers(0, len(program), random.integers(1, 4))
        program[places] = random.integers(0, 256, len(places), dtype=np.uint8)
        path = written(tmp_path / "x.pth", parts | {"authors/data.pkl": program.tobytes()})
        try:
            found = read_checkpoint(path)
            for weight in found.weights.values():
                weight.read()
            outcomes[True] += 1
        except IhdmError:
            outcomes[False] += 1
    assert min(outcomes.values()) > 5, outcomes


def changed(path: Path, change) -> Path:
    """The recorded checkpoint with a change, made by torch itself."""
    kept = [np.dtype, np.dtypes.Float64DType, (np._core.multiarray.scalar, "numpy.core.multiarray.scalar")]
    with torch.serialization.safe_globals([*kept, np._core.multiarray.scalar]):
        tree = torch.load(CHECKPOINT, weights_only=True)
    change(tree)
    torch.save(tree, path)
    return path


def test_checkpoints_whose_parts_do_not_agree_are_refused(tmp_path):
    path, config = tmp_path / "x.pth", load_config("mnist", SETTINGS)
    with pytest.raises(IhdmError, match="averaged weights"):
        read_checkpoint(changed(path, lambda tree: tree["ema"]["shadow_params"].pop()))
    with pytest.raises(IhdmError, match="averaged weights"):
        read_checkpoint(changed(path, lambda tree: tree["ema"]["shadow_params"].reverse()))
    with pytest.raises(IhdmError, match="something else"):
        read_checkpoint(changed(path, lambda tree: tree.update(step="many")))
    with pytest.raises(IhdmError, match="this file has 'optimizer', 'model', 'step'"):
        read_checkpoint(changed(path, lambda tree: tree.pop("ema")))
    without_prefix = changed(
        path, lambda tree: tree.update(model={k.removeprefix("module."): v for k, v in tree["model"].items()})
    )
    assert read_checkpoint(without_prefix).shapes == read_checkpoint(CHECKPOINT).shapes
    spoilt = read_checkpoint(changed(path, lambda tree: tree["ema"]["shadow_params"][3].fill_(float("nan"))))
    with pytest.raises(IhdmError, match="not finite"):
        convert(spoilt, fitting(config, spoilt), ImageSet("x", torch.zeros(2, 1, 8, 8).byte(), torch.empty(0)))


# Beside the authors' code.


class Settings(SimpleNamespace):
    """Stands in for ml_collections.ConfigDict, which their configurations are made of."""


def their_config(name: str) -> Settings:
    authors.use(REFERENCE)
    stand_in = ModuleType("ml_collections")
    vars(stand_in)["ConfigDict"] = Settings
    with patch.dict(sys.modules, {"ml_collections": stand_in}):
        return importlib.import_module(f"configs.{name}").get_config()


THEIRS = {
    "mnist": "mnist.default_mnist_configs",
    "cifar10": "cifar10.default_cifar10_configs",
    "afhq-64": "afhq.img_size_64",
    "afhq-256": "afhq.default_afhq_configs",
    "ffhq-128": "ffhq.img_size_128_maxblur128",
    "ffhq-256": "ffhq.default_ffhq_configs",
}
SMALL_MNIST = ["process.K=50", "network.channels=64", "network.multipliers=1,1,1"]  # their mnist.small_mnist


@beside
@pytest.mark.parametrize(
    ("preset", "name", "settings"),
    [*((preset, name, []) for preset, name in THEIRS.items()), ("mnist", "mnist.small_mnist", SMALL_MNIST)],
)
def test_every_configuration_of_theirs_fits_its_preset(preset, name, settings):
    """Names and shapes of all weights, the image's shape, K, sigma, and the blur width of every level."""
    theirs = their_config(name)
    from model_code.unet import UNetModel

    with torch.device("meta"):
        weights = dict(UNetModel(theirs).state_dict())
    config = fitting(load_config(preset, settings), Checkpoint(Path("x.pth"), weights, 0))
    size = theirs.data.image_size
    assert config.shape == (theirs.data.num_channels, size, size)
    assert (config.process.K, config.process.sigma) == (theirs.model.K, theirs.model.sigma)
    assert config.network.blocks == theirs.model.num_res_blocks
    widths = load_schedule(config).numpy()
    if preset == "afhq-64":  # level K is overwritten with 0 there, and is never trained
        assert theirs.model.blur_schedule[-1] == 0
        widths = np.append(widths[:-1], 0)
    np.testing.assert_allclose(widths, theirs.model.blur_schedule, rtol=1e-12)


def load_schedule(config) -> torch.Tensor:
    return config.process.schedule(config.domain.laplacian).sigma_B


@beside
@pytest.mark.parametrize(
    ("preset", "name", "settings"),
    [
        ("mnist", "mnist.small_mnist", SMALL_MNIST),
        ("mnist", "mnist.default_mnist_configs", []),
        ("cifar10", "cifar10.default_cifar10_configs", []),
    ],
)
def test_a_network_of_theirs_computes_the_same(preset, name, settings, tmp_path):
    """A step of their training, saved by their code: same u_k, network, loss and sample."""
    theirs = their_config(name)
    import model_code.nn
    import model_code.unet
    from model_code.ema import ExponentialMovingAverage
    from model_code.utils import create_forward_process_from_sigmas, create_model
    from scripts import losses
    from scripts.sampling import get_sampling_fn_inverse_heat

    model_code.unet.normalization = model_code.nn.normalization  # their own again
    theirs.device, theirs.optim.automatic_mp = torch.device("cpu"), False
    torch.manual_seed(0)
    network = create_model(theirs)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.5 / max(1, parameter[0].numel()) ** 0.5))
    optimizer = losses.get_optimizer(theirs, network.parameters())
    average = ExponentialMovingAverage(network.parameters(), decay=theirs.model.ema_rate)
    state = {"optimizer": optimizer, "model": network, "step": 2000, "ema": average}
    blur = create_forward_process_from_sigmas(theirs, theirs.model.blur_schedule, theirs.device)
    channels, size, K = theirs.data.num_channels, theirs.data.image_size, theirs.model.K
    u_0 = torch.rand(2, channels, size, size)
    optimize = losses.optimization_manager(theirs)
    losses.get_step_fn(True, None, theirs, optimize, blur)(state, u_0)
    authors.save_checkpoint(tmp_path / "checkpoint.pth", state)

    checkpoint = read_checkpoint(tmp_path / "checkpoint.pth")
    shown = (u_0 * 255).byte()
    model = convert(
        checkpoint, fitting(load_config(preset, settings), checkpoint), ImageSet("x", shown, torch.empty(0))
    )
    before = network.module.state_dict()["time_embed.0.weight"].clone()
    average.copy_to(network.parameters())
    assert not before.equal(network.module.state_dict()["time_embed.0.weight"])  # the average is something else
    network.eval()
    assert model.config.steps == 2001
    k = torch.tensor([1, K - 1])
    with torch.no_grad():
        u_k = blur(u_0, k).float()
        torch.testing.assert_close(model.process.blur(u_0, k), u_k, atol=1e-5, rtol=0)
        torch.testing.assert_close(model.network(u_k, k), network(u_k, k), atol=1e-5, rtol=1e-5)
        eps = torch.randn(u_0.shape)
        with authors.given_noise(eps):
            _, expected, levels = losses.get_inverse_heat_loss_fn(theirs, False, None, "cpu", blur)(network, u_0)
        found = model.process.loss(model.network, u_0, levels, eps)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)

        theirs.model.K = 3  # from level 3 down; there are a hundred and more
        u_3 = blur(u_0, torch.full((2,), 3)).float()
        noises = torch.randn(3, *u_0.shape)
        with authors.given_noise(*noises):
            expected, *_ = get_sampling_fn_inverse_heat(theirs, u_3, None, model.process.delta, "cpu")(network)
        *_, (_, found) = model.path(u_3, lambda k: noises[3 - int(k)], level=3)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
