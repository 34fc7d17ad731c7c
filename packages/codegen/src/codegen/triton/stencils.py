"""Sums over the taps of a window, for each channel of images apart, as Triton functions.

    an image    made[n, c, i, j] = bias[c] + sum over (k, l) of operand[n, c, row(i, k), column(j, l)] * weight[c, k, l]
    a weight    made[c, k, l] = sum over (n, i, j) of operand[n, c, row(i, k), column(j, l)] * other[n, c, i, j]

A lane has a block of neighbours (i, j) in one image: what their windows share is loaded once. Which elements lie
outside of the operand is known as the text is written, up to the first and the last lanes; and where elements are is a
number from where a lane's first one is. Sums are in float32. The number of images may be symbolic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

from codegen.triton.emit import function_text
from stagewire.expr import Dim


@dataclass(frozen=True)
class Side:
    """One dimension: `made` neighbours of `length` for a lane, out of `size` elements of the operand.

    A lane's elements begin `moved` behind those of the lane before. taps: (which neighbour, which tap, which element of
    the operand) of each product; elements before the first are negative.
    """

    size: int
    length: int
    made: int
    moved: int
    taps: tuple[tuple[int, int, int], ...]

    @property
    def lanes(self) -> int:
        return -(-self.length // self.made)

    @property
    def elements(self) -> list[int]:
        """Those that are inside of the operand for some lane."""
        found = sorted({at for _, _, at in self.taps})
        return [at for at in found if at < self.size and at + (self.lanes - 1) * self.moved >= 0]

    def inside(self, at: int, lane: str) -> str:
        """The condition that an element is inside of the operand, unless it always is."""
        place = f"{lane} * {self.moved} + {at}"
        low = [f"({place} >= 0)"] if at < 0 else []
        high = [f"({place} < {self.size})"] if at + (self.lanes - 1) * self.moved >= self.size else []
        return " & ".join(low + high)

    def is_made(self, neighbour: int, lane: str) -> str:
        """The condition that there is such a neighbour, unless there always is."""
        is_last_there = (self.lanes - 1) * self.made + neighbour < self.length
        return "" if is_last_there else f"({lane} * {self.made} + {neighbour} < {self.length})"


def window_side(size: int, length: int, taps: int, step: int, pad: int, dilation: int, made: int) -> Side:
    """Windows over `size` elements."""
    pairs = tuple((j, k, j * step - pad + k * dilation) for j in range(made) for k in range(taps))
    return Side(size, length, made, made * step, pairs)


def covering_side(size: int, length: int, taps: int, step: int, pad: int, dilation: int, made: int) -> Side:
    """For each of `length` elements, those of `size` windows that hold it; `made` is a multiple of `step`."""
    places = ((j, k, j + pad - k * dilation) for j in range(made) for k in range(taps))
    return Side(size, length, made, made // step, tuple((j, k, at // step) for j, k, at in places if at % step == 0))


@dataclass(frozen=True)
class Stencil:
    """The sizes of a function. operand, other: strides of two images, `other` being of the points of lanes; weight: the
    strides along channels, rows and columns of what has an element for each tap."""

    batch: Dim
    channels: int
    rows: Side
    columns: Side
    taps: tuple[int, int]
    operand: tuple[int, ...]
    other: tuple[int, ...]
    weight: tuple[int, int, int]

    @property
    def lanes(self) -> Dim:
        """Those of a channel."""
        return self.batch * self.rows.lanes * self.columns.lanes

    @property
    def lies_by_taps(self) -> bool:
        """Whether parts of a weight have the channels beside each other, as the images have."""
        return self.other[1] == 1

    @property
    def part(self) -> tuple[int, int, int]:
        """The strides of a part of a weight."""
        rows, columns = self.taps
        return (1, columns * self.channels, self.channels) if self.lies_by_taps else (rows * columns, columns, 1)

    @property
    def count(self) -> int:
        """Elements of the weight."""
        return self.channels * len(self.windows)

    @property
    def blocks(self) -> list[tuple[int, int]]:
        """The neighbours of a lane."""
        return list(product(range(self.rows.made), range(self.columns.made)))

    @property
    def windows(self) -> list[tuple[int, int]]:
        return list(product(range(self.taps[0]), range(self.taps[1])))


CONSTANTS = ("XBLOCK", "RBLOCK", "TILES")
"""Lanes and channels of a tile, and the tiles that a program computes one after the other."""


def emit_image(name: str, stencil: Stencil, has_bias: bool, fits: bool) -> str:
    """The function that makes an image: def name(operand, weight, bias?, made, lanes?, ...).

    fits: whether the channels are whole tiles.
    """
    text = _Text(stencil, fits)
    result = "p3" if has_bias else "p2"
    start = "tl.zeros([XBLOCK, RBLOCK], tl.float32)" + (" + bias" if has_bias else "")
    before = [
        *(f"w{k}_{l} = {_loaded(f'p1 + (c * {text.weight(k, l)})', text.channel)}" for k, l in stencil.windows),
        *([f"bias = {_loaded('p2 + c', text.channel)}"] if has_bias else []),
    ]
    loop = [
        *text.lanes(),
        *(f"a{j}_{l} = {start}" for j, l in stencil.blocks),
        *text.products("a{1}_{2} = tl.fma({0}, w{3}_{4}, a{1}_{2})"),
        f"target = {text.first(result, stencil.other, stencil.rows.made, stencil.columns.made)}",
        *text.stores(),
    ]
    return _function(name, 3 + has_bias, stencil.lanes, [*text.channels(), *before], loop)


def emit_weight(name: str, stencil: Stencil, part: int, fits: bool) -> str:
    """The function that makes a weight, or a part of it, `part` elements behind that of the program before:
    def name(operand, other, made, lanes?, ...)."""
    text = _Text(stencil, fits)
    before = [f"w{k}_{l} = tl.zeros([XBLOCK, RBLOCK], tl.float32)" for k, l in stencil.windows]
    loop = [
        *text.lanes(),
        f"target = {text.first('p1', stencil.other, stencil.rows.made, stencil.columns.made)}",
        *(line for names, at, mask in text.neighbours("g") for line in _load(names, f"target + {at}", mask)),
        *text.products("w{3}_{4} = tl.fma({0}, g{1}_{2}, w{3}_{4})"),
    ]
    place = f"p2 + (tl.program_id(0) * {part} + c * "
    after = [
        _stored(f"{place}{text.weight(k, l)})", f"tl.sum(w{k}_{l}, 0)[None, :]", text.channel)
        for k, l in stencil.windows
    ]
    return _function(name, 3, stencil.lanes, [*text.channels(), *before], loop, after)


def emit_total(name: str, stencil: Stencil, parts: Dim) -> str:
    """The function that adds up parts of a weight: def name(parts, made, number of parts?, ...)."""
    (rows, columns), (channel, down, along) = stencil.taps, stencil.weight
    count, number = stencil.count, _size(parts)
    c, tap = f"x // {rows * columns}", f"x % {rows * columns}"
    if stencil.lies_by_taps:
        c, tap = f"x % {stencil.channels}", f"x // {stencil.channels}"
    place = f"{c} * {channel} + {tap} // {columns} * {down} + {tap} % {columns} * {along}"
    lines = [
        "x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:, None]",
        "total = tl.zeros([XBLOCK, RBLOCK], tl.float32)",
        f"for base in range(0, {number}, RBLOCK):",
        f"    r = {_widened('(base + tl.arange(0, RBLOCK)[None, :])', parts)}",
        f"    total += tl.load(p0 + (r * {count} + x), (x < {count}) & (r < {number}), other=0)",
        f"tl.store(p1 + ({place}), tl.sum(total, 1)[:, None], x < {count})",
    ]
    return _function(name, 2, parts, lines)


class _Text:
    def __init__(self, stencil: Stencil, fits: bool) -> None:
        self.stencil = stencil
        self.channel = "" if fits else "cmask"
        self.live = _all("xmask", self.channel)

    def channels(self) -> Iterator[str]:
        yield "c = tl.program_id(1) * RBLOCK + tl.arange(0, RBLOCK)[None, :]"
        if self.channel:
            yield f"cmask = c < {self.stencil.channels}"

    def lanes(self) -> Iterator[str]:
        """The lanes of a tile: of block (i, j) in the image n."""
        columns, rows = self.stencil.columns.lanes, self.stencil.rows.lanes
        number = "((tl.program_id(0) * TILES + tile) * XBLOCK + tl.arange(0, XBLOCK)[:, None])"
        yield f"x = {_widened(number, self.stencil.lanes)}"
        yield f"xmask = x < {_size(self.stencil.lanes)}"
        yield f"j = x % {columns}"
        yield f"i = x // {columns} % {rows}"
        yield f"n = x // {columns * rows}"

    def weight(self, k: int, l: int) -> str:
        """Where a tap is in a weight, behind `c *`."""
        channel, down, along = self.stencil.weight
        return f"{channel} + {k * down + l * along}"

    @staticmethod
    def first(pointer: str, strides: tuple[int, ...], down: int, along: int) -> str:
        """Where a lane's elements of an image begin, which are so far from those of the lane before."""
        number, channel, row, column = strides
        return f"{pointer} + (n * {number} + c * {channel} + i * {down * row} + j * {along * column})"

    def neighbours(self, letter: str) -> Iterator[tuple[list[str], int, str]]:
        """Those of a lane that lie together: names, where they are from the first, and whether they are there."""
        rows, columns, (*_, down, along) = self.stencil.rows, self.stencil.columns, self.stencil.other
        for j in range(rows.made):
            for run in _runs(range(columns.made), self.is_paired(self.stencil.other, columns.length, columns.made)):
                mask = _all(self.live, rows.is_made(j, "i"), columns.is_made(run[0], "j"))
                yield [f"{letter}{j}_{l}" for l in run], j * down + run[0] * along, mask

    def stores(self) -> Iterator[str]:
        for names, at, mask in self.neighbours("a"):
            if len(names) == 1:
                yield _stored(f"target + {at}", names[0], mask)
            else:
                both = f"tl.reshape(tl.join({', '.join(names)}), [XBLOCK, 2])"
                yield _stored(f"target + {at} + {PAIR}", both, mask)

    def products(self, statement: str) -> Iterator[str]:
        """Each element of the operand, `v`, and all that it is a factor of: the neighbour and the tap of each."""
        rows, columns, (*_, down, along) = self.stencil.rows, self.stencil.columns, self.stencil.operand
        yield f"source = {self.first('p0', self.stencil.operand, rows.moved, columns.moved)}"
        conditions = {row: rows.inside(row, "i") for row in rows.elements}
        names = {row: f"row{n}" if text else "" for n, (row, text) in enumerate(conditions.items())}
        yield from (f"{names[row]} = {text}" for row, text in conditions.items() if text)
        for run in _runs(columns.elements, self.is_paired(self.stencil.operand, columns.size, columns.moved)):
            yield f"inside = {_all(self.live, columns.inside(run[0], 'j'))}"
            values = [f"v{n}" for n in range(len(run))]
            for row in rows.elements:
                yield from _load(values, f"source + {row * down + run[0] * along}", _all("inside", names[row]))
                for value, column in zip(values, run, strict=True):
                    for (j, k, at), (l, m, place) in product(rows.taps, columns.taps):
                        if (at, place) == (row, column):
                            yield statement.format(value, j, l, k, m)

    def is_paired(self, strides: tuple[int, ...], size: int, moved: int) -> bool:
        """Whether elements at even columns lie at even places, with the next ones of the row beside them."""
        *others, along = strides
        return along == 1 and size % 2 == moved % 2 == 0 and all(step % 2 == 0 for step in others)


