"""The stage: `Capture` in, `Grad` out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import ClassVar, Literal

from msgspec.structs import replace

from aotgrad.errors import BadCapture, DoubleBackward
from aotgrad.joint import Joint
from aotgrad.partition import Partitioner, partitioner_of, split
from aotgrad.passes import DEFAULT_PASSES, Pass
from aotgrad.tracer.fused_attention import choose
from aotgrad.tracer.joint import trace
from aotgrad.written_attention import TARGET, Choice, fuse_attention
from stagewire.capture import Capture
from stagewire.grad import Grad, Rewrite
from stagewire.graph import Graph

__all__ = ["AotGrad", "Options"]


@dataclasses.dataclass(frozen=True)
class Options:
    """Choices of the stage.

    training: "auto" traces the backward where the capture asks for it; False never does.
    partitioner: decides what is saved for the backward: a name of `aotgrad.partition.PARTITIONERS`, or any callable
    from `Joint` to `Partition`.
    memory_budget: which part of the bytes that "min_cut" would save for the backward it may save, from 0 to 1; the rest
    is computed again there (`MinCut.memory_budget`).
    decompose: rewrites a joint graph that has a backward before the partitioner, into the prims of the stage behind
    this one, so that the cut may go through the middle of an op. `stagefold.compile` gives that stage's own
    decomposition; None, the default here, cuts between ATen ops (`benchmarks/decomposed_cut.py` compares the two).
    passes: run on the joint graph, in order, before the partitioner.
    gradient_order: 0 for the program itself; n for the program that its n-th gradient is, from the inputs and the
    tangents of each order to gradients (`tracer.gradient`): what runs under create_graph=True.
    written_attention: "fuse" gives attention that the program writes out to a fused kernel of its CUDA device, where
    there is one for it; "auto" leaves it where a mask has a gradient, which takes such a kernel longer and less memory;
    "without_dropout" also where weights are dropped, since the kernel draws another mask than the program would; "keep"
    leaves it everywhere.
    """

    training: Literal["auto", False] = "auto"
    partitioner: str | Partitioner = "min_cut"
    memory_budget: float = 1.0
    decompose: Callable[[Graph], Graph] | None = None
    passes: tuple[Pass, ...] = DEFAULT_PASSES
    gradient_order: int = 0
    written_attention: Literal["auto", "fuse", "without_dropout", "keep"] = "auto"


@dataclasses.dataclass(frozen=True)
class AotGrad:
    """Traces a captured program through autograd, and cuts the joint graph into forward and backward."""

    name: str = "aotgrad"
    version: str = "1"
    consumes: str = "capture"
    produces: str = "grad"

    Options: ClassVar[type[Options]] = Options

    def run(self, document: Capture, options: Options | None = None) -> Grad:
        """The `Grad` of a `Capture`."""
        if not isinstance(document, Capture):
            raise BadCapture(f"aotgrad reads a capture document, not {type(document).__name__}")
        options = Options() if options is None else options
        partitioner = partitioner_of(options.partitioner, options.memory_budget)
        document, rewrites = _with_fused_attention(document, options)
        joint = self.joint(document, options)
        return replace(split(joint, partitioner(joint)), rewrites=rewrites)

    def joint(self, document: Capture, options: Options | None = None) -> Joint:
        """The joint graph after the passes, as a partitioner sees it."""
        options = Options() if options is None else options
        joint = trace(document, training=options.training == "auto", gradient_order=options.gradient_order)
        for run_pass in options.passes:
            joint = run_pass(joint)
        if options.decompose is None or not joint.has_backward:
            return joint
        return joint.with_graph(options.decompose(joint.graph))


def _with_fused_attention(capture: Capture, options: Options) -> tuple[Capture, tuple[Rewrite, ...]]:
    """The capture as it is traced, and what was rewritten in it.

    The gradient of a gradient is that of the attention as it is written: fused kernels have none. With dropout it would
    be that of another mask.
    """
    if options.written_attention == "keep":
        return capture, ()
    chosen = options.written_attention
    choice = Choice(choose, drops=chosen != "without_dropout", learned=chosen == "fuse")
    fused, rewrites = fuse_attention(capture, choice)
    if not options.gradient_order:
        return fused, rewrites
    if any(node.kwargs["dropout"] for node in fused.graph.nodes if node.target == TARGET):
        raise DoubleBackward(
            "the weights of attention are dropped in a fused kernel, whose gradient has no gradient",
            fix='Compile with options={"rng": "eager"}, which leaves such attention as it is written.',
        )
    return capture, ()
