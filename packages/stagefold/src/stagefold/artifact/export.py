"""`export(model, args)`: a model compiled ahead. It is captured as under `compile(fullgraph=True)`, and not run."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import torch
from msgspec.structs import replace

from absint.cpu_kernels import cpu_kernels
from absint.errors import UnwirableArgument
from absint.wire import to_arg
from aotgrad import restore_twins
from codegen.portable import compile_ahead, requirement
from stagefold.artifact import file_format
from stagefold.artifact.capturing import CAPTURING, Output, Whole, capture_whole
from stagefold.artifact.dynamic_shapes import OpenSize, beyond_one, check_promises, open_sizes, ranges_of, rules_of
from stagefold.artifact.loading import Artifact
from stagefold.artifact.trees import paths, tree_of
from stagefold.artifact.weights import described
from stagefold.backend import StagefoldBackend
from stagefold.compiled_module import CompiledModule
from stagefold.errors import CannotExport
from stagefold.freezing import Programs
from stagefold.options import parse_options
from stagefold.pipeline import StageLike
from stagefold.torch_capabilities import TORCH, torch_release
from stagewire.capture import Capture, Code, Relation, TensorIs
from stagewire.codec import encode
from stagewire.expr import Dim, Expr
from stagewire.program import CallExtern, Unit
from stagewire.types import TensorType, contiguous_stride


def export(
    model: Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    gradients: bool = False,
    targets: Sequence[str] = ("native",),
    documents: bool = True,
    options: Mapping[str, Any] | None = None,
    stages: Mapping[str, StageLike] | None = None,
) -> Artifact:
    """Compile a model for these arguments, as an artifact that `save` writes to one file and `stagefold.load` reads.

    The model is not run, and nothing of it changes. It has to be one graph, and to change tensors only in place; what
    it computes of Python values (its `training` flag, arguments that are no tensors) is fixed. Until it is saved the
    artifact has the model's own tensors.

    dynamic_shapes: sizes that stay open, as for torch.export (`stagefold.artifact.dynamic_shapes` has the forms).
    gradients: whether results have a history: the artifact then has machine code of the backward too, and trains.
    targets: instruction sets: "native" (this kind of processor), "x86-64-v2", "x86-64-v3", "x86-64-v4"; () for none.
    documents: whether the captured graph goes along, of which other machines compile again.
    options, stages: as for `stagefold.compile`.

    Errors: `CannotExport`, and those of capturing and compiling. For the CPU only.

    >>> artifact = export(torch.nn.ReLU(), (torch.tensor([-1.0, 2.0]),))
    >>> artifact(torch.tensor([3.0, -4.0]))
    tensor([3., 0.])
    """
    if isinstance(model, CompiledModule):
        model = model._orig_mod
    leaves, spec = TORCH.tree_flatten((args, dict(kwargs or {})))
    leaves, opened = beyond_one(leaves, open_sizes(model, args, kwargs or {}, dynamic_shapes))
    labels = [("args" if path.startswith("[0]") else "kwargs") + path[3:] for path in paths(tree_of(spec))]
    whole = capture_whole(model, leaves, spec, labels, opened, gradients)
    guards = tuple([one for one in whole.capture.guards if isinstance(one, Relation | TensorIs)])
    name = type(model).__name__ if isinstance(model, torch.nn.Module) else getattr(model, "__name__", "function")
    capture = replace(whole.capture, guards=guards, code=Code(name, "<export>", 1))
    held = _held(whole)
    settings = parse_options(None, options)
    programs = StagefoldBackend(settings, stages).programs(capture)
    units = [unit for one in programs if one is not None for unit in (one.forward, one.backward) if unit is not None]
    described_leaves = _leaves(whole, leaves, opened, labels)
    relations = [guard for guard in guards if isinstance(guard, Relation)]
    assumed = [replace(one, line=None) if one.line and one.line.file == CAPTURING else one for one in relations]
    ranges = ranges_of(described_leaves, capture.symbols)
    header = file_format.Header(
        format=file_format.FORMAT,
        stagefold=importlib.metadata.version("stagefold"),
        name=name,
        torch=torch_release(),
        kernels=_kernels(units),
        options={key: getattr(settings, key) for key in ("numerics", "rng", "freeze")},
        arguments=tree_of(spec),
        leaves=described_leaves,
        results=tree_of(whole.tree),
        outputs=tuple([_result(number, whole, held) for number in range(len(whole.results))]),
        inputs=tuple([_place(tensor, whole.arguments, held) for tensor in whole.inputs]),
        held=_described(model, whole, held),
        ranges=ranges,
        rules=rules_of(leaves, described_leaves, opened, (*assumed, *programs.main.binding.assumptions)),
        checks=tuple(check.output for check in capture.checks),
        gradients=gradients,
        codes=tuple(requirement(isa) for isa in targets),  # type: ignore[arg-type]
    )
    check_promises(header, leaves, opened)
    return Artifact(header, held, _members(header, capture, programs, units, targets, documents))


def _members(
    header: file_format.Header,
    capture: Capture,
    programs: Programs,
    units: list[Unit],
    targets: Sequence[str],
    documents: bool,
) -> dict[str, bytes]:
    found = {file_format.INDEX: msgspec.json.encode(header), file_format.MAIN: encode(programs.main, "msgpack")}
    if programs.prepare is not None:
        found[file_format.PREPARE] = encode(programs.prepare, "msgpack")
    if documents:
        found[file_format.CAPTURE] = encode(capture)
    for isa in targets:
        libraries = compile_ahead(units, isa)  # type: ignore[arg-type]
        found |= {file_format.library_member(isa, source): data for source, data in libraries.items()}
    return found


def _kernels(units: list[Unit]) -> str:
    """What the programs ask of ATen's kernels; those that call operators which only this process has are refused."""
    called = [step.target for unit in units for step in unit.instructions if isinstance(step, CallExtern)]
    if not restore_twins(called, ()):
        raise CannotExport("the model calls an operator of its own that writes arguments")
    return cpu_kernels() if any("mkldnn" in target or target.startswith("stagefold.") for target in called) else ""


