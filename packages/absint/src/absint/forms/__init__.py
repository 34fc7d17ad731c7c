"""Calls whose C++ takes sizes as numbers alone, in a form that takes symbolic ones: for abstract tensors.

| room | calls |
|---|---|
| `floats.py` | x ** f, add(x, y, alpha=f), leaky_relu(x, f), foreach... |
| `indexing.py` | x[n - 1, :] |
| `numbers.py` | torch.tensor(n), linspace, one_hot, kron... |
| `resampling.py` | interpolate, max_pool1d |
| `products.py` | matmul, linear, before torch 2.13 |
| `attention.py` | attention with dropout, multi-head attention, before torch 2.13 |
| `recurrent.py` | lstm, gru, rnn and their cells |
| `spectra.py` | stft |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from absint.forms.attention import ATTENTION_FORMS
from absint.forms.floats import FLOAT_FORMS
from absint.forms.indexing import INDEXING_FORMS, get_item, set_item
from absint.forms.numbers import NUMBER_FORMS
from absint.forms.products import PRODUCT_FORMS
from absint.forms.recurrent import RECURRENT_FORMS
from absint.forms.resampling import RESAMPLING_FORMS
from absint.forms.spectra import SPECTRAL_FORMS
from absint.targets import resolve

__all__ = ["SYMBOLIC_FORMS", "get_item", "set_item", "symbolic_form"]

SYMBOLIC_FORMS: dict[str, Callable[..., Any]] = {
    **FLOAT_FORMS, **INDEXING_FORMS, **NUMBER_FORMS, **PRODUCT_FORMS, **RESAMPLING_FORMS, **RECURRENT_FORMS,
    **SPECTRAL_FORMS, **ATTENTION_FORMS,
}  # fmt: skip
"""By the name of the call that they replace; on tensors without symbolic sizes they are that call."""

_BY_FUNCTION: dict[Any, Callable[..., Any]] = {resolve(name): form for name, form in SYMBOLIC_FORMS.items()}


def symbolic_form(function: Any) -> Any:
    """The form of a call that takes symbolic sizes, or the call."""
    try:
        return _BY_FUNCTION.get(function, function)
    except TypeError:  # not hashable
        return function
