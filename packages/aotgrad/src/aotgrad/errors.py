"""Coded errors of aotgrad (prefix AG)."""

from __future__ import annotations

from stagewire.errors import StageError


class ReplayFailed(StageError):
    """A captured call raised while it ran on types; eager torch would raise as well."""

    code = "AG001"
    refuses_program = True
    fix = "Run the line without compilation to see torch's own error, and correct the operands."


class BackwardFailed(StageError, RuntimeError):
    """Autograd refused the backward of the captured program."""

    code = "AG002"
    refuses_program = True
    fix = "Run the backward without compilation to see torch's own error; often a saved tensor was changed in place."


class NoFunctionalForm(StageError):
    """An op that writes into its arguments and has no functional form."""

    code = "AG003"
    refuses_program = True
    fix = "Write the out-of-place form of the op, or let this line run outside the graph."


class NoInverse(StageError):
    """A write through a view that cannot be put back into its base."""

    code = "AG004"
    refuses_program = True
    fix = "Clone the tensor before writing into it, or write through a slice, select, view or transpose."


class MetadataMutation(StageError):
    """An op that changes the sizes, strides or storage of an input in place, or whether it requires grad."""

    code = "AG005"
    refuses_program = True
    hindering = tuple(
        f"torch.Tensor.{name}"
        for name in ("requires_grad_", "detach_", "data.__set__", "set_", "resize_", "resize_as_", "as_strided_", "t_",
                     "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_")
    )  # fmt: skip
    fix = "Use the out-of-place form (x = x.t()), or let this line run outside the graph."


class UnliftedLeaf(StageError):
    """A real tensor that requires grad appeared inside the trace; its gradient would be lost."""

    code = "AG006"
    refuses_program = True
    fix = "Make the tensor an input of the graph (a parameter, an argument, an attribute)."


class UnsupportedOutput(StageError):
    """An output that no binding can rebuild."""

    code = "AG007"
    refuses_program = True
    hindering = ("torch.Tensor.requires_grad_", "torch.Tensor.data.__set__")
    fix = "Return a clone of the tensor."


class BadCapture(StageError):
    """The Capture document does not say what its replay shows."""

    code = "AG008"
    fix = "The stage that wrote the Capture has a fault; report it with the document."


class UnwirableValue(StageError):
    """An argument of an op that has no form in a document."""

    code = "AG009"
    refuses_program = True
    fix = "Pass numbers, dtypes, devices and tensors only, or let this line run outside the graph."


class GeneratorArgument(StageError):
    """A random op with a generator of its own."""

    code = "AG010"
    refuses_program = True
    fix = "Use the default generator (torch.manual_seed), or let this line run outside the graph."


class PartitionError(StageError):
    """A partition from which the backward cannot be computed."""

    code = "AG011"
    fix = "Save the named value, or one from which it can be recomputed without random numbers."


class AliasedMutation(StageError):
    """A tensor that the graph writes shares memory with another input."""

    code = "AG012"
    refuses_program = True
    fix = "Pass tensors that do not overlap, or clone one of them."


class DoubleBackward(StageError, RuntimeError):
    """The gradient of the gradient was asked for, and cannot be computed from what is there."""

    code = "AG013"
    fix = "Bind the program with its capture at hand (bind(gradient=...)); a saved program alone has no second order."


class BadPartitioner(StageError):
    """Options(partitioner=...) is no partitioner, or it returned no partition."""

    code = "AG014"
    fix = "Give a name that aotgrad knows, or a callable from aotgrad.Joint to aotgrad.Partition."


class NoGraphForm(StageError):
    """A call that changes a tensor object itself (its data, its .grad, its hooks), which no graph can say."""

    code = "AG015"
    refuses_program = True
    hindering = (
        "torch.autograd.backward", "torch.Tensor.backward", "torch.Tensor.retain_grad", "torch.Tensor.register_hook",
        "torch.Tensor.register_post_accumulate_grad_hook", "torch.Tensor.set_data", "torch.Tensor.data.__set__",
        "torch.Tensor.grad.__set__", "torch.Tensor._grad.__set__", "torch.Tensor.grad.__delete__",
    )  # fmt: skip
    fix = "Let this line run outside the graph."


class ForeignTangent(StageError, RuntimeError):
    """A gradient of a tensor class with its own `__torch_dispatch__` arrives at a plain result of a program."""

    code = "AG017"
    fix = "Compute what mixes the result with such a tensor inside of the program, or leave all of it outside."


class OtherOffset(StageError):
    """An input that the program addresses by as_strided stands at another place of its storage than at capture."""

    code = "AG016"
    refuses_program = True
    fix = "Clone the tensor before the call, or read it by views instead of as_strided with an offset."
