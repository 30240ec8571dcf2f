"""A diffusers pipeline for a model that ihdm exported; ihdm itself is not needed:

pipeline = DiffusionPipeline.from_pretrained("folder", trust_remote_code=True)
images = pipeline(16, generator=torch.Generator().manual_seed(0)).images

If the model knows labels (chain/chain.json lists them), you can ask for one: pipeline(16, labels="cat", guidance=1.5).
"""

from __future__ import annotations

from typing import Any

from diffusers import DiffusionPipeline, ImagePipelineOutput


class IhdmPipeline(DiffusionPipeline):
    """chain: what samples (chain/ihdm_chain.py)."""

    def __init__(self, chain: Any):
        super().__init__()
        self.register_modules(chain=chain)

    def __call__(
        self,
        batch_size: int = 1,
        generator: Any = None,
        output_type: str = "pil",
        return_dict: bool = True,
        labels: Any = None,
        guidance: float = 1.0,
    ) -> Any:
        """batch_size images. generator: one for all of them, or a list, one for each.

        output_type: "pil", "np" for an array (images, height, width, channels), or "pt" for a tensor
        (images, channels, height, width), both in [0, 1]. labels: a name or number for all images, or a list, one for
        each; by default in the proportions of the training set. guidance: how much they count, 1 as in training.
        """
        with self.progress_bar(total=len(self.chain.steps)) as bar:
            for grown in self.chain.grow(batch_size, generator, labels, guidance):
                images = grown
                bar.update()
        if output_type != "pt":
            images = images.permute(0, 2, 3, 1).cpu().numpy()
        if output_type == "pil":
            images = self.numpy_to_pil(images)
        return ImagePipelineOutput(images=images) if return_dict else (images,)
