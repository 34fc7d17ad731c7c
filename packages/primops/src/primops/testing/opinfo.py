"""torch's own operator samples (OpInfo) as an outside oracle for decompositions.

Each sample runs in eager; every ATen call that it reaches, forward and backward, and that has a decomposition is
computed by the decomposition too and compared. Needs the `testing` extra.

    python -m primops.testing.opinfo [NAME ...] [--dtype float32] [--samples 5]
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from msgspec.structs import replace
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from absint.meta import Meta, to_wire
from absint.schema import effect_of
from absint.targets import resolve
from absint.testing.opinfo import op_infos, sample_inputs
from absint.wire import to_arg
from primops.decompositions import TABLE
from primops.interpret import interpret, tensor_type
from primops.meanings import NAMES
from primops.passes import DEFAULT_PASSES
from primops.stage import Options, lower_graph
from stagewire.graph import DeviceArg, Graph, Node, Ref, Value, map_arg
from stagewire.types import NoneType, TensorType, ValueType
from stagewire.verify import verify_graph

TOLERANCE = {"float64": 1e-7, "float32": 3e-5, "float16": 4e-3, "bfloat16": 4e-2}
"""Relative, and absolute against the greatest element of the result."""

UNDEFINED = ("aten.empty", "aten.new_empty", "aten.empty_like", "aten.empty_strided", "aten.new_empty_strided",
             "aten.empty_permuted")  # fmt: skip

PARTLY_UNDEFINED = frozenset({("aten._ctc_loss.default", 1)})
"""Results that have elements which nobody writes, nor reads."""


@dataclass
class Outcome:
    """What was seen of one ATen op: calls compared, equal in every bit, declined; faults as text.

    ulps: the greatest distance from ATen's results by dtype, as `primops.decompositions.numerics` counts it.
    """

    compared: int = 0
    bitwise: int = 0
    declined: int = 0
    worst: float = 0.0
    faults: list[str] = field(default_factory=list)
    ulps: dict[str, float] = field(default_factory=dict)


class Compare(TorchDispatchMode):
    """Computes each decomposable call again, as it is lowered; `outcomes` by target, `externs` seen."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: dict[str, Outcome] = {}
        self.externs: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        target = str(func)
        if target not in TABLE:
            self.externs.add(target)
            return func(*args, **kwargs)
        state = torch.get_rng_state()
        result = func(*args, **kwargs)
        after = torch.get_rng_state()
        if not target.startswith(UNDEFINED) and comparable((args, kwargs, result)):
            torch.set_rng_state(state)
            outcome = self.outcomes.setdefault(target, Outcome())
            compare_call(outcome, target, args, kwargs, result)
            torch.set_rng_state(after)
        return result


def comparable(values: Any) -> bool:
    """Only dense tensors in the memory of the CPU, of dtypes that documents have."""
    tensors = [x for x in tree_leaves(values) if isinstance(x, torch.Tensor)]
    return all(
        type(x) in (torch.Tensor, torch.nn.Parameter) and x.layout is torch.strided and x.device.type == "cpu"
        and x.dtype in NAMES and x.dtype is not torch.complex32  # which eager can hardly compare
        and not x.is_quantized and not x.is_conj() and not x.is_neg() and not x._is_zerotensor()
        for x in tensors
    )  # fmt: skip


def compare_call(outcome: Outcome, target: str, args: Any, kwargs: Any, result: Any) -> None:
    """Compute one call by its decomposition, before and after the passes, and note how it compares with `result`."""
    expected = list(result) if isinstance(result, (tuple, list)) else [result]
    types: tuple[ValueType, ...] = tuple(NoneType() if x is None else tensor_type(x) for x in expected)
    state = torch.get_rng_state()
    try:
        given = run_as_graph(target, plain(args), plain(kwargs), types, passes=())
        if given is None:
            outcome.declined += 1
            return
        torch.set_rng_state(state)
        emitted = run_as_graph(target, plain(args), plain(kwargs), types)
        assert emitted is not None
    except Exception as error:
        outcome.faults.append(f"{type(error).__name__}: {error}; {describe(args, kwargs)}")
        return
    outcome.compared += 1
    outcome.bitwise += all(
        b is None or (a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num()))  # type: ignore[union-attr]
        for a, b in zip(given, expected, strict=True)
    )
    note_ulps(outcome, greatest_magnitude((args, kwargs, result)), zip(given, expected, strict=True))
    outcome.faults += compare_results(target, args, kwargs, (*given, *emitted), (*expected, *expected), outcome)


def compare_results(
    target: str, args: Any, kwargs: Any, found: Sequence[Any], expected: Sequence[Any], outcome: Outcome | None = None
) -> list[str]:
    """What of the results of a call is not as in eager."""
    outcome, faults = Outcome() if outcome is None else outcome, []
    count = len(resolve(target)._schema.returns)  # type: ignore[attr-defined]
    count = len(expected) if any("[]" in str(r.type) for r in resolve(target)._schema.returns) else count  # type: ignore[attr-defined]
    floor = 1e-2 * max(1.0, greatest_magnitude((args, kwargs, expected)))
    for position, (a, b) in enumerate(zip(found, expected, strict=True)):
        if (target, position % count) in PARTLY_UNDEFINED:
            continue
        fault = difference(a, b, outcome, floor)
        if fault is not None and fault.startswith("off") and is_nearer(target, args, kwargs, position, a, b):
            continue
        if fault is not None:
            faults.append(f"result {position}: {fault}; {describe(args, kwargs)}")
    return faults


