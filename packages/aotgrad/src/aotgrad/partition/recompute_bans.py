"""Recompute bans: which forward values a minimum cut may not compute again, which it must, and which it had better."""

from __future__ import annotations

from collections.abc import Callable

from aotgrad.joint import Joint
from aotgrad.ops import is_view, packet_of
from aotgrad.partition.needs import Needs, Sizes
from aotgrad.partition.policy import Policy
from stagewire.graph import Node, references
from stagewire.graph_passes import operands
from stagewire.literals import FLOATS
from stagewire.types import TensorType, ValueType

# Backward ops that are one pass over memory, fused with what feeds them.
_FUSED = frozenset(
    f"aten.{name}"
    for name in ("gelu_backward", "threshold_backward", "tanh_backward", "sigmoid_backward", "silu_backward",
                 "elu_backward", "hardtanh_backward", "hardswish_backward", "leaky_relu_backward", "logit_backward",
                 "native_dropout_backward", "softplus_backward", "mish_backward", "sum", "mean")
) | frozenset(f"prims.{name}" for name in ("sum", "amax", "amin", "var_mean"))  # fmt: skip


def recompute_bans(
    needs: Needs,
    policy: Policy,
    longest_life: int,
    save_operands: bool,
    bytes_of: Callable[[str], int],
    released: frozenset[str] = frozenset(),
) -> frozenset[str]:
    """Names of values not to compute again: operands of ops that are not fused, but for unfolded inputs and those
    `released`, values that would live long, and those that are looked for among others."""
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
    kept.update(_sought(needs))
    kept.update(_long_lived(needs, policy, clock, longest_life, kept))
    return frozenset(kept)


def _sought(needs: Needs) -> set[str]:
    """Floats among which the backward looks for another, as that of a maximum does: computed again, by other
    instructions or from what was rounded to be saved, none might be equal to it any more."""
    equal = [node for node in needs.backward if packet_of(node.target) in ("prims.eq", "aten.eq")]
    found = {name for node in equal if len(names := operands(node)) == 2 for name in names}
    return {name for name in found & needs.producers.keys() if _is_float(name, needs.producers[name])}


def _is_float(name: str, node: Node) -> bool:
    (kind,) = [value.type for value in node.results if value.name == name]
    return isinstance(kind, TensorType) and kind.dtype in FLOATS


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
    for source, node in needs.sources([name]):
        if node is None:
            found.add(source)
        elif policy.element_cost(node) is None:
            return False
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


def checkpointed_values(joint: Joint) -> frozenset[str]:
    """The values that are made in a checkpoint and that the forward uses nowhere else.

    What leaves a checkpoint may be kept: the next one starts from it.
    """
    forward = [node for node in joint.graph.nodes if node.phase == "forward"]
    places = {value.name: node.checkpoint for node in forward for value in node.results if node.checkpoint is not None}
    if not places:
        return frozenset()
    leaving = {name for output in joint.result_refs for name in references(output)}
    for node in forward:
        leaving.update(name for name in operands(node) if places.get(name, node.checkpoint) != node.checkpoint)
    return frozenset(places).difference(leaving)


_COPIES = frozenset({"aten.clone.default", "prims.clone"})


def copies_of_inputs(joint: Joint) -> frozenset[str]:
    """Forward values that are copies of an input, or of a view of one, in its layout (`contiguous()` makes others)."""
    types: dict[str, ValueType] = {value.name: value.type for value in joint.primal_values}
    inputs, found = set(types), set()
    for node in joint.graph.nodes:
        types |= {value.name: value.type for value in node.results}
        if node.phase != "forward" or not any(name in inputs for name in operands(node)):
            continue
        if is_view(node.target):
            inputs |= {value.name for value in node.results}
        elif node.target in _COPIES and _same_layout(types[operands(node)[0]], node.results[0].type):
            found.add(node.results[0].name)
    return frozenset(found)


def _same_layout(one: ValueType, other: ValueType) -> bool:
    if not isinstance(one, TensorType) or not isinstance(other, TensorType):
        return False
    return (one.shape, one.stride) == (other.shape, other.stride)


def large_operands(
    joint: Joint, needs: Needs, policy: Policy, saved: list[str], part: float, least: int
) -> frozenset[str]:
    """Saved values of a GPU that pointwise ops make of others, of `least` bytes and `part` of what is saved, or more,
    and twice that part together at most: the first images of a network, which later ones are small beside.

    To compute them again takes a pass over memory, which is short in a step that makes so much else. Where few values
    are saved, each is a larger part, and none is named; nor is one that the backward would begin with.
    """
    sizes = Sizes.of(joint)
    types: dict[str, ValueType] = {value.name: value.type for value in joint.primal_values}
    types |= {value.name: value.type for node in needs.producers.values() for value in node.results}
    size = {name: sizes.bytes(types[name]) for name in saved}
    uses = {name: positions for name in saved if (positions := needs.consumers.get(name))}
    total = sum(size.values())

    def is_large(name: str) -> bool:
        kind = types[name]
        is_on_gpu = isinstance(kind, TensorType) and kind.device.startswith("cuda")
        return is_on_gpu and size[name] >= max(least, part * total)

    def is_made_of_saved(name: str) -> bool:
        return all(
            source not in needs.mutated if node is None else policy.element_cost(node) is not None
            for source, node in needs.sources([name], size.keys() - {name})
        )

    def comes_late(name: str) -> bool:
        """Whether as much is let go of before the backward uses it first."""
        gone = sum(size[other] for other, positions in uses.items() if positions[-1] < uses[name][0])
        return gone >= size[name]

    results = {name for arg in joint.result_refs for name in references(arg)}
    found: list[str] = []
    for name in sorted(uses.keys() - results, key=lambda name: (-size[name], name)):
        if is_large(name) and is_made_of_saved(name) and comes_late(name):
            together = sum(size[one] for one in (*found, name))
            found += [name] if together <= 2 * part * total else []
    return frozenset(found)
