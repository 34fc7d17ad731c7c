"""Which sizes of arguments stay open: `dynamic_shapes` in the form of torch.export, or with names and ranges.

    shapes ::= {argument: spec} | [spec*]       by the names of the model's arguments, or in their order
    spec   ::= None | {dimension: size} | [size*]                of a tensor: of some, or of each dimension
             | a container like the argument's, of specs (a list for the parts of a class that torch was told of)
    size   ::= None | int | Dim | Dim.AUTO | Dim.DYNAMIC | Dim.STATIC     torch.export's
             | "name" | range(lower, upper + 1)

Sizes of one name are equal. Nothing of torch.export is imported: its objects are known by their attributes.

Of what the program made of open sizes: their ranges, what must be true of them, and whether the user asked for that.
"""

from __future__ import annotations

import inspect
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from stagefold.artifact.arguments import in_words
from stagefold.artifact.file_format import Header, Leaf, Range
from stagefold.errors import CannotExport
from stagefold.torch_capabilities import TORCH
from stagewire.capture import Relation, Symbol, holds
from stagewire.expr import Dim, Expr, symbols_of


class OpenSize(NamedTuple):
    """One dimension of a tensor argument that stays open.

    name: sizes of one name are equal; "" for one by itself. lower: None for 2, and 1 where the program allows it.
    is_promised: whether all sizes within the bounds have to be served (else the program decides).
    derived: for a size that is computed of another, that name and the function.
    """

    tensor: torch.Tensor
    dimension: int
    name: str = ""
    lower: int | None = None
    upper: int | None = None
    is_promised: bool = True
    derived: tuple[str, Callable[[Any], Any]] | None = None


def open_sizes(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], shapes: Any
) -> tuple[OpenSize, ...]:
    """The open dimensions of the arguments. Raises `CannotExport` for specs that do not fit them."""
    if not shapes:
        return ()
    named = _named(model, args, kwargs)
    if isinstance(shapes, (tuple, list)):
        if len(shapes) != len(named):
            raise CannotExport(f"dynamic_shapes has {len(shapes)} entries, and the model {len(named)} arguments")
        shapes = dict(zip(named, shapes, strict=True))
    unknown = [name for name in shapes if name not in named]
    if unknown:
        raise CannotExport(f"dynamic_shapes names {unknown[0]!r}; the arguments are {', '.join(named)}")
    return tuple(size for name, spec in shapes.items() for size in _of(named[name], spec, name))