def note_ulps(outcome: Outcome, greatest: float, pairs: Iterable[tuple[Any, Any]]) -> None:
    """Note how many steps of the dtype, at the greatest magnitude of the call, the results are off."""
    for a, b in pairs:
        if b is None or not b.dtype.is_floating_point or a.dtype != b.dtype or a.shape != b.shape:
            continue
        finite = a.isfinite() & b.isfinite()
        error = (a.double() - b.double())[finite].abs()
        if not error.numel():
            continue
        # (Operands may hold whatever was in memory: the step itself must be neither zero nor infinite.)
        exponent = min(max(math.floor(math.log2(greatest)), -900), 1000) if greatest > 0 else 0
        step = torch.finfo(b.dtype).eps * 2.0**exponent if greatest > 0 else 1.0
        name = NAMES[b.dtype]
        outcome.ulps[name] = max(outcome.ulps.get(name, 0.0), error.max().item() / step)


def is_nearer(target: str, args: Any, kwargs: Any, position: int, a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether `a` is nearer to the answer of the op in float64 than its own answer `b`, as for sums in bfloat16."""

    def wide(x: Any) -> Any:
        return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x

    try:
        answer = resolve(target)(*tree_map(wide, args), **tree_map(wide, kwargs))
    except (RuntimeError, TypeError):
        return False  # the op knows no float64
    answers = answer if isinstance(answer, (tuple, list)) else (answer,)
    right = answers[position % len(answers)]
    if not isinstance(right, torch.Tensor) or right.dtype != torch.float64 or right.shape != a.shape:
        return False
    return bool((a.double() - right).abs().max() <= (b.double() - right).abs().max())


def run_as_graph(
    target: str, args: Any, kwargs: Any, types: tuple[ValueType, ...], passes: Any = DEFAULT_PASSES, device: str = ""
) -> tuple[Any, ...] | None:
    """The call as a graph of one node: lowered, verified, interpreted; None where the decomposition declines it.

    device: what it is lowered for, if not for the CPU, which interprets it.
    """
    graph, leaves = graph_of(target, args, kwargs, types)
    if device:
        graph = on_device(graph, "cpu", device)
    graph = lower_graph(graph, options=Options(passes=passes, random_threads=1024 if device else 0))
    if [node.target for node in graph.nodes] == [target]:
        return None
    verify_graph(graph)
    if device:
        graph = on_device(graph, device, "cpu")
    return interpret(graph, leaves)


def on_device(graph: Graph, old: str, new: str) -> Graph:
    """The graph with every value of one device on another."""

    def moved(value: Value) -> Value:
        kind = value.type
        is_there = isinstance(kind, TensorType) and kind.device == old
        return replace(value, type=replace(kind, device=new)) if is_there else value  # type: ignore[type-var]

    def leaf(arg: Any) -> Any:
        return DeviceArg(new) if arg == DeviceArg(old) else new if arg == old else arg

    def changed(node: Node) -> Node:
        kwargs = {key: map_arg(arg, leaf) for key, arg in node.kwargs.items()}
        args = tuple([map_arg(arg, leaf) for arg in node.args])
        return replace(node, args=args, kwargs=kwargs, results=tuple(map(moved, node.results)))

    return replace(graph, inputs=tuple(map(moved, graph.inputs)), nodes=tuple(map(changed, graph.nodes)))


def graph_of(target: str, args: Any, kwargs: Any, types: Sequence[ValueType]) -> tuple[Graph, list[Any]]:
    """The call as a graph of one node whose results are of these types; its inputs are what it is called with, each
    once: tensors, or their types."""
    inputs: dict[int, tuple[str, Any]] = {}

    def reference(leaf: object) -> Any:
        if not isinstance(leaf, torch.Tensor | Meta):
            return NotImplemented
        name, _ = inputs.setdefault(id(leaf), (f"x{len(inputs)}", leaf))
        return Ref(name)

    encoded = tuple([to_arg(a, reference) for a in args])
    named = {key: to_arg(value, reference) for key, value in kwargs.items()}
    results = tuple(Value(f"y{i}", type) for i, type in enumerate(types))
    values = [Value(name, to_wire(x) if isinstance(x, Meta) else tensor_type(x)) for name, x in inputs.values()]
    outputs = tuple(Ref(r.name) if isinstance(r.type, TensorType) else None for r in results)
    call = Node(target, encoded, named, results, effect=effect_of(target))
    return Graph(tuple(values), (call,), outputs), [leaf for _, leaf in inputs.values()]


def plain(values: Any) -> Any:
    """Arguments as graph data would have them: no wrappers, sequences as lists."""
    if isinstance(values, dict):
        return {key: plain(value) for key, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [plain(value) for value in values]
    return values.detach() if isinstance(values, torch.Tensor) else values


def greatest_magnitude(values: Any) -> float:
    """The greatest finite magnitude among operands and results: sums cancel to zero only up to their rounding."""
    tensors = [x for x in tree_leaves(values) if isinstance(x, torch.Tensor) and x.is_floating_point() and x.numel()]
    return max((x.detach().abs().double().nan_to_num(0, 0, 0).max().item() for x in tensors), default=0.0)


def difference(a: torch.Tensor | None, b: torch.Tensor | None, outcome: Outcome, floor: float = 1e-3) -> str | None:
    """Why `a` is not `b`, within the dtype's tolerance; None if it is."""
    if b is None or a is None:
        return None if a is b else f"{a} instead of {b}"
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"{tensor_type(a)} instead of {tensor_type(b)}"
    if not b.dtype.is_floating_point:
        return None if torch.equal(a, b) else f"{a.flatten()[:8].tolist()} instead of {b.flatten()[:8].tolist()}"
    wide_a, wide_b = a.double(), b.double()
    if not torch.equal(wide_a.isnan(), wide_b.isnan()):
        return f"nan elsewhere: {a.flatten()[:8].tolist()} instead of {b.flatten()[:8].tolist()}"
    finite = wide_b.isfinite() & wide_a.isfinite()
    if not torch.equal(wide_a[~finite].nan_to_num(), wide_b[~finite].nan_to_num()):
        return "inf elsewhere"
    error = (wide_a - wide_b)[finite].abs()
    scale = wide_b[finite].abs()
    greatest = scale.max().item() if scale.numel() else 0.0
    tolerance = TOLERANCE[NAMES[b.dtype]]
    relative = (error / (scale + 0.1 * greatest + floor)).max().item() if error.numel() else 0.0
    outcome.worst = max(outcome.worst, relative)
    return f"off by {relative:.2e} relative" if relative > tolerance else None


def describe(args: Any, kwargs: Any) -> str:
    """A call's arguments on one line, tensors as types."""

    def show(x: Any) -> str:
        if isinstance(x, torch.Tensor):
            t = tensor_type(x)
            return f"{t.dtype}{list(t.shape)}" + ("" if x.is_contiguous() else f"/{t.stride}")
        if isinstance(x, (list, tuple)):
            return f"[{', '.join(map(show, x))}]"
        return repr(x)

    return ", ".join([*map(show, args), *(f"{k}={show(v)}" for k, v in kwargs.items())])


def run_samples(mode: Compare, info: Any, dtype: torch.dtype, samples: int, backward: bool = True) -> Iterator[str]:
    """Run some samples of an OpInfo under `mode`; yields why a sample could not run in eager itself."""
    gradient = backward and info.supports_autograd and dtype in info.supported_backward_dtypes("cpu")
    try:
        # drawn at a step: neighbours are alike
        drawn = list(itertools.islice(sample_inputs(info, dtype, gradient), 8 * samples))
    except Exception as error:
        yield f"{info.name}: no samples: {error}"
        return
    step = max(1, len(drawn) // samples)
    for sample in drawn[step - 1 :: step][:samples]:
        try:
            with mode:
                result = info(sample.input, *sample.args, **sample.kwargs)
                if gradient:
                    _backward(result)
        except Exception as error:
            yield f"{info.name}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def _backward(result: Any) -> None:
    roots = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor) and x.requires_grad]
    if roots:
        torch.autograd.backward(roots, [_tangent(r) for r in roots])


