"""Arguments of torch calls as a node takes them: known indices, GPUs by number, sizes that data decides.

`device="cuda"` is the GPU that is current when the call is made, which `torch.cuda.set_device` and `with
torch.cuda.device(1)` change between calls of one function: a captured call names it by its index, under the guard that
the same one is current.

`x[i]` with a 0-dim integer tensor is a view of `x` at a place that only the run knows; its type does not depend on the
place. The call is evaluated with 0 for such an index, and recorded with the tensor.

What takes numbers alone for sizes has them fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from absint import AbstractTensor
from absint.errors import DimensionError, TypeRuleError
from absint.meta import leaves
from absint.symbolic import SizeFloat, dim_of
from absint.symbolic.size import is_unbacked, make_size
from bytecap.context_types import Tracer
from bytecap.errors import DataDependent, FixedSizesNeeded
from bytecap.objects.numbers.symbolic import DataCondition, read_size
from bytecap.torch_capabilities import TORCH
from stagewire.capture import Relation
from stagewire.expr import Expr, symbols_of
from stagewire.graph import Arg
from stagewire.graph import leaves as leaves_of
from stagewire.polynomial import Polynomial

_GET = TORCH.current_gpu


def with_index(
    tracer: Tracer, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a torch call, GPUs without index being the current one."""
    if not torch.cuda.is_available():
        return args, kwargs
    name = getattr(function, "__name__", "")
    if name == "cuda" and len(args) == 1 and kwargs.get("device") is None:
        return args, {**kwargs, "device": current_gpu(tracer)}
    if name in ("to", "cuda") and len(args) > 1 and _is_unnamed(args[1]):
        args = (args[0], current_gpu(tracer), *args[2:])
    if _is_unnamed(kwargs.get("device")):
        kwargs = {**kwargs, "device": current_gpu(tracer)}
    return args, kwargs


def _is_unnamed(device: Any) -> bool:
    if isinstance(device, torch.device):
        return device.type == "cuda" and device.index is None
    return isinstance(device, str) and device == "cuda"


def current_gpu(tracer: Tracer) -> torch.device:
    """The current GPU, which each call checks."""
    index = _GET()
    tracer.guards.reading(_GET, (), index)
    return torch.device("cuda", index)


_INDEXING = frozenset({"__getitem__", "__setitem__"})
INTEGERS = frozenset({torch.int8, torch.int16, torch.int32, torch.int64})


def with_known_index(function: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a torch call as they are evaluated."""
    if getattr(function, "__name__", "") not in _INDEXING or len(args) < 2:
        return args
    index = args[1]
    known = tuple(_known(item) for item in index) if type(index) is tuple else _known(index)
    return (args[0], known, *args[2:])


def _known(item: Any) -> Any:
    if not isinstance(item, AbstractTensor) or item.dim() or item.dtype not in INTEGERS:
        return item
    return item if item.storage_record.constant is not None else 0


def refuse_sizes(tracer: Tracer, name: str, given: Any, *, everything: bool = False) -> None:
    """Have the sizes that a failing call was given fixed (or all of the capture), if any is open: its C++ may take
    numbers alone."""
    symbols = tracer.sizes.sources.keys() & (tracer.sizes.sources if everything else set(_open_symbols(given)))
    if symbols:
        error = FixedSizesNeeded(f"{name}() takes no symbolic sizes")
        error.sources = tuple(tracer.sizes.sources[symbol] for symbol in sorted(symbols))
        raise error


def _open_symbols(given: Any) -> Iterator[str]:
    for leaf in leaves(given):
        if isinstance(leaf, torch.SymInt):
            yield from leaf.node.value.symbols
        elif isinstance(leaf, SizeFloat):
            yield from leaf.node.term.symbols
        elif isinstance(leaf, AbstractTensor):
            yield from _open_symbols((leaf.meta.shape, leaf.meta.stride))


# -- Sizes that data decides, in torch calls: which of them the graph has read, and which results give new ones.


def has_unbacked(given: Any) -> bool:
    """Whether an argument of a torch call has a number in it that data decides."""
    match given:
        case torch.SymInt() | torch.SymFloat():
            return given.node.is_unbacked  # type: ignore[union-attr]
        case AbstractTensor():
            return not given.meta.is_static and has_unbacked((*given.meta.shape, *given.meta.stride))
        case tuple() | list():
            return any(map(has_unbacked, given))
        case slice():
            return has_unbacked((given.start, given.stop, given.step))
        case dict():
            return any(map(has_unbacked, given.values()))
    return False


def refuse_unread(tracer: Tracer, args: Iterable[Arg]) -> None:
    """A call is given no size that no tensor of the graph has."""
    args = tuple(args)
    tracer.sizes.read_made(args)
    for arg in args:
        for leaf in leaves_of(arg):
            if isinstance(leaf, Expr):
                missing = symbols_of(leaf) & (tracer.sizes.env.unbacked.keys() - tracer.graph.numbers)
                if missing or (tracer.graph.is_body and symbols_of(leaf) & tracer.sizes.env.unbacked.keys()):
                    raise DataDependent(f"the size {leaf.text} depends on data, and no tensor has it")


def read_sizes(tracer: Tracer, names: list[str], results: list[AbstractTensor]) -> None:
    """The graph reads the new sizes off the results of its last node, and knows that they are not negative."""
    for name, tensor in zip(names, results, strict=True):
        if tensor.meta.is_static:
            continue
        for dim, size in enumerate(tensor.meta.shape):
            symbol = str(size)
            if symbol in tracer.sizes.env.unbacked and symbol not in tracer.graph.numbers:
                read_size(tracer, name, dim, symbol)
            elif is_unbacked(size) and not tracer.graph.is_body:
                _learn_nonnegative(tracer, size)


def _learn_nonnegative(tracer: Tracer, size: Any) -> None:
    """A call that is given a negative size raises, and so does the graph with it."""
    relation = Relation(dim_of(size), ">=", 0)
    if tracer.sizes.env.known(relation) is None:
        tracer.sizes.env.assume(relation)


# So many equalities one call may need.
_MOST = 4


def with_equal_sizes(tracer: Tracer, call: Callable[[], Any]) -> Any:
    """What `call` gives, with sizes that it needs to be equal taken for that.

    Errors: those of `call`, where nothing that could be assumed would help.
    """
    env = tracer.sizes.env
    for _ in range(_MOST):
        env.taken_for_different.clear()
        try:
            return call()
        except DimensionError:
            raise
        except TypeRuleError:
            gap = next((gap for gap in reversed(env.taken_for_different) if not _is_about_ones(gap)), None)
            if gap is None or not _assume_zero(tracer, gap):
                raise
    return call()


def _is_about_ones(gap: Polynomial) -> bool:
    """Whether it is asked of one size whether it is 0 or 1, as broadcasting does."""
    return len(gap.symbols) == 1 and abs(gap.offset) < 2 and len(gap.terms) <= 1 + bool(gap.offset)


def _assume_zero(tracer: Tracer, gap: Polynomial) -> bool:
    generic = tracer.sizes.env.generic
    tracer.sizes.env.generic = False
    try:
        size = make_size(tracer.sizes.env, gap)
        return tracer.checks.assume(tracer, DataCondition(Relation(dim_of(size), "==", 0), size), True)
    finally:
        tracer.sizes.env.generic = generic
