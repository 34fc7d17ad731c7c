"""order_items: the worst moment is no worse, every dependence holds, and random numbers are drawn in turn."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from loopir.passes.order_items import OrderItems
from loopir.passes.plan_memory import PlanMemory
from loopir.schedule import Item, Schedule
from loopir.stage import ending_inputs
from loopir.testing.graphs import lowered
from stagewire.grad import Binding, BoundInput, Fresh, SavedInput, SavedResult
from stagewire.graph import Graph, Ref, Value
from stagewire.loop import Buffer, Extern, Free, Index, Kernel, Load, LoopGraph, Section, Store
from stagewire.statements import reads_of, writes_of
from stagewire.types import contiguous


def schedule(
    calls: Sequence[Item], sizes: dict[str, int], inputs: tuple[str, ...], device: str = "cpu", **more: object
) -> Schedule:
    """Calls on float32 vectors of so many kilobytes."""
    types = {name: replace(contiguous("float32", (256 * size,)), device=device) for name, size in sizes.items()}
    buffers = {name: Buffer(name, type_, "input" if name in inputs else "extern") for name, type_ in types.items()}
    return Schedule(buffers=buffers, inputs=inputs, items=tuple(calls), **{"outputs": (), **more})  # type: ignore[arg-type]


def call(target: str, operands: str, results: str) -> Extern:
    names, effect = (
        tuple(results.split()),
        {"bernoulli": "draws", "copy_": "acts", "send": "sends", "wait": "waits"}.get(target),
    )
    return Extern(f"aten.{target}.default", tuple(Ref(name) for name in operands.split()), {}, names, effect=effect)  # type: ignore[arg-type]


def peak(schedule: Schedule) -> int:
    """Kilobytes alive at the worst call."""
    return max(alive(schedule), default=0)


def alive(schedule: Schedule) -> list[int]:
    """Kilobytes alive at each call: by the definition, one name and one call at a time."""
    kept = {arg.name for arg in schedule.outputs if isinstance(arg, Ref)}
    touched = [{*reads_of(item), *writes_of(item)} for item in schedule.items]
    found = []
    for position in range(len(touched)):
        found.append(0)
        for name, buffer in schedule.buffers.items():
            if name in schedule.inputs and name not in schedule.ending:
                continue
            before = name in schedule.inputs or any(name in names for names in touched[: position + 1])
            behind = name in kept or any(name in names for names in touched[position:])
            found[-1] += int(buffer.type.shape[0]) // 256 if before and behind else 0
    return found


SIZES = tuple(range(41)), (0, 8)
"""Where they are alike, there are several worst moments."""


def kernel(operands: str, results: str) -> Kernel:
    """A kernel that reads one element of each operand and writes one of each result."""
    loads = [Load(f"{name}_", name, (Index(),), "float32") for name in operands.split()]
    stores = [Store(name, (Index(),), Ref(loads[0].result)) for name in results.split()]
    return Kernel(results, (), (Section((), (*loads, *stores)),))


@st.composite
def schedules(draw: st.DrawFn, others: tuple[str, ...] = ()) -> Schedule:
    """By a seed: hypothesis likes to draw the same names again."""
    order = random.Random(draw(st.integers(0, 1 << 32)))
    inputs, alike = tuple(f"x{n}" for n in range(order.randint(1, 4))), order.choice(SIZES)
    sizes = {name: order.choice(alike) for name in inputs}
    calls = []
    targets = "mm", *order.choice((others, ("mm", "mm", "bernoulli", "copy_", *others)))
    for number in range(order.randint(1, 14)):
        near = list(sizes)[-order.choice((5, 100)) :]
        operands = order.sample(near, min(order.randint(1, 3), len(near)))
        results = [f"r{number}_{k}" for k in range(order.randint(1, 2))]
        target, names = order.choice(targets), (" ".join(operands), " ".join(results))
        calls.append(kernel(*names) if target == "kernel" else call(target, *names))
        sizes |= {name: order.choice(alike) for name in results}
        if target == "send":
            for _ in range(order.choice((1, 1, 2))):
                results.append(f"{results[-1]}_")
                calls.append(call("wait", results[-2], results[-1]))
                sizes[results[-1]] = 0
    outputs = tuple(Ref(name) for name in order.sample(list(sizes), min(order.randint(0, 3), len(sizes))))
    ending = frozenset(order.sample(inputs, order.randint(0, len(inputs))))
    device = order.choice(("cpu", "cuda:0"))
    return schedule(calls, sizes, inputs, device, outputs=outputs, ending=ending)


@settings(max_examples=1000, deadline=None)
@given(schedules(), st.sampled_from((1, 3, 24)))
def test_any_schedule_keeps_its_meaning_and_needs_no_more(drawn: Schedule, window: int) -> None:
    after = OrderItems(window=window).run(drawn)
    assert sorted(map(str, after.items)) == sorted(map(str, drawn.items))
    made = set(drawn.inputs)
    for item in after.items:
        assert set(reads_of(item)) <= made
        made.update(writes_of(item))
    for kind in ("bernoulli", "copy_"):
        found, wanted = ([str(item) for item in one.items if kind in str(item)] for one in (after, drawn))
        assert found == wanted
    assert_nothing_passes_writes(after, drawn)
    assert peak(after) <= peak(drawn)


@settings(max_examples=300, deadline=None)
@given(schedules())
def test_neighbours_at_the_worst_moment_are_no_better_in_turn(drawn: Schedule) -> None:
    """Those of which one does nothing but make results, and the other does not read these."""
    after = OrderItems().run(drawn)
    found = alive(after)
    worst = found.index(max(found))
    for place in range(max(worst - 1, 0), min(worst + 1, len(found) - 1)):
        before, (first, second), behind = after.items[:place], after.items[place : place + 2], after.items[place + 2 :]
        effects = {first.effect, second.effect}  # type: ignore[union-attr]
        if None in effects and "acts" not in effects and not {*writes_of(first)} & {*reads_of(second)}:
            assert peak(replace(after, items=(*before, second, first, *behind))) >= max(found)


def assert_nothing_passes_writes(after: Schedule, drawn: Schedule) -> None:
    for number, item in enumerate(drawn.items):
        if isinstance(item, Extern) and "copy_" in item.target:
            place = after.items.index(item)
            assert set(map(str, after.items[:place])) == set(map(str, drawn.items[:number]))


@settings(max_examples=300, deadline=None)
@given(schedules(("kernel", "kernel", "kernel", "kernel")))
def test_kernels_pass_no_call_that_writes_what_it_is_given(drawn: Schedule) -> None:
    after = OrderItems().run(drawn)
    assert sorted(map(str, after.items)) == sorted(map(str, drawn.items))
    assert_nothing_passes_writes(after, drawn)


@settings(max_examples=300, deadline=None)
@given(schedules(("send", "send", "kernel", "send")))
def test_collectives_begin_in_order(drawn: Schedule) -> None:
    after = OrderItems().run(drawn)
    assert sorted(map(str, after.items)) == sorted(map(str, drawn.items))
    made = set(drawn.inputs)
    for item in after.items:
        assert set(reads_of(item)) <= made
        made.update(writes_of(item))
    ordered = ("sends", "draws", "acts")
    found, wanted = ([one for one in of.items if getattr(one, "effect", None) in ordered] for of in (after, drawn))
    assert found == wanted
    assert_nothing_passes_writes(after, drawn)


def test_gradients_of_weights_are_computed_while_those_of_operands_are_summed() -> None:
    """Two products that share an operand, its gradient a sum over processes, and what is behind them."""
    calls = [
        *(call("mm", "dy v", "dx"), call("send", "dx", "sx"), call("wait", "sx", "rx"), call("mm", "dy x", "dv")),
        *(call("mm", "dz w", "dq"), call("send", "dq", "sq"), call("wait", "sq", "rq"), call("mm", "dz x", "dw")),
        *(call("add", "rx rq", "dh"), call("send", "dh", "sh"), call("wait", "sh", "rh")),
    ]
    inputs = ("dy", "v", "x", "dz", "w")
    results = [name for item in calls for name in item.results]
    sizes = dict.fromkeys((*inputs, *results), 1)
    after = OrderItems().run(schedule(calls, sizes, inputs, outputs=(Ref("dv"), Ref("dw"), Ref("rh"))))
    order = [item.results[0] for item in after.items if isinstance(item, Extern)]
    assert order[:4] == ["dx", "sx", "dq", "sq"]
    assert sorted(order[4:6]) == ["dv", "dw"]
    assert order[6:] == ["rx", "rq", "dh", "sh", "rh"]


def test_a_wait_for_what_was_waited_for() -> None:
    """As where a program waits for a tensor that waits when it is used."""
    calls = [call("mm", "x", "a")]
    for name in "ab":
        calls += [call("send", "a", f"s{name}"), call("wait", f"s{name}", f"r{name}")]
        calls.append(call("wait", f"r{name}", f"t{name}"))
    calls += [call("mm", "x", "y"), call("mm", "tb y", "z"), call("copy_", "z", "c")]
    sizes = dict.fromkeys(("x", *(item.results[0] for item in calls)), 1)
    after = OrderItems().run(schedule(calls, sizes, ("x",), outputs=(Ref("c"), Ref("ta"))))
    order = [item.results[0] for item in after.items if isinstance(item, Extern)]
    assert sorted(order) == sorted(item.results[0] for item in calls)
    assert order.index("y") < order.index("rb") < order.index("tb") < order.index("z")
    assert order.index("ra") < order.index("ta") < order.index("c")


def test_results_are_gathered_one_ahead() -> None:
    """Weights whose parts are gathered: the next one while one is used, not all of them at once."""
    calls = []
    for number in range(4):
        operand = f"y{number - 1}" if number else "x"
        calls += [call("send", f"w{number}", f"s{number}"), call("wait", f"s{number}", f"g{number}")]
        calls.append(call("mm", f"{operand} g{number}", f"y{number}"))
    inputs = ("x", *(f"w{number}" for number in range(4)))
    sizes = dict.fromkeys((*inputs, *(item.results[0] for item in calls)), 1)
    after = OrderItems().run(schedule(calls, sizes, inputs, outputs=(Ref("y3"),)))
    order = [item.results[0] for item in after.items if isinstance(item, Extern)]
    assert order == ["s0", "s1", "g0", "y0", "s2", "g1", "y1", "s3", "g2", "y2", "g3", "y3"]


def test_what_is_sent_stays_until_the_wait() -> None:
    calls = [call("mm", "x", "a"), call("send", "a", "s"), call("mm", "x", "b"), call("wait", "s", "r")]
    sizes = {"x": 1, "a": 10, "s": 1, "b": 1, "r": 0}
    given = schedule(calls, sizes, ("x",), outputs=(Ref("r"), Ref("b")))
    graph = LoopGraph(buffers=tuple(given.buffers.values()), inputs=("x",), outputs=given.outputs, steps=given.items)
    steps = PlanMemory().run(graph).steps
    assert steps.index(Free("a")) > steps.index(calls[3])


BACKWARD = [call("mm", "dy w", "dh"), call("gelu_backward", "dh h", "da"), call("mm", "dy g", "dw")]
"""Of a product behind an activation: the gradient of its operand first, as torch records it."""


def test_the_last_reader_of_what_was_saved_runs_first() -> None:
    sizes = {"dy": 1, "w": 1, "h": 10, "g": 10, "dh": 10, "da": 10, "dw": 1}
    before = schedule(
        BACKWARD, sizes, ("dy", "w", "h", "g"), outputs=(Ref("da"), Ref("dw")), ending=frozenset(["dy", "h", "g"])
    )
    after = OrderItems().run(before)
    assert [item.results for item in after.items] == [("dw",), ("dh",), ("da",)]
    assert (peak(before), peak(after)) == (41, 31)


def test_what_is_needed_late_is_made_late() -> None:
    calls = [call("mm", "x", "late"), call("mm", "x", "a"), call("mm", "a", "b"), call("mm", "b late", "y")]
    sizes = {"x": 1, "late": 10, "a": 10, "b": 1, "y": 1}
    after = OrderItems().run(schedule(calls, sizes, ("x",), outputs=(Ref("y"),)))
    assert [item.results for item in after.items] == [("a",), ("b",), ("late",), ("y",)]


@pytest.mark.parametrize(("device", "alive"), [("cpu", 54), ("cuda:0", 31)])
def test_pieces_of_a_whole_are_made_when_they_are_put_there(device: str, alive: int) -> None:
    """Bags of embeddings, say: all of them, then copies into one tensor. Copies stay in order."""
    names = [f"bag{n}" for n in range(30)]
    whole = [call("mm", f"{name} {f'part{n - 1}' if n else ''}", f"part{n}") for n, name in enumerate(names)]
    calls = [*(call("mm", "x", name) for name in names), *whole]
    sizes = dict.fromkeys(("x", *(f"part{n}" for n in range(30))), 0) | dict.fromkeys(names, 1) | {"part0": 30}
    before = schedule(calls, sizes, ("x",), device, outputs=(Ref("part29"), Ref("part0")))
    assert (peak(before), peak(OrderItems().run(before))) == (60, alive)


def test_work_space_of_a_convolution_counts() -> None:
    """Of two branches, the one whose operand waits for nothing runs before the convolution that takes work space."""
    image = contiguous("bfloat16", (2, 16, 8, 8))
    types = {"x": image, "a": image, "b": contiguous("bfloat16", (2, 4, 8, 8)), "c": image, "y": image}
    weights = {"v": contiguous("bfloat16", (16, 4, 3, 3)), "w": contiguous("bfloat16", (4, 16, 1, 1))}
    buffers = {
        name: Buffer(name, replace(type_, device="cuda:0"), "input" if name in weights else "extern")
        for name, type_ in {**types, **weights}.items()
    }

    def convolution(x: str, weight: str, groups: int, result: str) -> Extern:
        return Extern("aten.convolution.default", (Ref(x), Ref(weight), None, *(None,) * 5, groups), {}, (result,))

    items = (
        call("mm", "v", "x"),
        call("mm", "x", "a"),
        convolution("a", "v", 4, "c"),
        convolution("x", "w", 1, "b"),
        call("mm", "b c", "y"),
    )
    given = Schedule(buffers=buffers, inputs=("v", "w"), items=items, outputs=(Ref("y"),))  # type: ignore[arg-type]
    assert [item.results for item in OrderItems().run(given).items] == [("x",), ("a",), ("b",), ("c",), ("y",)]


@pytest.mark.parametrize("more", [{"updated": frozenset(("dh", "da", "dw"))}, {}])
def test_order_stays_where_nothing_is_gained(more: dict[str, object]) -> None:
    """Neither inputs that the caller keeps count, nor outputs in the memory of inputs."""
    sizes = {"dy": 1, "w": 1, "h": 10, "g": 10, "dh": 10, "da": 10, "dw": 1}
    before = schedule(BACKWARD, sizes, ("dy", "w", "h", "g"), outputs=(Ref("dh"), Ref("da"), Ref("dw")), **more)
    assert OrderItems().run(before) is before


def test_views_keep_what_they_show() -> None:
    calls = [
        call("mm", "x", "a"),
        call("t", "a", "v"),
        call("mm", "x", "b"),
        call("mm", "v", "c"),
        call("mm", "b c", "y"),
    ]
    sizes = {"x": 1, "a": 10, "v": 10, "b": 10, "c": 1, "y": 1}
    after = OrderItems().run(schedule(calls, sizes, ("x",), outputs=(Ref("y"),)))
    assert [item.results for item in after.items] == [("a",), ("v",), ("c",), ("b",), ("y",)]


def test_inputs_of_a_backward_that_end_with_it() -> None:
    types = [contiguous("float32", (4,))] * 4
    graph = Graph(tuple(Value(f"v{n}", type_) for n, type_ in enumerate(types)), (), ())
    saved = (SavedInput(0), SavedResult(0), SavedResult(1))
    binding = Binding(inputs=(BoundInput("x", types[0]),), outputs=(Fresh(0),), saved=saved)
    assert ending_inputs(graph, binding) == {"v2", "v3"}


def test_it_runs_by_default() -> None:
    text = """\
input %x: f32[64, 64]
%late: f32[64, 64] = aten.cumsum.default(%x, 0)
%a: f32[64, 64] = aten.cumsum.default(%x, 1)
%b: f32[64] = prims.sum(%a, [1])
%c: f32[64] = aten.cumsum.default(%b, 0)
%w: f32[64, 64] = prims.broadcast_in_dim(%c, [64, 64], [0])
%y: f32[64, 64] = prims.add(%late, %w)
return %y
"""
    calls = [step.results for step in lowered(text).steps if isinstance(step, Extern)]
    assert calls == [("a",), ("c",), ("late",)]
