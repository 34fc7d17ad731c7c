"""What a stage, a pass or a decomposition of the user's gets wrong is told with its name, before any kernel runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

import stagefold
from aotgrad import AotGrad
from codegen import Codegen
from loopir import LoopIR
from loopir.pipeline import KERNEL_PASSES, PASSES
from primops import Primops
from stagefold.errors import BadStage, BrokenDocument, UnusedStages
from stagewire import load
from stagewire.errors import PassFault, UnknownOp
from stagewire.grad import Grad
from stagewire.loop import FloorDivAtom, Index, Kernel, Load, Loop, LoopGraph, Statement, Store, Term
from stagewire.prim import Prim
from stagewire.program import Allocate, Launch, Program
from stagewire.statements import map_statements
from stagewire.types import contiguous


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 2, -1)


def run(folder: Path, **settings: Any) -> torch.Tensor:
    options = {"cache_dir": str(folder), **settings.pop("options", {})}
    return stagefold.compile(softmax, fullgraph=True, options=options, **settings)(torch.ones(4, 8))


def mapped(graph: LoopGraph, change: Callable[[Store], Store]) -> LoopGraph:
    """The graph whose kernels store as `change` says."""

    def kernel(step: Kernel) -> Kernel:
        sections = [
            replace(one, statements=tuple(change(s) if isinstance(s, Store) else s for s in one.statements))
            for one in step.sections
        ]
        return replace(step, sections=tuple(sections))

    return replace(graph, steps=tuple(kernel(step) if isinstance(step, Kernel) else step for step in graph.steps))


def outside(store: Store) -> Store:
    return replace(store, index=replace(store.index, constant=store.index.constant + 1_000_000))


def to_one_place(store: Store) -> Store:
    return replace(store, index=replace(store.index, terms=()))


def to_half(store: Store) -> Store:
    (term, *_) = store.index.terms
    return replace(store, index=Index(0, (Term(1, FloorDivAtom(Index(0, (term,)), 2)),)))


def far_apart(store: Store) -> Store:
    terms = tuple(replace(term, coefficient=term.coefficient * 64) for term in store.index.terms)
    return replace(store, index=replace(store.index, terms=terms))


def loads_outside(graph: LoopGraph) -> LoopGraph:
    def change(one: Statement) -> Statement:
        return replace(one, index=replace(one.index, constant=1_000_000_000)) if isinstance(one, Load) else one

    return replace(graph, steps=tuple(map_statements(step, change) for step in graph.steps))


def half_of_the_points(graph: LoopGraph) -> LoopGraph:
    def half(kernel: Kernel) -> Kernel:
        return replace(kernel, axes=tuple(replace(axis, size=axis.size // 2) for axis in kernel.axes))

    return replace(graph, steps=tuple(map(half, graph.steps)))


def forgotten(graph: LoopGraph) -> LoopGraph:
    return replace(graph, steps=graph.steps[:-1])


FAULTS: dict[str, tuple[Callable[[LoopGraph], LoopGraph], str, str]] = {
    "outside": (lambda graph: mapped(graph, outside), "K5", "has elements 0 to 31"),
    "to one place": (lambda graph: mapped(graph, to_one_place), "K10", "set one element of %"),
    "forgotten": (forgotten, "L5", "nothing writes the output %"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_stage_is_named_and_its_document_is_saved(fault: str, tmp_path: Path) -> None:
    change, label, message = FAULTS[fault]

    def mine(document: Prim) -> Loop:
        loop = LoopIR().run(document)
        return replace(loop, forward=change(loop.forward))

    with pytest.raises(BrokenDocument) as found:
        run(tmp_path, stages={"loopir": mine})
    text = str(found.value)
    assert f"mine' made in slot 'loopir' breaks [{label}]" in text
    assert message in text
    assert "\n> " in text, "the printed place"
    (saved,) = (tmp_path / "broken").iterdir()
    assert str(saved) in text
    assert isinstance(load(saved), Loop)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_pass_is_named(fault: str, tmp_path: Path) -> None:
    change, label, _ = FAULTS[fault]

    def my_pass(graph: LoopGraph) -> LoopGraph:
        return change(graph)

    passes = (*KERNEL_PASSES[:3], my_pass, *KERNEL_PASSES[3:])
    with pytest.raises(BrokenDocument, match=rf"my_pass' \(number 3\) of 'loopir' broke \[{label}\]"):
        run(tmp_path, options={"loopir.kernel_passes": passes})


def test_a_pass_that_returns_nothing(tmp_path: Path) -> None:
    def my_pass(value: object) -> None:
        return None

    for option in ("aotgrad.passes", "primops.passes", "loopir.passes", "loopir.kernel_passes"):
        slot, _, field = option.partition(".")
        own = {"aotgrad": AotGrad, "primops": Primops, "loopir": LoopIR}[slot].Options()
        with pytest.raises(PassFault, match=rf"my_pass' \(number \d+\) of '{slot}' returned NoneType"):
            run(tmp_path, options={option: (*getattr(own, field), my_pass)})


def test_a_forgotten_launch_is_refused(tmp_path: Path) -> None:
    """The result would be undefined memory."""

    def stage(loop: Loop) -> Program:
        program = Codegen().run(loop)
        kept = tuple(one for one in program.forward.instructions if not isinstance(one, Launch))
        return replace(program, forward=replace(program.forward, instructions=kept))

    with pytest.raises(BrokenDocument, match=r"stage' made in slot 'codegen' breaks \[R12\] nothing writes the output"):
        run(tmp_path, stages={"codegen": stage})


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


FAULTS_AT_SIZES: dict[str, tuple[Callable[[LoopGraph], LoopGraph], str]] = {
    "outside": (lambda graph: mapped(graph, outside), "K5"),
    "loads outside": (loads_outside, "K5"),
    "far apart": (lambda graph: mapped(graph, far_apart), "K5"),
    "to half": (lambda graph: mapped(graph, to_half), "K10"),
    "half of the points": (half_of_the_points, "L5"),
}


@pytest.mark.parametrize("fault", FAULTS_AT_SIZES)
def test_symbolic_sizes_are_verified_at_a_few(fault: str, tmp_path: Path) -> None:
    """Of a stage and of a pass; no kernel runs."""
    change, label = FAULTS_AT_SIZES[fault]

    def mine(document: Prim) -> Loop:
        loop = LoopIR().run(document)
        return replace(loop, forward=change(loop.forward))

    def my_pass(graph: LoopGraph) -> LoopGraph:
        return change(graph)

    passes = {"loopir.kernel_passes": (*KERNEL_PASSES, my_pass)}
    for settings in ({"stages": {"loopir": mine}}, {"options": passes}):
        for sizes in ((4, 6), (100, 100)):
            settings["options"] = {"verify": True, "cache_dir": str(tmp_path), **settings.get("options", {})}
            with pytest.raises(BrokenDocument, match=rf"breaks \[{label}\]") as found:
                stagefold.compile(doubled, fullgraph=True, dynamic=True, **settings)(torch.ones(*sizes))
            assert "(at s0=" in str(found.value)
            assert "stages" in settings or "my_pass' (number" in str(found.value)


def test_the_document_of_a_second_size_is_verified(tmp_path: Path) -> None:
    made = []

    def mine(document: Prim) -> Loop:
        made.append(LoopIR().run(document))
        return replace(made[-1], forward=mapped(made[-1].forward, outside)) if len(made) > 1 else made[-1]

    call = stagefold.compile(doubled, stages={"loopir": mine}, options={"verify": True, "cache_dir": str(tmp_path)})
    call(torch.ones(4, 6))
    with pytest.raises(BrokenDocument, match=r"breaks \[K5\].*\(at s0=5\)"):
        call(torch.ones(5, 6))


def test_half_of_the_points_of_fixed_sizes_is_refused(tmp_path: Path) -> None:
    def mine(document: Prim) -> Loop:
        loop = LoopIR().run(document)
        return replace(loop, forward=half_of_the_points(loop.forward))

    call = stagefold.compile(doubled, stages={"loopir": mine}, options={"cache_dir": str(tmp_path)})
    for sizes in ((4, 6), (2000, 2000)):
        with pytest.raises(BrokenDocument, match=r"breaks \[L5\] element \d+ of %add is read before"):
            call(torch.ones(*sizes))


@pytest.mark.parametrize("dynamic", [False, True])
def test_too_small_an_output_is_refused(dynamic: bool, tmp_path: Path) -> None:
    """The kernel would write beyond it."""

    def stage(loop: Loop) -> Program:
        program = Codegen().run(loop)
        small = contiguous("float32", (1, 4))
        changed = [
            replace(one, type=small) if isinstance(one, Allocate) else one for one in program.forward.instructions
        ]
        return replace(program, forward=replace(program.forward, instructions=tuple(changed)))

    call = stagefold.compile(
        doubled, dynamic=dynamic, stages={"codegen": stage}, options={"verify": True, "cache_dir": str(tmp_path)}
    )
    with pytest.raises(BrokenDocument, match=r"breaks \[R13\] output 0 is f32\[1, 4\], and was f32\[3000, 4\]"):
        call(torch.ones(3000, 4))


def test_what_is_no_pass_is_refused(tmp_path: Path) -> None:
    for passes in (("fuse_nests",), (3,)):
        with pytest.raises(PassFault, match=f"number 0 of the passes of 'loopir' is {passes[0]!r}, neither a function"):
            run(tmp_path, options={"loopir.passes": passes})


def test_a_pass_that_raises_is_named(tmp_path: Path) -> None:
    def my_pass(value: object) -> object:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as found:
        run(tmp_path, options={"loopir.passes": (*PASSES, my_pass)})
    of_pass, of_stage = found.value.__notes__
    assert "my_pass" in of_pass
    assert "'loopir'" in of_pass
    assert "in slot 'loopir'" in of_stage


def test_an_unknown_op_is_found_where_it_was_written(tmp_path: Path) -> None:
    def mine(document: Grad) -> Prim:
        prim = Primops().run(document)
        nodes = tuple(replace(node, target="prims.frobnicate") for node in prim.joint.nodes)
        return replace(prim, joint=replace(prim.joint, nodes=nodes))

    with pytest.raises(BrokenDocument, match=r"in slot 'primops' breaks \[V1\]"):
        run(tmp_path, stages={"primops": mine})


def test_what_a_stage_is_given_is_verified_too(tmp_path: Path) -> None:
    """A wrong document is not blamed on the stage that reads it."""
    loops = []

    def keep(document: Prim) -> Loop:
        loops.append(LoopIR().run(document))
        return loops[0]

    run(tmp_path, stages={"loopir": keep})

    def mine(document: Loop) -> Program:
        raise AssertionError("it is not asked")

    pipeline = stagefold.Pipeline.build(stagefold.options.Options(cache_dir=tmp_path), {"codegen": mine})
    with pytest.raises(BrokenDocument, match="what slot 'codegen' is given breaks"):
        pipeline.run(replace(loops[0], forward=forgotten(loops[0].forward)))


def test_what_is_right_is_left_alone(tmp_path: Path) -> None:
    def mine(document: Loop) -> Program:
        return Codegen().run(document)

    def my_pass(graph: LoopGraph) -> LoopGraph:
        return graph

    options = {"loopir.kernel_passes": (*KERNEL_PASSES, my_pass)}
    found = run(tmp_path, stages={"codegen": mine}, options=options)
    torch.testing.assert_close(found, softmax(torch.ones(4, 8)))
    assert not (tmp_path / "broken").exists()


def test_a_decomposition_that_fails_raises_with_its_traceback(tmp_path: Path) -> None:
    def mine(p: Any, x: Any, dim: int, half_to_float: bool) -> Any:
        return p.no_such_prim(x)

    with pytest.raises(stagefold.StageError, match="no_such_prim") as found:
        run(tmp_path, options={"primops.decompositions": (("aten._softmax.default", mine),)})
    causes, error = [], found.value
    while error is not None:
        causes.append(error)
        error = error.__cause__
    frames = torch._utils.traceback.extract_tb(causes[-1].__traceback__)
    assert [frame.name for frame in frames][-1] in ("mine", "__getattr__")


@pytest.mark.parametrize("options", [
    {"primops.keep": ("aten.gellu.default",)},
    {"primops.decompositions": (("aten.gellu.default", lambda p, x: x),)},
])  # fmt: skip
def test_an_unknown_operator_in_options_is_refused_with_the_nearest(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UnknownOp, match=r"Did you mean aten.gelu\.default"):
        run(tmp_path, options=options)


def test_a_stage_without_a_version_is_told_so(tmp_path: Path) -> None:
    class Mine:
        name, consumes, produces = "loopir", "prim", "loop"

        def run(self, document: Prim, options: object = None) -> Loop:
            return LoopIR().run(document)

    for mine in (Mine(), Mine):
        with pytest.raises(BadStage, match=r"is a Mine, which has no version"):
            run(tmp_path, stages={"loopir": mine})


def test_a_class_of_stages_stands_for_an_object_of_it(tmp_path: Path) -> None:
    torch.testing.assert_close(run(tmp_path, stages={"loopir": LoopIR}), softmax(torch.ones(4, 8)))


def test_a_stage_that_raises_is_named(tmp_path: Path) -> None:
    def mine(document: Prim) -> Loop:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as found:
        run(tmp_path, stages={"loopir": mine})
    (note,) = found.value.__notes__
    assert "mine' in slot 'loopir'" in note


@pytest.mark.parametrize("backend", ["eager", "inductor", lambda module, inputs: module.forward])
def test_stages_of_another_back_end_are_refused(backend: Any) -> None:
    with pytest.raises(UnusedStages, match="has no slot 'loopir'"):
        stagefold.compile(softmax, backend=backend, stages={"loopir": LoopIR()})


def test_a_swapped_stage_keeps_sizes_open() -> None:
    seen = []

    def mine(document: Prim) -> Loop:
        seen.append(document.binding.symbols)
        return LoopIR().run(document)

    call = stagefold.compile(softmax, fullgraph=True, stages={"loopir": mine})
    for size in (3, 4, 5, 6):
        x = torch.randn(size, 8)
        torch.testing.assert_close(call(x), softmax(x))
    assert len(seen) == 2
    assert seen[-1]
