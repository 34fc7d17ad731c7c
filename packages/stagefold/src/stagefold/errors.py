"""Coded errors of the umbrella."""

from __future__ import annotations

from absint.errors import TypeRuleError
from stagewire.errors import StageError
from stagewire.private_files import CacheWarning as CacheWarning


class BadOption(StageError):
    """An option that no stage knows, or of the wrong type."""

    code = "SF001"
    fix = 'The options are those of stagefold.Options, and "stage.field" for each field of a stage\'s Options.'


class UnknownBackend(StageError):
    """A backend name that nobody registered."""

    code = "SF002"
    fix = "stagefold.list_backends() gives the names; a callable is a backend as well."


class UnknownStage(StageError):
    """stages= names a slot that does not exist, or a stage that nobody registered."""

    code = "SF003"
    fix = "The slots are capture, aotgrad, primops, partition, loopir, codegen and load; a registered stage has a name."


class BadStage(StageError):
    """An object in stages= that is neither a Stage nor a function of a document, or that returns the wrong kind."""

    code = "SF004"
    is_fault = True
    fix = "Have the stage take and return what its slot does (docs/tutorials/write_a_stage.md)."


class BadModel(StageError):
    """compile() was given something that cannot be called."""

    code = "SF005"
    fix = "Pass a function, a method, an nn.Module, or nothing (to use compile as a decorator with arguments)."


class BrokenDocument(StageError):
    """What a stage of the user's was given or has made, or any stage under `verify`, breaks a labelled constraint."""

    code = "SF010"
    fix = "Look at the marked line: the constraints are in stagewire's README; `stagefold show` prints the document."


class UnusedStages(StageError):
    """stages= for a slot that the chosen front or back end does not have."""

    code = "SF011"
    fix = 'Leave that stage away, or use stagefold.compile with backend="stagefold".'


class CommandFault(StageError):
    """A command line that cannot be carried out."""

    code = "SF006"
    fix = "`stagefold --help` lists the commands."


class BadCapsule(StageError):
    """A file that is no capsule, is of a later format, or lacks what is asked of it."""

    code = "SF013"
    fix = "Record it again: STAGEFOLD_TRACE=DIRECTORY, or stagefold.record(model, *inputs, to=FILE)."


class CannotExport(StageError):
    """What has no form in an artifact: a model that writes Python objects, containers without names, tensors that share
    memory in odd ways; sizes that the program cannot leave open as `dynamic_shapes` says."""

    code = "SF014"
    fix = "Write tensors in place (buffer.copy_()), return tuples and dicts, and leave open what the program allows."


class BadArtifact(StageError):
    """A file that is no artifact, is of another format, or lacks what is asked of it."""

    code = "SF015"
    fix = "Export the model again: stagefold.export(model, args).save(FILE)."


class NotRunnable(StageError):
    """An artifact that may not or cannot run here: machine code that nobody said to trust, or that is for another
    torch, processor or C library."""

    code = "SF016"
    fix = "Export it for this machine; or have it compiled again from its documents: load(FILE, recompile=True)."


class CheckFailed(StageError):
    """What an exported program takes for true of its data is false: the model would raise an exception of its own."""

    code = "SF017"
    fix = "Call the model itself with these inputs: it says what is wrong with them."


class CompiledAgain(UserWarning):
    """An artifact is compiled on this machine from its documents; its machine code is not run."""


class BadBackend(StageError):
    """A back end that does not keep to what torch.compile asks of one."""

    code = "SF008"
    fix = "Return a callable that takes the graph's inputs and returns a tuple or list of its outputs."


class SizesRefused(StageError):
    """A stage refused a program with symbolic sizes, or one of ours failed; it is compiled for each size instead."""

    code = "SF009"
    refuses_program = True
    needs_fixed_sizes = True
    fix = "Nothing needs to be done; compile(dynamic=False) or mark_static spare the attempt."


class OtherInputs(StageError):
    """A compiled capture is called with inputs of other types than it was made for, or with more or fewer."""

    code = "SF012"
    fix = "Capture it with such inputs; sizes that change have to be symbolic (torch.export's dynamic_shapes)."


def is_refusal(error: Exception) -> bool:
    """Whether a stage says that it takes no such program, or none with symbolic sizes, or that eager would refuse it.

    Else the error is a fault.
    """
    declared = isinstance(error, StageError) and (error.needs_fixed_sizes or error.refuses_program)
    return declared or isinstance(error, TypeRuleError)


class FixedSizes(UserWarning):
    """A stage has a fault in what it does with symbolic sizes; the program is compiled for each size instead."""


class NoEffect(UserWarning):
    """An argument of torch.compile that is accepted and changes nothing in this version."""


class NotTraced(UserWarning):
    """A compilation could not be recorded in `trace_dir`."""


class RunsPlain(UserWarning):
    """Calls of a program ran by eager torch: it met inputs that it was not made for, its backward will raise, or a part
    of it could not be compiled."""