def _named(model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    signature = inspect.signature(model.forward if isinstance(model, torch.nn.Module) else model)
    try:
        bound = signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        raise CannotExport(f"the model does not take these arguments: {error}") from None
    kinds = {name: one.kind for name, one in signature.parameters.items()}
    several = [name for name in bound if kinds[name] is inspect.Parameter.VAR_KEYWORD]
    return {name: value for name, value in bound.items() if name not in several} | {
        key: value for name in several for key, value in bound[name].items()
    }


def _of(value: Any, spec: Any, where: str) -> Iterator[OpenSize]:
    if spec is None:
        return
    if isinstance(value, torch.Tensor):
        rows = spec.items() if isinstance(spec, Mapping) else enumerate(spec)
        for dimension, size in rows:
            if not isinstance(dimension, int) or not -value.dim() <= dimension < value.dim():
                raise CannotExport(f"dynamic_shapes names dimension {dimension} of {where}, which has {value.dim()}")
            yield from _size(value, dimension % value.dim(), size, where)
        return
    if not isinstance(value, (Mapping, tuple, list)) and type(value) in TORCH.containers:
        parts, _ = TORCH.containers[type(value)].flatten_fn(value)
        yield from _of(list(parts), spec, where)
    elif isinstance(value, Mapping) and isinstance(spec, Mapping) and spec.keys() <= value.keys():
        for key, one in spec.items():
            yield from _of(value[key], one, f"{where}[{key!r}]")
    elif isinstance(value, (tuple, list)) and isinstance(spec, (tuple, list)) and len(spec) == len(value):
        for number, (item, one) in enumerate(zip(value, spec, strict=True)):
            yield from _of(item, one, f"{where}[{number}]")
    else:
        raise CannotExport(f"dynamic_shapes has {spec!r} for {where}, which is a {type(value).__name__}")


def _size(tensor: torch.Tensor, dimension: int, size: Any, where: str) -> Iterator[OpenSize]:
    match size:
        case None:
            return
        case bool():
            pass
        case int():
            if size != tensor.shape[dimension]:
                is_one = f"which is {tensor.shape[dimension]}"
                raise CannotExport(f"dynamic_shapes has {size} for dimension {dimension} of {where}, {is_one}")
            return
        case str():
            yield OpenSize(tensor, dimension, size)
            return
        case range():
            yield OpenSize(tensor, dimension, "", size.start, size.stop - 1)
            return
    hint = getattr(getattr(size, "type", None), "name", None)
    if hint == "STATIC":
        return
    if hint in ("AUTO", "DYNAMIC"):
        yield OpenSize(tensor, dimension, "", _bound(size.min), _bound(size.max), hint == "DYNAMIC")
    elif hasattr(size, "root") and hasattr(size, "fn"):
        yield OpenSize(tensor, dimension, size.__name__, derived=(size.root.__name__, size.fn))
    elif hasattr(size, "__name__") and hasattr(size, "min") and hasattr(size, "max"):
        yield OpenSize(tensor, dimension, size.__name__, _bound(size.min), _bound(size.max))
    else:
        raise CannotExport(f"dynamic_shapes has {size!r} for dimension {dimension} of {where}, which is no size")


def _bound(number: Any) -> int | None:
    """A bound of a size, of which torch has large numbers and infinities for none."""
    return number if isinstance(number, int) and 0 < number < 1 << 62 else None


def beyond_one(leaves: Sequence[Any], opened: Sequence[OpenSize]) -> tuple[list[Any], tuple[OpenSize, ...]]:
    """The arguments, in which open sizes of 1 are larger, and the open sizes of these: one row broadcasts and is never
    strided, so that captures fix sizes of 1. Nobody reads the elements.

    What is left as it is: sizes of which others are computed, bounds below 2, and tensors with gaps or shared memory.
    """
    roots = {size.derived[0] for size in opened if size.derived}
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    taken = {number for leaf in tensors for number in leaf.shape}
    memory = Counter(place for leaf in tensors if (place := _memory(leaf)) is not None)
    named: dict[str, int] = {}
    made: dict[int, torch.Tensor] = {}
    for size in opened:
        leaf = made.get(id(size.tensor), size.tensor)
        is_left = size.derived or size.name in roots or size.upper == 1 or memory[_memory(size.tensor)] != 1
        if leaf.shape[size.dimension] != 1 or is_left or not torch.ops.aten.is_non_overlapping_and_dense(leaf):
            continue
        free = next(number for number in itertools.count(2) if number not in taken)
        number = named.setdefault(size.name, free) if size.name else free
        number = number if size.upper is None else min(number, size.upper)
        taken.add(number)
        order = sorted(range(leaf.dim()), key=lambda d: (-leaf.stride(d), d))
        shape = [number if d == size.dimension else leaf.shape[d] for d in range(leaf.dim())]
        made[id(size.tensor)] = torch.empty_permuted(
            shape, order, dtype=leaf.dtype, device=leaf.device, requires_grad=leaf.requires_grad
        )
    larger = [made.get(id(leaf), leaf) for leaf in leaves]
    return larger, tuple([size._replace(tensor=made.get(id(size.tensor), size.tensor)) for size in opened])


def _memory(tensor: torch.Tensor) -> int | None:
    """Where a tensor lies; None for those that have no memory of their own, such as sparse ones."""
    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    return tensor.untyped_storage().data_ptr() if is_plain else None


def ranges_of(leaves: Sequence[Leaf], symbols: Sequence[Symbol]) -> tuple[Range, ...]:
    """The symbols in the sizes of the leaves, named by the first size that is one."""
    bounds = {one.name: (one.lower, one.upper) for one in symbols}
    found: dict[str, Range] = {}
    for leaf in leaves:
        for dimension, size in enumerate(leaf.type.shape if leaf.type is not None else ()):
            if isinstance(size, Expr) and size.text.isidentifier():
                label = f"{leaf.label}.size({dimension})"
                found.setdefault(size.text, Range(size.text, label, *bounds.get(size.text, (None, None))))
    return tuple(found.values())


def rules_of(
    leaves: Sequence[Any], described: Sequence[Leaf], opened: Sequence[OpenSize], assumed: Sequence[Relation]
) -> tuple[Relation, ...]:
    """What the program assumes of sizes, and that those of one name are equal."""
    named: dict[str, Dim] = {}
    rules = list(assumed)
    for size, dim, _ in _dims(leaves, described, opened):
        first = named.setdefault(size.name, dim) if size.name else dim
        if first != dim:
            rules.append(Relation(dim, "==", first))
    for size, dim, _ in _dims(leaves, described, opened):
        if size.derived is not None:
            root, function = size.derived
            if root not in named:
                raise CannotExport(f"no size is {root!r}, of which {size.name!r} is computed")
            rules.append(Relation(dim, "==", function(named[root])))
    return tuple(dict.fromkeys(rules))


def _dims(
    leaves: Sequence[Any], described: Sequence[Leaf], opened: Sequence[OpenSize]
) -> Iterator[tuple[OpenSize, Dim, str]]:
    """The open sizes, each with what it is in the program and how errors name it."""
    for size in opened:
        for leaf, known in zip(leaves, described, strict=True):
            if leaf is size.tensor:
                assert known.type is not None
                yield size, known.type.shape[size.dimension], f"{known.label}.size({size.dimension})"


def check_promises(header: Header, leaves: Sequence[Any], opened: Sequence[OpenSize]) -> None:
    """Raise `CannotExport` where the program does not serve sizes that `dynamic_shapes` asks for: where it fixes one,
    or assumes what is not so near the lower ends of the ranges, sizes of other names being different."""
    promised: dict[str, str] = {}
    least: dict[str, int] = {}
    for size, dim, label in _dims(leaves, header.leaves, opened):
        if size.is_promised and isinstance(dim, int):
            raise CannotExport(f"the program fixes {label} at {dim}, which dynamic_shapes leaves open")
        if size.is_promised and size.derived is None:
            promised.update((name, size.name or name) for name in symbols_of(dim))
            least.update((name, size.lower) for name in symbols_of(dim) if size.lower is not None)
    labels = {one.symbol: one.label for one in header.ranges}
    order = {name: number for number, name in enumerate(dict.fromkeys(promised.values()))}
    for step in range(2):
        sizes: dict[str, int] = {}
        for one in header.ranges:
            lower = least.get(one.symbol, 2)
            sizes[one.symbol] = lower + step + order.get(promised.get(one.symbol, ""), 0)
            if one.upper is not None:
                sizes[one.symbol] = min(sizes[one.symbol], one.upper)
        for rule in header.rules:
            mentioned = {name for side in (rule.left, rule.right) for name in symbols_of(side)}
            if mentioned <= promised.keys() and not holds(rule, sizes):
                told = f"{in_words(rule.left, labels)} {rule.operator} {in_words(rule.right, labels)}"
                fix = "Say so in dynamic_shapes (one name for equal sizes, narrower ranges), or say Dim.AUTO."
                message = f"the program needs {told}, which dynamic_shapes does not say"
                raise CannotExport(message, where=rule.line, fix=fix)
