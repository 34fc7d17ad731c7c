"""Any one stage replaced by a trivial user-written one, in under twenty lines each."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

import stagefold
import stagewire
from stagefold.errors import BadStage, UnknownStage


def network() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4), nn.Softmax(-1))


def assert_trains_like_eager(stages: dict[str, Any]) -> None:
    model, other, x = network(), network(), torch.randn(6, 8)
    expected = model(x)
    expected.square().sum().backward()
    got = stagefold.compile(other, fullgraph=True, stages=stages)(x)
    got.square().sum().backward()
    torch.testing.assert_close(got, expected)
    for want, have in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(have.grad, want.grad)


def test_a_partitioner_that_saves_everything() -> None:
    from aotgrad import Joint, Partition, PartitionStage

    seen: list[tuple[str, ...]] = []

    def save_everything(joint: Joint) -> Partition:
        forward = {value.name for node in joint.graph.nodes if node.phase == "forward" for value in node.results}
        seen.append(tuple(sorted(forward | {value.name for value in joint.primal_values})))
        assert "prims.exp" in [node.target for node in joint.graph.nodes], "it sees prims"
        return Partition(seen[-1])

    assert_trains_like_eager({"partition": Configured(PartitionStage(), PartitionStage.Options(save_everything))})
    assert len(seen) == 1


@dataclasses.dataclass(frozen=True)
class Configured:
    """Another stage with options of our own."""

    inner: Any
    options: Any
    version: str = "test"

    name = property(lambda self: self.inner.name)
    consumes = property(lambda self: self.inner.consumes)
    produces = property(lambda self: self.inner.produces)

    def run(self, document: Any, options: Any = None) -> Any:
        return self.inner.run(document, self.options)


def test_a_lowering_that_leaves_every_op_to_aten() -> None:
    def keep_aten(grad: stagewire.Grad) -> stagewire.Prim:
        return stagewire.Prim(binding=grad.binding, joint=grad.joint)

    assert_trains_like_eager({"primops": keep_aten})


def test_a_function_stage_that_observes() -> None:
    seen: list[str] = []

    def observe(loop: stagewire.Loop) -> stagewire.Program:
        from codegen.stage import Codegen

        seen.append(type(loop).__name__)
        return Codegen().run(loop)

    assert_trains_like_eager({"codegen": observe})
    assert seen == ["Loop"]


def test_a_stage_that_rewrites_its_input() -> None:
    """A peephole on the Grad document before the usual primops: drop node lines (provenance is not meaning)."""
    from primops.stage import Primops

    def without_lines(grad: stagewire.Grad) -> stagewire.Prim:
        nodes = tuple(msgspec.structs.replace(node, line=None) for node in grad.joint.nodes)
        joint = msgspec.structs.replace(grad.joint, nodes=nodes)
        return Primops().run(msgspec.structs.replace(grad, joint=joint))

    assert_trains_like_eager({"primops": without_lines})


def test_wrong_stages_are_refused() -> None:
    with pytest.raises(UnknownStage, match="no stage slot 'fuser'"):
        stagefold.compile(network(), stages={"fuser": lambda d: d})
    with pytest.raises(UnknownStage, match="no installed distribution"):
        stagefold.compile(network(), stages={"loopir": "nobody-has-this"})
    with pytest.raises(BadStage, match="is a int"):
        stagefold.compile(network(), stages={"loopir": 3})
    with pytest.raises(BadStage, match=r"returned a cut, not a loop\n  fix: Have the stage take and return"):
        stagefold.compile(network(), fullgraph=True, stages={"loopir": lambda prim: prim})(torch.randn(2, 8))
