"""Coded errors of bytecap: why a frame was not captured.

A code never changes its meaning. `CannotCapture` subclasses end the capture of a frame, which then runs plain
(or raises this error under `fullgraph=True`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from bytecap.bytecode.decode import InstructionTrace
from stagewire.capture import Guard, Source, Symbol
from stagewire.errors import StageError


class CannotCapture(StageError):
    """A frame that the evaluator cannot represent; `where` is the user's line.

    guards: what the evaluator relied on until then: while they hold, the same would happen again. objects: the live
    objects that they name. symbols: the size symbols in them. trace: the way of the frame to where it ended, None if
    it did not start. is_whole: the frame runs plain as a whole, a break would not help.
    """

    code = "BC000"
    guards: tuple[Guard, ...] = ()
    objects: Mapping[str, Any] = MappingProxyType({})
    symbols: tuple[Symbol, ...] = ()
    trace: InstructionTrace | None = None
    is_whole: bool = False

    def let_go(self) -> CannotCapture:
        """This error without the program's objects and frames, so that it can be kept."""
        self.objects = MappingProxyType({})
        self.__context__ = None
        return self.with_traceback(None)


class UnsupportedInstruction(CannotCapture):
    """An instruction without a handler for this version of CPython."""

    code = "BC001"
    fix = "Move the statement out of the captured function."


class UnsupportedCall(CannotCapture):
    """A call of something opaque: a C function without a known meaning, an object of an unknown kind."""

    code = "BC002"
    fix = "Call it outside the captured function, or pass its result as an argument."


class UnsupportedValue(CannotCapture):
    """A Python value of a kind that the evaluator does not model."""

    code = "BC003"
    fix = "Use plain Python values, tensors or nn.Modules in the captured function."


class DataDependent(CannotCapture):
    """Python control flow or a Python number that depends on the values inside a tensor."""

    code = "BC004"
    fix = "Use torch.where or masks instead of branching on tensor values."


class RaisedInCapture(CannotCapture):
    """The captured code raises (with these inputs); the plain run will raise the same, with its own traceback."""

    code = "BC005"
    fix = "Look at the plain run's traceback."


class CannotRebuild(CannotCapture):
    """A returned or stored value that replacement bytecode cannot build again."""

    code = "BC006"
    fix = "Return tensors, plain containers or dataclasses of them."


class UnsupportedFrame(CannotCapture):
    """A code object that is not captured: a class body, a module, a generator or coroutine that reads its own frame."""

    code = "BC007"
    fix = "Compile the function that does the tensor work, not what is around it."


class UnsupportedMutation(CannotCapture):
    """A change of an outside object that cannot be replayed after the graph."""

    code = "BC008"
    fix = "Return the new value instead of storing it."


class NoTensorWork(CannotCapture):
    """The frame calls no tensor operation: nothing to compile."""

    code = "BC009"
    fix = "Nothing to do: the frame runs plain at full speed."


class RecompileLimit(StageError):
    """One code object needed more captures than the limit."""

    code = "BC010"
    fix = "Keep the guarded values stable, or raise recompile_limit."


class AbstractCallFailed(CannotCapture):
    """A torch function that could not be evaluated on abstract tensors."""

    code = "BC011"
    fix = "Report the operator; meanwhile call it outside the captured function."


class WrongTangent(StageError):
    """A gradient that arrives in a backward at a result of another tensor class than its own."""

    code = "BC033"
    fix = "Give backward() a gradient of the class of the result, or the class a __coerce_same_metadata_as_tangent__."


class InterpretError(StageError):
    """A Capture document that cannot be run: a target that this torch does not have, another number of inputs."""

    code = "BC012"
    fix = "Run the document with the torch version that wrote it."


class EvaluatorFault(CannotCapture):
    """The evaluator itself failed; `__cause__` is its exception. The frame runs plain as for any other refusal."""

    code = "BC014"
    fix = "Report it with the function; meanwhile the frame runs plain."


class LoopTooLong(CannotCapture):
    """Loops that run so often that unrolling them would cost more than it gives."""

    code = "BC015"
    fix = "Do the loop with tensor operations, or call it outside the captured function."


class GraphBreak(CannotCapture):
    """The user asked for the end of the graph: `graph_break()`."""

    code = "BC030"
    fix = "Take the call of graph_break() away."


class DisabledCall(CannotCapture):
    """A call of something that the user disabled: it runs plain, between two graphs."""

    code = "BC031"
    fix = "Take the mark away, or call it outside the captured function."


class RecompileForbidden(CannotCapture, RuntimeError):
    """A frame would have to be compiled (again) while the stance is "fail_on_recompile"."""

    code = "BC032"
    fix = "Keep the value as it was, or set another stance."


class ChangingNumber(CannotCapture):
    """A number, text or size that was fixed in earlier captures and differs in each call: what uses it runs plain."""

    code = "BC016"
    fix = "Pass a number as a tensor; keep what differs in each call apart from tensor work."


class FixedMarkedSize(CannotCapture):
    """A dimension that was marked with `mark_dynamic`, and that a line of the program needs to have one size, or that
    has one outside of the range that was given."""

    code = "BC017"
    fix = "Take the mark away, or change the line so that it does not ask for one size."


class FixedSizesNeeded(CannotCapture):
    """A torch function that takes no symbolic sizes: the sizes at `sources` are fixed, and the frame captured anew."""

    code = "BC018"
    fix = "Nothing: each of these sizes gets a version of its own. To have one for all, call another function."
    needs_fixed_sizes = True
    sources: tuple[Source, ...] = ()


class BadOption(StageError):
    """An option of `optimize` that cannot be honoured."""

    code = "BC013"
    fix = "Pass a value that the option takes."


class GuardError(StageError):
    """A guard that cannot be compiled: no such value, not a literal, an unknown type or module."""

    code = "BC020"
    fix = "Guard on a value that the frame can reach without running user code."


class GuardDoesNotHold(GuardError):
    """A guard that is false for the very frame it was made from."""

    code = "BC021"
    fix = "The captured code changes the value that the guard reads; report it with the function."


ERROR_CODES = tuple(
    cls.code
    for cls in (CannotCapture, *CannotCapture.__subclasses__(), RecompileLimit, WrongTangent, InterpretError, BadOption)
)
