"""Values that gain nothing by being computed again: they would have to be written to memory in the backward anyway."""

from __future__ import annotations

from collections.abc import Callable

from aotgrad.ops import packet_of
from aotgrad.partition.needs import Needs
from aotgrad.partition.policy import Policy
from stagewire.graph import Node
from stagewire.graph_passes import operands

__all__ = ["held_back", "is_fused"]

# Backward ops that are one pass over memory, fused with what feeds them.
_FUSED = frozenset(
    f"aten.{name}"
    for name in ("gelu_backward", "threshold_backward", "tanh_backward", "sigmoid_backward", "silu_backward",
                 "elu_backward", "hardtanh_backward", "hardswish_backward", "leaky_relu_backward", "logit_backward",
                 "native_dropout_backward", "softplus_backward", "mish_backward", "sum", "mean")
) | frozenset(f"prims.{name}" for name in ("sum", "amax", "amin", "var_mean"))  # fmt: skip


def held_back(
    needs: Needs,
    policy: Policy,
    longest_life: int,
    save_operands: bool,
    bytes_of: Callable[[str], int],
    released: frozenset[str] = frozenset(),
) -> frozenset[str]:
    """Names of values not to compute again: operands of ops that are not fused, but for unfolded inputs and those
    `released`, and values that would live long."""
    fused = [is_fused(node, policy) for node in needs.backward]
    kept: set[str] = set()
    if save_operands:
        for name, users in needs.consumers.items():
            if any(not fused[user] for user in users):
                kept.update(_memory(name, needs, policy))
        kept = {name for name in kept - released if not _unfolds_inputs(name, needs, policy, bytes_of)}
    clock = [0]
    for passes_once in fused:
        clock.append(clock[-1] + (not passes_once))
    kept.update(_long_lived(needs, policy, clock, longest_life, kept))
    return frozenset(kept)


def is_fused(node: Node, policy: Policy) -> bool:
    """Is an op one pass over memory that is fused with its neighbours, its result not written for its own sake."""
    return policy.element_cost(node) is not None or packet_of(node.target) in _FUSED


def _memory(name: str, needs: Needs, policy: Policy) -> tuple[str, ...]:
    """The value whose memory `name` shows, or whose numbers; none for an input or a constant filling."""
    node = needs.producers.get(name)
    while node is not None and (policy.is_free(node) or name in needs.widened):
        name = operands(node)[0]
        node = needs.producers.get(name)
    return () if node is None or not operands(node) else (name,)


def _unfolds_inputs(name: str, needs: Needs, policy: Policy, bytes_of: Callable[[str], int]) -> bool:
    """Whether a value is one pass over inputs that take less memory than it, as what is added to scores is over a mask
    of truth values."""
    found: set[str] = set()
    pending, seen = [name], {name}
    while pending:
        one = pending.pop()
        node = needs.producers.get(one)
        if node is None:
            found.add(one)
            continue
        if policy.element_cost(node) is None:
            return False
        fresh = [operand for operand in operands(node) if operand not in seen]
        seen.update(fresh)
        pending += fresh
    return bool(found) and not found & needs.mutated and sum(map(bytes_of, found)) < bytes_of(name)


def _long_lived(needs: Needs, policy: Policy, clock: list[int], longest: int, kept: set[str]) -> list[str]:
    """Values that, computed again for their first use, wait for their last across more than `longest` unfused ops.

    A value is first used where the backward uses it, or where a value that is computed again from it is first used;
    those that are kept are not.
    """
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for name, users in needs.consumers.items():
        if users and name in needs.producers:
            first[name], last[name] = clock[users[0]], clock[users[-1]]
    found = []
    for name, node in reversed(needs.producers.items()):
        start = first.get(name)
        if start is None or name in kept or (cost := policy.element_cost(node)) is None:
            continue
        free = policy.is_free(node) or name in needs.widened
        if cost and not free and last[name] - start > longest:
            found.append(name)
            continue
        end = last[name] if free else start
        for operand in operands(node):
            if operand in needs.producers:
                first[operand] = min(first.get(operand, start), start)
                last[operand] = max(last.get(operand, end), end)
    return found
