"""`ihdm export`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from tyro.conf import OmitArgPrefixes, Positional, arg

from ihdm import extras
from ihdm.disk import replaced_folder
from ihdm.errors import UsageError
from ihdm.export import Format
from ihdm.verbs.words import AS_THE_MODEL_HAS_IT, HowToSample, ModelName, check_new_folder

FOR_ONNX = ("onnx", "onnxscript", "onnxruntime")
FOR_IMAGES = ("diffusers", "web")
NEXT = {  # how to use the exported files
    "diffusers": "diffusers.DiffusionPipeline.from_pretrained(FOLDER, trust_remote_code=True)",
    "onnx": "python examples/onnx_sampling.py {out}",
    "torch": "Chain.from_pretrained(FOLDER) from the folder's ihdm_chain.py",
    "web": "npm install --prefix {out} onnxruntime-web@1.30.0 && python -m http.server --bind 127.0.0.1 -d {out}",
}


def export(
    model: ModelName,
    out: Annotated[Positional[Path], arg(metavar="OUT")],
    /,
    format: Format,
    sampling: Annotated[HowToSample, OmitArgPrefixes] = AS_THE_MODEL_HAS_IT,
) -> None:
    """Export a model for diffusers, ONNX, torch or a browser.

    The export runs without ihdm, in float32, for any number of images. It is checked against the model before it is
    kept.

    Args:
        model: a model folder, a run folder, owner/name on the hub, or a model that comes with ihdm (see ihdm info)
        out: a new folder
        format: a diffusers pipeline, ONNX graphs, torch.export programs, or a page that samples in the browser
    """
    check_new_folder(out, "export")
    from ihdm.export import folders
    from ihdm.model import Model
    from ihdm.processes import FromImages

    loaded = Model.from_pretrained(model).sampled(**sampling.changes())
    domain = loaded.config.domain
    if domain.kind != "images" and format in FOR_IMAGES:
        raise UsageError(
            f"{format} shows images, but {model} makes {domain.noun}s; use --format torch or --format onnx, whose "
            f"programs return arrays"
        )
    if format in ("onnx", "web"):
        extras.check("ONNX", "onnx", *FOR_ONNX)
    with replaced_folder(out) as folder:
        written = folders.write(loaded, format, folder)
    for name, difference in written.items():
        near = f"within {difference:.0e} of" if difference else "equal to"
        print(f"{out / name}: {(out / name).stat().st_size / 1e6:.1f} MB, {near} the model")
    if isinstance(loaded.process, FromImages):
        print(f"it holds blurred copies of the training {domain.noun}s: share it only where you may share those")
    print(f"next: {NEXT[format].format(out=shlex.quote(str(out)))}")
