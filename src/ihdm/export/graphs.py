"""Programs as ONNX graphs, with the weights inside, for runtimes in other languages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ihdm.errors import IhdmError
from ihdm.export.programs import Program, first_line, quiet

ENDING = ".onnx"
TOLERANCE = 1e-4


def write(program: Program, path: Path) -> float:
    """Write a program, run it in onnxruntime, and return how far its results are from those of the original."""
    from onnx_ir.passes.common import RemoveUnusedNodesPass

    names = list(program.example(1))
    traced = program.traced()
    try:
        with quiet():
            found: Any = torch.onnx.export(
                traced, dynamo=True, verbose=False, input_names=names, output_names=program.outputs
            )
    except torch.onnx.OnnxExporterError as error:
        raise IhdmError(
            f"the {program.name} of this model cannot be written as ONNX ({first_line(error.__cause__ or error)}); "
            f"--format torch or --format diffusers may work"
        ) from error
    RemoveUnusedNodesPass()(found.model)  # unused constants of branches, about which runtimes would complain
    found.save(path)
    return program.difference(runner(path, names))


def runner(path: Path, names: list[str]) -> Any:
    """A file as a function of tensors, which onnxruntime runs."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])

    def run(*inputs: Tensor) -> list[Tensor]:
        given = {name: tensor.numpy() for name, tensor in zip(names, inputs)}
        return [torch.from_numpy(array) for array in session.run(None, given)]

    return run