def _tangent(root: torch.Tensor) -> torch.Tensor:
    """Between a half and one and a half, nowhere equal: neither zero nor a constant that cancels."""
    steps = torch.arange(root.numel(), dtype=torch.float64) * 0.6180339887498949
    return (steps.frac() + 0.5).reshape(root.shape).to(root.dtype)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m primops.testing.opinfo", description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--dtype", action="append", default=[])
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--externs", action="store_true", help="list the ATen ops that have no decomposition")
    given = parser.parse_args(arguments)
    dtypes = [getattr(torch, name) for name in given.dtype or ["float32", "bfloat16", "int64", "bool"]]
    mode = Compare()
    skipped: list[str] = []
    for info in op_infos(given.names):
        for dtype in dtypes:
            if dtype in info.supported_dtypes("cpu"):
                torch.manual_seed(0)
                skipped += run_samples(mode, info, dtype, given.samples)
    faults = 0
    for target, outcome in sorted(mode.outcomes.items()):
        faults += len(outcome.faults)
        if outcome.faults:
            print(f"{target}: {len(outcome.faults)} of {outcome.compared} wrong")
            for fault in outcome.faults[:3]:
                print(f"    {fault}")
    print(f"{len(mode.outcomes)} ops compared, {faults} faults; {len(skipped)} samples failed in eager")
    print(f"externs: {len(mode.externs)}")
    if given.externs:
        print("\n".join(sorted(mode.externs)))
    return 1 if faults else 0


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main())
