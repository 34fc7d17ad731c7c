"""Units in the last place of the float32 functions, against float64, over all exponents and near the hard points."""

import msgspec
import numpy as np
import pytest
import torch
from msgspec.structs import replace

from codegen import Options, load
from codegen.cpp.tuning import TUNED
from codegen.stage import emit
from stagewire.graph import Ref
from stagewire.loop import Axis, AxisAtom, Buffer, Compute, Index, Kernel, Load, LoopGraph, Section, Store, Term
from stagewire.types import contiguous

ULPS = {
    "exp": 1.0, "exp2": 1.5, "expm1": 2.0, "log": 1.0, "log2": 1.5, "log10": 2.0, "log1p": 1.5, "sin": 1.0, "cos": 1.0,
    "tanh": 2.5, "erf": 1.5, "sigmoid": 2.5, "rsqrt": 1.5, "erfinv": 1.5, "digamma": 1.0,
    "lgamma": 1.0, "erfc": 4.0, "tan": 4.0, "asin": 4.0, "acos": 4.0, "atan": 4.0, "sinh": 4.0, "cosh": 4.0,
    "asinh": 4.0, "acosh": 4.0, "atanh": 4.0,
}  # fmt: skip
"""The accuracy that the README states."""

REFERENCE = {name: getattr(torch, name) for name in ULPS}


def sweep() -> torch.Tensor:
    """Random significands at every exponent and sign, plus dense samples of the usual range and special values."""
    generator = np.random.default_rng(0)
    bits = (generator.integers(0, 1 << 23, (255, 400)) | (np.arange(255)[:, None] << 23)).astype(np.uint32).ravel()
    every = np.concatenate([bits, bits | np.uint32(1 << 31)]).view(np.float32)
    dense = np.concatenate([generator.uniform(-110, 110, 100_000), generator.normal(0, 1, 100_000)]).astype(np.float32)
    special = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 88.72284, -103.97, 1e-45], np.float32)
    return torch.from_numpy(np.concatenate([every, dense, special]))


def unary_graph(op: str, length: int, dtype: str = "float32") -> LoopGraph:
    type_ = contiguous(dtype, (length,))
    at = Index(0, (Term(1, AxisAtom("i")),))
    body = (Load("v", "x", at, dtype), Compute("w", op, (Ref("v"),), dtype), Store("y", at, Ref("w")))
    kernel = Kernel("kernel", (Axis("i", length),), (Section((), body),))
    buffers = (Buffer("x", type_, "input"), Buffer("y", type_, "kernel"))
    return LoopGraph(buffers=buffers, inputs=("x",), outputs=(Ref("y"),), steps=(kernel,))


