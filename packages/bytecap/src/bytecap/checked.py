"""Running a graph with checks: its outputs where they hold, else nothing has happened and the frame runs plain.

    call  ::= snapshot graph (checks hold: outputs | undo: None)
    graph that may be caught, or has effects behind it, and raises: None
    frame ::= call (None: the function itself, with the frame's arguments | what follows the graph)

What a graph does besides its outputs is to write inputs and to draw random numbers. Both are put back before the
plain run, so that it finds what the frame found.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import CellType, CodeType, FunctionType
from typing import Any

import torch
from bytecode import BinaryOp, Label

from bytecap.assembler import Assembler
from bytecap.hook import plain
from bytecap.resume.flow import argument_count
from bytecap.torch_capabilities import TORCH

_log = logging.getLogger("bytecap")
_OUTPUTS = ".outputs"


class Checked:
    """`compiled`, whose last `count` outputs must be true: callable(*inputs) -> the other outputs, or None.

    written: positions of the inputs that it writes. on_failure: told each time the checks fail.
    """

    def __init__(
        self, compiled: Callable[..., Any], count: int, written: tuple[int, ...], on_failure: Callable[[], None]
    ) -> None:
        TORCH.require("set_versions")
        self.compiled = compiled
        self.count = count
        self.written = written
        self.on_failure = on_failure

    def __call__(self, *inputs: Any) -> tuple[Any, ...] | None:
        before = _Snapshot(tuple(inputs[number] for number in self.written), inputs)
        try:
            outputs = self.compiled(*inputs)
            if all(map(bool, outputs[-self.count :])):
                return outputs[: -self.count]
        except Exception as error:
            # What follows a check may fail because it does not hold. If the plain run does not raise, this is told.
            _log.info("a graph with runtime checks raised, the frame runs plain: %r", error)
        before.restore()
        self.on_failure()
        return None


class _Snapshot:
    """What a graph may change."""

    def __init__(self, written: tuple[torch.Tensor, ...], inputs: tuple[Any, ...]) -> None:
        self.written = written
        self.contents = tuple(tensor.detach().clone() for tensor in written)
        self.versions = tuple(tensor._version for tensor in written if not tensor.is_inference())
        self.random = torch.default_generator.get_state()
        # (Sizes are numbers among the inputs.)
        tensors = [each for each in inputs if isinstance(each, torch.Tensor)]
        devices = {tensor.device for tensor in tensors if tensor.device.type == "cuda"}
        self.random_on = {device: torch.cuda.get_rng_state(device) for device in devices}

    def restore(self) -> None:
        with torch.no_grad():
            for tensor, content in zip(self.written, self.contents, strict=True):
                tensor.detach().copy_(content)
        versioned = tuple(tensor for tensor in self.written if not tensor.is_inference())
        TORCH.set_versions(versioned, self.versions)
        torch.default_generator.set_state(self.random)
        for device, state in self.random_on.items():
            torch.cuda.set_rng_state(state, device)


def emit_call_or_none(out: Assembler, emit_call: Callable[[], None]) -> None:
    """Push what the call of a graph gives, or None where it raises; the stack is empty before."""

    def handle() -> None:
        out.call_function(noted, arguments=1)
        out.store_local(_OUTPUTS)

    with out.catching(handle):
        emit_call()
        out.store_local(_OUTPUTS)
    out.load_local(_OUTPUTS)


def noted(error: BaseException) -> None:
    """The graph raised: the plain run raises that where it belongs. An interrupt is none of the program's."""
    if not isinstance(error, Exception):
        raise error
    _log.info("a graph raised, the frame runs plain: %r", error)


def emit_plain_run(out: Assembler, code: CodeType, names: dict[str, Any]) -> None:
    """Pop what a `Checked` gave into a local and return what the function itself gives if that is None.

    Else the outputs are on top. names: the frame's globals.
    """
    holds = Label()
    out.store_local(_OUTPUTS)
    out.load_local(_OUTPUTS)
    out.constant(None)
    out.is_same()
    out.jump_forward_if(False, holds)
    with out.unseen():
        out.push_made(lambda: _load_function(out, code, names))
        _load_arguments(out, code)
        out.emit("CALL_FUNCTION_EX", 1)
    out.return_top()
    out.mark(holds)
    out.load_local(_OUTPUTS)
    out.constant(None)
    out.store_local(_OUTPUTS)


def _load_function(out: Assembler, code: CodeType, names: dict[str, Any]) -> None:
    out.constant(code)
    out.constant(names)
    out.load_closure(code.co_freevars)
    out.call_function(_plain_function, arguments=3)


def _plain_function(code: CodeType, names: dict[str, Any], closure: tuple[CellType, ...]) -> Callable[..., Any]:
    """The function of the frame, all of whose arguments are given; nobody captures while it runs."""
    return plain(FunctionType(code, names, code.co_name, None, closure or None))


def _load_arguments(out: Assembler, code: CodeType) -> None:
    """Push the positional arguments and those by name; the frame lets go of them."""
    named = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    more = list(code.co_varnames[code.co_argcount + code.co_kwonlyargcount : argument_count(code)])
    for name in code.co_varnames[: code.co_argcount]:
        out.load_local(name)
    out.build("TUPLE", code.co_argcount)
    if code.co_flags & 4:
        out.load_local(more.pop(0))
        out.emit("BINARY_OP", BinaryOp.ADD)
    for name in named:
        out.constant(name)
        out.load_local(name)
    out.build("MAP", len(named))
    if code.co_flags & 8:
        out.load_local(more.pop())
        out.emit("DICT_UPDATE", 1)
    for name in code.co_varnames[: argument_count(code)]:
        out.constant(None)
        out.store_local(name)
