"""Loop kernels as functions of LLVM.

Every statement is computed at one point: values are scalars, loops are blocks, accumulators are stack slots. LLVM's
passes make vectors and registers of that. bool is a byte in memory and a bit in a register; float16 computes in float.
"""

from contextlib import ExitStack, contextmanager

from llvmlite import ir

from codegen.errors import UnsupportedKernel
from stagewire import index as ix
from stagewire import loop
from stagewire.expr import Expr
from stagewire.graph import NonFinite, Ref
from stagewire.loop_ops import PREDICATES

LACKS = frozenset((
    "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128", "floor_div", "trunc_div", "remainder", "pow",
    "erfinv", "digamma", "lgamma", "nextafter", "philox", "philox_uniform", "check_range",
    "cumsum", "cumprod", "logcumsumexp", "cummax", "cummin",
))  # fmt: skip
I1, I8, I64, POINTER = ir.IntType(1), ir.IntType(8), ir.IntType(64), ir.PointerType()
FLOAT, DOUBLE = ir.FloatType(), ir.DoubleType()
TYPES = {"float32": FLOAT, "float64": DOUBLE, "float16": ir.HalfType(), "bool": I1}
TYPES |= {f"{sign}int{bits}": ir.IntType(bits) for sign in ("", "u") for bits in (8, 16, 32, 64)}
OUT_OF_RANGE = 1  # of the C interface

INTRINSICS = {"abs": "fabs", "ceil": "ceil", "floor": "floor", "round": "rint", "trunc": "trunc", "sqrt": "sqrt",
              "exp": "exp", "exp2": "exp2", "log": "log", "log2": "log2", "log10": "log10", "sin": "sin", "cos": "cos",
              "copysign": "copysign"}  # fmt: skip
LIBRARY = frozenset((
    "expm1", "log1p", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc",
    "atan2", "hypot", "fmod",
))  # fmt: skip
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
LOGIC = {"logical_and": "and_", "logical_or": "or_", "logical_xor": "xor", "logical_not": "not_"}
ON_BITS = {"bitwise_and": "and_", "bitwise_or": "or_", "bitwise_xor": "xor", "bitwise_not": "not_"}
ON_BOOL = {"add": "or_", "mul": "and_", "sub": "xor"}


def is_float(dtype):
    return dtype.startswith("float")


def is_unsigned(dtype):
    return dtype == "bool" or dtype.startswith("u")


class Number:
    """An integer of the kernel under Python's operators, for `stagewire.index.evaluate`."""

    def __init__(self, builder, value):
        self.builder, self.value = builder, value

    def __add__(self, other):
        return Number(self.builder, self.builder.add(self.value, other.value, flags=("nsw",)))

    def __mul__(self, other):
        return Number(self.builder, self.builder.mul(self.value, other.value, flags=("nsw",)))

    def __floordiv__(self, other):
        rest = (self % other).value
        return Number(self.builder, self.builder.sdiv(self.builder.sub(self.value, rest), other.value))

    def __mod__(self, other):
        b = self.builder
        rest = b.srem(self.value, other.value)
        return Number(b, b.select(b.icmp_signed("<", rest, I64(0)), b.add(rest, other.value), rest))


