"""Coded errors of absint (prefix AI)."""

from __future__ import annotations

from typing import ClassVar

from stagewire.errors import StageError


class DataDependentError(StageError):
    """The program asks an abstract tensor for its data: a value, a truth, or a shape that data decides."""

    code = "AI001"
    refuses_program = True
    fix = "Keep the decision in tensors (torch.where), or let this line run outside the graph."


class NoActiveMode(StageError):
    """An abstract tensor met a torch op while no `AbstractMode` was active."""

    code = "AI002"
    fix = "Run the op inside `with mode:` or through absint.abstract_call."


class NoTypeRule(StageError):
    """An op has no result-type rule, and the slow path could not run it either."""

    code = "AI003"
    refuses_program = True
    fix = "Add a rule under absint/rules, register a fake kernel, or let this op run outside the graph."


class TypeRuleError(StageError, RuntimeError):
    """A type rule refuses the operands, as eager torch would (it is a RuntimeError too).

    eager: the class that eager raises.
    """

    code = "AI004"
    fix = "The operands do not fit the op; eager torch refuses this call as well."
    eager: ClassVar[type[Exception]] = RuntimeError


class DimensionError(TypeRuleError, IndexError):
    """A dimension or an index out of range, as eager torch reports it (it is an IndexError too)."""

    code = "AI010"
    eager = IndexError


class KernelMissing(TypeRuleError, NotImplementedError):
    """ATen has no kernel for these dtypes (it is a NotImplementedError too)."""

    code = "AI015"
    eager = NotImplementedError


def refusal_class(eager: type[BaseException]) -> type[TypeRuleError]:
    """The error that stands for one of eager's.

    >>> refusal_class(NotImplementedError).__name__
    'KernelMissing'
    """
    classes = (DimensionError, KernelMissing)
    return next((cls for cls in classes if issubclass(eager, cls.eager)), TypeRuleError)


class BadMutation(StageError):
    """An in-place or out= op whose result does not fit the tensor it writes."""

    code = "AI005"
    fix = "Write into a tensor of the result's shape and of a dtype that can hold the result."


class RefusedWrite(BadMutation, TypeRuleError):
    """An in-place op that eager torch refuses as well (it is a RuntimeError too)."""

    code = "AI011"
    refuses_program = True


class SymbolicSize(StageError):
    """A symbolic size came where this path needs an integer."""

    code = "AI006"
    needs_fixed_sizes = True
    fix = "Pass size_of=, which gives the integer of a symbolic size."


class UnsupportedTensor(StageError):
    """A tensor without a plain strided type: sparse, quantized, nested, or a foreign subclass."""

    code = "AI007"
    refuses_program = True
    fix = "Only strided tensors have abstract types; let this op run outside the graph."


class UnknownTarget(StageError):
    """A name that no document may call by, or a callable that has none."""

    code = "AI008"
    fix = (
        "Documents call functions of torch on tensors, methods of tensors, operators of imported libraries, operator "
        "and math: see absint.vocabulary. An operator of your own is there once its library is imported."
    )


class UnwirableArgument(StageError):
    """A Python object that is no argument of a document."""

    code = "AI009"
    fix = "Pass numbers, strings, dtypes, devices, slices and containers of them."


class UndecidedSize(StageError):
    """A question about sizes that the ranges and facts of a document do not answer."""

    code = "AI012"
    refuses_program = True
    needs_fixed_sizes = True
    fix = "Compile with dynamic=False, or with mark_static for the dimension."


class SpecializedSize(StageError):
    """A size that the user marked as dynamic, and that the program fixes."""

    code = "AI013"
    refuses_program = True
    fix = "Remove the mark_dynamic, or write the line without a condition that only one size meets."


class FixedNumber(StageError):
    """The value of a float that differs from call to call is asked for, where nothing knows it.

    The program is then captured with that float as a constant.
    """

    code = "AI014"
    needs_fixed_sizes = True
    fix = "Nothing: each value gets a version of its own. To have one for all, pass a tensor."

    def __init__(self, name: str) -> None:
        super().__init__(f"the program needs the value of the float {name}, not only what is computed of it")
        self.fixed_inputs = (name,)


class WrongResults(StageError):
    """A call of a graph gave another number of tensors than the graph names."""

    code = "AI016"
    fix = "Run the document with the version of torch that wrote it."
