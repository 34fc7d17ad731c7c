"""What plans weigh, and what the loops of a column plan compute once."""

from __future__ import annotations

from codegen.cpp.emit import write_function
from codegen.cpp.plan import make_plan
from stagewire.graph import Ref
from stagewire.loop import Axis, AxisAtom, Buffer, Compute, Index, Kernel, Load, Reduce, Section, Store, Term
from stagewire.types import contiguous

CHANNELS, IMAGES, PIXELS = 256, 8, 16
PLANES = {"c": PIXELS, "n": CHANNELS * PIXELS, "p": 1}
ROWS = {"c": 1, "n": PIXELS * CHANNELS, "p": CHANNELS}


def at(steps: dict[str, int]) -> Index:
    return Index(0, tuple(Term(step, AxisAtom(axis)) for axis, step in steps.items()))


def normalisation(read: dict[str, int], written: dict[str, int]) -> Kernel:
    """y = x - the mean of each channel; x and y lie in memory as their steps say."""
    inner = (Axis("n", IMAGES), Axis("p", PIXELS))
    mean = Section(
        inner, (Load("v", "x", at(read), "float32"), Reduce(("m", "q", "k"), "welford", Ref("v"), "float32"))
    )
    shifted = Section(inner, (
        Load("w", "x", at(read), "float32"), Compute("d", "sub", (Ref("w"), Ref("m")), "float32"),
        Store("y", at(written), Ref("d"))))  # fmt: skip
    return Kernel("kernel", (Axis("c", CHANNELS),), (mean, shifted))


def test_large_steps_are_dearer_than_small_ones():
    assert make_plan(normalisation(PLANES, PLANES), 1).lane is None
    assert make_plan(normalisation(ROWS, ROWS), 1).lane.name == "c"
    for read, written in ((PLANES, ROWS), (ROWS, PLANES)):
        assert make_plan(normalisation(read, written), 1).lane.name == "c", "along p the other one steps by a KiB"


def test_tiles_are_transposed_between_the_axes_along_which_memory_lies():
    """y[a, b, c] = x[c, b, a]: not in rows of b, along which neither is read in one piece."""
    size = 48
    outer, inner = {"a": size * size, "b": size, "c": 1}, {"a": 1, "b": size, "c": size * size}
    body = Section((), (Load("v", "x", at(inner), "float32"), Store("y", at(outer), Ref("v"))))
    plan = make_plan(Kernel("kernel", tuple(Axis(name, size) for name in "abc"), (body,)), 1)
    assert (plan.lane.name, plan.crossed.name) == ("c", "a")


def test_the_mean_of_a_column_is_divided_once():
    buffers = {name: Buffer(name, contiguous("float32", (IMAGES * CHANNELS * PIXELS,)), "input").type for name in "xy"}
    body = write_function(((normalisation(ROWS, ROWS),),), buffers, threshold=1).body
    after = body[body.index(" - r_") :]
    assert "a_" not in after, "the second section reads the means, not the sums they are made of"
