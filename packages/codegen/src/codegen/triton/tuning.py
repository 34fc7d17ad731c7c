"""What was measured on GPUs, and how: each number of this target with its unit, its meaning and its command.

    PYTHONPATH=. python benchmarks/gpu.py "softmax 16k x 4k"        the times that a number was chosen by
    python -c "from codegen.triton.tuning import *; from codegen.cpp.tuning import table; print(table(SM_90))"

A number decides what is quick, never what is right. For another device: `Tuning` with other numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from codegen.cpp.tuning import tuned

WARP = 32
"""Threads."""

VECTOR_BYTES = 16
"""What a thread loads or stores at once, where memory is aligned to as much."""

SOFTMAX = 'gpu.py "softmax 16k x 4k" "cross entropy 8k x 50k"'
NORMS = 'gpu.py "layer norm 32k x 1k train" "rms norm 32k x 4k train"'
POINTWISE = 'gpu.py "pointwise 64M" "bias gelu 8k x 16k"'
TRANSPOSED = 'gpu.py "transpose add 8k"'
CHANNELS = 'gpu.py "batch norm relu 64x256x56x56"'
COLUMNS = 'gpu.py "column sum 64k x 1k"'
SUMS_AND_SCANS = "sums_and_scans.py"
OPTIMIZERS = "optimizers.py"
PRODUCTS = "products.py"
DECODING = "decode.py"
DEPTHWISE = 'gpu.py "mobilenetv3 32 train" "efficientnet_b0 32 train" "convnext_tiny 32 train"'


@dataclass(frozen=True)
class Tuning:
    """The numbers of one device."""

    # how wide the device is
    multiprocessors: int = tuned(132, "count", "of an H100 or H200", PRODUCTS)
    programs: int = tuned(264, "programs", "that keep the device busy: two a multiprocessor", SUMS_AND_SCANS)
    registers: int = tuned(64 * 1024, "registers", "of a multiprocessor", NORMS)
    shared_memory: int = tuned(227 * 1024, "bytes", "of shared memory that a program of a product may take", PRODUCTS)
    bytes_in_flight: int = tuned(48 * 1024, "bytes", "of a program's pipelined loads", COLUMNS)
    turn_bytes_in_flight: int = tuned(160 * 1024, "bytes", "the same, of the only program of a multiprocessor", NORMS)

    # pointwise kernels
    pointwise_tile: int = tuned(1024, "elements", "of a flat tile", POINTWISE)
    small_tile: int = tuned(128, "elements", "the same, where programs of so many do not fill the device", DECODING)
    square: int = tuned(64, "elements", "side of a tile of transposed accesses; widest tile of columns", TRANSPOSED)
    least_side: int = tuned(16, "elements", "an axis must have to be a side: a sector of memory", TRANSPOSED)
    least_long_row: int = tuned(512, "elements", "of pointwise rows with factors that get tiles of their own", CHANNELS)
    row_tile: int = tuned(2048, "elements", "of such a row at most", CHANNELS)
    row_multiple: int = tuned(8, "elements", "that such a row is a multiple of", CHANNELS)
    coarsening: tuple[int, ...] = tuned((4, 2), "points", "of an axis that one thread computes", CHANNELS)
    least_shared: int = tuned(8, "statements", "that these points have in common", 'gpu.py "llama 4x1024"')
    most_own_loads: int = tuned(3, "loads", "that each of them has of its own", 'gpu.py "swin_tiny 32"')
    many_accesses: int = tuned(32, "accesses", "above which threads have half as many elements", 'gpu.py "resnet50 32"')

    # rows
    persistent_row: int = tuned(4096, "elements", "of a row that is reduced in one tile", SOFTMAX)
    summed_row: int = tuned(16384, "elements", "of a row of half precision that is only summed, the same", DECODING)
    register_row: int = tuned(32768, "elements", "that several loops read, held in registers as one tile", NORMS)
    loop_tile: int = tuned(2048, "elements", "of a tile of a loop over a row", SUMS_AND_SCANS)
    least_loop_tile: int = tuned(1024, "elements", "of a smaller one that needs no masks", SUMS_AND_SCANS)
    scan_tile: int = tuned(4096, "elements", "of a tile of a loop that scans", SUMS_AND_SCANS)
    reread_tiles: tuple[int, ...] = tuned((16384, 8192), "elements", "of tiles of rows that are read again", SOFTMAX)
    unrolled_tile: int = tuned(4096, "elements", "of a tile of a loop that is unrolled", SOFTMAX)
    unrolled_moments_tile: int = tuned(2048, "elements", "the same, of few warps: means and deviations", NORMS)
    most_unrolled: int = tuned(16, "tiles", "of an unrolled loop", SOFTMAX)
    cached_row: int = tuned(208 * 1024, "bytes", "of a row in registers, by the only program", NORMS)
    cached_narrow_row: int = tuned(64 * 1024, "bytes", "of a row in half precision, by one of two programs", NORMS)
    cached_part: int = tuned(128 * 1024, "bytes", "of a longer row, with exponentials", SOFTMAX)
    cached_moments_part: int = tuned(160 * 1024, "bytes", "of a longer row, with means and deviations", NORMS)
    least_fill: float = tuned(0.7, "share", "of a tile that a row of half precision, or a run, fills", NORMS)
    run_tiles: tuple[int, ...] = tuned((4096, 2048, 1024), "elements", "of tiles within long runs", SUMS_AND_SCANS)
    least_run: int = tuned(256, "elements", "of the smallest tile that is a whole run", SUMS_AND_SCANS)
    cached_run: int = tuned(64, "elements", "of unrolled tiles of runs that a thread caches", SUMS_AND_SCANS)

    # sums over rows, and accesses across rows
    summed_bytes: int = tuned(192 * 1024, "bytes", "of rows and their sums in full precision in registers", NORMS)
    turn_tile: int = tuned(2048, "elements", "of a tile that programs take in turn", NORMS)
    crossing_tile: int = tuned(16384, "elements", "of whole rows some accesses of which run across them", TRANSPOSED)

    # columns
    column_tile: int = tuned(2048, "elements", "of a tile of columns that are too long for one", COLUMNS)
    busy_columns: int = tuned(96 * WARP, "columns", "that are enough when each is scanned by one lane", SUMS_AND_SCANS)
    steps: int = tuned(8, "points", "of a column that a lane scans serially", SUMS_AND_SCANS)
    exponential_steps: int = tuned(16, "points", "the same, of sums of exponentials", SUMS_AND_SCANS)
    step_bytes: int = tuned(32 * 1024, "bytes", "that the lanes of a program load for a step", SUMS_AND_SCANS)
    exponential_columns: int = tuned(2, "columns", "of a thread, of sums of exponentials", SUMS_AND_SCANS)
    several_scans_columns: int = tuned(4, "columns", "of a thread, of several scans", SUMS_AND_SCANS)
    one_scan_columns: int = tuned(8, "columns", "of a thread, of one scan", SUMS_AND_SCANS)

    # look-back scans
    few_rows: int = tuned(128, "rows", "fewer than which are scanned by several programs each", SUMS_AND_SCANS)
    chained_row: int = tuned(32768, "elements", "of such a row at least", SUMS_AND_SCANS)
    chain_tile: int = tuned(8192, "elements", "that each program scans", SUMS_AND_SCANS)
    look_back: int = tuned(32, "parts", "that a program looks at together", SUMS_AND_SCANS)

    # horizontal fusion
    fused_points: int = tuned(1 << 20, "points", "of a kernel whose launch is worth saving", OPTIMIZERS)
    fused_row_points: int = tuned(1 << 23, "points", "the same, of one that reduces rows", DECODING)
    fused_buffers: int = tuned(240, "buffers", "of one launch", OPTIMIZERS)
    fused_functions: int = tuned(6, "kernels", "of a launch of kernels that differ", DECODING)
    fused_bytes: int = tuned(4 << 20, "bytes", "that later kernels of a launch may allocate early", OPTIMIZERS)
    fused_vector: int = tuned(8, "elements", "that all numbers of points are multiples of, or none", OPTIMIZERS)
    fused_row_tile: int = tuned(2048, "elements", "of a row that a program reduces at a time", OPTIMIZERS)
    fused_short_rows: int = tuned(32, "rows", "of a kernel whose rows leave most of that tile empty", OPTIMIZERS)

    # products
    timed_tiles: int = tuned(8, "tiles", "that are timed for a product", PRODUCTS)
    timed_prologues: int = tuned(4, "tiles", "that are timed with a prologue, too", PRODUCTS)
    least_product_side: int = tuned(16, "elements", "of the smallest tile: that of the instructions", PRODUCTS)

    # products of few rows
    byte_tile: int = tuned(512, "elements", "of a tile of one row, where weights are bytes", "decode.py --weights int4")
    least_product: int = tuned(1 << 19, "elements", "of what is read once; others are sums like any", DECODING)
    product_columns: int = tuned(32, "columns", "of a program, if there are enough for all multiprocessors", DECODING)
    product_depth: int = tuned(512, "elements", "of a row at a time at most", DECODING)
    product_bytes: int = tuned(16 * 1024, "bytes", "of columns at a time", DECODING)
    product_stages: int = tuned(4, "tiles", "in work at once, one of them computed", DECODING)

    # depthwise convolutions (the table in docs/gpu.md)
    most_taps: int = tuned(49, "elements", "of a window; larger ones stay with ATen", DEPTHWISE)
    most_products: int = tuned(200, "products", "of a lane: its code is unrolled", DEPTHWISE)
    most_block_rows: int = tuned(8, "rows", "of a lane's block", DEPTHWISE)
    lanes_in_a_row: int = tuned(14, "lanes", "along rows of planes whose windows cover some", DEPTHWISE)
    pair_columns: int = tuned(64, "columns", "above which lanes make two of them", DEPTHWISE)
    resident_warps: int = tuned(32, "warps", "of a multiprocessor; programs of more have several tiles", DEPTHWISE)
    summing_warps: int = tuned(48, "warps", "the same, of gradients of weights", DEPTHWISE)
    most_image_tiles: int = tuned(4, "tiles", "of a program that makes an image", DEPTHWISE)
    most_weight_parts: int = tuned(1024, "parts", "of the gradient of a weight", DEPTHWISE)
    most_weight_sums: int = tuned(1 << 20, "elements", "of all of these parts", DEPTHWISE)
    total_tile: int = tuned(2048, "elements", "of a tile that adds up parts", DEPTHWISE)
    total_rows: int = tuned(64, "sums", "of such a tile", DEPTHWISE)
    total_parts: int = tuned(256, "parts", "of such a tile", DEPTHWISE)
    small_window: int = tuned(9, "elements", "up to which cuDNN's channels-last gradients are slower", DEPTHWISE)
    large_window: int = tuned(25, "elements", "above which cuDNN is as fast for few windows", DEPTHWISE)
    few_windows: int = tuned(10000, "places", "of all images: cuDNN is as fast for large windows", DEPTHWISE)
    few_summed_windows: int = tuned(2000, "places", "up to which cuDNN sums weights as fast", DEPTHWISE)


SM_90 = Tuning()
"""Measured on an H100 and an H200."""