def ulps(found: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """|found - exact| in units of the last place of the exact value as a float32 (denormals count as 2**-149)."""
    rounded = exact.to(torch.float32)
    exponents = torch.frexp(rounded.double().abs()).exponent - 24
    unit = torch.ldexp(torch.ones(exponents.shape, dtype=torch.float64), exponents)
    unit = torch.clamp(unit, min=2.0**-149)
    return torch.where(found == rounded, 0.0, (found.double() - exact).abs() / unit)


@pytest.mark.parametrize("op", ULPS)
def test_ulps(op, directory):
    x = sweep()
    if op == "digamma":
        x = x[(x > 0.01) & (x < 1e30) & ((x - 1.4616321).abs() > 0.01)]  # relative error is unbounded at the zeros
    (found,) = load(emit(unary_graph(op, x.numel()), Options()), directory)(x)
    exact = REFERENCE[op](x.double())
    rounded = exact.to(torch.float32)
    assert torch.equal(found.isnan(), rounded.isnan())
    finite = ~rounded.isnan()
    overflow = finite & rounded.isinf()
    assert torch.equal(found[overflow], rounded[overflow])
    usual = finite & ~overflow
    error = ulps(found[usual], exact[usual])
    worst = error.argmax()
    assert error[worst] <= ULPS[op], (op, x[usual][worst].item(), error[worst].item())


def binary_graph(op: str, length: int, dtype: str) -> LoopGraph:
    type_ = contiguous(dtype, (length,))
    at = Index(0, (Term(1, AxisAtom("i")),))
    loads = (Load("a", "x", at, dtype), Load("b", "y", at, dtype))
    body = (*loads, Compute("c", op, (Ref("a"), Ref("b")), dtype), Store("z", at, Ref("c")))
    kernel = Kernel("kernel", (Axis("i", length),), (Section((), body),))
    buffers = (Buffer("x", type_, "input"), Buffer("y", type_, "input"), Buffer("z", type_, "kernel"))
    return LoopGraph(buffers=buffers, inputs=("x", "y"), outputs=(Ref("z"),), steps=(kernel,))


def exact_fmod(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """In float64, which is exact (eager's float32 is nan for the largest quotients)."""
    return torch.fmod(x.double(), y.double()).to(x.dtype)


def exact_remainder(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    rest = exact_fmod(x, y)
    return torch.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


PAIRS = {
    "fmod": (exact_fmod, 0.0), "remainder": (exact_remainder, 0.0), "nextafter": (torch.nextafter, 0.0),
    "floor_div": (lambda a, b: torch.div(a, b, rounding_mode="floor"), 0.0),
    "atan2": (torch.atan2, 8.0), "hypot": (torch.hypot, 8.0), "pow": (torch.pow, 8.0),
}  # fmt: skip
"""What eager computes, and by how many units in the last place two implementations of 4 may differ."""


@pytest.mark.parametrize("reach", [20.0, 0.5], ids=["any quotient", "moderate quotients"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("op", PAIRS)
def test_pairs_as_eager(op, dtype, reach, directory):
    """Without the special values all quotients are moderate, and other code runs."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(20000, generator=generator, dtype=dtype) * torch.exp(
        torch.randn(20000, generator=generator, dtype=dtype) * reach) for _ in "xy")  # fmt: skip
    x[::7] = y[::7] * torch.randint(-5, 5, (20000,), generator=generator)[::7]
    if reach > 1:
        special = torch.tensor([0.0, -0.0, 1.0, -2.5, torch.inf, -torch.inf, torch.nan, 1e-42, 3e38], dtype=dtype)
        pairs = torch.cartesian_prod(special, special)
        x, y = torch.cat([x, pairs[:, 0]]), torch.cat([y, pairs[:, 1]])
    function, allowed = PAIRS[op]
    (found,) = load(emit(binary_graph(op, x.numel(), str(dtype).removeprefix("torch.")), Options()), directory)(x, y)
    exact = function(x, y)
    tolerance = allowed * torch.finfo(dtype).eps
    torch.testing.assert_close(found, exact, rtol=tolerance, atol=1e-45 if allowed else 0.0, equal_nan=True)
    finite = exact.isfinite() & (exact == 0)
    assert torch.equal(found[finite].signbit(), exact[finite].signbit())


@pytest.mark.parametrize("op", ["exp", "expm1", "log", "log1p", "log2", "sin", "cos", "tan", "tanh", "erf", "asinh"])
def test_double_precision_as_eager(op, directory):
    x = torch.randn(20001, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 9
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-310, 1e300, -1e300], dtype=torch.float64)
    x = torch.cat([x, special])
    (found,) = load(emit(unary_graph(op, x.numel(), "float64"), Options()), directory)(x)
    torch.testing.assert_close(found, REFERENCE[op](x), rtol=5e-15, atol=1e-300, equal_nan=True)


@pytest.mark.parametrize("op", ["expm1", "log1p", "tanh", "erf", "sin", "neg"])
def test_negative_zero_is_kept(op, directory):
    (found,) = load(emit(unary_graph(op, 3), Options()), directory)(torch.tensor([-0.0, 0.0, -0.0]))
    expected = [True, False, True] if op != "neg" else [False, True, False]
    assert found.signbit().tolist() == expected


def test_the_zeros_of_lgamma_are_exact(directory):
    x = torch.tensor([1.0, 2.0] * 9)
    (found,) = load(emit(unary_graph("lgamma", x.numel()), Options()), directory)(x)
    assert torch.equal(found, torch.zeros(18))


@pytest.mark.parametrize("whole", ["int32", "int64"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_float_that_was_an_integer_is_that_integer(dtype, whole, directory):
    """gcc makes trunc of the two casts, which keeps -0, nan and what is out of range."""
    name = str(dtype).removeprefix("torch.")
    at = Index(0, (Term(1, AxisAtom("i")),))
    body = (
        Load("v", "x", at, name), Compute("w", "convert", (Ref("v"),), whole),
        Compute("u", "convert", (Ref("w"),), name), Store("y", at, Ref("u")),
    )  # fmt: skip
    x = torch.tensor([-0.3, -0.0, 0.3, 7.9, -7.9, torch.nan, torch.inf, 1e30, -1e30] * 4, dtype=dtype)
    type_ = contiguous(name, (x.numel(),))
    buffers = (Buffer("x", type_, "input"), Buffer("y", type_, "kernel"))
    kernel = Kernel("kernel", (Axis("i", x.numel()),), (Section((), body),))
    graph = LoopGraph(buffers=buffers, inputs=("x",), outputs=(Ref("y"),), steps=(kernel,))
    (found,) = load(emit(graph, Options()), directory)(x)
    expected = x.to(getattr(torch, whole)).to(dtype)
    assert torch.equal(found, expected)
    assert torch.equal(found.signbit(), expected.signbit())


def test_pow(directory):
    values = torch.tensor([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, 1e30, -1e30, 1e-30, 1e-40, 7.5,
                           1.0001, torch.inf, -torch.inf, torch.nan, 16777217.0, 101.0])  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    more = torch.exp(torch.randn(20000, generator=generator) * 4)
    x = torch.cat([values.repeat_interleave(len(values)), more])
    y = torch.cat([values.repeat(len(values)), torch.randn(20000, generator=generator) * 8])
    n = x.numel()
    at = Index(0, (Term(1, AxisAtom("i")),))
    body = (Load("a", "x", at, "float32"), Load("b", "y", at, "float32"),
            Compute("w", "pow", (Ref("a"), Ref("b")), "float32"), Store("z", at, Ref("w")))  # fmt: skip
    type_ = contiguous("float32", (n,))
    buffers = (Buffer("x", type_, "input"), Buffer("y", type_, "input"), Buffer("z", type_, "kernel"))
    graph = LoopGraph(buffers=buffers, inputs=("x", "y"), outputs=(Ref("z"),),
                      steps=(Kernel("kernel", (Axis("i", n),), (Section((), body),)),))  # fmt: skip
    (found,) = load(emit(graph, Options()), directory)(x, y)
    exact = torch.pow(x.double(), y.double())
    rounded = exact.float()
    special = ~(rounded.isfinite() & (rounded != 0))
    torch.testing.assert_close(found[special], rounded[special], rtol=0, atol=0, equal_nan=True)
    signed = special & ~rounded.isnan()
    assert torch.equal(found[signed].signbit(), rounded[signed].signbit())
    assert ulps(found[~special], exact[~special]).max() <= 1.0


@pytest.mark.parametrize("op", ["sin", "cos"])
def test_ulps_of_near_arguments(op, directory):
    """Arguments below 32768 alone take a form of their own; those next to multiples of pi/2 are the hard ones."""
    turns = torch.arange(0, 20860, dtype=torch.float64) * (torch.pi / 2)
    hard = [torch.nextafter(turns.float(), torch.tensor(end)) for end in (-1e9, 1e9)]
    x = torch.cat([sweep(), turns.float(), *hard])
    x = x[~(x.abs() >= 32768)]
    (found,) = load(emit(unary_graph(op, x.numel()), Options()), directory)(x)
    exact = REFERENCE[op](x.double())
    assert torch.equal(found.isnan(), x.isnan())
    assert ulps(found, exact).nan_to_num(0.0).max() <= ULPS[op]
    (beyond,) = load(emit(unary_graph(op, 3), Options()), directory)(torch.tensor([1.0, 1e30, float("inf")]))
    assert ulps(beyond[:2], REFERENCE[op](torch.tensor([1.0, 1e30]).double())).max() <= ULPS[op]
    assert beyond[2].isnan()


@pytest.mark.parametrize("op", ["exp", "log1p", "tanh", "erf", "sigmoid", "sin", "cos"])
def test_functions_that_are_called_give_what_inlined_ones_give(op, directory):
    """In many places of a unit a function is compiled once: the same bits as where it is inlined."""
    x = sweep()[:5003]
    lengths = range(x.numel(), x.numel() + TUNED.inlined_places + 1)
    graphs = [unary_graph(op, length) for length in lengths]
    single = emit(graphs[0], Options())
    steps = tuple(
        msgspec.structs.replace(g.steps[0], name=f"k{n}", sections=_moved(g, n)) for n, g in enumerate(graphs)
    )
    buffers = tuple(msgspec.structs.replace(b, name=f"{b.name}{n}") for n, g in enumerate(graphs) for b in g.buffers)
    many = LoopGraph(
        buffers=buffers, inputs=tuple(f"x{n}" for n in range(len(graphs))),
        outputs=tuple(Ref(f"y{n}") for n in range(len(graphs))), steps=steps,
    )  # fmt: skip
    unit = emit(many, Options())
    assert f"SF_CALLED f32 sf_{op}_f32" in unit.source
    assert "SF_CALLED f32" not in single.source
    (inlined,) = load(single, directory)(x)
    called, *_ = load(unit, directory)(*(torch.cat([x, x[: length - x.numel()]]) for length in lengths))
    assert torch.equal(called.view(torch.int32), inlined.view(torch.int32))


def _moved(graph: LoopGraph, number: int) -> tuple[Section, ...]:
    """The sections of a kernel, on buffers with a number behind their names."""
    (section,) = graph.steps[0].sections
    body = tuple(
        msgspec.structs.replace(s, buffer=f"{s.buffer}{number}") if isinstance(s, Load | Store) else s
        for s in section.statements
    )
    return (Section(section.axes, body),)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bits_are_torchs(dtype, directory):
    """All numbers of 16 bits widened, and what is rounded to them: stored, and computed with."""
    narrow = getattr(torch, dtype)
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(narrow)
    between = torch.stack([every.float().nextafter(torch.tensor(side)) for side in (-torch.inf, torch.inf)])
    halves = (every.float() + every.float().roll(1)) / 2
    x = torch.cat([sweep(), between.flatten(), halves, every.float()])
    for given, wanted in ((every, torch.float32), (x, narrow)):
        call = load(emit(converted(given, wanted), Options()), directory)
        assert same_bits(call(given)[0], given.to(wanted))
        torch.set_flush_denormal(True)
        try:
            (found,), eager = call(given), given.to(wanted)
        finally:
            torch.set_flush_denormal(False)
        assert dtype != "float16" or same_bits(found, eager)
    (found,) = load(emit(converted(x, narrow, "neg"), Options()), directory)(x)
    assert same_bits(found, -x.to(narrow))


def converted(given: torch.Tensor, dtype: torch.dtype, op: str = "") -> LoopGraph:
    """The elements converted, and perhaps an op on what they are then, which is stored as well."""
    names = [str(one).removeprefix("torch.") for one in (given.dtype, dtype)]
    graph = unary_graph("convert", given.numel())
    (kernel,) = graph.steps
    load_, value, store = kernel.sections[0].statements
    body = [replace(load_, dtype=names[0]), replace(value, dtype=names[1]), store]
    if op:
        body[2:] = [Compute("z", op, (Ref("w"),), names[1]), replace(store, value=Ref("z"))]
    buffers = [replace(one, type=replace(one.type, dtype=name)) for one, name in zip(graph.buffers, names, strict=True)]
    return replace(graph, buffers=tuple(buffers), steps=(replace(kernel, sections=(Section((), tuple(body)),)),))


def same_bits(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Zeros of one sign, and any nan for another."""
    kind = torch.int16 if found.itemsize == 2 else torch.int32
    return bool(((found.view(kind) == wanted.view(kind)) | (found.isnan() & wanted.isnan())).all())
