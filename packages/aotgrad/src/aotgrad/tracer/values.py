"""The tensors of a trace: what each one is a view of, and which recorded value holds its content.

    memory  ::= base:Traced value generation          one per storage
    traced  ::= type memory steps:step* path:step*    both lead from the memory's base to this view
    step    ::= view op, arguments after the tensor   (or "the same", for detach)

steps: the program's own, which autograd goes through. path: those that give the content; another one behind
`as_strided`, which addresses the memory and not the view that it is called on.

`generation` counts writes to a memory. A traced tensor whose own generation is older than that of its memory
was written through an alias; its content is then read again by replaying its path on the memory's value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import torch

from absint import AbstractTensor, Meta
from absint.tensor import Storage
from aotgrad.torch_capabilities import TORCH
from stagewire.graph import Ref

if TYPE_CHECKING:
    from torch._ops import OpOverload


DATA = "torch.Tensor.data.__get__"
"""The step from a tensor to its `.data`: a detached view with a version counter of its own."""


class Step(msgspec.Struct, frozen=True, eq=False):
    """One view op on the way from a base to a view: `func`, named `target`, called as func(tensor, *args, **kwargs).

    `func` is None where at most autograd sees a difference (detach, alias). grad: the grad mode that it was made in,
    which autograd remembers: a view made without has no history of its own. piece: of one of several views, the op that
    gave them, its arguments after the tensor, and the view's number: `func` is another op, which gives this one alone.
    """

    func: OpOverload | None
    target: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    before: Meta
    after: Meta
    grad: bool = True
    piece: tuple[str, tuple[Any, ...], int] | None = None


class Memory(Storage):
    """One storage of the program: its current content as a recorded value of the base's type.

    input: position of the input that owns it, or None. base: the first tensor made on it (dropped after the trace,
    so that tensors and autograd nodes form no cycles). versions: how far the version counter moved.
    """

    __slots__ = ("base", "generation", "input", "meta", "value", "versions", "written_in_backward")

    def __init__(self, meta: Meta, value: Ref, input: int | None = None, constant: torch.Tensor | None = None) -> None:
        super().__init__(constant)
        self.meta = meta
        self.value = value
        self.generation = 0
        self.input = input
        self.base: Traced | None = None
        self.versions = 0
        self.written_in_backward = False

    @property
    def shift(self) -> int:
        """What to take from storage offsets: a recorded value that replaced an input starts at offset zero."""
        return self.meta.storage_offset if self.generation else 0


class Traced(AbstractTensor):
    """A tensor of the traced program."""

    __slots__ = ("generation", "memory", "path", "steps", "value")
    memory: Memory
    steps: tuple[Step, ...]
    path: tuple[Step, ...]
    value: Ref | None
    generation: int

    @staticmethod
    def __new__(
        cls,
        meta: Meta,
        memory: Memory,
        steps: tuple[Step, ...] = (),
        path: tuple[Step, ...] = (),
        *,
        requires_grad: bool = False,
    ) -> Traced:
        tensor: Traced = AbstractTensor.__new__(cls, meta, memory, requires_grad=requires_grad)  # type: ignore[assignment]
        tensor.memory = memory
        tensor.steps = steps
        tensor.path = path
        tensor.value = None
        tensor.generation = -1
        if memory.base is None:
            memory.base = tensor
        return tensor

    __torch_function__ = TORCH.no_torch_function
