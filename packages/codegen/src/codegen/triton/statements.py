"""Statements and indices of loops as lines of a Triton function, over points [x, r].

Values vary along x, r, both or neither: [XBLOCK, 1], [1, RBLOCK], [XBLOCK, RBLOCK] or one number; Triton broadcasts.
xmask and rmask say which points are inside of the loops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from codegen.errors import UnsupportedKernel
from codegen.triton.expressions import TYPES, expression, literal
from codegen.triton.strength_reduction import Cheaper
from stagewire import loop
from stagewire.expr import Dim, Expr
from stagewire.graph import Ref
from stagewire.index import axes_of, is_plain, steps, values_of
from stagewire.literals import HALVES
from stagewire.statements import results, used_values
from stagewire.types import TensorType


def dtypes_of(statements: tuple[loop.Statement, ...]) -> dict[str, str]:
    """The dtype of every value that statements define."""
    return {result: s.dtype for s in statements for result in results(s)}  # type: ignore[union-attr]


COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})


def compared_of(statements: tuple[loop.Statement, ...]) -> frozenset[str]:
    """Values that are only compared: the bits of an index are enough for these."""
    found = {s.result for s in statements if isinstance(s, loop.IndexValue) and s.dtype == "int64"}
    return _only_used(found, statements, lambda user: user.op in COMPARISONS)


def widened_of(statements: tuple[loop.Statement, ...]) -> frozenset[str]:
    """Values of half precision that are loaded, and only used in float32."""
    found = {s.result for s in statements if isinstance(s, loop.Load) and s.dtype in HALVES}
    return _only_used(found, statements, lambda user: (user.op, user.dtype) == ("convert", "float32"))


def _only_used(
    values: set[str], statements: tuple[loop.Statement, ...], so: Callable[[loop.Compute], bool]
) -> frozenset[str]:
    """Those values that only operations use of which `so` is true."""
    others = [s for s in statements if not (isinstance(s, loop.Compute) and so(s))]
    return frozenset(values.difference(*map(used_values, others)))


@dataclass
class StatementEmitter:
    """A function whose parameters are buffers and sizes, line by line.

    names: what each axis and value is called there; spread: which of "x" and "r" it varies along; dtypes: of values.
    values: buffers whose only element, an int64, is the argument instead of the address. places: of the values that are
    indices. sizes: symbolic sizes, which are arguments. wide: whether indices take 64 bits; None where WIDE says so.
    compared: the values of indices that are only compared. cheaper: what has a cheaper form.
    full: the directions along which every point of every tile is inside of the loops: no mask is needed for them.
    suffix: what the names of values end with, where the same statements are written more than once. made: how many
    values have been named. ahead: of axes, the name of another point and by how much this one is ahead of it.
    """

    parameters: tuple[str, ...]
    types: Mapping[str, TensorType]
    lines: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    spread: dict[str, frozenset[str]] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    values: frozenset[str] = frozenset()
    places: dict[str, loop.Index] = field(default_factory=dict)
    sizes: dict[Expr, str] = field(default_factory=dict)
    indent: str = "    "
    wide: bool | None = False
    full: frozenset[str] = frozenset()
    compared: frozenset[str] = frozenset()
    cheaper: Cheaper = field(default_factory=Cheaper)
    suffix: str = ""
    ahead: dict[str, tuple[str, int]] = field(default_factory=dict)
    made: int = 0

    def __post_init__(self) -> None:
        self.pointer = {name: f"p{i}" for i, name in enumerate(self.parameters)}

    def dim(self, dim: Dim) -> str:
        """A number, or the argument that is a size."""
        return str(dim) if isinstance(dim, int) else self.sizes.setdefault(dim, f"n{len(self.sizes)}")

    def widened(self, text: str) -> str:
        """A value of 32 bits in as many as the indices of the kernel take."""
        if self.wide is None:
            return f"({text}.to(tl.int64) if WIDE else {text})"
        return f"{text}.to(tl.int64)" if self.wide else text

    @property
    def index_type(self) -> str:
        """The type that indices have."""
        if self.wide is None:
            return "tl.int64 if WIDE else tl.int32"
        return "tl.int64" if self.wide else "tl.int32"

    def put(self, line: str) -> None:
        self.lines.append(self.indent + line)

    def split(self, flat: str, axes: tuple[loop.Axis, ...], along: frozenset[str] | None = None) -> None:
        """The value of each axis out of the flattened index, innermost fastest. along: if that is not `flat` itself."""
        step: Dim = 1
        for position, axis in reversed(list(enumerate(axes))):
            text = flat if step == 1 else f"{flat} // {self.dim(step)}"
            if position > 0:
                text = f"({text}) % {self.dim(axis.size)}"
            self.names[axis.name] = name = f"{flat}{position}"
            self.spread[axis.name] = frozenset(flat) if along is None else along
            self.put(f"{name} = {text}")
            step = step * (axis.size if axis.size != 0 else 1)

    def statements(self, statements: tuple[loop.Statement, ...], scope: frozenset[str]) -> None:
        for statement in statements:
            match statement:
                case loop.Load():
                    self.load(statement)
                case loop.Store():
                    self.store(statement, scope)
                case loop.Compute(result, "philox", operands):
                    self.philox(result, operands)
                case loop.Compute(result, op, operands, dtype):
                    source = self.source_dtype(statement)
                    texts = [
                        self.operand(o, "bool" if op == "where" and i == 0 else source) for i, o in enumerate(operands)
                    ]
                    along = frozenset().union(*(self.spread[o.name] for o in operands if isinstance(o, Ref)))
                    self.define(result, self.form(statement, texts) or expression(op, texts, source, dtype), along)
                case loop.IndexValue(result, index, dtype):
                    self.places[result] = index
                    kind = TYPES[dtype] if result not in self.compared else self.index_type
                    text = f"({self.index(index)} + tl.zeros([1, 1], {kind}))"
                    self.define(result, text, self.index_spread(index))
                case loop.Reduce():
                    pass  # folded after the section's points
                case loop.Scan():
                    self.scan(statement)

    def form(self, statement: loop.Compute, operands: list[str]) -> str | None:
        """A cheaper form of an operation; None if there is none."""
        return self.cheaper.form(statement, operands)

    def source_dtype(self, statement: loop.Compute) -> str:
        """The dtype that the tensor operands of a statement have (that of the result if all are literals)."""
        considered = statement.operands[1:] if statement.op == "where" else statement.operands
        return next((self.dtypes[o.name] for o in considered if isinstance(o, Ref)), statement.dtype)

    def define(self, result: str, text: str, along: frozenset[str]) -> None:
        name = self.names[result] = f"v{self.made}{self.suffix}"
        self.made += 1
        self.spread[result] = along
        self.put(f"{name} = {text}")

    def operand(self, operand: object, dtype: str) -> str:
        return self.names[operand.name] if isinstance(operand, Ref) else literal(operand, dtype)

    def load(self, statement: loop.Load, hint: str = "") -> None:
        """Read only as many points as the index (and the mask) varies along: a row vector is loaded as a row.

        hint: an argument that says how long the cache is to keep what is loaded; "" if it may do as it likes.
        """
        if statement.buffer in self.values:
            self.define(statement.result, self.given(statement.buffer), frozenset())
            return
        along = self.index_spread(statement.index)
        pointer = self.address(statement)
        mask = self.bounds(along)
        if statement.mask is not None:
            wanted = self.spread[statement.mask.name]
            mask = " & ".join(filter(None, (self.bounds(along | wanted), self.names[statement.mask.name])))
            if not wanted <= along or not along:
                along |= wanted
                pointer += f" + tl.zeros({_shape(along)}, tl.int32)"
        spread = self.as_tile(statement, along)
        if spread != along:
            across = "[XBLOCK, 1]" if "x" in spread - along else "[1, RBLOCK]"
            along, pointer = spread, f"{pointer} + tl.zeros({across}, tl.int32)"
        value = f"tl.load({pointer}, {mask}, other=0{hint})" if mask else f"tl.load({pointer}{hint})"
        if not along:  # one number is a tile of one, too: Triton's interpreter mixes the two badly
            value = f"tl.broadcast_to({value}, [1, 1])"
        if self.types[statement.buffer].dtype == "bool":
            value = f"({value} != 0)"
        if statement.mask is not None and statement.other != 0:
            other = self.operand(statement.other, statement.dtype)
            value = f"tl.where({self.names[statement.mask.name]}, {value}, {other})"
        self.define(statement.result, value, along)

    def given(self, buffer: str) -> str:
        """A number that the kernel takes by value, as a tile of one."""
        dtype = self.types[buffer].dtype
        if dtype == "float64":  # its bits
            return f"tl.full([1, 1], {self.pointer[buffer]}, tl.int64).to(tl.float64, bitcast=True)"
        return f"tl.full([1, 1], {self.pointer[buffer]}, {TYPES[dtype]})"

    def as_tile(self, statement: loop.Load, along: frozenset[str]) -> frozenset[str]:
        """The directions along which a value is loaded, which varies along some of them."""
        return along

    def store(self, statement: loop.Store, scope: frozenset[str], hint: str = "") -> None:
        """Write at all points. hint: as of what is loaded; none of what is added."""
        shape, mask = _shape(scope), self.bounds(scope)
        if statement.mask is not None:
            mask = " & ".join(filter(None, (mask, self.names[statement.mask.name])))
        value = self.operand(statement.value, self.types[statement.buffer].dtype)
        pointer = self.address(statement)
        if self.index_spread(statement.index) != scope:
            pointer += f" + tl.zeros({shape}, tl.int32)"
        call, hint = ("atomic_add", "") if statement.mode == "atomic_add" else ("store", hint)
        self.put(f"tl.{call}({pointer}, tl.broadcast_to({value}, {shape}){', ' + mask if mask else ''}{hint})")

    def scan(self, statement: loop.Scan) -> None:
        """What only a function whose tiles run along the section's axes can do."""
        raise UnsupportedKernel(f"a scan of %{statement.result} outside of a loop kernel")

    def philox(self, result: str, operands: tuple[loop.Operand, ...]) -> None:
        """Random numbers: seed, offset, element, threads, width."""
        seed, offset, element, threads, width = operands
        place = self.places[element.name] if isinstance(element, Ref) else loop.Index(element)  # type: ignore[arg-type]
        state = f"{self.operand(seed, 'int64')}, {self.operand(offset, 'int64')}"
        self.define(result, self.drawn(state, place, f"{threads}, {width}"), self.index_spread(place))

    def drawn(self, state: str, place: loop.Index, sharing: str) -> str:
        """The random numbers of the elements at `place`. sharing: "threads, width"."""
        return f"philox_each({state}, {self.index(place)} + tl.zeros([1, 1], tl.int32), {sharing})"

    def bounds(self, along: frozenset[str]) -> str:
        """The mask of the points inside the loops, for a value that varies along these directions; "" if all are."""
        return " & ".join(f"{direction}mask" for direction in sorted(along - self.full, reverse=True))

    # indices

    def address(self, statement: loop.Load | loop.Store) -> str:
        """Where a statement reads or writes. Points that are ahead of another by a number share most of it."""
        plain = steps(statement.index) if is_plain(statement.index) else {}  # not what a quotient is made of
        shared = {name: step for name, step in plain.items() if name in self.ahead and isinstance(step, int)}
        names, self.names = self.names, self.names | {name: self.ahead[name][0] for name in shared}
        near = f"{self.pointer[statement.buffer]} + ({self.index(statement.index)})"
        self.names = names
        further = sum(step * self.ahead[name][1] for name, step in shared.items())
        return f"{near} + {further}" if further else near

    def index(self, index: loop.Index) -> str:
        parts = [self.dim(index.constant)] if index.constant != 0 or not index.terms else []
        for term in index.terms:
            atom = self.atom(term.atom)
            parts.append(atom if term.coefficient == 1 else f"{self.dim(term.coefficient)} * {atom}")
        return " + ".join(parts)

    def atom(self, atom: object) -> str:
        match atom:
            case loop.AxisAtom(name) | loop.ValueAtom(name):
                return self.names[name]
            case loop.FloorDivAtom(numerator, divisor):
                return f"(({self.index(numerator)}) // {self.dim(divisor)})"
            case loop.ModAtom(numerator, divisor):
                return f"(({self.index(numerator)}) % {self.dim(divisor)})"
        raise UnsupportedKernel(f"index atom {atom!r}")

    def index_spread(self, index: loop.Index) -> frozenset[str]:
        """Which of "x" and "r" an index varies along."""
        return frozenset().union(*(self.spread[name] for name in axes_of(index) | values_of(index)))


def _shape(along: frozenset[str]) -> str:
    return f"[{'XBLOCK' if 'x' in along else '1'}, {'RBLOCK' if 'r' in along else '1'}]"
