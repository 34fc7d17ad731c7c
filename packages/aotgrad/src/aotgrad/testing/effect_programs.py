"""Programs that write, alias and detach, each with inputs: what the tests of effects run.

program ::= name -> (function, make)          make() -> inputs, leaves
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

Tensors = Sequence[torch.Tensor]
Effect = tuple[Callable[..., Any], Callable[[], tuple[Tensors, Tensors]]]


def _plain(*shapes: tuple[int, ...]) -> Callable[[], tuple[Tensors, Tensors]]:
    """Inputs without gradients."""
    return lambda: ([torch.randn(shape) for shape in shapes], [])


def _leaves(*shapes: tuple[int, ...]) -> Callable[[], tuple[Tensors, Tensors]]:
    def make() -> tuple[Tensors, Tensors]:
        leaves = [torch.randn(shape, requires_grad=True) for shape in shapes]
        return leaves, leaves

    return make


def _computed(*shapes: tuple[int, ...]) -> Callable[[], tuple[Tensors, Tensors]]:
    """Inputs that require grad and are no leaves."""

    def make() -> tuple[Tensors, Tensors]:
        leaves = [torch.randn(shape, requires_grad=True) for shape in shapes]
        return [leaf * 1 for leaf in leaves], leaves

    return make


def _mixed(shape: tuple[int, ...]) -> Callable[[], tuple[Tensors, Tensors]]:
    """A tensor without gradient, and a leaf."""

    def make() -> tuple[Tensors, Tensors]:
        leaf = torch.randn(shape, requires_grad=True)
        return [torch.randn(shape), leaf], [leaf]

    return make


def _of(make: Callable[[], torch.Tensor], *views: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Inputs that are views of one tensor; None stands for the tensor itself."""

    def inputs() -> tuple[Tensors, Tensors]:
        base = make()
        leaf = base if base.requires_grad else None
        whole = base * 1 if leaf is not None else base
        return [view(whole) for view in views], [] if leaf is None else [leaf]

    return inputs


def _do(*steps: Callable[..., Any], out: Callable[..., Any]) -> Callable[..., Any]:
    def program(*inputs: torch.Tensor) -> Any:
        for step in steps:
            step(*inputs)
        return out(*inputs)

    return program


