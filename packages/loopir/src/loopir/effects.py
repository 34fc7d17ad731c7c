"""What is known of externs by their names: which nodes they are, and which give views."""

from __future__ import annotations

from loopir.prim_calls import PRIM_CALLS


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def is_call(target: str) -> bool:
    """Whether a node is a call of ATen (or of the user) rather than loops.

    >>> is_call("aten.mm.default"), is_call("prims.max_pool2d"), is_call("prims.add")
    (True, True, False)
    """
    namespace, _, name = target.partition(".")
    return namespace != "prims" or name in PRIM_CALLS


VIEWS: frozenset[str] = _words(
    "alias as_strided adjoint chunk conj _conj _neg_view contiguous detach diagonal expand expand_as imag "
    "lift_fresh movedim narrow permute real reshape _reshape_alias resolve_conj resolve_neg select slice split "
    "split_with_sizes squeeze t transpose unbind unflatten unfold unsqueeze view view_as view_as_complex "
    "view_as_real"
)


def may_alias(target: str) -> bool:
    """Whether results of `target` may lie in the memory of its operands.

    >>> may_alias("aten._conj.default"), may_alias("aten.mm.default")
    (True, False)
    """
    namespace, _, rest = target.partition(".")
    return namespace == "aten" and rest.partition(".")[0] in VIEWS