PAIR = "tl.arange(0, 2)[None, :]"


def _runs(places: Iterable[int], are_paired: bool) -> list[list[int]]:
    """Places of elements that are loaded or stored together."""
    runs: list[list[int]] = []
    for place in places:
        if are_paired and place % 2 == 1 and runs and runs[-1] == [place - 1]:
            runs[-1].append(place)
        else:
            runs.append([place])
    return runs


def _load(names: list[str], pointer: str, mask: str) -> Iterator[str]:
    """Load an element, or two beside each other."""
    if len(names) == 1:
        yield f"{names[0]} = {_loaded(pointer, mask)}"
    else:
        both = _loaded(f"{pointer} + {PAIR}", mask)
        yield f"{', '.join(names)} = tl.split(tl.reshape({both}, [XBLOCK, 1, 2]))"


def _all(*conditions: str) -> str:
    return " & ".join(filter(None, conditions))


def _loaded(pointer: str, mask: str) -> str:
    return f"tl.load({pointer}{f', {mask}, other=0' if mask else ''}).to(tl.float32)"


def _stored(pointer: str, value: str, mask: str) -> str:
    return f"tl.store({pointer}, {value}{f', {mask}' if mask else ''})"


def _size(size: Dim) -> str:
    """A number, or the argument that is a size."""
    return str(size) if isinstance(size, int) else "n0"


def _widened(index: str, size: Dim) -> str:
    """An index of a kernel that a size is an argument of, in as many bits as `WIDE` says."""
    return index if isinstance(size, int) else f"({index}.to(tl.int64) if WIDE else {index})"


def _function(
    name: str, buffers: int, size: Dim, before: Iterable[str], loop: Iterable[str] = (), after: Iterable[str] = ()
) -> str:
    """What is computed before, for and after the tiles of a program."""
    constants = CONSTANTS if isinstance(size, int) else ("WIDE", *CONSTANTS)
    given = [*(f"p{n}" for n in range(buffers)), *(["n0"] if not isinstance(size, int) else [])]
    looped = [f"        {line}" for line in loop]
    lines = [
        *(f"    {line}" for line in before),
        *(["    for tile in range(TILES):", *looped] if looped else []),
        *(f"    {line}" for line in after),
    ]
    return function_text(name, lines, [*given, *constants])