def _held(whole: Whole) -> tuple[torch.Tensor, ...]:
    """The tensors that the model holds, of its program or as results, each once."""
    found: dict[int, torch.Tensor] = {}
    given = {id(leaf) for leaf in whole.arguments}
    for value in (*whole.inputs, *whole.results):
        if isinstance(value, torch.Tensor) and id(value) not in given:
            found[id(value)] = value
    return tuple(found.values())


def _place(value: Any, arguments: Sequence[Any], held: Sequence[torch.Tensor]) -> int:
    """The number of a leaf, or -1-n of held tensor n."""
    if not isinstance(value, torch.Tensor):
        raise CannotExport(f"the program takes a {type(value).__name__}, which the model computes of Python values")
    at = [number for number, leaf in enumerate(arguments) if leaf is value]
    return at[0] if at else next(-1 - number for number, one in enumerate(held) if one is value)


def _described(model: Any, whole: Whole, held: Sequence[torch.Tensor]) -> tuple[file_format.Held, ...]:
    named: dict[int, tuple[str, str]] = {}
    for one, tensor in zip(whole.capture.inputs, whole.inputs, strict=True):
        named[id(tensor)] = one.value.name, one.role if one.role in ("parameter", "buffer") else "constant"
    if isinstance(model, torch.nn.Module):
        named |= {id(tensor): (name, "buffer") for name, tensor in model.named_buffers()}
        named |= {id(tensor): (name, "parameter") for name, tensor in model.named_parameters()}
    rows = [named.get(id(tensor), (f"constant_{number}", "constant")) for number, tensor in enumerate(held)]
    return described([name for name, _ in rows], [role for _, role in rows], held)


def _result(number: int, whole: Whole, held: Sequence[torch.Tensor]) -> file_format.Result:
    value = whole.results[number]
    if isinstance(value, Output):
        return file_format.Result("number" if whole.numbers[number] else "output", value.number)
    if isinstance(value, torch.Tensor):
        place = _place(value, whole.arguments, held)
        return file_format.Result("leaf", place) if place >= 0 else file_format.Result("held", -1 - place)
    label = list(paths(tree_of(whole.tree), "result"))[number]
    return file_format.Result("value", value=_literal(label, value))


def _literal(label: str, value: Any) -> Any:
    """An argument or a result that is no tensor, as data."""
    try:
        return to_arg(value)
    except UnwirableArgument:
        kind = type(value).__name__
        known = "a tensor, a literal or a container that torch.utils._pytree.register_pytree_node has been told of"
        raise CannotExport(f"{label} is a {kind}, not {known}") from None


def _leaves(
    whole: Whole, leaves: Sequence[Any], opened: Sequence[OpenSize], labels: Sequence[str]
) -> tuple[file_format.Leaf, ...]:
    """The leaves as the program takes them; what it does not use may have any open sizes."""
    types = {id(value): one.value.type for one, value in zip(whole.capture.inputs, whole.inputs, strict=True)}
    found = []
    for number, (label, leaf, stand) in enumerate(zip(labels, leaves, whole.arguments, strict=True)):
        if not isinstance(leaf, torch.Tensor):
            found.append(file_format.Leaf(label, value=_literal(label, leaf)))
            continue
        open_dimensions = {size.dimension for size in opened if size.tensor is leaf}
        type_ = types.get(id(stand))
        if not isinstance(type_, TensorType):
            shape: tuple[Dim, ...] = tuple(
                [Expr(f"unused{number}_{d}") if d in open_dimensions else n for d, n in enumerate(leaf.shape)]
            )
            stride: tuple[Dim, ...] = contiguous_stride(shape) if leaf.is_contiguous() else leaf.stride()
            dtype = str(leaf.dtype).removeprefix("torch.")
            type_ = TensorType(dtype, shape, stride, 0, str(leaf.device), leaf.requires_grad)  # type: ignore[arg-type]
        found.append(file_format.Leaf(label, replace(type_, storage_offset=0)))
    return tuple(found)
