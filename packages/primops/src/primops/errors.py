"""Coded errors of primops."""

from __future__ import annotations

from stagewire.errors import StageError


class DecompositionFault(StageError):
    """A decomposition raised, or gave a value of another type than the ATen call has."""

    code = "PO001"
    fix = "Mend the decomposition, or report ours; primops.Options(keep=(target,)) leaves that op to ATen meanwhile."


class InterpretFault(StageError):
    """A graph cannot be interpreted: wrong inputs, an op that torch does not have, or an op that raised."""

    code = "PO004"
    fix = "Check the inputs against the types of the graph's inputs; `where` is the line of the failing node."


class Decline(Exception):
    """Raised by a decomposition for a case that it leaves to ATen; the call stays an extern."""
