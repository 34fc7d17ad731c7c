"""Where eager has one memory and the trace has two: rows at places that only the run knows, and `x.data = y`.

`x[i]` and `x[i] = y` with a 0-dim integer tensor `i`: the trace reads a copy of the row instead of a view, and writes a
row back. `x.data = y`: `x` gets a copy of the content. That the memories are two must not show: where it would, the
program is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from absint.forms import get_item
from absint.forms.numbers import dimension_of
from absint.functions import Functions
from aotgrad.errors import NoGraphForm, NoInverse, UnsupportedOutput
from aotgrad.tracer.replay import set_item
from aotgrad.tracer.values import Memory, Traced
from stagewire.capture import CUSTOM, Capture
from stagewire.graph import Graph, Node, Ref, node_references

if TYPE_CHECKING:
    from aotgrad.tracer.mode import TraceMode


Aliases = list[tuple[Memory, str]]
"""Memories of which a torch.autograd.Function returned a view with a gradient of its own, each with the target."""

SET_DATA = "torch.Tensor.data.__set__"
SET_DATA_OF = torch.Tensor.data.__set__
_INTEGERS = frozenset({torch.int8, torch.int16, torch.int32, torch.int64})


class Row(NamedTuple):
    """Two memories that eager has as one: a copy and its source, each with the generation of its content then."""

    copy: Memory
    source: Memory
    generation: int
    copy_generation: int = 0
    by_data: bool = False


def row_calls(mode: TraceMode, rows: list[Row]) -> dict[str, Callable[..., Any]]:
    """What to call for indexing; each copy that stands for a view is noted in `rows`."""
    return {
        "torch.Tensor.__getitem__": partial(_read, rows),
        "torch.Tensor.__setitem__": _write,
        SET_DATA: partial(_set_data, mode, rows),
    }


def _set_data(mode: TraceMode, rows: list[Row], x: Any, value: Any) -> None:
    """`x.data = value` for tensors of one type: `x` goes to a memory of its own with that content.

    What stands on its old memory stays there: views that the backward reads keep what they had.
    """
    if not isinstance(x, Traced) or not isinstance(value, Traced):
        SET_DATA_OF(x, value)
        return
    is_view = any(step.func is not None for step in value.steps) or x.steps
    if value.memory.input is not None or is_view or x.meta != value.meta:
        raise NoGraphForm("tensor.data is assigned another input, a view or a tensor of another type")
    old = x.memory
    rows[:] = [row for row in rows if row.source is not old or not row.by_data]
    new = mode.move(x, mode.content(value))
    rows.append(Row(value.memory, new, new.generation, value.memory.generation, True))


def _read(rows: list[Row], x: Any, index: Any) -> Any:
    found = _selection(x, index)
    if found is None:
        return get_item(x, index)
    selected, rest = found
    result = selected.read()[rest]
    rows.append(Row(result.memory, x.memory, x.memory.generation))
    return result


def _write(x: Any, index: Any, value: Any) -> None:
    found = _selection(x, index)
    if found is None:
        set_item(x, index, value)
        return
    selected, rest = found
    selected.write(rest, value)


def _selection(x: Any, index: Any) -> tuple[_Selection, tuple[Any, ...]] | None:
    """The rows that an index names by 0-dim integer tensors, and the index that remains; None without any."""
    if not isinstance(x, Traced):
        return None
    items = index if type(index) is tuple else (index,)
    places = [at for at, item in enumerate(items) if _is_place(item)]
    if not places:
        return None
    dims = [dimension_of(x.dim(), items, at) for at in places]
    rest = tuple(0 if at in places else item for at, item in enumerate(items))
    return _Selection(x, dims, [items[at] for at in places]), rest


def _is_place(item: Any) -> bool:
    return isinstance(item, Traced) and not item.dim() and item.dtype in _INTEGERS


class _Selection:
    """The rows of `x` at places in some of its dimensions, each dimension kept with size 1."""

    def __init__(self, x: Traced, dims: list[int], places: list[Any]) -> None:
        self.x = x
        self.indices = [(*[slice(None)] * dim, place.reshape(1)) for dim, place in zip(dims, places, strict=True)]

    def read(self) -> Any:
        """A copy of the rows."""
        result: Any = self.x
        for index in self.indices:
            result = result[index]
        return result

    def write(self, rest: tuple[Any, ...], value: Any) -> None:
        """Write `value` into the rows, at the index `rest` of them."""
        parts: list[Any] = [self.x]
        for index in self.indices:
            parts.append(parts[-1][index])
        parts[-1][rest] = value
        for index, outer, inner in zip(self.indices[::-1], parts[-2::-1], parts[:0:-1], strict=True):
            outer[index] = inner


def gradients_of_their_own(capture: Capture) -> list[str]:
    """The targets of custom functions that are a torch.autograd.Function."""
    return [CUSTOM + function.name for function in capture.functions if function.transform is None]


def noted_functions(
    functions: Functions, targets: Iterable[str], aliases: Aliases, note_gradients: Callable[..., None]
) -> dict[str, Callable[..., Any]]:
    """Custom functions of a capture; memories of which they return a view with a gradient of its own are noted, and
    what their backwards return and are given."""
    return {target: partial(_note, functions[target], target, aliases, note_gradients) for target in targets}


def _note(
    function: Callable[..., Any], target: str, aliases: Aliases, note_gradients: Callable[..., None], *args: Any
) -> Any:
    *operands, _ = args
    results = function(*args)
    for backward in dict.fromkeys(result.grad_fn for result in results if result.grad_fn is not None):
        backward.register_hook(note_gradients)
    memories = [operand.memory for operand in operands]
    viewed = [r for r in results if r.requires_grad and r.memory in memories]
    aliases += [(r.memory, target) for r in viewed if not any(r is o for o in operands)]
    return results


def refuse_lost_gradients(
    aliases: Aliases, inputs: tuple[Any, ...], outputs: tuple[Any, ...], nodes: Iterable[Node]
) -> None:
    """Refuse a program that returns such a view beside what it is a view of: it would be made from that one.

    nodes: the captured calls, of which the first of that function hinders.
    """
    for memory, target in reversed(aliases):
        seen = [o for o in outputs if isinstance(o, Traced) and o.memory is memory]
        if memory.input is not None:
            seen = [output for output in seen if not any(output is given for given in inputs)]
            seen = seen * 2
        if len(seen) > 1:
            error = UnsupportedOutput("a view that a torch.autograd.Function returns of its operand")
            error.hindering_result = next(node.results[0].name for node in nodes if node.target == target)
            raise error


def refuse_lost_views(rows: list[Row], outputs: tuple[Any, ...], graph: Graph, values: dict[str, Any]) -> None:
    """Refuse a program in which a row was written, its source was written after it, or both can be seen outside."""
    returned = {id(output.memory) for output in outputs if isinstance(output, Traced)}
    given = _only_given(graph, values) if any(row.by_data for row in rows) else set()
    for row in rows:
        if row.by_data and id(row.copy) in given:
            continue
        if row.copy.generation != row.copy_generation or row.source.generation != row.generation:
            raise NoInverse("a write into a tensor, or into a view of it by a 0-dim tensor as index or by .data = ...")
        if id(row.copy) in returned and (row.source.input is not None or id(row.source) in returned):
            raise UnsupportedOutput("a view of an input or of another output by a 0-dim tensor as index or .data = ...")


def _only_given(graph: Graph, values: dict[str, Any]) -> set[int]:
    """Memories that nothing reads once they are assigned to some `x.data`."""
    later = {ref.name for ref in graph.outputs if isinstance(ref, Ref)}
    found: set[int] = set()
    for node in reversed(graph.nodes):
        names = node_references(node)
        if node.target == SET_DATA:
            source, memory = values[names[1]], values[names[1]].memory
            if not source.requires_grad and not any(getattr(values[name], "memory", None) is memory for name in later):
                found.add(id(memory))
        later.update(names)
    return found
