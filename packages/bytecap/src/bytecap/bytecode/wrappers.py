"""What replacement code calls to join tensors of wrapper classes with the graph, which knows their inner tensors alone.

structure ::= class context sizes strides ((name, structure | None)*) ((name, object)*)    None: a tensor of the graph
outside   ::= split -> inner tensors, whose gradients are joined again
result    ::= join(inner tensors), whose gradient is split again
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch

from bytecap.errors import WrongTangent
from bytecap.hook import plain
from bytecap.torch_capabilities import TORCH

PLAIN = ()
"""In place of the structure of a gradient: it is a plain tensor."""


def is_wrapper(cls: type) -> bool:
    """Whether tensors of a class say what they hold, and what operations on them are."""
    return hasattr(cls, "__tensor_flatten__") and cls.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__  # type: ignore[attr-defined]


def parts_of(tensor: Any) -> list[tuple[str, torch.Tensor]]:
    """The tensors among what a wrapper is flattened to."""
    return [(name, part) for name, part in _flattened(tensor)[0] if isinstance(part, torch.Tensor)]


def objects_of(tensor: Any) -> tuple[tuple[str, Any], ...]:
    """What is no tensor among what a wrapper is flattened to: the mesh of a DTensor."""
    return tuple((name, part) for name, part in _flattened(tensor)[0] if not isinstance(part, torch.Tensor))


def _flattened(tensor: Any) -> tuple[list[tuple[str, Any]], Any]:
    """What it is flattened to, by name, and its context."""
    names, context = tensor.__tensor_flatten__()
    mesh = ["device_mesh"] * hasattr(tensor, "device_mesh")  # before torch 2.12 a part of the context
    return [(name, getattr(tensor, name)) for name in dict.fromkeys(names + mesh)], context


def taken_apart(tensor: Any, size: Callable[[Any], Any] = int) -> tuple[Any, list[torch.Tensor], list[bool]]:
    """What `join` makes the like of a wrapper from (None for a plain tensor), the plain tensors inside of it (of
    wrappers), and of each whether gradients are of it: not of the offsets and lengths of a jagged tensor.

    size: what stands for one of its sizes.
    """
    if not is_wrapper(type(tensor)):
        return None, [tensor], [tensor.is_floating_point() or tensor.is_complex()]
    with TORCH.no_subclass_function():
        # Those of a jagged tensor follow from what it holds.
        layout = ((), ()) if (is_jagged := tensor.is_nested) else (tensor.size(), tensor.stride())
    parts, objects, inner, differentiated = [], [], [], []
    flattened, context = _flattened(tensor)
    for name, part in flattened:
        if not isinstance(part, torch.Tensor):
            objects.append((name, part))
            continue
        structure, tensors, asked = taken_apart(part, size)
        differentiated += [False] * len(asked) if is_jagged and parts else asked
        inner += tensors
        parts.append((name, structure))
    sizes = [tuple(map(size, of)) for of in layout]
    return (type(tensor), context, *sizes, tuple(parts), tuple(objects)), inner, differentiated


def structure_of(tensor: Any, size: Callable[[Any], Any] = int) -> Any:
    """What `join` makes the like of a wrapper from."""
    return taken_apart(tensor, size)[0]


def inner_tensors(tensor: Any) -> list[torch.Tensor]:
    """The plain tensors inside of a wrapper (of wrappers); a plain tensor itself."""
    if not is_wrapper(type(tensor)):
        return [tensor]
    return [inner for _, part in parts_of(tensor) for inner in inner_tensors(part)]


def differentiated(tensor: Any) -> list[bool]:
    """Of each of its inner tensors, whether gradients are of it."""
    return taken_apart(tensor, lambda size: size)[2]


def join(structure: Any, inner: Iterable[torch.Tensor]) -> torch.Tensor:
    """The wrapper of this structure that holds these tensors."""
    inner = iter(inner)
    if structure is None:
        return next(inner)
    cls, context, size, stride, parts, objects = structure
    held = {name: join(part, inner) for name, part in parts} | dict(objects)
    return unflatten(cls, held, context, size, stride)


def unflatten(cls: Any, held: dict[str, Any], context: Any, size: tuple[Any, ...], stride: tuple[Any, ...]) -> Any:
    """What the class makes of inner tensors, without a history."""
    made = cls.__tensor_unflatten__(held, context, torch.Size(size), stride)
    return made.requires_grad_(False) if made.requires_grad else made


def wrap(structure: Any, tangent: Any, inner: tuple[torch.Tensor, ...]) -> Any:
    """A result of the captured code. tangent: the structure of its gradient, None where there is none."""
    return join(structure, inner) if tangent is None else Join.apply(structure, tangent, *inner)


class Join(torch.autograd.Function):
    """A wrapper of results of the graph, whose gradients go through it to these."""

    @staticmethod
    def forward(ctx: Any, structure: Any, tangent: Any, *inner: torch.Tensor) -> torch.Tensor:
        ctx.tangent = tangent
        made = join(structure, [tensor.detach() if tensor.requires_grad else tensor for tensor in inner])
        ctx.differentiated = tuple(differentiated(made))
        return made

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        found = as_tangent(gradient, ctx.tangent)
        # A gradient has a history where it is differentiated in turn.
        inner = Split.apply(((None, None),), found) if found.requires_grad else inner_tensors(found)
        given = iter([part for part, is_asked in zip(inner, differentiated(found), strict=True) if is_asked])
        return None, None, *[next(given) if is_asked else None for is_asked in ctx.differentiated]


def as_tangent(gradient: Any, structure: Any) -> Any:
    """The gradient as a tensor of this structure, made so by its class where it is another. Raises `WrongTangent`."""
    cls, context = (torch.Tensor, None) if structure is None else structure[:2]
    is_other = is_wrapper(type(gradient)) if structure is None else type(gradient) is not cls
    if hasattr(gradient, "__coerce_same_metadata_as_tangent__"):
        if is_other:
            gradient = gradient.__coerce_same_metadata_as_tangent__(context, cls)
            is_other = type(gradient) is not cls
        elif gradient.__tensor_flatten__()[1] != context:
            gradient = gradient.__coerce_same_metadata_as_tangent__(context)
    if is_other:
        raise WrongTangent(
            f"a result of class {cls.__qualname__} was given a gradient of class {type(gradient).__name__}"
        )
    if structure is None:
        return gradient
    parts = [(part, like) for (_, part), (_, like) in zip(parts_of(gradient), structure[4], strict=True)]
    if all(is_wrapper(type(part)) == (like is not None) for part, like in parts):
        return gradient
    # A part that is still on its way from other processes.
    held = [inner for part, like in parts for inner in inner_tensors(as_tangent(part, like))]
    return join(structure_of(gradient)[:4] + structure[4:], held)


class Split(torch.autograd.Function):
    """The inner tensors of wrappers, each of which is given their gradients as one of its class.

    links: for each wrapper two things.
    like: the structure of its gradient, where that is another one, or `PLAIN`. Of a plain tensor (class, context,
    names) where its gradient is a wrapper: then as many tensors as that has parts stand for it. layouts: sizes, strides
    and dtype of each part of the gradient, where these are others: tensors without content stand for the inner ones.
    """

    @staticmethod
    def forward(ctx: Any, links: tuple[tuple[Any, Any], ...], *wrappers: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.links, rest = [], []
        made: list[torch.Tensor] = []
        for tensor, (like, layouts) in zip(wrappers, links, strict=True):
            if is_wrapper(type(tensor)):
                structure, inner, asked = taken_apart(tensor)
                structure = structure if like is None else like
            else:
                cls, context, names = like
                parts = tuple((name, None) for name in names)
                structure = (cls, context, tuple(tensor.shape), tensor.stride(), parts, ())
                inner, asked = [tensor] * len(names), [True] * len(names)
            if layouts is not None:
                inner = [torch.empty_strided(*layout, dtype=dtype, device=tensor.device) for *layout, dtype in layouts]
            held = [None if is_asked else part for part, is_asked in zip(inner, asked, strict=True)]
            made += [part.detach() if is_asked else part for part, is_asked in zip(inner, asked, strict=True)]
            rest += [part for part in held if part is not None]
            ctx.links.append((structure, held, [(part.shape, part.dtype, part.device) for part in inner]))
        ctx.mark_non_differentiable(*rest)
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        given = iter(gradients)
        found: list[Any] = []
        for needed, (structure, held, types) in zip(ctx.needs_input_grad[1:], ctx.links, strict=True):
            parts = list(itertools.islice(given, len(held)))
            if not needed or all(part is None for part in parts):
                found.append(None)
                continue
            for at, (gradient, (shape, dtype, device)) in enumerate(zip(parts, types, strict=True)):
                if held[at] is not None:
                    parts[at] = held[at]
                elif gradient is None:
                    parts[at] = torch.zeros(shape, dtype=dtype, device=device)
            is_linked = any(part.requires_grad for part in parts)
            found.append(
                parts[0] if structure == PLAIN else wrap(structure, structure if is_linked else None, tuple(parts))
            )
        return None, *found


def on_inner_tensors(
    compiled: Callable[..., Any],
    links: tuple[tuple[Any, Any, tuple[int | None, ...]], ...],
    subclassed: tuple[int, ...],
) -> Callable[..., Any]:
    """The compiled graph, called with its inputs, and the wrappers that some of these are inside of.

    links: of each wrapper what `Split` takes, and which inputs its inner tensors are. subclassed: inputs of classes
    with a `__torch_function__`, which is not asked inside.
    """

    likes = tuple((like, layouts) for like, layouts, _ in links)
    places = [place for _, _, of_one in links for place in of_one]

    def call(*given: Any) -> Any:
        inputs = list(given[: len(given) - len(links)])
        if links:
            for place, tensor in zip(places, Split.apply(likes, *given[len(inputs) :]), strict=True):
                if place is not None:
                    inputs[place] = tensor
        with TORCH.no_subclass_function():
            for place in subclassed:
                inputs[place] = inputs[place].as_subclass(torch.Tensor)
        return compiled(*inputs)

    return plain(call)


def as_subclass(tensor: torch.Tensor, cls: type) -> Any:
    """The tensor as one of a class with a `__torch_function__`, which is not asked."""
    with TORCH.no_subclass_function():
        return tensor.as_subclass(cls)
