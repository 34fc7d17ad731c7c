"""What passes ask about an op, by its name in a document ("aten.add.Tensor")."""

from __future__ import annotations

from functools import cache

from absint.schema import record_of
from absint.targets import resolve

__all__ = ["has_effect", "is_random", "is_repeatable", "is_view"]

# Their contents are undefined: two of them are not the same value.
_UNDEFINED = ("aten.empty", "aten.empty_like", "aten.new_empty", "aten.empty_strided", "aten.new_empty_strided")
# By its schema it may: without dropout, which the tracer leaves to other ops, it does not.
_NEVER_DRAWS = frozenset(
    f"aten._scaled_dot_product_{name}.default"
    for name in ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")
)
_ASSERTIONS = frozenset(("aten._assert_async.default", "aten._assert_async.msg"))


@cache
def is_view(target: str) -> bool:
    """Does its result share memory with its first argument."""
    return record_of(resolve(target)).is_view


@cache
def is_random(target: str) -> bool:
    """Does it draw random numbers."""
    if target in _NEVER_DRAWS:
        return False
    return record_of(resolve(target)).is_random


def has_effect(target: str) -> bool:
    """Must it run even if nobody uses its results: it advances the random stream, or may raise."""
    return is_random(target) or target in _ASSERTIONS


def is_repeatable(target: str) -> bool:
    """Do two calls on equal arguments give equal results."""
    return not is_random(target) and target.rpartition(".")[0] not in _UNDEFINED
