"""What passes ask about an op, by its name in a document ("aten.add.Tensor", or "prims.add" in a decomposed graph)."""

from __future__ import annotations

from functools import cache

from absint.schema import record_of
from absint.targets import resolve

__all__ = ["has_effect", "is_pure", "is_random", "is_repeatable", "is_view", "packet_of"]

# Their contents are undefined: two of them are not the same value.
_UNDEFINED = ("aten.empty", "aten.empty_like", "aten.new_empty", "aten.empty_strided", "aten.new_empty_strided")
# By its schema it may: the kernel takes no dropout.
_NEVER_DRAWS = frozenset(("aten._scaled_dot_product_flash_attention_for_cpu.default",))
_ASSERTIONS = frozenset(("aten._assert_async.default", "aten._assert_async.msg", "aten._linalg_check_errors.default"))
# Prims are named here, since this stage imports no other: those that only say where elements are found (no copy once
# they are fused), and those that draw random numbers. A test compares the latter with primops' opset.
_PRIM_MOVES = frozenset(f"prims.{name}" for name in ("permute", "reshape", "broadcast_in_dim", "slice", "flip"))
_DRAWING = (
    "rand randn randint randperm bernoulli bernoulli_p uniform normal normal_of exponential cauchy log_normal "
    "geometric poisson binomial standard_gamma multinomial rrelu philox_state"
)
DRAWING_PRIMS = frozenset(f"prims.{name}" for name in _DRAWING.split())


def packet_of(target: str) -> str:
    """An op without its overload.

    >>> packet_of("aten.add.Tensor"), packet_of("prims.add")
    ('aten.add', 'prims.add')
    """
    return target if target.startswith("prims.") else target.rpartition(".")[0]


@cache
def is_view(target: str) -> bool:
    """Does its result share memory with its first argument."""
    if target.startswith("prims."):
        return target in _PRIM_MOVES
    return record_of(resolve(target)).is_view


@cache
def is_random(target: str) -> bool:
    """Does it draw random numbers."""
    if target in _NEVER_DRAWS:
        return False
    if target.startswith("prims."):
        return target in DRAWING_PRIMS
    return record_of(resolve(target)).is_random


def has_effect(target: str) -> bool:
    """Must it run even if nobody uses its results: it advances the random stream, or may raise."""
    return is_random(target) or target in _ASSERTIONS


def is_repeatable(target: str) -> bool:
    """Do two calls on equal arguments give equal results."""
    return not is_random(target) and packet_of(target) not in _UNDEFINED


def is_pure(target: str) -> bool:
    """Is it ATen's, gives the same results each time, and does nothing else."""
    return target.startswith("aten.") and is_repeatable(target) and not has_effect(target)
