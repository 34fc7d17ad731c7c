"""What Triton's interpreter lacks, and other schedules, for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from codegen.triton import tuning


def count_by_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the interpreter loop to a number that is an argument: it makes an array of one element an index, which numpy
    no longer takes for a number."""
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)


def retuned(monkeypatch: pytest.MonkeyPatch, **numbers: Any) -> None:
    """Schedule kernels by other numbers than those of `tuning.py`."""
    monkeypatch.setattr(tuning, "SM_90", replace(tuning.SM_90, **numbers))
