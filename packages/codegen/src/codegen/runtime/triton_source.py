"""The source of a Triton unit as a module."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import tempfile
from pathlib import Path
from types import ModuleType

from codegen.errors import UnknownTarget


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
