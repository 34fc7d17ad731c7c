"""split_axes, order_axes, merge_axes: the shape of the loops."""

from __future__ import annotations

from loopir.pipeline import KERNEL_PASSES, PASSES
from loopir.testing.graphs import BATCH_NORM, kernels, lowered


def loops(text: str, without: tuple[str, ...] = ()) -> list[tuple[object, list[object]]]:
    """(outer sizes, inner sizes of each section with a loop) of every kernel."""
    passes = tuple(p for p in PASSES if p.name not in without)
    kernel_passes = tuple(p for p in KERNEL_PASSES if p.name not in without)
    return [
        (tuple(a.size for a in k.axes), [tuple(a.size for a in s.axes) for s in k.sections if s.axes])
        for k in kernels(lowered(text, passes, kernel_passes))
    ]


def test_a_contiguous_pointwise_kernel_is_one_loop() -> None:
    text = "input %x: f32[4, 6, 8]\n%y: f32[4, 6, 8] = prims.neg(%x)\nreturn %y\n"
    assert loops(text) == [((192,), [])]
    assert loops(text, without=("merge_axes",)) == [((4, 6, 8), [])]


def test_a_broadcast_keeps_the_axis_apart_that_it_repeats() -> None:
    text = """\
input %x: f32[4, 6, 8]
input %b: f32[8]
%w: f32[4, 6, 8] = prims.broadcast_in_dim(%b, [4, 6, 8], [2])
%y: f32[4, 6, 8] = prims.add(%x, %w)
return %y
"""
    assert loops(text) == [((24, 8), [])]


def test_the_innermost_loop_runs_along_the_store() -> None:
    text = "input %x: f32[4, 6]{1, 4}\n%y: f32[4, 6]{1, 4} = prims.neg(%x)\nreturn %y\n"
    assert loops(text) == [((24,), [])]
    turned = "input %x: f32[4, 6]\n%y: f32[4, 6]{1, 4} = prims.neg(%x)\nreturn %y\n"
    (kernel,) = kernels(lowered(turned))
    assert [axis.size for axis in kernel.axes] == [6, 4]


def test_statistics_of_channels() -> None:
    """Outer: channels. Inner: batch, then the merged height and width, along memory."""
    assert loops(BATCH_NORM) == [((6,), [(4, 35), (4, 35)])]


def test_channels_last_statistics_run_along_memory_too() -> None:
    text = BATCH_NORM.replace("f32[4, 6, 5, 7]", "f32[4, 6, 5, 7]{210, 1, 42, 6}")
    assert loops(text) == [((6,), [(140,), (140,)])]


def test_a_flattened_index_is_split_into_axes() -> None:
    text = """\
input %x: f32[4, 8, 6]
%p: f32[4, 6, 8]{48, 1, 6} = prims.permute(%x, [0, 2, 1])
%r: f32[4, 48] = prims.reshape(%p, [4, 48])
%y: f32[4, 48] = prims.neg(%r)
return %y
"""
    (split,) = kernels(lowered(text))
    assert sorted(axis.size for axis in split.axes) == [4, 6, 8]
    whole = kernels(lowered(text, tuple(p for p in PASSES if p.name != "split_axes")))
    assert [axis.size for axis in whole[0].axes] == [4, 48]


def test_the_axes_of_an_argmax_stay_in_order() -> None:
    text = "input %x: f32[3, 4, 5]{1, 3, 12}\n%y: i64[] = prims.argmax(%x, None)\nreturn %y\n"
    assert loops(text) == [((), [(3, 4, 5)])]
