"""One frame of the evaluated program: its instructions, stack, locals, cells, and the loop that runs them."""

from __future__ import annotations

from typing import Any

from bytecap.bytecode.decode import Handler, Instruction, InstructionTrace, decode
from bytecap.context_types import Tracer
from bytecap.errors import UnsupportedInstruction
from bytecap.evaluator.opcodes import HANDLERS
from bytecap.objects.base import STOPPED, Constant, PythonRaise, Returned, Value
from bytecap.objects.containers.mappings import DictValue
from bytecap.objects.containers.sequences import Lazy
from bytecap.objects.functions import CellValue, FunctionValue


class Frame:
    """The evaluation of one call.

    trace: notes the way of the frame that is captured; None for those inlined into it.
    """

    trace: InstructionTrace | None = None

    def __init__(self, tracer: Tracer, function: FunctionValue, bound: dict[str, Any]) -> None:
        self.tracer = tracer
        self.function = function
        self.program = decode(function.code)
        self.locals: dict[str, Any] = bound
        self.cells: dict[str, CellValue] = {}
        self.globals = function.globals
        self.stack: list[Any] = []
        self.pc = 0
        self.keyword_names: tuple[str, ...] = ()
        self.current: Instruction | None = None
        self.snapshot: DictValue | None = None  # what locals() gave

    # -- stack

    def push(self, value: Any) -> None:
        """Push onto the stack."""
        self.stack.append(value)

    def pop(self) -> Any:
        """Pop one entry."""
        return self.stack.pop()

    def pop_many(self, count: int) -> list[Any]:
        """Pop `count` entries, the deepest first."""
        start = len(self.stack) - count
        taken = self.stack[start:]
        del self.stack[start:]
        return taken

    # -- variables

    def load_local(self, name: str) -> Value:
        """A fast local; unbound ones raise UnboundLocalError in the evaluated program."""
        value = self.locals.get(name)
        if value is None:
            raise self.tracer.raises(
                UnboundLocalError, f"cannot access local variable '{name}' where it is not associated with a value"
            )
        if isinstance(value, Lazy):
            value = self.tracer.objects.wrap(value.real, value.source)
            self.locals[name] = value
        return value

    def first_argument(self) -> Value:
        """The first positional argument, for a bare super()."""
        name = self.function.code.co_varnames[0]
        if name in self.cells:
            return self.cells[name].get(self.tracer, name)
        return self.load_local(name)

    def make_cell(self, name: str) -> None:
        """MAKE_CELL: a cell, holding the argument of that name if there is one."""
        content = self.load_local(name) if name in self.locals else None
        self.cells[name] = CellValue(content)

    # -- running

    def run(self) -> Value:
        """Run to the return, or to the trace's limit (`STOPPED`).

        A generator frame returns a `Yielded` at each yield.
        """
        instructions = self.program.instructions
        trace = self.trace
        while True:
            try:
                while True:
                    if trace is not None and trace.reaches_limit(self):
                        return STOPPED  # type: ignore[return-value]
                    instruction = instructions[self.pc]
                    self.current = instruction
                    self.pc += 1
                    handler = HANDLERS.get(instruction.opname)
                    if handler is None:
                        raise UnsupportedInstruction(f"instruction {instruction.opname}")
                    outcome = handler(self, instruction)
                    if outcome is not None:
                        return outcome.value if type(outcome) is Returned else outcome
            except PythonRaise as error:
                self._unwind(error)
            except Exception as error:
                self.tracer.frames.note_fault(error)
                raise

    def resume(self, sent: Value, *, first: bool) -> Any:
        """Continue a generator frame with the value of its yield expression."""
        if not first:
            self.push(sent)
        return self.run()

    def throw(self, error: PythonRaise) -> Any:
        """Continue a generator frame by raising at its yield."""
        self._unwind(error)
        return self.run()

    def _unwind(self, error: PythonRaise) -> None:
        handler: Handler | None = self.program.handler_at(self.pc - 1)
        if handler is None:
            self.tracer.frames.note_fault(error)
            raise error
        del self.stack[handler.depth :]
        if handler.lasti:
            self.push(Constant(self.pc - 1))
        self.push(error.value)
        self.pc = handler.target
