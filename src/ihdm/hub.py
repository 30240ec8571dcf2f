"""Upload models to the Hugging Face hub; `Model.from_pretrained` downloads them from there."""

from __future__ import annotations

import io
from pathlib import Path

from torch import Tensor

from ihdm import pictures
from ihdm.card import card
from ihdm.errors import IhdmError, UsageError
from ihdm.model import Model
from ihdm.model_folder import CARD, FAMILIAR, READER

SAMPLES = "samples.png"


def check(name: str) -> None:
    """Refuse, before any work, what the hub would refuse."""
    from huggingface_hub import get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    called = f"a model on the hub is called owner/name, not {name}"
    if name.count("/") != 1:
        raise UsageError(called)
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise UsageError(f"{called} ({error})") from error
    if get_token() is None:
        raise UsageError("nobody is logged in to the hub on this machine; run `hf auth login`, or set HF_TOKEN")


def push(
    folder: Path, model: Model, name: str, samples: Tensor | None = None, private: bool = False, message: str = ""
) -> str:
    """Upload a model folder to the hub as owner/name, with samples; return the address of its page.

    A card that somebody has edited is uploaded as it is; otherwise it gets the samples and the model's name on the hub.
    """
    check(name)
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.errors import HfHubHTTPError

    names = *model.file_names(), FAMILIAR, READER
    files = {file: (folder / file).read_bytes() for file in names if (folder / file).exists()}
    if samples is not None:
        drawn = io.BytesIO()
        pictures.grid(model.config.domain.pictures(samples)).save(drawn, "PNG")
        files[SAMPLES] = drawn.getvalue()
    written = (folder / CARD).read_text(encoding="utf-8") if (folder / CARD).exists() else ""
    if written in ("", card(model.config, model.facts())):
        written = card(model.config, model.facts(), name, "" if samples is None else SAMPLES)
    files[CARD] = written.encode()
    api, additions = HfApi(), [CommitOperationAdd(path, content) for path, content in files.items()]
    try:
        page = api.create_repo(name, private=private, exist_ok=True)
        api.create_commit(name, additions, commit_message=message or "A model of ihdm")
    except (HfHubHTTPError, OSError) as error:
        raise IhdmError(f"{name} could not be uploaded to the hub: {str(error).strip().splitlines()[0]}") from error
    return str(page)
