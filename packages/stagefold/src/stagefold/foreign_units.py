"""Callables of units that code of others made: a stage in slot "load", or a target that another package registers.

What they return is compared with what the unit says, and an error names them. Without that, an error of theirs would
pass for one of the program's data, behind which the program runs plain and nobody is told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from stagefold.errors import BadStage
from stagewire.errors import StageError
from stagewire.graph import Ref
from stagewire.program import Unit, made_buffers
from stagewire.types import TensorType

Callee = Callable[..., tuple[Any, ...]]

OUR_TARGETS = frozenset(("cpp", "triton"))


def checked(run: Any, unit: Unit, what: str, *, takes_list: bool = False) -> Callee:
    """`run`, which `what` made of a unit, as `codegen.load` makes them: it takes one list of inputs as well, and runs
    nothing for an empty one. Raises `BadStage` for what is no result of the unit, and for what `run` raises.

    takes_list: `run` itself takes a list, and does so.
    """
    if not callable(run):
        raise BadStage(f"{what} returned a {type(run).__name__}, not a callable of the unit's inputs")
    types = _output_types(unit)

    def call(*inputs: Any) -> tuple[Any, ...]:
        is_list = len(inputs) == 1 and type(inputs[0]) is list
        if is_list and not inputs[0]:
            return _named(run, what, inputs) if takes_list else ()
        outputs = _named(run, what, inputs[0] if is_list and not takes_list else inputs)
        _check(outputs, types, what)
        return tuple(outputs)

    return call


def _named(run: Callee, what: str, inputs: Sequence[Any]) -> Any:
    """What `run` gives; its errors say that it is `what` that raised them."""
    try:
        return run(*inputs)
    except StageError:
        raise
    except Exception as error:
        raise BadStage(f"what {what} made of a unit raised {type(error).__name__}: {error}") from error


def _output_types(unit: Unit) -> list[TensorType | None]:
    """The type of each output; None for a literal, and for what a call makes without saying it."""
    types: dict[str, Any] = dict(zip(unit.inputs, unit.input_types, strict=True))
    for instruction in unit.instructions:
        types |= {name: type_ for name, _, type_ in made_buffers(instruction)}
    found = [types.get(one.name) if isinstance(one, Ref) else None for one in unit.outputs]
    return [one if isinstance(one, TensorType) else None for one in found]


def _check(outputs: Any, types: Sequence[TensorType | None], what: str) -> None:
    if not isinstance(outputs, (tuple, list)):
        raise BadStage(f"what {what} made of a unit returned a {type(outputs).__name__}, not a tuple of its outputs")
    if len(outputs) != len(types):
        raise BadStage(f"what {what} made of a unit returned {len(outputs)} outputs, the unit has {len(types)}")
    for number, (one, wanted) in enumerate(zip(outputs, types, strict=True)):
        if wanted is not None and not _is_of(one, wanted):
            found = f"{one.dtype}{list(one.shape)}" if isinstance(one, torch.Tensor) else type(one).__name__
            raise BadStage(f"output {number} of what {what} made of a unit is {found}, where the unit has {wanted}")


def _is_of(one: Any, wanted: TensorType) -> bool:
    """Whether it has the dtype and the shape, as far as that is of numbers."""
    if not isinstance(one, torch.Tensor) or str(one.dtype) != f"torch.{wanted.dtype}":
        return False
    pairs = zip(one.shape, wanted.shape, strict=False)
    return one.dim() == len(wanted.shape) and all(type(n) is not int or size == n for size, n in pairs)
