"""Coded errors: every refusal says what, where and what to do instead.

Each package owns a two-letter prefix (SW stagewire, BC bytecap, AI absint, AG aotgrad, PO primops, LI loopir,
CG codegen, SF stagefold) and lists its codes as subclasses of `StageError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

DATA_ERRORS = (ArithmeticError, LookupError, RuntimeError, ValueError)
"""What a program may raise because of its data: of another kind, an error of its code is no error of the program."""


class StageError(Exception):
    """An error with a stable `code`, the user's line (a text or a `SourceLine`) where there is one, and a `fix`.

    >>> class Example(StageError):
    ...     code = "SW999"
    ...     fix = "Pass an even number."
    >>> print(Example("3 is odd", where="model.py:4 in forward"))
    SW999: 3 is odd
      at model.py:4 in forward
      fix: Pass an even number.
    """

    code: ClassVar[str] = "SW000"
    fix: str = ""
    refuses_program: ClassVar[bool] = False
    """True for what plain torch runs and a stage cannot take: the program then runs plain, unless fullgraph asks for
    the error. False for faults of documents, of the machine and of arguments, which are always raised."""

    needs_fixed_sizes: ClassVar[bool] = False
    """True for what a stage cannot do with symbolic sizes: the program is then compiled for each size."""

    is_fault: ClassVar[bool] = False
    """True for what is wrong with the code of a program, whatever its data: a call of the program raises it too, where
    after any other error the function runs plain."""

    hindering: ClassVar[tuple[str, ...]] = ()
    """Targets of calls that hinder: what stands in front of the first of them may be a program by itself."""

    hindering_result: str | None = None
    """The name of a result of the one call that hinders, where that is known: its derivative cannot be traced, say."""

    fixed_inputs: tuple[str, ...] = ()
    """The inputs of the program (numbers) that have to be constants, if that is all that hinders."""

    def __init__(self, message: str, *, where: object = None, fix: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = None if where is None else str(where)
        if fix is not None:
            self.fix = fix

    def __str__(self) -> str:
        lines = [f"{self.code}: {self.message}"]
        if self.where:
            lines.append(f"  at {self.where}")
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        return "\n".join(lines)


class DecodeError(StageError):
    """Bytes that are not the document they claim to be; the message names the path of the fault."""

    code = "SW001"
    fix = "Write the document again with stagewire.encode, or delete the file."


class UnknownVersion(StageError):
    """A document of a version (or kind) that this stagewire cannot read."""

    code = "SW002"
    fix = "Upgrade stagefold-stagewire, or write the document again with this version."


class VerifyError(StageError):
    """A document that breaks a labelled constraint; `label` names it, `fault` shows the lines around. `sizes`: values
    of its symbols with which it does (none: with any)."""

    code = "SW003"
    fix = "The stage that wrote this document has a fault; report it with the document."

    def __init__(self, label: str, message: str, *, where: object = None, sizes: Mapping[str, int] = {}) -> None:
        super().__init__(f"[{label}] {message}", where=where)
        self.label = label
        self.fault = message
        self.sizes = dict(sizes)


class ExprError(StageError):
    """Text outside the grammar of size expressions, or out of the bounds of sizes."""

    code = "SW004"
    fix = "Size expressions are integers, symbols, + - * // % ** and Min/Max: of 256 terms at most, powers up to 64."


class ParseError(StageError):
    """Printed text that does not parse back; `where` is line:column."""

    code = "SW005"
    fix = "Print the document again; the printed form is the only accepted one."


class NameClash(StageError):
    """Two owners of one name: of a stage, a target, or a namespace of ops."""

    code = "SW006"
    fix = "Uninstall one of the two distributions; a stage may be passed as an object, too."


class PartlyDone(StageError):
    """A compiled call raised `error` after it had changed what its caller sees: it cannot be undone and run again."""

    code = "SW007"
    fix = "Look at `error`: mostly memory is short. What the call wrote stays as it is."

    def __init__(self, error: Exception) -> None:
        super().__init__(f"{type(error).__name__} in a call that has changed its inputs already: {error}")
        self.error = error


class UnknownOp(StageError):
    """A call of an op that the vocabulary of its namespace does not have."""

    code = "SW010"
    fix = "`python -m stagewire ops` lists the ops there are; the document may come from another version of them."


class PassFault(StageError):
    """A pass that returned no value of the kind that it was given, or one that breaks a constraint."""

    code = "SW012"
    fix = "Have the pass return the whole value, changed or as it was; the constraints are in stagewire's README."


class Misplaced(StageError):
    """A document at a place between the stages where it does not belong."""

    code = "SW011"
    fix = "Carry it through the stages in their order: capture, grad, prim, cut (a prim in two parts), loop, program."
