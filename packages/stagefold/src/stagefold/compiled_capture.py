"""A capture that came from elsewhere than a frame (a GraphModule, an exported program, a file) as a callable.

bytecap's guards stand in front of what it compiles. Here nobody guards: `compile_capture` compares the types of its
inputs itself, and compiles again for sizes at which what the stages assumed does not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from msgspec.structs import replace

from absint import from_tensor, to_wire
from stagefold.backends import CaptureBackend, resolve_backend
from stagefold.errors import OtherInputs
from stagefold.pipeline import StageLike
from stagefold.size_specialisation import SizeSpecialisations, with_sizes
from stagewire.capture import Capture, Relation, facts_of, holds
from stagewire.errors import StageError
from stagewire.expr import Expr, evaluate
from stagewire.graph import Value
from stagewire.symbols import size_reader
from stagewire.types import TensorType

Callee = Callable[..., tuple[Any, ...]]


def compile_capture(
    capture: Capture,
    held: Sequence[torch.Tensor] = (),
    *,
    backend: str | Callable[..., Any] = "stagefold",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    stages: Mapping[str, StageLike] | None = None,
) -> Callee:
    """A callable of a capture's inputs that gives a tuple of its outputs.

    held: the tensors of the last inputs (see `from_fx`), which the callable is not given again. The others as for
    `stagefold.compile`. Inputs of another type than the capture was made for are refused; symbolic sizes may differ.

    >>> from stagefold import from_fx
    >>> capture, held = from_fx(torch.fx.symbolic_trace(torch.nn.ReLU()), [torch.ones(2)])
    >>> compile_capture(capture, held, backend="eager")(torch.tensor([-1.0, 2.0]))
    (tensor([0., 2.]),)
    """
    compiler, _ = resolve_backend(backend, mode, options, stages)
    return CompiledCapture(capture, held, compiler)


class CompiledCapture:
    """The callable. examples: the inputs, for a recording."""

    def __init__(
        self,
        capture: Capture,
        held: Sequence[torch.Tensor],
        compiler: CaptureBackend,
        examples: tuple[Any, ...] | None = None,
    ) -> None:
        self._capture, self._held = capture, tuple(held)
        self._types = tuple(one.value for one in capture.inputs)
        self._read = size_reader(self._types)
        self._facts = _facts_of_sizes(capture)
        function, assumed = compile_once(compiler, capture, None if examples is None else (*examples, *self._held))

        def make(sizes: dict[str, int]) -> Callee:
            return compile_once(compiler, with_sizes(capture, sizes), None)[0]

        self.atomic = getattr(function, "atomic", False)
        self._run = SizeSpecialisations(function, self._types, assumed, make) if capture.symbols else function

    def check(self, inputs: Sequence[Any]) -> None:
        """Raise `OtherInputs` for inputs that the capture does not serve."""
        given = (*inputs, *self._held)
        _check_types(self._types, given, self._read, self._capture.state.grad_enabled)
        sizes = {} if self._read is None else self._read(given)
        for fact in self._facts:
            if not holds(fact, sizes):
                raise OtherInputs(f"the capture is for {fact.left} {fact.operator} {fact.right}; sizes are {sizes}")

    def run(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """The outputs for inputs that it serves."""
        return self._run(*inputs, *self._held)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        self.check(inputs)
        return self.run(inputs)


def compile_once(
    compiler: CaptureBackend, capture: Capture, examples: tuple[Any, ...] | None
) -> tuple[Callee, tuple[Relation, ...]]:
    """The function of a capture, and what it assumes of the values of its symbols: fixed ones where a stage asks so."""
    bare, restore = _without_sizes(capture)
    if not capture.symbols or getattr(compiler, "takes_symbols", False):
        try:
            function = compiler(bare, examples)
        except StageError as error:
            if not capture.symbols or not error.needs_fixed_sizes:
                raise
        else:
            return restore(function), (*_facts_of_sizes(capture), *getattr(function, "assumes", ()))
    hints = {one.name: one.hint or 0 for one in capture.symbols}
    function = compiler(with_sizes(bare, hints), examples)
    return restore(function), tuple(Relation(Expr(name), "==", hint) for name, hint in hints.items())


def _facts_of_sizes(capture: Capture) -> tuple[Relation, ...]:
    """What is known of sizes, the ranges of symbols among it."""
    bounds = [(one.name, sign, n) for one in capture.symbols for sign, n in ((">=", one.lower), ("<=", one.upper))]
    return (*facts_of(capture), *[Relation(Expr(name), sign, n) for name, sign, n in bounds if n is not None])


def _without_sizes(capture: Capture) -> tuple[Capture, Callable[[Callee], Callee]]:
    """The capture without those outputs that are sizes, and what has a function of it return these too."""
    outputs = capture.graph.outputs
    if not any(isinstance(output, Expr) for output in outputs):
        return capture, lambda function: function
    kept = tuple(output for output in outputs if not isinstance(output, Expr))
    bare = replace(capture, graph=replace(capture.graph, outputs=kept))
    read = size_reader(tuple(one.value for one in capture.inputs))
    assert read is not None

    def restore(function: Callee) -> Callee:
        def call(*inputs: Any) -> tuple[Any, ...]:
            sizes = read(inputs)
            results = iter(function(*inputs))
            return tuple([evaluate(one, sizes) if isinstance(one, Expr) else next(results) for one in outputs])

        return call

    return bare, restore


def _check_types(types: Sequence[Value], given: Sequence[Any], read: Any, with_gradients: bool) -> None:
    if len(given) != len(types):
        raise OtherInputs(f"the capture has {len(types)} inputs, and {len(given)} are given")
    for want, have in zip(types, given, strict=True):
        is_tensor = isinstance(want.type, TensorType)
        if is_tensor != isinstance(have, torch.Tensor) or not (is_tensor or type(have) is int):
            kind = "a tensor" if is_tensor else "an int"
            raise OtherInputs(f"input {want.name} is a {type(have).__name__}, and was {kind}")
        if is_tensor and have.dim() != len(want.type.shape):
            raise OtherInputs(f"input {want.name} has {have.dim()} dimensions, and had {len(want.type.shape)}")
    sizes = {} if read is None else read(given)
    for want, have in zip(types, given, strict=True):
        if isinstance(want.type, TensorType) and not _fits(want.type, have, sizes, with_gradients):
            found = to_wire(from_tensor(have), requires_grad=have.requires_grad)
            raise OtherInputs(f"input {want.name} is {found}, and was {want.type}")


def _fits(want: TensorType, have: torch.Tensor, sizes: dict[str, int], with_gradients: bool) -> bool:
    """Whether a program for `want` is right for `have`; strides of dimensions with one element mean nothing."""
    if (str(have.dtype), str(have.device)) != (f"torch.{want.dtype}", want.device):
        return False
    if have.requires_grad and torch.is_grad_enabled() and not (want.requires_grad and with_gradients):
        return False
    rows = zip(want.shape, have.shape, want.stride, have.stride(), strict=True)
    return all(
        evaluate(size, sizes) == length and (length < 2 or evaluate(step, sizes) == stride)
        for size, length, step, stride in rows
    )