class KernelWriter:
    """Writes one kernel as a function of `module`.

    buffers: its parameters. sizes: the expressions whose values it is given.
    """

    def __init__(self, module, kernel, buffers, types, sizes):
        self.module, self.kernel, self.types = module, kernel, types
        signature = ir.FunctionType(ir.VoidType(), [POINTER, POINTER, I64, POINTER])
        function = ir.Function(module, signature, kernel.name)
        self.b = ir.IRBuilder(function.append_basic_block("entry"))
        pointers, numbers, _, self.status = function.args
        self.pointers = {name: self.item(pointers, n, POINTER) for n, name in enumerate(buffers)}
        self.sizes = {size: self.item(numbers, n, I64) for n, size in enumerate(sizes)}
        self.values = {}  # name: (value, dtype)
        self.axes = {}

    def item(self, table, number, kind):
        return self.b.load(self.b.gep(table, [I64(number)], source_etype=kind), typ=kind)

    def write(self):
        stores = [(one, section.axes) for section in self.kernel.sections for one in section.statements
                  if isinstance(one, loop.Store) and one.mode == "sum"]  # fmt: skip
        for store, axes in stores:
            with self.loops((*self.kernel.axes, *axes)):
                dtype = self.types[store.buffer].dtype
                self.write_memory(self.place(store), self.constant(0, dtype), dtype)
        with self.loops(self.kernel.axes):
            for section in self.kernel.sections:
                self.section(section)
        self.b.ret_void()

    @contextmanager
    def loops(self, axes):
        with ExitStack() as stack:
            for axis in axes:
                stack.enter_context(self.loop(axis))
            yield

    @contextmanager
    def loop(self, axis):
        b, size, before = self.b, self.size(axis.size).value, self.b.block
        head, body, after = (b.append_basic_block(f"{axis.name}.{part}") for part in ("head", "body", "after"))
        b.branch(head)
        b.position_at_end(head)
        position = b.phi(I64)
        position.add_incoming(I64(0), before)
        b.cbranch(b.icmp_signed("<", position, size), body, after)
        b.position_at_end(body)
        self.axes[axis.name] = Number(b, position)
        yield
        position.add_incoming(b.add(position, I64(1), flags=("nsw", "nuw")), b.block)
        b.branch(head)
        b.position_at_end(after)

    def section(self, section):
        dtypes = {name: dtype for name, (_, dtype) in self.values.items()}
        dtypes |= {one.result: one.dtype for one in section.statements if hasattr(one, "result")}
        found = [one for one in section.statements if isinstance(one, loop.Reduce)]
        reductions = {id(one): Reduction(self, one, dtypes) for one in found}
        with self.loops(section.axes):
            for statement in section.statements:
                if isinstance(statement, loop.Reduce):
                    reductions[id(statement)].add(ix.row_major(section.axes))
                else:
                    self.statement(statement)
        for reduction in reductions.values():
            self.values |= reduction.results()

    def statement(self, statement):
        match statement:
            case loop.Load(result=result, dtype=dtype):
                self.values[result] = self.load(statement, dtype), dtype
            case loop.Store():
                self.store(statement)
            case loop.Compute(result, op, operands, dtype):
                self.values[result] = self.compute(op, operands, dtype), dtype
            case loop.IndexValue(result, index, dtype):
                self.values[result] = self.convert(self.index(index), "int64", dtype), dtype
            case _:
                raise UnsupportedKernel(f"LLVM has no form of {type(statement).__name__} in {self.kernel.name}")

    # ---- indices and memory

    def size(self, size):
        return Number(self.b, self.sizes[size] if isinstance(size, Expr) else I64(size))

    def index(self, index):
        def named(atom):
            if isinstance(atom, loop.AxisAtom):
                return self.axes[atom.name]
            return Number(self.b, self.convert(*self.values[atom.name], "int64"))

        return ix.evaluate(index, named, self.size).value

    def place(self, access):
        dtype = self.types[access.buffer].dtype
        stored = I8 if dtype == "bool" else TYPES[dtype]
        return self.b.gep(self.pointers[access.buffer], [self.index(access.index)], source_etype=stored, inbounds=True)

    def read_memory(self, place, dtype):
        if dtype == "bool":
            return self.b.icmp_unsigned("!=", self.b.load(place, typ=I8), I8(0))
        return self.b.load(place, typ=TYPES[dtype])

    def write_memory(self, place, value, dtype):
        self.b.store(self.b.zext(value, I8) if dtype == "bool" else value, place)

    def load(self, load, dtype):
        if load.mask is None:
            return self.read_memory(self.place(load), dtype)
        other, before = self.operand(load.other, dtype), self.b.block
        with self.b.if_then(self.values[load.mask.name][0]):
            found, inside = self.read_memory(self.place(load), dtype), self.b.block
        value = self.b.phi(TYPES[dtype])
        value.add_incoming(other, before)
        value.add_incoming(found, inside)
        return value

    def store(self, store):
        dtype = self.types[store.buffer].dtype
        with ExitStack() as stack:
            if store.mask is not None:
                stack.enter_context(self.b.if_then(self.values[store.mask.name][0]))
            place, value = self.place(store), self.operand(store.value, dtype)
            if store.mode != "set":
                value = self.arithmetic("add", [self.read_memory(place, dtype), value], dtype)
            self.write_memory(place, value, dtype)

    # ---- values

    def constant(self, number, dtype):
        number = float(number.text) if isinstance(number, NonFinite) else number
        return TYPES[dtype](float(number) if is_float(dtype) else int(number))

    def operand(self, operand, dtype):
        """An operand in `dtype`."""
        known = isinstance(operand, Ref)
        return self.convert(*self.values[operand.name], dtype) if known else self.constant(operand, dtype)

    def dtype_of(self, operands, dtype):
        """That of the first operand that is a value."""
        return next((self.values[one.name][1] for one in operands if isinstance(one, Ref)), dtype)

    def slot(self, value):
        """A variable that starts as `value`."""
        with self.b.goto_entry_block():
            place = self.b.alloca(value.type)
        self.b.store(value, place)
        return place

    def convert(self, value, source, target):
        b, kind = self.b, TYPES[target]
        if source == target:
            return value
        if target == "bool":
            zero = self.constant(0, source)
            return b.fcmp_unordered("!=", value, zero) if is_float(source) else b.icmp_signed("!=", value, zero)
        if is_float(target) and is_float(source):
            order = ("float16", "float32", "float64")
            return (b.fpext if order.index(source) < order.index(target) else b.fptrunc)(value, kind)
        if is_float(target):
            return (b.uitofp if is_unsigned(source) else b.sitofp)(value, kind)
        if is_float(source):
            wide = b.fptoui(value, I64) if target == "uint64" else b.fptosi(value, I64)
            return wide if kind == I64 else b.trunc(wide, kind)
        if value.type.width >= kind.width:
            return value if value.type.width == kind.width else b.trunc(value, kind)
        return (b.zext if is_unsigned(source) else b.sext)(value, kind)

    def compute(self, op, operands, dtype):
        if op in ("convert", "bitcast"):
            source = self.dtype_of(operands, dtype)
            value = self.operand(operands[0], source)
            return self.convert(value, source, dtype) if op == "convert" else self.b.bitcast(value, TYPES[dtype])
        if op == "where":
            return self.b.select(self.operand(operands[0], "bool"), *(self.operand(o, dtype) for o in operands[1:]))
        if op in ("check_index", "wrap_index"):
            return self.convert(self.checked(op, *(self.operand(o, "int64") for o in operands)), "int64", dtype)
        known = self.dtype_of(operands, dtype)
        computed = "float32" if known == "float16" else known
        values = [self.convert(self.operand(one, known), known, computed) for one in operands]
        return self.convert(self.arithmetic(op, values, computed), "bool" if op in PREDICATES else computed, dtype)

    def checked(self, op, index, size):
        b = self.b
        if op == "wrap_index":
            index = b.select(b.icmp_signed("<", index, I64(0)), b.add(index, size), index)
        inside = b.icmp_unsigned("<", index, size)
        with b.if_then(b.not_(inside), likely=False):
            b.store(b.or_(b.load(self.status, typ=I64), I64(OUT_OF_RANGE)), self.status)
        return b.select(inside, index, I64(0))

    def arithmetic(self, op, values, dtype):
        """op on values of one dtype; the result has it, or is a bool."""
        if op in COMPARISONS:
            return self.compare(op, values, dtype)
        if op in LOGIC:
            return getattr(self.b, LOGIC[op])(*(self.convert(value, dtype, "bool") for value in values))
        return (self.of_floats if is_float(dtype) else self.of_integers)(op, values, dtype)

    def compare(self, op, values, dtype):
        b = self.b
        if is_float(dtype):
            return (b.fcmp_unordered if op == "ne" else b.fcmp_ordered)(COMPARISONS[op], *values)
        return (b.icmp_unsigned if is_unsigned(dtype) else b.icmp_signed)(COMPARISONS[op], *values)

    def call(self, name, values):
        """A function of libm, or an intrinsic, on values of one type."""
        kind, known = values[0].type, self.module.globals.get(name)
        return self.b.call(known or ir.Function(self.module, ir.FunctionType(kind, [kind] * len(values)), name), values)

    def of_floats(self, op, values, dtype):
        b, kind, a, c = self.b, TYPES[dtype], values[0], values[-1]
        if op in INTRINSICS:
            return self.call(f"llvm.{INTRINSICS[op]}.{'f32' if dtype == 'float32' else 'f64'}", values)
        if op in LIBRARY:
            return self.call(op + ("f" if dtype == "float32" else ""), values)
        match op:
            case "add" | "sub" | "mul" | "div":
                return getattr(b, f"f{op}")(a, c)
            case "neg":
                return b.fneg(a)
            case "fma":
                return b.fadd(b.fmul(a, values[1]), c)
            case "reciprocal":
                return b.fdiv(kind(1.0), a)
            case "rsqrt":
                return b.fdiv(kind(1.0), self.of_floats("sqrt", [a], dtype))
            case "sigmoid":
                return b.fdiv(kind(1.0), b.fadd(kind(1.0), self.of_floats("exp", [b.fneg(a)], dtype)))
            case "sign":
                negative = b.select(b.fcmp_ordered("<", a, kind(0.0)), kind(-1.0), kind(0.0))
                return b.select(b.fcmp_ordered(">", a, kind(0.0)), kind(1.0), negative)
            case "maximum" | "minimum":  # nan if either is
                first = b.fcmp_ordered(">=" if op == "maximum" else "<=", a, c)
                return b.select(b.or_(first, b.fcmp_unordered("uno", a, a)), a, c)
            case "fmax" | "fmin":
                second = b.select(b.fcmp_ordered("<" if op == "fmax" else ">", a, c), c, a)
                return b.select(b.fcmp_unordered("uno", a, a), c, second)
            case "isnan":
                return b.fcmp_unordered("uno", a, a)
            case "isinf":
                return b.fcmp_ordered("==", self.of_floats("abs", [a], dtype), kind(float("inf")))
            case "signbit":
                bits = ir.IntType(32 if dtype == "float32" else 64)
                return b.icmp_signed("<", b.bitcast(a, bits), bits(0))
        raise UnsupportedKernel(f"LLVM has no form of {op} on {dtype}")

    def of_integers(self, op, values, dtype):
        b, kind, a, c = self.b, TYPES[dtype], values[0], values[-1]
        unsigned, is_bool = is_unsigned(dtype), dtype == "bool"
        if op in ON_BITS or (is_bool and op in ON_BOOL):
            return getattr(b, ON_BITS.get(op) or ON_BOOL[op])(*values)
        match op:
            case "add" | "sub" | "mul":
                return getattr(b, op)(a, c)
            case "fma":
                return self.arithmetic("add", [self.arithmetic("mul", values[:2], dtype), c], dtype)
            case "neg":
                return b.neg(a)
            case "abs":
                return a if unsigned else b.select(b.icmp_signed("<", a, kind(0)), b.neg(a), a)
            case "sign":
                positive = b.zext(b.icmp_signed(">", a, kind(0)), kind) if not is_bool else a
                nonzero = b.icmp_signed("!=", a, kind(0))
                if unsigned:
                    return a if is_bool else b.zext(nonzero, kind)
                return b.select(b.icmp_signed("<", a, kind(0)), kind(-1), positive)
            case "ceil" | "floor" | "round" | "trunc":
                return a
            case "isnan" | "isinf":
                return I1(0)
            case "signbit":
                return I1(0) if unsigned else b.icmp_signed("<", a, kind(0))
            case "maximum" | "fmax" | "minimum" | "fmin":
                return b.select(self.compare("gt" if op in ("maximum", "fmax") else "lt", [a, c], dtype), a, c)
            case "shift_left" | "shift_right":
                inside = b.icmp_unsigned("<", c, kind(kind.width))
                amount = b.select(inside, c, kind(0))
                if op == "shift_left":
                    return b.select(inside, b.shl(a, amount), kind(0))
                outside = kind(0) if unsigned else b.ashr(a, kind(kind.width - 1))
                return b.select(inside, (b.lshr if unsigned else b.ashr)(a, amount), outside)
        raise UnsupportedKernel(f"LLVM has no form of {op} on {dtype}")