def _scale_without_grad(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        x.mul_(2)
    return x.sin()


def _nested_modes(x: torch.Tensor) -> Any:
    a = x * 2
    with torch.no_grad():
        b = a * 3
        with torch.enable_grad():
            c = a.exp()
    return a, b, c


def _both(x: torch.Tensor, view: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    y = x * 2
    return y, view(y)


def _write_windows(y: torch.Tensor) -> torch.Tensor:
    y.unfold(0, 2, 2).mul_(3)
    return y


PROGRAMS: dict[str, Effect] = {
    "in place": (lambda x: x.add_(1), _plain((3,))),
    "in place, then used": (lambda x: x.add_(1) * 2, _plain((3,))),
    "two writes": (_do(lambda x: x.add_(1), lambda x: x.mul_(2), out=lambda x: x * 3), _plain((3,))),
    "out=": (lambda x, y: torch.add(x, 1, out=y), _plain((3,), (3,))),
    "through a view": (lambda x: x.view(-1)[1:].mul_(2), _plain((3, 4))),
    "through views of views": (lambda x: x.t()[1:][:, ::2].add_(5) + 1, _plain((4, 4))),
    "into a column": (_do(lambda x: x.__setitem__((slice(None), 0), 1.0), out=lambda x: x * 2), _plain((3, 4))),
    "through as_strided": (lambda x: x.as_strided((2, 2), (4, 1), 1).add_(1), _plain((3, 4))),
    "parts of a complex": (
        _do(lambda x: x.real.add_(1), lambda x: x.imag.mul_(2), out=lambda x: x * 1),
        lambda: ([torch.randn(3, dtype=torch.complex64)], []),
    ),
    "pieces of a split": (
        _do(lambda x: x.split(1)[0].add_(1), lambda x: x.chunk(2)[1].mul_(2), out=lambda x: x), _plain((4, 2)),
    ),
    "a diagonal": (_do(lambda x: x.diagonal().fill_(1), out=lambda x: x + 1), _plain((4, 4))),
    "windows": (_do(lambda x: x.unfold(0, 2, 3).add_(1), out=lambda x: x + 1), _plain((7, 2))),
    "windows of a computed tensor": (lambda x: _write_windows(x * 2), _leaves((7, 2))),
    "bits": (lambda x: x.view(torch.int32).add_(1), _plain((3,))),
    "swapped": (
        lambda x, y: (lambda kept: (x.copy_(y), y.copy_(kept)))(x.clone()), _plain((4,), (4,)),
    ),
    "behind autograd, a leaf": (_scale_without_grad, _leaves((3,))),
    "behind autograd, computed": (_scale_without_grad, _computed((3,))),
    "a leaf is refused": (lambda x: x.add_(1), _leaves((3,))),
    "a view of a leaf is refused": (lambda x: x[0].add_(1), _leaves((3,))),
    "computed": (lambda x: x.add_(1) * 2, _computed((3,))),
    "computed, by a view": (_do(lambda x: x[1:].mul_(3), out=lambda x: x * 2), _computed((3,))),
    "computed, nothing returned": (_do(lambda x: x.mul_(2), out=lambda x: None), _computed((3,))),
    "computed, zeroed": (_do(lambda x: x.view(4).zero_(), out=lambda x: x * 2), _computed((2, 2))),
    "computed, masked": (lambda x: x.masked_fill_(x > 0, 0), _computed((4,))),
    "computed, dropped out": (lambda x: F.dropout(x, 0.5, True, True), _computed((5,))),
    "two computed": (
        _do(lambda x, y: x.add_(y), lambda x, y: y.mul_(x), out=lambda x, y: x * y), _computed((3,), (3,)),
    ),
    "gains a history": (lambda x, w: x.copy_(w * 2), _mixed((3,))),
    "gains a history by a product": (_do(lambda x, w: x.mul_(w), out=lambda x, w: x + 1), _mixed((3,))),
    "through .data": (_do(lambda x, y: x.data.add_(1), out=lambda x, y: y * 2), _leaves((3,), (3,))),
    "through .data and counted": (
        _do(lambda x: x.data.add_(1), lambda x: x.mul_(2), out=lambda x: x * 1), _plain((3,)),
    ),
    ".data is returned": (lambda x: x.data, _leaves((3,))),
    "running statistics": (
        lambda x, m, v: F.batch_norm(x, m, v, training=True),
        lambda: ([torch.randn(4, 3), torch.zeros(3), torch.ones(3)], []),
    ),
    "turned": (lambda x: x.add_(2), lambda: ([torch.randn(4, 3).t()], [])),
    "every other column": (lambda x: x.add_(2), lambda: ([torch.randn(4, 6)[:, ::2]], [])),
    "expanded is refused": (lambda x: x.add_(2), lambda: ([torch.randn(1, 3).expand(4, 3)], [])),
    "nothing to write": (lambda x: x.add_(1) * 2, _plain((0, 3))),
    "a view of nothing": (lambda x: x[:, :0].add_(1), _plain((2, 3))),
    "drawn": (lambda x: x.normal_(), _plain((5,))),
    "the input itself": (lambda x: x, _leaves((3,))),
    "the input, a view of it, and a copy": (lambda x: (x, x.view(-1), x * 1), _leaves((3, 2))),
    "views of what was computed": (lambda x: (lambda y: (y, y[0], y.t()))(x * 2), _leaves((3, 2))),
    "views without their base": (lambda x: (lambda y: (y[0], y[1]))(x * 2), _leaves((3, 2))),
    "one tensor twice": (lambda x: _both(x, lambda y: y), _leaves((3, 2))),
    "and detached": (lambda x: _both(x, lambda y: y.detach()), _leaves((3, 2))),
    "a detached input": (lambda x: x.detach(), _leaves((3, 2))),
    "detached in place": (lambda x: (x * 2).detach_(), _leaves((3,))),
    "nested modes": (_nested_modes, _leaves((3,))),
    "a view of a written input": (_do(lambda x: x.add_(1), out=lambda x: x[0]), _computed((2, 2))),
    "no copy needed": (lambda x: (x.contiguous(), x.to(torch.float32), x.flatten()), _leaves((2, 3))),
    "indices and values": (lambda x: (x > 0, x.argmax(), x.sort()), _leaves((4,))),
    "an unused input": (lambda x, y: x * 2, _leaves((3,), (3,))),
}  # fmt: skip
"""Programs that are served by the graphs."""


def _closed() -> torch.Tensor:
    return torch.randn(4)


def _open() -> torch.Tensor:
    return torch.randn(4, requires_grad=True)


def _same(x: torch.Tensor) -> torch.Tensor:
    return x


_write_first = _do(lambda x, y: x.mul_(2), out=lambda x, y: y * 3)
_write_both = _do(lambda x, y: x.mul_(2), lambda x, y: y.add_(1), out=lambda x, y: x.sum() + y)

ALIASED: dict[str, Effect] = {
    "a tensor and its end": (_write_first, _of(_closed, _same, lambda x: x[1:])),
    "its beginning and a tensor": (_write_both, _of(_closed, lambda x: x[:1], _same)),
    "two overlapping slices": (_write_both, _of(_closed, lambda x: x[:3], lambda x: x[1:])),
    "interleaved": (_write_both, _of(_closed, lambda x: x[::2], lambda x: x[1::2])),
    "reshaped": (_write_first, _of(_closed, _same, lambda x: x.view(2, 2))),
    "turned": (_write_first, _of(lambda: torch.randn(3, 3), _same, lambda x: x.t())),
    "with history": (_write_first, _of(_open, _same, lambda x: x[1:])),
    "with history, the view is written": (_write_first, _of(_open, lambda x: x[1:], _same)),
    "detached": (_write_first, _of(_open, _same, lambda x: x.detach())),
}
"""Programs of two inputs that share memory, and write into one."""

RUN_PLAIN: dict[str, Effect] = {
    "an overlapping input": (lambda x: x.add_(x), lambda: ([torch.randn(6).as_strided((3, 2), (1, 1))], [])),
    "overlapping windows": (lambda x: x.as_strided((3, 2), (1, 1)).add_(1), _plain((6,))),
    "a leaf made inside": (lambda x: (x * 2).requires_grad_() * 2, _plain((3,))),
    "turned in place": (lambda x: x.t_(), _plain((2, 3))),
    "requires grad from here on": (lambda x: x.requires_grad_() * 2, _plain((3,))),
    "detached in place": (lambda x: x.detach_() * 2, _computed((3,))),
    "a leaf is returned": (lambda x: x.clone().detach().requires_grad_(), _plain((3,))),
}
"""Programs that the stage refuses, before anything is changed."""
