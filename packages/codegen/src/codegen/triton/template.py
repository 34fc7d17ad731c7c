"""A product of matrices, and what is computed from it element by element, as one Triton function.

    def kernel(buffer*, XBLOCK, RBLOCK, KBLOCK, GROUP, TF32): one tile [XBLOCK, RBLOCK] of the result of one batch
        tiles of the operands: read, or made of what a prologue reads
        total = sum of tl.dot over tiles [XBLOCK, KBLOCK] and [KBLOCK, RBLOCK]       in float32
        the product, rounded as ATen rounds it, then the statements of the epilogue

Sizes and strides are numbers in the text. TF32: whether float32 operands may be rounded to ten bits.
"""

from __future__ import annotations

from codegen.triton.emit import LARGEST_32, XR, function_text
from codegen.triton.expressions import TYPES
from codegen.triton.product_fusion import Epilogue, Prologue
from codegen.triton.products import BATCH, COLUMN, DEPTH, ROW, Product, Tile, Types, at, place_in
from codegen.triton.sites import Site
from codegen.triton.statements import StatementEmitter, dtypes_of
from codegen.triton.strength_reduction import Cheaper
from stagewire.loop import Load, Store
from stagewire.program import KernelInfo
from stagewire.types import extent

CONSTANTS = ("XBLOCK", "RBLOCK", "KBLOCK", "GROUP", "TF32")


def parameters_of(site: Site) -> tuple[str, ...]:
    """The buffers that the template reads and writes, in the order of its parameters."""
    product, epilogue, prologue = site.product, site.epilogue, site.prologue
    operands = {"left": (product.left,), "right": (product.right,)}
    if prologue is not None:
        operands[prologue.side] = prologue.loads
    bias = () if product.bias is None else (product.bias,)
    touched = [s.buffer for s in epilogue.statements if isinstance(s, Load | Store)] if epilogue is not None else []
    loads = [name for name in touched if epilogue is None or name not in epilogue.products]
    kept = [product.result] if site.kept else []
    return tuple(dict.fromkeys((*operands["left"], *operands["right"], *bias, *loads, *kept)))


def emit_template(name: str, site: Site, types: Types) -> str:
    """The text of the function `name`."""
    emitter = _TemplateEmitter(parameters_of(site), types)
    emitter.product(site.product, site.prologue)
    emitter.result(site)
    if site.epilogue is not None:
        emitter.epilogue(site.epilogue)
    return function_text(name, emitter.lines, [*(f"p{i}" for i in range(len(emitter.parameters))), *CONSTANTS])


