"""Copies of one layer: the loops are those of the whole graph, although few copies are scheduled."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from loopir.interpret import interpret
from loopir.repeats import FEWEST, KEPT
from loopir.stage import LoopIR, Options
from loopir.testing.externs import EXTERNS
from loopir.testing.graphs import document
from loopir.testing.prim_meaning import prim_meaning
from stagewire.digest import digest
from stagewire.loop import Loop
from stagewire.parser import parse_graph
from stagewire.passes import watched_passes
from stagewire.verify import verify

F = "f32[4, 8]"
COUNT = FEWEST + 4
INPUT = f"input %x: {F}\n"

Layer = Callable[[int, str], str]
"""The text of a layer that reads %{name} and gives %y{number}; its own input is %w{number}."""


def product(number: int, x: str) -> str:
    """Two residuals, as in a transformer. The numbers stay small enough to be exact."""
    return (
        residual(number, x).replace(f"%y{number}", f"%h{number}")
        + f"""\
%f{number}: {F} = aten.mm.default(%h{number}, %w{number})
%s{number}: {F} = prims.sign(%f{number})
%y{number}: {F} = prims.add(%s{number}, %h{number})
"""
    )


def residual(number: int, x: str) -> str:
    """A norm, a product, and a sum to which each layer adds."""
    return f"""\
%m{number}: f32[4] = prims.amax(%{x}, [1])
%b{number}: {F} = prims.broadcast_in_dim(%m{number}, [4, 8], [0])
%c{number}: {F} = prims.sub(%{x}, %b{number})
%o{number}: {F} = aten.mm.default(%c{number}, %w{number})
%p{number}: {F} = prims.sign(%o{number})
%y{number}: {F} = prims.add(%p{number}, %{x})
"""


def pointwise(number: int, x: str) -> str:
    return f"%t{number}: {F} = prims.mul(%{x}, %w{number})\n%y{number}: {F} = prims.maximum(%t{number}, -2.0)\n"


def stack(layer: Layer, count: int = COUNT, weight: str = "f32[8, 8]", start: str = INPUT, end: str = "") -> str:
    """The text of a graph of so many layers. end: what follows them; as a rule the last result is given out."""
    weights = "".join(f"input %w{number}: {weight}\n" for number in range(count))
    layers = (layer(number, f"y{number - 1}" if number else "x") for number in range(count))
    lines = start.splitlines(keepends=True)
    inputs, before = ([line for line in lines if line.startswith("input") == is_input] for is_input in (True, False))
    return "".join(inputs) + weights + "".join(before) + "".join(layers) + (end or f"return %y{count - 1}\n")


def items_seen(text: str) -> int:
    """The most kernels and calls that the first pass was given in one run."""
    seen: list[int] = []

    def watch(run: object) -> object:
        seen.append(len(getattr(run.before, "items", ())))  # type: ignore[attr-defined]
        return run.after  # type: ignore[attr-defined]

    with watched_passes(watch):
        LoopIR().run(document(text))
    return max(seen)


def check(text: str) -> tuple[Loop, Loop]:
    """The loops made of a few copies and those made of the whole graph; both mean what the prims mean."""
    prim = document(text)
    short, whole = LoopIR().run(prim), LoopIR().run(prim, Options(repeats=False))
    generator = np.random.default_rng(0)
    inputs = [generator.integers(-2, 3, one.type.shape).astype(np.float32) for one in prim.forward.inputs]
    expected = prim_meaning(prim.forward, inputs, EXTERNS)
    for loop in (short, whole):
        verify(loop)
        for found, wanted in zip(interpret(loop.forward, inputs, EXTERNS), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)
    return short, whole


def test_a_few_copies_are_scheduled_and_the_document_is_that_of_all() -> None:
    text = stack(product, 30)
    short, whole = check(text)
    assert short == whole
    assert items_seen(text) == 8 * (KEPT + 1)  # the last layer has no user, and is no copy


def test_what_repeats_itself_with_every_other_layer() -> None:
    """The sum is in memory behind one layer, and is computed again behind the next."""
    for count in (2 * FEWEST + 1, 2 * FEWEST + 2):
        short, whole = check(stack(residual, count))
        assert short == whole
    assert items_seen(stack(residual, 40)) == 5 * (2 * KEPT + 2)


def test_few_layers_are_scheduled_as_they_stand() -> None:
    assert items_seen(stack(product, FEWEST - 1)) == 8 * (FEWEST - 1)


def test_results_of_every_copy_are_given_out() -> None:
    gives = ", ".join(f"%p{number}" for number in range(COUNT))
    text = stack(product, end=f"return {gives}, %y{COUNT - 1}\n")
    short, whole = check(text)
    assert short == whole
    assert items_seen(text) < 8 * COUNT


def test_results_are_given_out_the_last_copy_first() -> None:
    """As gradients are; a view, which is made where it is given out, stands behind all copies then."""

    def layer(number: int, x: str) -> str:
        return product(number, x) + f"%g{number}: f32[32] = prims.reshape(%p{number}, [32])\n"

    gives = ", ".join(f"%g{number}" for number in reversed(range(COUNT)))
    text = stack(layer, end=f"return %y{COUNT - 1}, {gives}\n")
    short, whole = check(text)
    assert short == whole
    assert items_seen(text) < 8 * COUNT


def test_inputs_and_values_that_all_copies_share() -> None:
    def layer(number: int, x: str) -> str:
        shared = f"%s{number}: {F} = prims.mul(%{x}, %half)\n%u{number}: {F} = prims.add(%s{number}, %v)\n"
        return shared + product(number, f"u{number}")

    text = stack(layer, start=f"{INPUT}input %v: {F}\n%half: {F} = prims.mul(%v, 0.5)\n")
    short, whole = check(text)
    assert digest(short) == digest(whole)
    assert items_seen(text) < 8 * COUNT


def test_kernels_that_write_a_part_of_a_value_each() -> None:
    """Such a kernel computes nothing of the other parts; one of them reads what all layers read."""

    def layer(number: int, x: str) -> str:
        return (
            product(number, x).replace(f"%y{number}", f"%r{number}")
            + f"""\
