"""Does a `Grad` mean what its `Capture` means: run both on the same tensors and compare everything a caller can see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import torch

from aotgrad.errors import DoubleBackward
from aotgrad.interpret import bind_capture, bind_interpreted
from aotgrad.partition.stage import Options as PartitionOptions
from aotgrad.partition.stage import cut
from aotgrad.stage import AotGrad, Options
from aotgrad.tracer.replay import replay
from stagewire.capture import Capture
from stagewire.codec import decode, encode
from stagewire.prim import Prim


class Tolerance(msgspec.Struct, frozen=True):
    """Allowed differences of gradients; outputs and mutated inputs must be equal unless `forward` says otherwise."""

    relative: float = 1e-5
    absolute: float = 1e-6
    forward: float = 0.0


def run_capture(capture: Capture, inputs: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """What the captured program does, by eager torch."""
    with torch.set_grad_enabled(capture.state.grad_enabled):
        return replay(capture, tuple(inputs), lambda node: None)


def check_against_eager(
    capture: Capture,
    inputs: Sequence[torch.Tensor],
    options: Options | None = None,
    partition: PartitionOptions | None = None,
    *,
    seed: int = 0,
    tolerance: Tolerance | None = None,
) -> Prim:
    """Raise AssertionError if the stage's result, cut as `partition` says, differs from eager on `inputs`; returns the
    parts.

    Compared: values, strides, dtypes and requires_grad of outputs; which outputs share memory with which inputs and
    outputs; mutated inputs and by how much their version counters moved; gradients of leaves; the random stream.
    """
    tolerance = Tolerance() if tolerance is None else tolerance
    grad = decode(encode(AotGrad().run(decode(encode(capture), "capture"), options)), "grad")
    document = decode(encode(cut(grad, partition)), "prim")  # type: ignore[arg-type]
    ours, theirs = _Run(inputs), _Run(inputs)
    call = bind_interpreted(document)  # type: ignore[arg-type]
    with torch.set_grad_enabled(capture.state.grad_enabled):
        ours.forward(lambda given: call(*given), seed)
    theirs.forward(lambda given: run_capture(capture, given), seed)
    _compare_outputs(ours, theirs, tolerance)
    _compare_aliases(ours, theirs)
    _compare_inputs(ours, theirs, tolerance)
    _compare_gradients(ours, theirs, tolerance)
    return document  # type: ignore[return-value]


def eager_refuses_backward(capture: Capture, inputs: Sequence[torch.Tensor]) -> bool:
    """Is the captured program one whose backward eager torch refuses (it writes over what autograd has saved)."""
    run = _Run(inputs)
    run.forward(lambda given: run_capture(capture, given), seed=0)
    try:
        run.gradients()
    except RuntimeError:
        return True
    return False


def check_second_order(capture: Capture, inputs: Sequence[torch.Tensor]) -> bool:
    """Raise AssertionError if gradients of gradients differ from eager's; False if eager or the stage refuses to give
    them."""
    ours, theirs = _Run(inputs), _Run(inputs)
    ours.forward(lambda given: bind_capture(capture)(*given), seed=0)
    theirs.forward(lambda given: run_capture(capture, given), seed=0)
    try:
        expected = theirs.second_order()
    except RuntimeError:
        return False
    try:
        found = ours.second_order()
    except DoubleBackward:
        return False
    for number, (a, b) in enumerate(zip(found, expected, strict=True)):
        # Where the derivative is zero throughout, eager may have none: it knows what a backward did not use.
        a, b = (torch.zeros_like(theirs.leaves[number]) if g is None else g for g in (a, b))
        scale = max(float(b.detach().abs().max()), 1.0) if b.numel() else 1.0
        _close(a, b, 1e-3, 1e-4 * scale, f"second order of input {number}")
    return True


class _Run:
    """One run on copies of the inputs: leaves that collect gradients, and what the program is given."""

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        copied = {id(t): copy_of(t) for t in inputs}
        self.leaves = [copied[id(t)] for t in inputs]
        same = {id(t): copied[id(t)] if t.is_leaf else copied[id(t)].view_as(copied[id(t)]) * 1 for t in inputs}
        self.given = [same[id(t)] for t in inputs]

    def forward(self, program: Any, seed: int) -> None:
        before = [tensor._version for tensor in self.given]
        torch.manual_seed(seed)
        self.outputs = program(self.given)
        self.random = torch.rand(2)
        self.moved = [t._version - b for t, b in zip(self.given, before, strict=True)]

    def gradients(self) -> list[torch.Tensor | None]:
        roots = [o for o in self.outputs if isinstance(o, torch.Tensor) and o.requires_grad]
        roots += [t for t, moved in zip(self.given, self.moved, strict=True) if moved and t.grad_fn is not None]
        if roots:
            sum((o.abs().double() ** 2).sum() for o in roots).backward()
        return [leaf.grad if leaf.is_leaf else None for leaf in self.leaves]

    def second_order(self) -> list[torch.Tensor | None]:
        """Gradients of the squared norm of the gradients of the outputs."""
        roots = [o for o in self.outputs if isinstance(o, torch.Tensor) and o.requires_grad]
        wanted = [leaf for leaf in self.leaves if leaf.requires_grad and leaf.is_leaf]
        if not roots or not wanted:
            return []
        loss = sum((o.abs().double() ** 2).sum() for o in roots)
        first = torch.autograd.grad(loss, wanted, create_graph=True, allow_unused=True)
        found = sum((g.abs().double() ** 2).sum() for g in first if g is not None)
        return list(torch.autograd.grad(found, wanted, allow_unused=True))


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """The same type, content, strides and offset, on memory of its own."""
    span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
    memory = torch.empty(tensor.storage_offset() + span, dtype=tensor.dtype, device=tensor.device)
    copy = memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    with torch.no_grad():
        if span:
            memory[tensor.storage_offset() :].copy_(tensor.detach().as_strided((span,), (1,), tensor.storage_offset()))
    return copy.detach().requires_grad_(tensor.requires_grad)


def _close(ours: torch.Tensor, theirs: torch.Tensor, relative: float, absolute: float, what: str) -> None:
    torch.testing.assert_close(
        ours, theirs, rtol=relative, atol=absolute, equal_nan=True, msg=lambda text: f"{what}: {text}"
    )


def _compare_outputs(ours: _Run, theirs: _Run, tolerance: Tolerance) -> None:
    assert len(ours.outputs) == len(theirs.outputs), "another number of outputs"
    assert torch.equal(ours.random, theirs.random), "the random stream stands elsewhere"
    for number, (a, b) in enumerate(zip(ours.outputs, theirs.outputs, strict=True)):
        if not isinstance(b, torch.Tensor):
            assert (a, type(a)) == (b, type(b)), f"output {number} is {a!r}, not {b!r}"
            continue
        _close(a, b, tolerance.forward, tolerance.forward, f"output {number}")
        assert a.requires_grad == b.requires_grad, f"output {number}: requires_grad is {a.requires_grad}"
        assert a.is_leaf == b.is_leaf, f"output {number}: is_leaf is {a.is_leaf}"
        strides = [(x, y) for x, y, n in zip(a.stride(), b.stride(), b.shape, strict=True) if n > 1]
        assert b.numel() == 0 or all(x == y for x, y in strides), f"output {number}: {a.stride()} not {b.stride()}"


def _compare_aliases(ours: _Run, theirs: _Run) -> None:
    mine = [*ours.outputs, *ours.given]
    other = [*theirs.outputs, *theirs.given]
    for i in range(len(ours.outputs)):
        for j in range(i + 1, len(mine)):
            assert _shares(mine[i], mine[j]) == _shares(other[i], other[j]), f"output {i} and tensor {j}: memory"
            same = other[i] is other[j]
            assert not isinstance(other[i], torch.Tensor) or (mine[i] is mine[j]) == same, f"{i} and {j}: identity"


def _shares(first: Any, second: Any) -> bool:
    """Whether two tensors have memory in common. Of no elements they have none, whatever storage they were cut from."""
    if not (isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)):
        return False
    pointer = first.untyped_storage().data_ptr() if first.numel() and second.numel() else 0
    return pointer != 0 and pointer == second.untyped_storage().data_ptr()


def _compare_inputs(ours: _Run, theirs: _Run, tolerance: Tolerance) -> None:
    for number, (a, b) in enumerate(zip(ours.given, theirs.given, strict=True)):
        _close(a, b, tolerance.forward, tolerance.forward, f"input {number} afterwards")
        assert a.requires_grad == b.requires_grad, f"input {number} afterwards: requires_grad is {a.requires_grad}"
        assert ours.moved[number] == theirs.moved[number], f"input {number}: its version moved by {ours.moved[number]}"


def _compare_gradients(ours: _Run, theirs: _Run, tolerance: Tolerance) -> None:
    for number, (a, b) in enumerate(zip(ours.gradients(), theirs.gradients(), strict=True)):
        assert (a is None) == (b is None), f"gradient of input {number}: {a} instead of {b}"
        if b is not None:
            _close(a, b, tolerance.relative, tolerance.absolute, f"gradient of input {number}")
