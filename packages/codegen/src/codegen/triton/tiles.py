"""Which tiles of a product are worth to be timed, by its sizes."""

from __future__ import annotations

from dataclasses import dataclass

from codegen.triton import tuning
from codegen.triton.plan import power_of_two
from codegen.triton.products import Product
from stagewire.types import ITEM_SIZE


@dataclass(frozen=True)
class Tile:
    """rows, columns: of the result, by one program; depth: of one step of its loop; group: tiles of rows that run side
    by side, so that they share columns in the cache; stages: steps whose operands are on their way at the same time."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    group: int = 8

    def shared(self, item: int) -> int:
        """Bytes of shared memory that its operands take."""
        return self.stages * self.depth * (self.rows + self.columns) * item

    def cost(self, product: Product) -> float:
        """A rough measure of time: rounds of programs over all processors, by how much each moves and computes."""
        count = product.batch * -(-product.rows // self.rows) * -(-product.columns // self.columns)
        steps = product.taps * -(-product.depth // product.taps // self.depth) * self.depth
        moved = (self.rows + self.columns) * steps
        computed = self.rows * self.columns * steps / 64
        return max(
            count / tuning.SM_90.multiprocessors, 1.0, round(count / tuning.SM_90.multiprocessors + 0.49) * 0.85
        ) * (moved + computed)


HALF = (
    Tile(128, 256, 64, 8, 4), Tile(128, 256, 64, 8, 3), Tile(256, 128, 64, 8, 3), Tile(128, 128, 64, 8, 3),
    Tile(128, 128, 64, 4, 3), Tile(128, 128, 32, 4, 4), Tile(128, 64, 64, 4, 3), Tile(64, 128, 64, 4, 3),
    Tile(64, 64, 64, 4, 3), Tile(64, 64, 128, 4, 3), Tile(64, 32, 128, 4, 4), Tile(32, 64, 128, 4, 4),
    Tile(32, 32, 128, 4, 4), Tile(32, 128, 64, 4, 4), Tile(16, 64, 128, 4, 4), Tile(16, 32, 256, 4, 3),
    Tile(16, 128, 64, 4, 5), Tile(64, 16, 128, 4, 4), Tile(16, 16, 64, 1, 4),
)  # fmt: skip
"""For operands of 16 bits. Three stages leave room for two programs on a multiprocessor, so that one computes while the
other stores: on an H200 that is worth more than a fourth stage."""

FULL = (
    Tile(128, 128, 32, 8, 3), Tile(128, 64, 32, 4, 3), Tile(64, 128, 32, 4, 3), Tile(64, 64, 32, 4, 4),
    Tile(32, 64, 32, 4, 4), Tile(64, 32, 32, 4, 4), Tile(16, 64, 64, 4, 3), Tile(32, 32, 64, 4, 3),
    Tile(16, 32, 128, 4, 3), Tile(16, 16, 64, 1, 3),
)  # fmt: skip
"""For operands in float32. A tile of 128 x 256 is hardly better than these, and takes ten seconds to compile."""


def tiles_for(product: Product, dtype: str) -> tuple[Tile, ...]:
    """The tiles to be timed, the one of the least estimated cost first."""
    table = FULL if dtype == "float32" else HALF
    fitting = [
        tile
        for tile in table
        if tile.rows <= max(tuning.SM_90.least_product_side, power_of_two(product.rows))
        and tile.columns <= max(tuning.SM_90.least_product_side, power_of_two(product.columns))
        and tile.shared(ITEM_SIZE[dtype]) <= tuning.SM_90.shared_memory
    ]
    return tuple(sorted(fitting, key=lambda tile: tile.cost(product))[: tuning.SM_90.timed_tiles])
