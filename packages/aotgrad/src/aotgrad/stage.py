"""The stage: `Capture` in, `Grad` out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import ClassVar, Literal

from aotgrad.errors import DoubleBackward
from aotgrad.joint import Joint
from aotgrad.passes import DEFAULT_PASSES, Pass
from aotgrad.tracer.fused_attention import choose
from aotgrad.tracer.joint import trace
from aotgrad.written_attention import Choice, Fusion, without_weights
from stagewire.capture import Capture
from stagewire.grad import Grad, Rewrite
from stagewire.passes import run_passes
from stagewire.stage import expect
from stagewire.verify import verify_graph


@dataclasses.dataclass(frozen=True)
class Options:
    """Choices of the stage.

    training: "auto" traces the backward where the capture asks for it; False never does.
    passes: run on the joint graph, in order.
    gradient_order: 0 for the program itself; n for the program that its n-th gradient is, from the inputs and the
    tangents of each order to gradients (`tracer.gradient`): what runs under create_graph=True.
    written_attention: "fuse" gives attention that the program writes out to a fused kernel of its CUDA device, where
    there is one for it; "auto" leaves it where a mask has a gradient, which takes such a kernel longer and less memory;
    "without_dropout" also where weights are dropped, since the kernel draws another mask than the program would; "keep"
    leaves it everywhere, and `scaled_dot_product_attention` the kernel that eager takes.
    flex_attention: the types of devices whose target has kernels for FlexAttention, where it stays an op
    ("TYPE:forward": where no gradients are wanted); on others it is what it means, with all scores in memory.
    """

    training: Literal["auto", False] = "auto"
    passes: tuple[Pass, ...] = DEFAULT_PASSES
    gradient_order: int = 0
    written_attention: Literal["auto", "fuse", "without_dropout", "keep"] = "auto"
    flex_attention: tuple[str, ...] = ("cuda", "cpu:forward")


@dataclasses.dataclass(frozen=True)
class AotGrad:
    """Traces a captured program through autograd: one joint graph, forward and backward."""

    name: str = "aotgrad"
    version: str = "1"
    consumes: str = "capture"
    produces: str = "grad"

    Options: ClassVar[type[Options]] = Options

    def run(self, document: Capture, options: Options | None = None) -> Grad:
        """The `Grad` of a `Capture`."""
        expect(document, "capture", self.name)
        options = Options() if options is None else options
        joint, rewrites = self._joint(document, options)
        return Grad(binding=joint.binding, joint=joint.graph, rewrites=rewrites)

    def joint(self, document: Capture, options: Options | None = None) -> Joint:
        """The joint graph after the passes."""
        return self._joint(document, Options() if options is None else options)[0]

    def _joint(self, document: Capture, options: Options) -> tuple[Joint, tuple[Rewrite, ...]]:
        joint, rewrites = _traced(document, options)
        return run_passes("aotgrad", options.passes, joint, _verify), rewrites


def _verify(joint: Joint, *sizes: Mapping[str, int]) -> None:
    verify_graph(joint.graph, *sizes)


def _traced(capture: Capture, options: Options) -> tuple[Joint, tuple[Rewrite, ...]]:
    """The joint graph, and what was rewritten in it.

    The gradient of a gradient is that of the attention as it is written: fused kernels have none. With dropout it would
    be that of another mask.
    """
    training, order, chosen = options.training == "auto", options.gradient_order, options.written_attention
    flex = options.flex_attention if not order else ()
    if chosen == "keep":
        return trace(capture, training=training, gradient_order=order, flex_attention=flex), ()
    choice = Choice(partial(choose, flex), drops=chosen != "without_dropout", learned=chosen == "fuse")
    if not order:
        capture, rewrites = without_weights(capture, choice)
        fusion = Fusion(choice)
        joint = trace(capture, training=training, attention=fusion, flex_attention=flex)
        return joint, (*rewrites, *fusion.notes.values())
    looked = Fusion(choice, replaces=False)
    joint = trace(capture, training=training, gradient_order=order, attention=looked)
    if looked.dropped:
        fusion = Fusion(choice)
        trace(capture, training=training, attention=fusion)
        if fusion.dropped:
            raise DoubleBackward(
                "the weights of attention are dropped in a fused kernel, whose gradient has no gradient",
                fix='Compile with options={"rng": "eager"}, which leaves such attention as it is written.',
            )
    return joint, ()
