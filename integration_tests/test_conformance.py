"""The kit by which a stage is tried: ours pass it, and stages with faults that users have made do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from aotgrad import AotGrad, Joint, Partition, PartitionStage, needs_of
from codegen import Codegen
from loopir import LoopIR
from loopir.pipeline import KERNEL_PASSES
from primops import Primops
from stagefold.cli import main
from stagefold.testing.conformance import conform
from stagewire.loop import Kernel, Loop, LoopGraph
from stagewire.prim import Prim

OURS = {"aotgrad": AotGrad(), "primops": Primops(), "partition": PartitionStage(), "loopir": LoopIR()}


@pytest.mark.parametrize("slot", OURS)
def test_our_stages_keep_the_meaning(slot: str) -> None:
    assert [misfit[:2] for misfit in conform(slot, OURS[slot], drawn=30)] == []


@pytest.mark.parametrize("only", ["softmax", "gelu", "writes", "attention", "drops", "remainder", "var", "empty"])
def test_our_code_generator_does(only: str) -> None:
    """All of its trials take minutes of a C++ compiler: `stagefold conform codegen codegen`."""
    assert [misfit[:2] for misfit in conform("codegen", Codegen(), only=only)] == []


Lowering = Callable[..., Any]


def cut_off(p: Any, x: Any) -> Any:
    return p.exp(p.minimum(x, p.full(x.shape, 1.2, x.dtype)))


def gelu(p: Any, x: Any, *, approximate: str = "none") -> Any:
    return p.mul(p.mul(x, 0.5), p.add(p.erf(p.mul(x, 0.7069)), 1.0))


WRONG: dict[str, Lowering] = {
    "relu": lambda p, x: x,
    "abs": lambda p, x: p.clone(x),
    "sign": lambda p, x: p.full(x.shape, 1.0, x.dtype),
    "floor": lambda p, x: p.trunc(x),
    "exp": cut_off,
    "gelu": gelu,
}


@pytest.mark.parametrize("op", WRONG)
def test_a_wrong_decomposition_is_refused(op: str) -> None:
    options = Primops.Options(decompositions=((f"aten.{op}.default", WRONG[op]),))
    found = list(conform("primops", lambda grad: Primops().run(grad, options), only=f"{op} float32"))
    assert {misfit.trial for misfit in found} == {f"{op} float32", f"{op} float32, symbolic sizes"}
    assert found[0].blame is not None
    assert found[0].blame.calls == (f"aten.{op}.default",)
    assert str(found[0]) == f"{found[0].trial}: {found[0].message}\n  {found[0].blame}"


def reversed_steps(graph: LoopGraph) -> LoopGraph:
    return replace(graph, steps=tuple(reversed(graph.steps)))


def reversed_sections(graph: LoopGraph) -> LoopGraph:
    """Reductions behind the stores of what they read."""
    steps = [replace(s, sections=s.sections[::-1]) if isinstance(s, Kernel) else s for s in graph.steps]
    return replace(graph, steps=tuple(steps))


@pytest.mark.parametrize("fuser", [reversed_steps, reversed_sections])
def test_a_fuser_that_reorders_is_refused(fuser: Callable[[LoopGraph], LoopGraph]) -> None:
    options = LoopIR.Options(kernel_passes=(*KERNEL_PASSES, fuser))

    def stage(document: Prim) -> Loop:
        return LoopIR().run(document, options)

    found = [misfit.trial for misfit in conform("loopir", stage, only="writes")]
    assert "reads before it writes" in found or "writes between reductions" in found


def test_a_partitioner_that_draws_again_is_refused() -> None:
    def save_inputs(joint: Joint) -> Partition:
        """Nothing that the forward computes, random masks not either."""
        given = {value.name for value in joint.primal_values}
        return Partition(tuple(name for name in needs_of(joint).direct if name in given))

    options = PartitionStage.Options(partitioner=save_inputs)

    def stage(document: Prim) -> Prim:
        return PartitionStage().run(document, options)

    assert all("AG011" in misfit.message for misfit in conform("partition", stage, only="drops"))
    assert len(list(conform("partition", stage, only="drops"))) == 2


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conform", "primops", "primops", "--only", "relu float32"]) == 0
    assert capsys.readouterr().out == "'primops' keeps the meaning in 4 trials\n"
    assert main(["conform", "codegen", "codegen", "--target", "cpp", "--only", "relu float32"]) == 0
    for wrong in (["--only", "no such trial"], ["--target", "no such target"]):
        capsys.readouterr()
        assert main(["conform", "codegen", "codegen", *wrong]) == 1
        assert wrong[1] in capsys.readouterr().err
    assert main(["conform", "primops", "no such stage"]) == 1
