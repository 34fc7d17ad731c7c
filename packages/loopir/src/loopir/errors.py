"""Coded errors of loopir (prefix LI)."""

from __future__ import annotations

from stagewire.errors import StageError


class UnsupportedPrim(StageError):
    """A prim that has no lowering, or a form of it that the lowering does not take."""

    code = "LI002"
    fix = "Decompose it in primops, or leave it as a named extern of ATen."


class MalformedNest(StageError):
    """A nest built by hand (or by a pass) that breaks a rule of the loop grammar."""

    code = "LI003"
    fix = "See the grammar at the top of loopir's README."


class NotInterpretable(StageError):
    """The reference interpreter lacks what the document asks for (an extern, a dtype)."""

    code = "LI004"
    fix = "Pass a numpy function for the extern in `externs=`."


class DependenceCycle(StageError):
    """A pass merged kernels that depend on each other through a third step."""

    code = "LI005"
    fix = "The fusion pass has a fault; run with passes=UNFUSED and report it with the document."
