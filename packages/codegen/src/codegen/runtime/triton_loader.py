"""Loading Triton units: the module is written to a file (Triton reads its source), imported, and launched by Triton.

With TRITON_INTERPRET=1 in the environment when the module is loaded, kernels run on CPU tensors in Triton's
interpreter.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from codegen.errors import UnknownTarget
from codegen.runtime.arguments import Environment, Symbols, resolve
from codegen.runtime.python_wrapper import allocate, call, stated_offsets, taken, view
from stagewire.program import Allocate, CallExtern, Launch, MakeView, Release, Unit


def load_triton(units: Sequence[Unit], cache_dir: str | Path | None) -> tuple[Any, ...]:
    """One callable for each unit; kernels compile at their first launch, and Triton caches them."""
    directory = Path(cache_dir) if cache_dir is not None else Path(tempfile.gettempdir()) / "codegen-triton"
    return tuple(TritonWrapper(unit, import_source(unit.source, directory / "triton")) for unit in units)


def import_source(source: str, directory: Path) -> ModuleType:
    """Import `source` from a file named by its hash."""
    name = "kernels_" + hashlib.sha256(source.encode()).hexdigest()[:24]
    path = directory / f"{name}.py"
    directory.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != source:
        handle, part = tempfile.mkstemp(dir=directory, suffix=".part")
        with os.fdopen(handle, "w") as file:
            file.write(source)
        os.replace(part, path)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        raise UnknownTarget(
            "Triton is not installed", fix="pip install triton (it is part of torch for CUDA)."
        ) from error
    return module


class TritonWrapper:
    """Runs a unit's instructions on tensors, in order."""

    def __init__(self, unit: Unit, module: ModuleType) -> None:
        self.unit = unit
        self.stated = stated_offsets(unit)
        self.kernels = {info.name: (getattr(module, info.name), info) for info in unit.kernels}

    def __call__(self, *inputs: torch.Tensor) -> tuple[Any, ...]:
        inputs = taken(inputs)
        if not inputs and self.unit.inputs:
            return ()
        symbols: Symbols = {}
        environment: Environment = dict(zip(self.unit.inputs, inputs, strict=True))
        for instruction in self.unit.instructions:
            match instruction:
                case Allocate(buffer, type, reuse):
                    environment[buffer] = allocate(type, symbols, environment.pop(reuse) if reuse else None)
                case MakeView(buffer, base, type):
                    environment[buffer] = view(environment[base], type, symbols, self.stated.get(base, 0))
                case Launch(kernel, buffers):
                    self.launch(kernel, [environment[name] for name in buffers])
                case CallExtern():
                    call(instruction, environment, symbols)
                case Release(buffer):
                    environment.pop(buffer, None)
        return tuple(resolve(output, environment, symbols) for output in self.unit.outputs)

    def launch(self, kernel: str, buffers: list[torch.Tensor]) -> None:
        function, info = self.kernels[kernel]
        if info.grid == (0,):
            return  # no point to run at
        function[info.grid](*buffers, **dict(info.constants), num_warps=info.num_warps, num_stages=info.num_stages)
