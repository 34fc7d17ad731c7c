"""The loops that are emitted are loops that gcc turns into vectors, for each instruction set: its own report says so.

Nothing that is compiled here is run: the host may lack the instructions.
"""

import platform
import re
import shutil
import subprocess

import pytest

from codegen.cpp.compiler import Compiler, vector_math
from codegen.cpp.emit import emit_unit
from codegen.cpp.target import Isa, Target
from codegen.cpp.tuning import TUNED
from stagewire.graph import Ref
from stagewire.loop import Axis, AxisAtom, Buffer, Compute, Index, Kernel, Load, LoopGraph, Reduce, Section, Store, Term
from stagewire.types import contiguous

ROWS, SIZE = 8, 4096
DTYPES = ("float32", "float64", "bfloat16", "float16", "int64", "int32", "uint8", "bool")
UNARY = """neg abs sign ceil floor round trunc exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tanh
           erf sigmoid isnan isinf logical_not""".split()  # noqa: SIM905
BINARY = """add sub mul div pow maximum minimum fmax fmin eq lt logical_and copysign""".split()  # noqa: SIM905
LIBRARY = "exp log sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc lgamma".split()  # noqa: SIM905
SCALAR = {("lgamma", "float64"), ("fmod", "float64"), ("remainder", "float64")}
FROM_INT64 = {f"int64_to_{dtype}" for dtype in ("float32", "float64", "bfloat16", "float16")}
SCALAR_AT: dict[Isa, set[str]] = {
    # Before AVX-512DQ, 64-bit integers become floats one by one; before AVX2, lanes are all shifted by the same count
    # (sin and cos of large arguments).
    "x86-64-v2": FROM_INT64 | {f"{op}_{dtype}" for op in ("sin", "cos") for dtype in ("float32", "bfloat16")},
    "x86-64-v3": FROM_INT64,
    "x86-64-v4": set(),
}
"""Kernels whose loops have no vector form in an instruction set."""
CALLED = "exp exp2 expm1 log log2 log10 log1p sin cos tanh erf sigmoid".split()  # noqa: SIM905
COMPARING = ("isnan", "isinf", "logical_not", "eq", "lt", "logical_and")
REDUCTIONS = ("sum", "max", "min", "any", "all", "argmax", "argmin", "welford")


def at(*names: str) -> Index:
    terms = zip((SIZE, 1)[-len(names) :], names, strict=True)
    return Index(0, tuple(Term(step, AxisAtom(name)) for step, name in terms))


def pointwise(name: str, op: str, dtypes: tuple[str, ...], result: str) -> tuple[Kernel, list[Buffer]]:
    loads = tuple(Load(f"v{k}", f"{name}_x{k}", at("i"), dtype) for k, dtype in enumerate(dtypes))
    value = Compute("w", op, tuple(Ref(f"v{k}") for k in range(len(dtypes))), result)
    kernel = Kernel(name, (Axis("i", SIZE),), (Section((), (*loads, value, Store(f"{name}_y", at("i"), Ref("w")))),))
    inputs = [Buffer(f"{name}_x{k}", contiguous(dtype, (SIZE,)), "input") for k, dtype in enumerate(dtypes)]
    return kernel, [*inputs, Buffer(f"{name}_y", contiguous(result, (SIZE,)), "kernel")]


def chained(name: str, dtype: str) -> tuple[Kernel, list[Buffer]]:
    """Extrema of extrema: conditions that a compiler may make branches of."""
    kernel, buffers = pointwise(name, "maximum", (dtype, dtype), dtype)
    *before, store = kernel.sections[0].statements
    more = (Compute("d", "mul", (Ref("w"), Ref("v0")), dtype), Compute("l", "minimum", (Ref("d"), Ref("v1")), dtype),
            Compute("u", "maximum", (Ref("l"), 0.0), dtype), Compute("m", "fmax", (Ref("u"), Ref("w")), dtype),
            Store(store.buffer, store.index, Ref("m")))  # fmt: skip
    return Kernel(name, kernel.axes, (Section((), (*before, *more)),)), buffers


def repeated(op: str, dtype: str) -> tuple[Kernel, list[Buffer]]:
    """An op in more places than are inlined."""
    name = f"{op}_{dtype}"
    kernel, buffers = pointwise(name, op, (dtype,), dtype)
    load, _, store = kernel.sections[0].statements
    places = range(TUNED.inlined_places + 1)
    chain = [Compute(f"c{k}", op, (Ref(f"c{k - 1}" if k else "v0"),), dtype) for k in places]
    body = (load, *chain, Store(store.buffer, store.index, Ref(chain[-1].result)))
    return Kernel(name, kernel.axes, (Section((), body),)), buffers


