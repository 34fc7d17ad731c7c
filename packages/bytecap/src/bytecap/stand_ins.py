"""Python functions of libraries that lose something where they are compiled: what is evaluated in their place.

transformers collects hidden states and attentions through hooks, which find their collector in a context variable; in
compiled code in an attribute instead, that the innermost model empties as it ends. What the models round it collect
is lost then (GIT: its vision model runs inside of its text model). Evaluated is what runs elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def set_collector(self: Any, value: Any) -> Any:
    """transformers.utils.output_capturing.CompileableContextVar.set"""
    return self.context_var.set(value)


_COLLECTOR = ("transformers.utils.output_capturing", "CompileableContextVar")

STAND_INS: dict[tuple[str, str], Callable[..., Any]] = {
    (_COLLECTOR[0], f"{_COLLECTOR[1]}.set"): set_collector,
}
"""(module, qualified name) -> the function that is evaluated."""