def template_info(name: str, function: str, site: Site, tile: Tile) -> KernelInfo:
    """One kernel: the function with the constants of a tile. TF32 is for whoever loads it to say."""
    product = site.product
    tiles = -(-product.rows // tile.rows) * -(-product.columns // tile.columns)
    numbers = (tile.rows, tile.columns, tile.depth, tile.group, 0)
    return KernelInfo(
        name, parameters_of(site), (tiles, product.batch), tuple(zip(CONSTANTS, numbers, strict=True)), tile.warps,
        tile.stages, function,
    )  # fmt: skip


class _TemplateEmitter(StatementEmitter):
    def product(self, product: Product, prologue: Prologue | None) -> None:
        """Lines up to `total`, a tile of the sums."""
        self.wide = any(self.reach(name) > LARGEST_32 for name in self.parameters)
        self.axes(product)
        self.put(f"k = {self.widened('tl.arange(0, KBLOCK)')}")
        self.put("total = tl.zeros([XBLOCK, RBLOCK], tl.float32)")
        made = None if prologue is None else prologue.side
        left, right = at((BATCH, ROW, DEPTH), product.left_steps), at((BATCH, DEPTH, COLUMN), product.right_steps)
        depth, steps = product.depth, (product.left_steps[2], product.right_steps[1])
        self.names[DEPTH] = "k[None, :]"
        if made != "left":
            self.put(f"left = {self.pointer[product.left]} + ({self.index(left)}) + {_zeros('XBLOCK', 'KBLOCK')}")
        self.names[DEPTH] = "k[:, None]"
        if made != "right":
            self.put(f"right = {self.pointer[product.right]} + ({self.index(right)}) + {_zeros('KBLOCK', 'RBLOCK')}")
        self.put(f"for base in range(0, {depth}, KBLOCK):")
        self.indent = "        "
        if prologue is not None:
            self.prologue(product, prologue)
        whole = [f"{product.rows} % XBLOCK == 0", f"{depth} % KBLOCK == 0", f"{product.columns} % RBLOCK == 0"]
        if made != "left":
            self.put(f"a = tile_at(left, xmask, k[None, :] < {depth} - base, {whole[0]}, {whole[1]})")
        if made != "right":
            self.put(f"b = tile_at(right, k[:, None] < {depth} - base, rmask, {whole[1]}, {whole[2]})")
        is_wide = self.types[product.left].dtype == "float32"
        precision = ', input_precision="tf32" if TF32 else "ieee"' if is_wide else ""
        self.put(f"total = tl.dot(a, b, total{precision})")
        if made != "left":
            self.put(f"left += KBLOCK * {steps[0]}")
        if made != "right":
            self.put(f"right += KBLOCK * {steps[1]}")
        self.indent = "    "

    def prologue(self, product: Product, prologue: Prologue) -> None:
        """The lines that make a tile of an operand, `a` or `b`, whose depth begins at `base`."""
        lanes, tile, shape = ("k[None, :]", "a", "[XBLOCK, KBLOCK]")
        if prologue.side == "right":
            lanes, tile, shape = ("k[:, None]", "b", "[KBLOCK, RBLOCK]")
        batch, first, second = prologue.axes
        along, depths = (("x", first), second) if prologue.side == "left" else (("r", second), first)
        self.put(f"d = base + {lanes}")
        self.put(f"dmask = d < {product.depth}")
        self.split("z", batch, frozenset())
        self.split(*along)
        self.split("d", depths)
        self.dtypes, self.cheaper = dtypes_of(prologue.statements), Cheaper(prologue.statements)
        self.statements(prologue.statements, frozenset((along[0], "d")))
        made = self.types[prologue.buffer].dtype
        value = f"tl.broadcast_to(({self.operand(prologue.value, made)}).to({TYPES[made]}), {shape})"
        self.put(f"{tile} = {value}")
        self.put(f"if {product.depth} % KBLOCK != 0:")
        self.put(f"    {tile} = tl.where(dmask, {tile}, tl.zeros([1, 1], {TYPES[made]}))")

    def reach(self, name: str) -> int:
        """How far the elements of a buffer lie apart."""
        size = extent(self.types[name])
        return size if isinstance(size, int) else LARGEST_32 + 1

    def axes(self, product: Product) -> None:
        """Which tile of which batch this program computes."""
        rows, columns = f"tl.cdiv({product.rows}, XBLOCK)", f"tl.cdiv({product.columns}, RBLOCK)"
        self.put(f"i, j = grouped(tl.program_id(0), {rows}, {columns}, GROUP)")
        self.put(f"x = {self.widened('(i * XBLOCK + tl.arange(0, XBLOCK)[:, None])')}")
        self.put(f"r = {self.widened('(j * RBLOCK + tl.arange(0, RBLOCK)[None, :])')}")
        self.put(f"z = {self.widened('tl.program_id(1)')}")
        self.put(f"xmask = x < {product.rows}")
        self.put(f"rmask = r < {product.columns}")
        self.names |= {ROW: "x", COLUMN: "r", BATCH: "z"}
        self.spread |= {ROW: frozenset("x"), COLUMN: frozenset("r"), BATCH: frozenset()}

    def result(self, site: Site) -> None:
        """Lines up to `element`, the tile as ATen would give it; it is stored if anything but the epilogue uses it."""
        product = site.product
        made = self.types[product.result]
        text = "total" if product.alpha == 1 else f"total * {product.alpha!r}"
        if product.bias is not None:
            bias = self.types[product.bias]
            self.load(Load("bias of the product", product.bias, place_in(bias, (BATCH, ROW, COLUMN)), bias.dtype))
            term = f"{self.names['bias of the product']}.to(tl.float32)"
            text += f" + {term}" if product.beta == 1 else f" + {term} * {product.beta!r}"
        self.put(f"element = ({text}).to({TYPES[made.dtype]})")
        if site.kept:
            place = self.index(product.place())
            pointer = f"{self.pointer[product.result]} + ({place}) + {_zeros('XBLOCK', 'RBLOCK')}"
            self.put(f"tl.store({pointer}, element, xmask & rmask)")

    def epilogue(self, epilogue: Epilogue) -> None:
        """The statements; what they load of the product is `element`."""
        self.dtypes, self.cheaper = dtypes_of(epilogue.statements), Cheaper(epilogue.statements)
        self.split("z", epilogue.batch, frozenset())
        self.split("x", epilogue.rows)
        self.split("r", epilogue.columns)
        for statement in epilogue.statements:
            if isinstance(statement, Load) and statement.buffer in epilogue.products:
                self.names[statement.result], self.spread[statement.result] = "element", XR
            else:
                self.statements((statement,), XR)


def _zeros(rows: str, columns: str) -> str:
    """What gives an index its shape where it does not vary along both directions; it costs nothing."""
    return f"tl.zeros([{rows}, {columns}], tl.int32)"


HELPERS = """\
@triton.jit
def grouped(number, rows, columns, GROUP: tl.constexpr):
    wide = GROUP * columns
    first = number // wide * GROUP
    height = tl.minimum(rows - first, GROUP)
    return first + number % wide % height, number % wide // height


@triton.jit
def tile_at(pointer, rows, columns, ROWS_FIT: tl.constexpr, COLUMNS_FIT: tl.constexpr):
    if ROWS_FIT and COLUMNS_FIT:
        tile = tl.load(pointer)
    elif ROWS_FIT:
        tile = tl.load(pointer, mask=columns, other=0)
    elif COLUMNS_FIT:
        tile = tl.load(pointer, mask=rows, other=0)
    else:
        tile = tl.load(pointer, mask=rows & columns, other=0)
    return tile
"""
"""What templates call, beside the prelude of all kernels."""
