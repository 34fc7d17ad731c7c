"""Calls whose C++ takes sizes as numbers alone, in a form that takes symbolic ones: for abstract tensors.

| room | calls |
|---|---|
| `floats.py` | x ** f, add(x, y, alpha=f), leaky_relu(x, f), foreach... |
| `numbers.py` | torch.tensor(n), linspace, one_hot, kron, x[n - 1, :]... |
| `resampling.py` | interpolate, max_pool1d |
| `products.py` | linear; matmul, where torch takes its sizes as numbers (before 2.13) |
| `attention.py` | multi-head attention, of the products and the attention with dropout that are here |
| `recurrent.py` | lstm, gru, rnn and their cells |
| `spectra.py` | stft |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from absint.forms.attention import ATTENTION_FORMS
from absint.forms.floats import FLOAT_FORMS
from absint.forms.numbers import NUMBER_FORMS, get_item, set_item
from absint.forms.products import LINEAR_FORMS, PRODUCT_FORMS, takes_symbols
from absint.forms.recurrent import RECURRENT_FORMS
from absint.forms.resampling import RESAMPLING_FORMS
from absint.forms.spectra import SPECTRAL_FORMS
from absint.targets import find

__all__ = ["get_item", "set_item", "symbolic_form", "symbolic_forms"]

_FORMS: dict[str, Callable[..., Any]] = {
    **ATTENTION_FORMS, **FLOAT_FORMS, **LINEAR_FORMS, **NUMBER_FORMS, **RESAMPLING_FORMS, **RECURRENT_FORMS,
    **SPECTRAL_FORMS,
}  # fmt: skip


@cache
def symbolic_forms() -> Mapping[str, Callable[..., Any]]:
    """By the name of the call that they replace; on tensors without symbolic sizes they are that call."""
    return MappingProxyType(_FORMS if takes_symbols() else {**_FORMS, **PRODUCT_FORMS})


@cache
def _by_function() -> dict[Any, Callable[..., Any]]:
    """Of the calls that this torch has."""
    return {found: form for name, form in symbolic_forms().items() if (found := find(name)) is not None}


def symbolic_form(function: Any) -> Any:
    """The form of a call that takes symbolic sizes, or the call."""
    try:
        return _by_function().get(function, function)
    except TypeError:  # not hashable
        return function