def powered(name: str, exponent: float) -> tuple[Kernel, list[Buffer]]:
    """The power with a number, about which a compiler knows more."""
    kernel, buffers = pointwise(name, "pow", ("float32",), "float32")
    load, value, store = kernel.sections[0].statements
    value = Compute(value.result, "pow", (*value.operands, exponent), "float32")
    return Kernel(name, kernel.axes, (Section((), (load, value, store)),)), buffers


def reduction(name: str, kind: str, dtype: str) -> tuple[Kernel, list[Buffer]]:
    result = "int64" if kind.startswith("arg") else dtype
    results = tuple(f"r{k}" for k in range(3 if kind == "welford" else 1))
    row = Index(0, (Term(1, AxisAtom("i")),))
    body = (Load("v", f"{name}_x", at("i", "j"), dtype), Reduce(results, kind, Ref("v"), result))
    sections = (Section((Axis("j", SIZE),), body), Section((), (Store(f"{name}_y", row, Ref("r0")),)))
    buffers = [Buffer(f"{name}_x", contiguous(dtype, (ROWS, SIZE)), "input"),
               Buffer(f"{name}_y", contiguous(result, (ROWS,)), "kernel")]  # fmt: skip
    return Kernel(name, (Axis("i", ROWS),), sections), buffers


def scalar_kernels(kernels: list[tuple[Kernel, list[Buffer]]], target: Target, tmp_path) -> list[str]:
    """The kernels with a loop that gcc left scalar for a target."""
    graph = LoopGraph(
        buffers=tuple(buffer for _, buffers in kernels for buffer in buffers),
        inputs=tuple(b.name for _, buffers in kernels for b in buffers if b.role == "input"),
        outputs=tuple(Ref(b.name) for _, buffers in kernels for b in buffers if b.role == "kernel"),
        steps=tuple(kernel for kernel, _ in kernels),
    )
    source, _, launches, _ = emit_unit(graph, threshold=1 << 60)
    unit = tmp_path / "unit.cpp"
    unit.write_text(source)
    flags = Compiler("g++", "").flags(target)
    command = ["g++", *flags, "-fopt-info-vec", str(unit), "-o", str(tmp_path / "unit.so")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    vectors = {int(line) for line in re.findall(r":(\d+):\d+: optimized: loop vectorized", said)}
    lines = source.splitlines()
    starts = {found[1]: n for n, line in enumerate(lines) if (found := re.match(r'extern "C" void (\w+)\(', line))}
    missing = []
    for kernel, _ in kernels:
        start = starts[launches[kernel.name].kernel]
        end = next(n for n in range(start, len(lines)) if lines[n] == "}")
        loops = [n for n in range(start, end) if "#pragma omp simd" in lines[n]]
        # gcc reports the line of the pragma, of its loop, or of a statement in it
        reported = [any(line - 1 in range(n, n + 20) for line in vectors) for n in loops]
        if not loops or not all(reported):
            missing.append(kernel.name)
    return missing


@pytest.mark.skipif(shutil.which("g++") is None, reason="reads the report of g++")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="g++ for x86-64")
@pytest.mark.parametrize("isa", SCALAR_AT)
@pytest.mark.parametrize("family", ["operations", "library", "powers", "conversions", "reductions", "chains", "calls"])
def test_every_loop_is_vectorised(family, isa, tmp_path):
    match family:
        case "operations":
            kernels = [
                pointwise(f"{op}_{dtype}", op, (dtype,) * count, "bool" if op in COMPARING else dtype)
                for count, ops in ((1, UNARY), (2, BINARY))
                for op in ops
                for dtype in ("float32", "bfloat16")
            ]
        case "library":
            if not vector_math():
                pytest.skip("the C library has no functions of vectors")
            kernels = [
                pointwise(f"{op}_{dtype}", op, (dtype,) * count, dtype)
                for count, ops in ((1, LIBRARY), (2, ("atan2", "hypot", "fmod", "remainder", "nextafter")))
                for op in ops
                for dtype in ("float32", "float64")
                if (op, dtype) not in SCALAR
            ]
        case "powers":
            kernels = [powered(f"power_{number}", exponent) for number, exponent in enumerate((0.75, -1.5, 7.0))]
        case "conversions":
            kernels = [pointwise(f"{a}_to_{b}", "convert", (a,), b) for a in DTYPES for b in DTYPES if a != b]
        case "chains":
            kernels = [chained(f"chained_{dtype}", dtype) for dtype in ("float32", "float64", "bfloat16", "float16")]
        case "calls":
            kernels = [repeated(op, dtype) for op in CALLED for dtype in ("float32", "bfloat16")]
        case "reductions":
            kernels = [reduction(f"{kind}_{dtype}", kind, dtype) for kind in REDUCTIONS
                       for dtype in ("float32", "int64") if (kind, dtype) != ("welford", "int64")]  # fmt: skip
    scalar = scalar_kernels(kernels, Target(isa), tmp_path)
    assert [name for name in scalar if name not in SCALAR_AT[isa]] == []
