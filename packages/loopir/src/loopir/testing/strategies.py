"""hypothesis strategies: Prim graphs whose arithmetic is exact, and arrays for their inputs.

A pass preserves the meaning of such a graph exactly or it is wrong. Sizes are 0 and 1, ranks 0 to 4, layouts strange.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from hypothesis import strategies as st

from loopir.pipeline import KERNEL_PASSES, PASSES
from loopir.stage import Options
from loopir.testing.graph_builder import FLOATS, SIZES, Builder, Draw, Scenario
from loopir.testing.irregular_steps import FAMILIES
from loopir.testing.steps import Step
from stagewire.graph import Graph, Ref


@st.composite
def selections(draw: Draw) -> Options:
    """Any of the passes, in their order."""
    passes = tuple(p for p in PASSES if draw(st.booleans(), label=p.name))
    return Options(passes=passes, kernel_passes=tuple(p for p in KERNEL_PASSES if draw(st.booleans(), label=p.name)))


def family_scenarios(family: str) -> st.SearchStrategy[Scenario]:
    """Those of a family. Passes choose the layouts of images on a GPU, of several calls that read each other's."""
    if family == "images":
        return prim_scenarios(FAMILIES[family], least=5, devices=("cpu", "cuda:0", "cuda:0"))
    return prim_scenarios(FAMILIES[family])


@st.composite
def prim_scenarios(
    draw: Draw, steps: tuple[Step, ...] = FAMILIES["anything"], most: int = 10, among: tuple[int, ...] = SIZES,
    devices: tuple[str, ...] = ("cpu", "cpu", "cuda:0"), least: int = 1,
) -> Scenario:  # fmt: skip
    """A Prim graph of `least` to `most` drawn steps (some add two or three nodes), and arrays for its inputs."""
    builder = Builder(draw, draw(st.sampled_from(devices)), among, draw(st.integers(0, 3)) == 0)
    rank = draw(st.integers(0, 3))
    sizes = st.sampled_from((*among, 0)) if draw(st.integers(0, 9)) == 0 else st.sampled_from(among)
    builder.input(draw(st.sampled_from(FLOATS)), tuple(draw(sizes) for _ in range(rank)))
    for step in draw(st.lists(st.sampled_from(steps), min_size=least, max_size=most)):
        step(builder)
        types = (*builder.types.values(), *builder.leaves.values())
        if sum(math.prod(t.shape) for t in types) > 20_000 * max(among):
            break
    names = list(builder.types) if builder.nodes else []
    made = [name for name in names if name not in {v.name for v in builder.inputs}]
    outputs = dict.fromkeys(draw(st.lists(st.sampled_from(made), max_size=3)) + made[-1:]) if made else {}
    leaves = draw(st.lists(st.sampled_from(list(builder.leaves)), max_size=3)) if builder.leaves else []
    outputs |= dict.fromkeys([*leaves, *list(builder.leaves)[-1:]])
    graph = Graph(tuple(builder.inputs), tuple(builder.nodes), tuple(Ref(name) for name in outputs))
    close = frozenset(number for number, name in enumerate(outputs) if name in builder.leaves)
    return Scenario(graph, tuple(builder.arrays), builder.indexed, close, tuple(_updates(draw, builder, outputs)))


def _updates(draw: Draw, builder: Builder, outputs: Iterable[str]) -> Iterator[tuple[int, int]]:
    """(input, output) of the same type, at most one of each."""
    free = {number: value.type for number, value in enumerate(builder.inputs) if value.name not in builder.indexed}
    for number, name in enumerate(outputs):
        alike = [other for other, type in free.items() if type == builder.types.get(name)]
        if alike and draw(st.booleans()):
            del free[alike[0]]
            yield alike[0], number
