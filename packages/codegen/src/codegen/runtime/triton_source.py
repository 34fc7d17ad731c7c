"""The source of a Triton unit as a module."""

from __future__ import annotations

import hashlib
import linecache
import weakref
from types import ModuleType

from codegen.errors import UnknownTarget


def module_of(source: str) -> ModuleType:
    """The module that `source` defines. No file is written or read: what lies in a directory is never run.

    Triton reads the text of its functions again, by the name of their file; as for code of an interactive session,
    `linecache` has it under that name, for as long as the module lives.
    """
    module = ModuleType("kernels_" + hashlib.sha256(source.encode()).hexdigest()[:24])
    file = f"<{module.__name__} {id(module):x}>"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    weakref.finalize(module, linecache.cache.pop, file, None)
    try:
        exec(compile(source, file, "exec", dont_inherit=True), module.__dict__)
    except ModuleNotFoundError as error:
        raise UnknownTarget(
            "Triton is not installed", fix="pip install triton (it is part of torch for CUDA)."
        ) from error
    return module
