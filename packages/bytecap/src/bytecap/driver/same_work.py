"""Whether what a backend made of one capture does the work of another."""

from __future__ import annotations

from msgspec.structs import replace

from stagewire.capture import Capture, Equals, Local, Reading, TensorIs, facts_of
from stagewire.digest import digest
from stagewire.graph import Arg, Value
from stagewire.symbols import bound_symbols, symbols_of_nodes
from stagewire.types import TensorType


def is_same_work(old: Capture, new: Capture, *, keeps_inputs: bool, keeps_sizes: bool) -> bool:
    """Whether the captures differ only in their guards, and in where their inputs are read unless `keeps_inputs`.

    What they found set in torch (which kernels attention may be) has to be the same: stages ask for it, too.
    keeps_sizes: whether what was made of the old one assumes more of its symbols than the guards say.

    What a process holds (a constant, a handle) is looked up by its place: where there is such a thing, places count.
    """
    if [node.target for node in old.graph.nodes] != [node.target for node in new.graph.nodes]:
        return False
    moves = old.portable and new.portable and not keeps_inputs
    if not moves and [item.source for item in old.inputs] != [item.source for item in new.inputs]:
        return False
    if _settings(old) != _settings(new):
        return False
    return digest(_work(old, keeps_sizes)) == digest(_work(new, keeps_sizes))


def _settings(capture: Capture) -> list[tuple[Reading, Arg]]:
    """What is set in torch, as far as the capture asked for it."""
    found = []
    for guard in capture.guards:
        match guard:
            case Equals(source=Reading(base=None) as setting) if setting.function.startswith("torch."):
                found.append((setting, guard.value))
    return found


_LEAF, _OTHER = Local("leaf"), Local("")


def _work(capture: Capture, keeps_sizes: bool) -> Capture:
    """The capture without guards and what none looks at; for gradients it counts which inputs are leaves."""
    leaves = {guard.source for guard in capture.guards if isinstance(guard, TensorIs) and guard.is_leaf}
    inputs = []
    for item in capture.inputs:
        source = item.source if item.role == "constant" else _LEAF if item.source in leaves else _OTHER
        inputs.append(replace(item, value=_anywhere(item.value), source=source))
    given = {} if keeps_sizes else {"hint": None}
    known = (name for value in capture.graph.inputs for name, _, _ in bound_symbols(value))
    used = symbols_of_nodes(capture.graph.nodes).union(known)
    return replace(
        capture,
        guards=facts_of(capture),
        inputs=tuple(inputs),
        graph=replace(capture.graph, inputs=tuple([_anywhere(value) for value in capture.graph.inputs])),
        symbols=tuple(
            [replace(one, source=one.source and _OTHER, **given) for one in capture.symbols if one.name in used]
        ),
    )


def _anywhere(value: Value) -> Value:
    """The value wherever in its storage it begins."""
    is_tensor = isinstance(value.type, TensorType) and value.type.storage_offset
    return replace(value, type=replace(value.type, storage_offset=0)) if is_tensor else value
