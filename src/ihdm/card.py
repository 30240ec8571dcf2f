"""The card of a model: README.md in its folder, which the hub shows as the model's page."""

from __future__ import annotations

from ihdm.model_folder import ModelConfig
from ihdm.registry import PROCESSES


def card(config: ModelConfig, rows: dict[str, str], name: str = "path/to/this/folder", samples: str = "") -> str:
    """README.md, the model's card. rows: its table; name: what its example loads; samples: the file of a picture."""
    process, domain = PROCESSES.of(config.process), config.domain
    origin = f"Trained with ihdm on `{config.data}` for {config.steps:,} steps."
    if config.origin:
        origin = (
            f"Trained for {config.steps:,} steps with the code of the method's authors. Converted by ihdm from\n"
            f"their checkpoint `{config.origin}`, with a prior made from `{config.data}`."
        )
    table = "\n".join(f"| {label} | {value} |" for label, value in rows.items())
    picture = f"\n![Samples]({samples})\n" if samples else ""
    copies = f"The prior holds blurred copies of the training {domain.noun}s"
    prior = f"{copies}: share the folder only where you may share those.\n" if "prior" in rows else ""
    guidance = ", guidance=1.5" if config.guide is None else ""
    label = f", labels={config.labels.names[0]!r}{guidance}" if config.labels else ""
    tag = process.title.replace(" ", "-")
    kind = f"pipeline_tag: unconditional-image-generation\ntags: [{tag}]"
    if domain.kind != "images":
        kind = f"tags: [{tag}, {domain.kind}]"
    elif config.labels:
        kind = f"tags: [{tag}, class-conditional-image-generation]"
    text = f"""---
library_name: ihdm
{kind}
---
# A model of {process.title}

{domain.noun.capitalize()}s of {domain.words}, {process.grown}.
{origin}
{picture}
| | |
|---|---|
{table}

```python
from ihdm import Model

{domain.noun}s = Model.from_pretrained("{name}").sample(16, seed=0{label})
```

{f"Method: {process.method}." if process.method else ""}
{prior}"""
    return text.rstrip() + "\n"
