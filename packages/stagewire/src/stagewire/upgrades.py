"""Plain data of an earlier version of a document as that of the next (`stagewire.codec.UPGRADES`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# What drew random numbers by the lists that readers of version 1 had; as it was then, not kept up to date.
_NAMES = (
    "_fused_dropout _sample_dirichlet _standard_gamma alpha_dropout bernoulli bernoulli_ bernoulli_p binomial cauchy "
    "cauchy_ dropout exponential exponential_ geometric geometric_ log_normal log_normal_ multinomial native_dropout "
    "normal normal_ normal_functional normal_of philox_state poisson rrelu rrelu_with_noise "
    "rrelu_with_noise_functional standard_gamma uniform uniform_"
)
_DRAWING = frozenset(_NAMES.split())
_VIEW_NAMES = (
    "alias as_strided adjoint chunk conj _conj _neg_view contiguous detach diagonal expand expand_as imag lift_fresh "
    "movedim narrow permute real reshape _reshape_alias resolve_conj resolve_neg select slice split split_with_sizes "
    "squeeze t transpose unbind unflatten unfold unsqueeze view view_as view_as_complex view_as_real"
)
_VIEWS = frozenset(_VIEW_NAMES.split())
_ASSERTIONS = frozenset(("_assert_async", "_assert_scalar", "_assert_tensor_metadata"))


def state_effects(body: Any) -> Any:
    """Version 2 of grad, prim and loop: calls state their effect, which readers of version 1 told by the target.

    What is malformed stays as it is: reading the result as a document refuses it.
    """
    for call in _calls(body):
        match call:
            case {"target": str(target)}:
                call["effect"] = _effect(target)
    return body


def _calls(body: Any) -> Iterator[Any]:
    for direction in ("forward", "backward"):
        graph = body.get(direction) if isinstance(body, dict) else None
        for key in ("nodes", "steps"):
            calls = graph.get(key) if isinstance(graph, dict) else None
            if isinstance(calls, list):
                yield from calls


def _effect(target: str) -> str | None:
    namespace, _, rest = target.partition(".")
    name = rest.partition(".")[0]
    if namespace not in ("aten", "prims"):
        return "acts"
    attention = name.startswith("_scaled_dot_product") and not name.endswith("backward") and "_for_cpu" not in name
    if name in _DRAWING or name.startswith("rand") or attention:
        return "draws"
    return "acts" if name in _ASSERTIONS else "aliases" if namespace == "aten" and name in _VIEWS else None
