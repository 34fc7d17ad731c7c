"""Coded errors of primops."""

from __future__ import annotations

from stagewire.errors import StageError


class DecompositionFault(StageError):
    """A decomposition raised, or gave a value of another type than the ATen call has."""

    code = "PO001"
    fix = "Report the node; primops.Options(keep=(target,)) leaves that op to ATen meanwhile."


class UnknownPrim(StageError):
    """A node names a prim that the opset does not have."""

    code = "PO002"
    fix = "See SPEC.md of primops for the prims there are; the graph may come from another opset."


class PrimFault(StageError):
    """A node breaks a labelled constraint of SPEC.md; `label` names it."""

    code = "PO003"
    fix = "The writer of this graph has a fault; SPEC.md explains the constraint."

    def __init__(self, label: str, message: str, *, where: str | None = None) -> None:
        super().__init__(f"[{label}] {message}", where=where)
        self.label = label


class InterpretFault(StageError):
    """A graph cannot be interpreted: wrong inputs, an op that torch does not have, or an op that raised."""

    code = "PO004"
    fix = "Check the inputs against the types of the graph's inputs; `where` is the line of the failing node."


class OpsetMismatch(StageError):
    """A document was written for another version of the opset."""

    code = "PO005"
    fix = "Run the primops stage of this version on the Grad document again."


class Decline(Exception):
    """Raised by a decomposition for a case that it leaves to ATen; the call stays an extern."""
