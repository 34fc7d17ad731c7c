"""What replacement code calls to join tensors of wrapper classes with the graph, which knows their inner tensors alone.

structure ::= class context sizes strides ((name, structure | None)*) ((name, object)*)    None: a tensor of the graph
outside   ::= split -> inner tensors, whose gradients are joined again
result    ::= join(inner tensors), whose gradient is split again
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from bytecap.errors import WrongTangent
from bytecap.hook import plain
from bytecap.torch_capabilities import TORCH

PLAIN = ()
"""In place of the structure of a gradient: it is a plain tensor."""


def inner_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The plain tensors inside of a wrapper (of wrappers); a plain tensor itself."""
    if not is_wrapper(type(tensor)):
        yield tensor
        return
    for _, part in parts_of(tensor):
        yield from inner_tensors(part)


def parts_of(tensor: Any) -> list[tuple[str, torch.Tensor]]:
    """The tensors among what a wrapper is flattened to."""
    return [(name, part) for name, part in _flattened(tensor) if isinstance(part, torch.Tensor)]


def objects_of(tensor: Any) -> tuple[tuple[str, Any], ...]:
    """What is no tensor among what a wrapper is flattened to: the mesh of a DTensor."""
    return tuple((name, part) for name, part in _flattened(tensor) if not isinstance(part, torch.Tensor))


def _flattened(tensor: Any) -> list[tuple[str, Any]]:
    mesh = ["device_mesh"] * hasattr(tensor, "device_mesh")  # before torch 2.12 a part of the context
    return [(name, getattr(tensor, name)) for name in dict.fromkeys(tensor.__tensor_flatten__()[0] + mesh)]


def differentiated(tensor: Any) -> Iterator[bool]:
    """Of each of its inner tensors, whether gradients are of it: not of the offsets and lengths of a jagged tensor."""
    if not is_wrapper(type(tensor)):
        yield tensor.is_floating_point() or tensor.is_complex()
        return
    with TORCH.no_subclass_function():
        is_jagged = tensor.is_nested
    for at, (_, part) in enumerate(parts_of(tensor)):
        yield from (found and not (is_jagged and at) for found in differentiated(part))


def is_wrapper(cls: type) -> bool:
    """Whether tensors of a class say what they hold, and what operations on them are."""
    return hasattr(cls, "__tensor_flatten__") and cls.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__  # type: ignore[attr-defined]


def structure_of(tensor: Any, size: Callable[[Any], Any] = int) -> Any:
    """What `join` makes the like of a wrapper from; size: what stands for one of its sizes. None for a plain tensor."""
    if not is_wrapper(type(tensor)):
        return None
    parts = tuple((name, structure_of(part, size)) for name, part in parts_of(tensor))
    with TORCH.no_subclass_function():
        # Those of a jagged tensor follow from what it holds.
        layout = ((), ()) if tensor.is_nested else (tensor.size(), tensor.stride())
    context = tensor.__tensor_flatten__()[1]  # type: ignore[attr-defined]
    return (type(tensor), context, *[tuple(map(size, sizes)) for sizes in layout], parts, objects_of(tensor))


def join(structure: Any, inner: Iterator[torch.Tensor]) -> torch.Tensor:
    """The wrapper of this structure that holds these tensors."""
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
    return join(structure, iter(inner)) if tangent is None else Join.apply(structure, tangent, *inner)


class Join(torch.autograd.Function):
    """A wrapper of results of the graph, whose gradients go through it to these."""

    @staticmethod
    def forward(ctx: Any, structure: Any, tangent: Any, *inner: torch.Tensor) -> torch.Tensor:
        ctx.tangent = tangent
        made = join(structure, iter([tensor.detach() if tensor.requires_grad else tensor for tensor in inner]))
        ctx.differentiated = tuple(differentiated(made))
        return made

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        found = as_tangent(gradient, ctx.tangent)
        # A gradient has a history where it is differentiated in turn.
        inner = Split.apply(found, None, None) if found.requires_grad else inner_tensors(found)
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
    return join(structure_of(gradient)[:4] + structure[4:], iter(held))


class Split(torch.autograd.Function):
    """The inner tensors of a wrapper that requires grad, which is given their gradients as one of its class.

    like: the structure of its gradient, where that is another one, or `PLAIN`. Of a plain tensor (class, context,
    names) where its gradient is a wrapper: then as many tensors as that has parts stand for it. layouts: sizes, strides
    and dtype of each part of the gradient, where these are others: tensors without content stand for the inner ones.
    """

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, like: Any, layouts: Any) -> tuple[torch.Tensor, ...]:
        if is_wrapper(type(tensor)):
            ctx.structure, inner = structure_of(tensor) if like is None else like, list(inner_tensors(tensor))
            asked = list(differentiated(tensor))
        else:
            cls, context, names = like
            parts = tuple((name, None) for name in names)
            ctx.structure = (cls, context, tuple(tensor.shape), tensor.stride(), parts, ())
            inner = [tensor] * len(names)
            asked = [True] * len(names)
        if layouts is not None:
            inner = [torch.empty_strided(*layout, dtype=dtype, device=tensor.device) for *layout, dtype in layouts]
        ctx.set_materialize_grads(False)
        made = tuple(part.detach() if is_asked else part for part, is_asked in zip(inner, asked, strict=True))
        ctx.rest = [None if is_asked else part for part, is_asked in zip(made, asked, strict=True)]
        ctx.mark_non_differentiable(*[part for part in ctx.rest if part is not None])
        ctx.types = [(tensor.shape, tensor.dtype, tensor.device) for tensor in made]
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if all(gradient is None for gradient in gradients):
            return None, None, None
        whole = list(ctx.rest)
        for at, (gradient, (shape, dtype, device)) in enumerate(zip(gradients, ctx.types, strict=True)):
            if whole[at] is None:
                whole[at] = torch.zeros(shape, dtype=dtype, device=device) if gradient is None else gradient
        if ctx.structure == PLAIN:
            return whole[0], None, None
        is_linked = any(gradient.requires_grad for gradient in whole)
        return wrap(ctx.structure, ctx.structure if is_linked else None, tuple(whole)), None, None


def on_inner_tensors(
    compiled: Callable[..., Any],
    links: tuple[tuple[Any, Any, tuple[int | None, ...]], ...],
    subclassed: tuple[int, ...],
) -> Callable[..., Any]:
    """The compiled graph, called with its inputs, and the wrappers that some of these are inside of.

    links: of each wrapper what `Split` takes, and which inputs its inner tensors are. subclassed: inputs of classes
    with a `__torch_function__`, which is not asked inside.
    """

    def call(*given: Any) -> Any:
        inputs = list(given[: len(given) - len(links)])
        for wrapper, (like, layouts, places) in zip(given[len(inputs) :], links, strict=True):
            for place, tensor in zip(places, Split.apply(wrapper, like, layouts), strict=True):
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
