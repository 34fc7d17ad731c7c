"""`record(model, *args, to=FILE)`: what one call compiles, as a capsule."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import bytecap
from stagefold.backend import StagefoldBackend
from stagefold.capsule.file_format import Capsule
from stagefold.capsule.recorder import Recorder
from stagefold.capture_slot import CaptureSlot
from stagefold.compiled_module import CompiledModule
from stagefold.options import parse_options
from stagefold.pipeline import StageLike, resolve_stage


def record(
    model: Callable[..., Any],
    *args: Any,
    to: str | os.PathLike[str],
    options: Mapping[str, Any] | None = None,
    stages: Mapping[str, StageLike] | None = None,
    dynamic: bool | None = None,
    saved_bytes: int = 1 << 20,
    **kwargs: Any,
) -> Capsule:
    """Compile and call `model` once, and write what was compiled, forward and backward, to one file.

    to: the file; one that exists is replaced. options, stages, dynamic: as for `compile`. saved_bytes: inputs up to
    that size are saved, of larger ones the type and a seed. The call is a real one. What STAGEFOLD_TRACE records of a
    whole process, this records of a call.

    Errors: those of compiling and of the call; the file is written all the same.

    >>> import tempfile, torch
    >>> from stagefold.capsule.replay import replay
    >>> capsule = record(torch.nn.ReLU(), torch.ones(3), to=tempfile.mkdtemp() + "/relu.capsule")
    >>> [run.name for run in capsule.runs], all(made.is_same for made in replay(capsule))
    (['ReLU'], True)
    """
    recorder = Recorder(Path(to), saved_bytes=saved_bytes)
    behind = dict(stages or {})
    front = behind.pop("capture", None)
    backend = StagefoldBackend(parse_options(None, options), behind, recorder)
    if isinstance(model, CompiledModule):
        model = model._orig_mod
    call = (
        bytecap.optimize(model, backend, on_event=recorder.note, warns=True, dynamic=dynamic)
        if front is None
        else CaptureSlot(model, resolve_stage("capture", front), backend, backend.options, dynamic)
    )
    try:
        call(*args, **kwargs)
    finally:
        recorder.flush(empty=True)
    return Capsule(to)
