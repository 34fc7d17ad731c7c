"""What Triton's interpreter lacks, for tests."""

from __future__ import annotations

from typing import Any

import pytest


def count_by_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the interpreter loop to a number that is an argument: it makes an array of one element an index, which numpy
    no longer takes for a number."""
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)