%k{number}: {F} = prims.mul(%r{number}, %v)
%d{number}: {F} = aten.mm.default(%r{number}, %w{number})
%j{number}: f32[4, 16] = prims.cat([%d{number}, %k{number}], 1)
%e{number}: {F} = aten.mm.default(%j{number}, %t)
%z{number}: {F} = prims.sign(%e{number})
%y{number}: {F} = prims.add(%z{number}, %r{number})
"""
        )

    text = stack(layer, start=f"{INPUT}input %v: {F}\ninput %t: f32[16, 8]\n")
    short, whole = check(text)
    assert digest(short) == digest(whole)
    assert items_seen(text) < 10 * COUNT


def test_what_stands_behind_all_copies_and_reads_none() -> None:
    """It is computed where that pays, with what stands before them."""

    def layer(number: int, x: str) -> str:
        return product(number, x if number else "i")

    start = f"{INPUT}input %w: f32[8, 8]\n%a: {F} = prims.sign(%x)\n%i: {F} = aten.mm.default(%a, %w)\n"
    end = f"%b: {F} = prims.mul(%a, 0.5)\n%o: {F} = aten.mm.default(%b, %w)\nreturn %o, %y{COUNT - 1}\n"
    text = stack(layer, start=start, end=end)
    short, whole = check(text)
    assert short == whole
    assert items_seen(text) < 8 * COUNT


def test_layers_that_read_two_layers_back() -> None:
    def layer(number: int, x: str) -> str:
        before = f"y{number - 2}" if number > 1 else "x"
        return product(number, x).replace(f"(%p{number}, %{x})", f"(%p{number}, %{before})")

    short, whole = check(stack(layer))
    assert digest(short) == digest(whole)


def test_two_stacks() -> None:
    def second(number: int, x: str) -> str:
        return product(number, x) + f"%z{number}: {F} = prims.maximum(%y{number}, -2.0)\n"

    def layer(number: int, x: str) -> str:
        return (product if number < COUNT else second)(number, x.replace("y", "z") if number > COUNT else x)

    text = stack(layer, 2 * COUNT, end=f"return %z{2 * COUNT - 1}\n")
    short, whole = check(text)
    assert digest(short) == digest(whole)
    assert items_seen(text) < 8 * COUNT  # of both


@pytest.mark.parametrize(
    "what",
    ["reads the first", "reads all", "gives an input", "an input before", "an odd one", "one weight twice"],
)
def test_what_is_no_plain_stack_means_what_it_means(what: str) -> None:
    last, start, layer, end = f"%y{COUNT - 1}", INPUT, product, ""
    match what:
        case "reads the first":
            end = f"%z: {F} = prims.add({last}, %y0)\nreturn %z\n"
        case "reads all":
            adds = (f"%z{n}: {F} = prims.add(%{f'z{n - 1}' if n else 'x'}, %y{n})\n" for n in range(COUNT))
            end = "".join(adds) + f"return %z{COUNT - 1}\n"
        case "gives an input":
            end = f"return {last}, %w3\n"
        case "an input before":
            start = f"{INPUT}%q: f32[8] = prims.sum(%w3, [0])\n"
            layer = lambda number, x: (  # noqa: E731
                f"%q{number}: {F} = prims.broadcast_in_dim(%q, [4, 8], [1])\n"
                f"%r{number}: {F} = prims.add(%{x}, %q{number})\n" + product(number, f"r{number}")
            )
        case "an odd one":
            layer = lambda number, x: product(number, x).replace("amax", "amin" if number == 7 else "amax")  # noqa: E731
        case "one weight twice":
            layer = lambda number, x: product(number, x).replace("%w9", "%w4")  # noqa: E731
    check(stack(layer, start=start, end=end))


def test_copies_that_become_one_kernel_are_all_computed() -> None:
    """A kernel that spans first and last copies says nothing of those between them."""
    short, whole = check(stack(pointwise, weight=F))
    assert len(short.forward.steps) == len(whole.forward.steps)


def test_copies_that_draw_numbers_nobody_reads() -> None:
    """A random stream is where it is after all of them."""

    def layer(number: int, x: str) -> str:
        return product(number, x) + f"%d{number}: {F} = aten.bernoulli.p(%{x}, 0.5)\n"

    graph = parse_graph(stack(layer))
    draws = [replace(n, effect="draws") if n.target == "aten.bernoulli.p" else n for n in graph.nodes]
    loop = LoopIR().run(document(replace(graph, nodes=tuple(draws))))
    assert sum(getattr(step, "target", "") == "aten.bernoulli.p" for step in loop.forward.steps) == COUNT


OPS = (
    "prims.add(%{a}, %{b})", "prims.mul(%{a}, 0.5)", "prims.maximum(%{a}, %{b})", "prims.neg(%{a})",
    "aten.mm.default(%{a}, %w{n})", "prims.sub(%{a}, %v)",
)  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_drawn_layers(data: st.DataObject) -> None:
    """Layers of drawn ops on what they are given, on what they have made and, here and there, on earlier layers."""
    ops = data.draw(st.lists(st.sampled_from(OPS), min_size=1, max_size=7))
    places = [(data.draw(st.integers(-2, n)), data.draw(st.integers(-1, n))) for n in range(len(ops))]
    end = data.draw(st.sampled_from(("", "all", "first")))

    def name(number: int, place: int) -> str:
        """What stands at a place of a layer: -1 is what it is given, -2 what the layer before is given."""
        if place >= 1:
            return f"a{number}_{place - 1}"
        return f"y{number + place - 1}" if number + place > 0 else "x"

    def layer(number: int, x: str) -> str:
        lines = [
            f"%a{number}_{n}: {F} = " + op.format(a=name(number, a), b=name(number, b), n=number)
            for n, (op, (a, b)) in enumerate(zip(ops, places, strict=True))
        ]
        return "\n".join([*lines, f"%y{number}: {F} = prims.sign(%a{number}_{len(ops) - 1})\n"])

    ends = {"": "", "all": "return " + ", ".join(f"%y{n}" for n in range(COUNT)) + "\n"}
    ends["first"] = f"%z: {F} = prims.add(%y{COUNT - 1}, %y0)\nreturn %z\n"
    check(stack(layer, start=f"{INPUT}input %v: {F}\n", end=ends[end]))
