"""What was measured on CPUs, and how: each number of this target with its unit, its meaning and its command.

    python -c "from codegen.cpp.tuning import table, TUNED; print(table(TUNED))"      all of them

A number decides what is quick, never what is right (but for those of sums in float32, which bound an error).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

COLUMNS = 'micro.py "column sums" "batch norm, both" "layer norm, both" softmax'
POINTWISE = 'micro.py "concatenate + relu" "transpose + add" "upsample + add"'
SCATTERED = 'micro.py "index_put, accumulate" "embedding + sum, both"'
CONVOLUTIONS = "dynamic.py ResNet"
CHANNELS = "convolutions.py"
REGIONS = "parallel_regions.py"


def tuned(value: Any, unit: str, meaning: str, command: str) -> Any:
    """A number, and the benchmark that measures it again."""
    return field(default=value, metadata={"unit": unit, "meaning": meaning, "command": f"python benchmarks/{command}"})


def table(tuning: Any) -> str:
    """One line a number: its name, value and unit, what it is of, and the command that measures it."""
    rows = [(one.name, getattr(tuning, one.name), one.metadata) for one in fields(tuning)]
    return "\n".join(f"{n} = {v} {m['unit']}: {m['meaning']} ({m['command']})" for n, v, m in rows)


@dataclass(frozen=True)
class Tuning:
    """The numbers of one kind of processor."""

    # accesses, in the cost of one that is contiguous along the lanes
    lanes: int = tuned(16, "elements", "of a vector; shorter axes waste some", COLUMNS)
    broadcast: float = tuned(0.2, "accesses", "cost of one that is the same for all lanes", COLUMNS)
    gathered: float = tuned(6.0, "accesses", "cost of one at a computed place", COLUMNS)
    gathered_runs: float = tuned(3.0, "accesses", "the same, in runs along the lanes", COLUMNS)
    strided: float = tuned(8.0, "accesses", "cost of one in steps", COLUMNS)
    short_step: int = tuned(16, "elements", "up to which the neighbours are read soon", COLUMNS)
    short_strided: float = tuned(4.0, "accesses", "cost of one in such steps", COLUMNS)
    conflicting_step: int = tuned(256, "elements", "multiples of which leave neighbours no place in cache", COLUMNS)
    conflicting: float = tuned(16.0, "accesses", "cost of one in such steps", COLUMNS)
    turned: float = tuned(3.0, "accesses", "cost of one to a tile that is transposed", POINTWISE)
    statement: float = tuned(0.3, "accesses", "cost of a statement", COLUMNS)
    costly: int = tuned(10, "operations", "of a transcendental function, a division or a random number", REGIONS)
    column: float = tuned(1.05, "factor", "of a column plan's cost: its tiles are in memory", COLUMNS)
    border: int = tuned(8, "factor", "by which a section, done point by point, is shorter than the longest", COLUMNS)
    scalar: float = tuned(4.0, "factor", "of the cost of such points", COLUMNS)

    # tiles
    longest_tile: int = tuned(4096, "elements", "of a tile along an axis of symbolic length", COLUMNS)
    whole_tile: int = tuned(32768, "elements", "of a pointwise tile at most", POINTWISE)
    enough_tiles: int = tuned(64, "tiles", "that are enough for the threads", POINTWISE)
    turned_tile: int = tuned(64, "elements", "side of a tile that is transposed in registers", POINTWISE)
    least_crossed: int = tuned(8, "elements", "of an axis that such tiles run along", POINTWISE)
    column_tiles: tuple[int, ...] = tuned((256, 128, 64, 32), "elements", "of tiles of sums over columns", COLUMNS)
    enough_columns: int = tuned(8, "tiles", "of columns that are enough for the threads", COLUMNS)
    column_bytes: int = tuned(1 << 14, "bytes", "of the sums of a wider tile, where threads are few", COLUMNS)
    long_column: int = tuned(256, "points", "that the threads share where columns are few", COLUMNS)
    widest_column_tile: int = tuned(2048, "elements", "of a tile in that case", COLUMNS)
    scatter_tiles: tuple[tuple[int, int], ...] = tuned(
        ((1024, 256), (256, 64), (0, 16)), "elements", "(of the axis, of its tile) of stores that accumulate", SCATTERED
    )
    row_chunk: int = tuned(4096, "elements", "of a row that threads share, at a time", COLUMNS)
    partial: int = tuned(1024, "elements", "of a row summed in float32: 64 additions in each of 16 lanes", COLUMNS)
    partial_rows: int = tuned(64, "points", "of a column summed in float32", COLUMNS)

    # text
    inlined_places: int = tuned(8, "places", "of a unit up to which a costly function is inlined", "growth.py")
    row_pointers: int = tuned(64, "accesses", "of a loop of lanes, from which their rows have pointers", "growth.py")

    # threads
    least_outer: int = tuned(4, "points", "of outer axes that are enough to share", COLUMNS)
    shared_from: int = tuned(8192, "operations", "from which a kernel in a region is shared", REGIONS)
    most_shares: int = tuned(128, "shares", "of kernels that are turns of a loop", REGIONS)
    threshold_parts: int = tuned(8, "parts", "of the threshold, by one of which it grows with each thread", REGIONS)
    many_threads: int = tuned(64, "threads", "beyond which it grows no more", REGIONS)
    largest_joined: int = tuned(64, "thresholds", "of work, above which the start of a region does not matter", REGIONS)
    joined_bytes: int = tuned(4 << 20, "bytes", "that later kernels of a region may allocate early", REGIONS)

    # convolutions of symbolic sizes as products (the table in docs/performance.md)
    product_windows: int = tuned(16, "windows", "of all images, up to which a convolution is a product", CONVOLUTIONS)
    product_gradient_windows: int = tuned(32, "windows", "the same, of its gradients", CONVOLUTIONS)
    product_places: int = tuned(512, "windows", "of one place each, with large weights", CONVOLUTIONS)
    product_weights: int = tuned(1 << 14, "elements", "of a weight; a smaller one is soon reordered", CONVOLUTIONS)
    large_product_weights: int = tuned(1 << 17, "elements", "of a large weight", CONVOLUTIONS)
    product_taps: int = tuned(9, "elements", "of a window; larger ones are left to ATen", CONVOLUTIONS)

    # unroll and jam
    jammed_cost: int = tuned(8, "operations", "the same for neighbours, from which they are computed at once", CHANNELS)
    jammed_points: int = tuned(8, "points", "that are computed at once, at most", CHANNELS)
    jammed_statements: int = tuned(1300, "statements", "of a kernel at most", CHANNELS)
    jammed_lanes: int = tuned(8, "elements", "of an axis of lanes at least", CHANNELS)
    jammed_blocks: tuple[int, ...] = tuned((32, 48, 64), "elements", "of blocks of lanes", CHANNELS)

    # index-set splitting
    most_pieces: int = tuned(5, "pieces", "of a kernel", POINTWISE)
    long_row: int = tuned(128, "points", "along a contiguous axis, from which pieces of it may be shorter", CHANNELS)
    shortest_piece: int = tuned(16, "points", "of a piece along a contiguous axis: what fills the lanes", POINTWISE)


TUNED = Tuning()
"""Measured on a processor with AVX-512 (Zen 5), two and sixteen threads."""