class Reduction:
    """The variables of one reduction at one outer point. Sums of floats are in double, in any order.

    dtypes: those of values, by name.
    """

    def __init__(self, writer, reduce, dtypes):
        self.writer, self.reduce, self.kind = writer, reduce, reduce.reduction
        self.positions = self.kind.startswith("arg")
        dtype = dtypes.get(getattr(reduce.operand, "name", ""), reduce.dtype) if self.positions else reduce.dtype
        sums = self.kind in ("sum", "prod", "welford")
        self.dtype = "float64" if is_float(dtype) and sums else dtype
        extreme = self.kind.removeprefix("arg")
        start = limit(self.dtype, extreme) if extreme in ("max", "min") else int(self.kind in ("prod", "all"))
        self.slots = [writer.slot(writer.constant(start, self.dtype))]
        self.slots += [writer.slot(DOUBLE(0.0)) for _ in range(2 * (self.kind == "welford"))]
        self.slots += [writer.slot(I64(0)), writer.slot(I1(0))] if self.positions else []

    def add(self, position):
        w, b = self.writer, self.writer.b
        value = w.operand(self.reduce.operand, self.dtype)
        old = b.load(self.slots[0], typ=TYPES[self.dtype])
        flags = ("reassoc", "contract")
        match self.kind:
            case "sum" | "prod" | "welford":
                op = "mul" if self.kind == "prod" else "add"
                new = (
                    getattr(b, f"f{op}")(old, value, flags=flags)
                    if is_float(self.dtype)
                    else getattr(b, op)(old, value)
                )
                more = (b.fmul(value, value), DOUBLE(1.0)) if self.kind == "welford" else ()
                for slot, term in zip(self.slots[1:], more, strict=False):
                    b.store(b.fadd(b.load(slot, typ=DOUBLE), term, flags=flags), slot)
            case "xor_sum":
                new = b.xor(old, value)
            case "any" | "all":
                new = (b.or_ if self.kind == "any" else b.and_)(old, value)
            case "max" | "min":
                new = w.arithmetic(f"{self.kind}imum", [old, value], self.dtype)
            case _:
                new = self.best(old, value, w.index(position))
        b.store(new, self.slots[0])

    def best(self, old, value, position):
        """The extreme so far, and its position: the first of equals, the first nan before all."""
        w, b = self.writer, self.writer.b
        better = w.compare("gt" if self.kind == "argmax" else "lt", [value, old], self.dtype)
        if is_float(self.dtype):
            nan, had = (b.fcmp_unordered("uno", one, one) for one in (value, old))
            better = b.and_(b.or_(better, nan), b.not_(had))
        better = b.or_(better, b.not_(b.load(self.slots[2], typ=I1)))
        b.store(b.select(better, position, b.load(self.slots[1], typ=I64)), self.slots[1])
        b.store(I1(1), self.slots[2])
        return b.select(better, value, old)

    def results(self):
        """The values by name, behind the loops."""
        w, b, dtype = self.writer, self.writer.b, self.dtype
        if self.positions:
            found, dtype = [b.load(self.slots[1], typ=I64)], "int64"
        else:
            found = [b.load(slot, typ=TYPES[dtype]) for slot in self.slots]
        if self.kind == "welford":
            total, squares, count = found
            mean = b.fdiv(total, count)
            rest = b.fsub(squares, b.fmul(total, mean))
            found = [mean, w.arithmetic("maximum", [rest, DOUBLE(0.0)], dtype), count]
        stated = self.reduce.dtype
        values = [(w.convert(one, dtype, stated), stated) for one in found]
        return dict(zip(self.reduce.results, values, strict=True))


def limit(dtype, extreme):
    """What every value is at least ("max": where its maximum starts), or at most."""
    if is_float(dtype):
        return float("-inf" if extreme == "max" else "inf")
    bits = TYPES[dtype].width - (not is_unsigned(dtype))
    low = 0 if is_unsigned(dtype) else -(2**bits)
    return low if extreme == "max" else 2**bits - 1
