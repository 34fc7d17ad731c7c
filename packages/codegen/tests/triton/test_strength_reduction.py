"""Functions of which only the sum with 1 is used: how near they are to float64, and where they are not taken."""

import pytest
import torch
from msgspec.structs import replace

from codegen import Options, load
from codegen.stage import emit
from stagewire.graph import Ref
from stagewire.loop import Axis, AxisAtom, Buffer, Compute, Index, Kernel, Load, LoopGraph, Section, Store, Term
from stagewire.types import contiguous

HALVES = (torch.arange(2**16, dtype=torch.int32) << 16).view(torch.float32)
"""Every bfloat16, as float32: nan, both infinities and both zeros are among them."""
FINE = torch.linspace(-30, 30, 60 * 4096 + 1)


def graph(count: int, *computes: Compute, dtype: str = "float32") -> LoopGraph:
    """y[i] = the last of the computes, of x[i]; z[i] = the value "kept" of them, if there is one."""
    place = Index(0, (Term(1, AxisAtom("i")),))
    results = {"y": computes[-1].result}
    if any(one.result == "kept" for one in computes):
        results["z"] = "kept"
    stores = tuple(Store(name, place, Ref(result)) for name, result in results.items())
    return LoopGraph(
        buffers=(
            Buffer("x", contiguous(dtype, (count,), "cuda:0"), "input"),
            *(Buffer(name, contiguous(dtype, (count,), "cuda:0"), "kernel") for name in results),
        ),
        inputs=("x",),
        outputs=tuple(map(Ref, results)),
        steps=(Kernel("k", (Axis("i", count),), (Section((), (Load("x", "x", place, dtype), *computes, *stores)),)),),
    )


def compute(result: str, op: str, *operands: str | float, dtype: str = "float32") -> Compute:
    return Compute(result, op, tuple(Ref(o) if isinstance(o, str) else o for o in operands), dtype)


def plus_one(op: str) -> tuple[Compute, ...]:
    return compute("f", op, "x"), compute("y", "add", 1.0, "f")


SLOPE = (
    compute("t", "tanh", "x"),
    compute("u", "add", "t", 1.0),
    compute("s", "mul", "t", "t"),
    compute("d", "sub", 1.0, "s"),
    compute("y", "add", "u", "d"),
)
"""1 + tanh(x) + (1 - tanh(x)**2), as in the gradient of gelu."""
SILU = (
    compute("n", "neg", "x"),
    compute("e", "exp", "n"),
    compute("d", "add", "e", 1.0),
    compute("y", "div", "x", "d"),
)


def source(*computes: Compute, dtype: str = "float32") -> str:
    """What is emitted, without the prelude."""
    return emit(graph(8, *computes, dtype=dtype), Options(target="triton")).source.rpartition("@triton.jit")[2]


def run(x: torch.Tensor, directory, device, *computes: Compute) -> torch.Tensor:
    return load(_unit(x, device, *computes), directory)(x.to(device))[0].cpu()


def _unit(x: torch.Tensor, device, *computes: Compute):
    place = "cuda:0" if device == "cuda" else "cpu"
    return emit(_on(graph(len(x), *computes), place), Options(target="triton"))


def _on(one: LoopGraph, device: str) -> LoopGraph:
    buffers = tuple(replace(b, type=replace(b.type, device=device)) for b in one.buffers)
    return replace(one, buffers=buffers)


@pytest.mark.parametrize("x", [HALVES, FINE], ids=["halves", "fine"])
@pytest.mark.parametrize("op", ["erf", "tanh"])
def test_a_sum_with_one_is_near(op, x, directory, device):
    """Within 3e-7, and of small sums within a part of themselves: 1 + erf(-5) is 0 where erf is rounded before."""
    found = run(x, directory, device, *plus_one(op)).double()
    wide = x.double()
    exact = torch.special.erfc(-wide) if op == "erf" else 2.0 * torch.sigmoid(2.0 * wide)
    assert torch.equal(found.isnan(), exact.isnan())
    known = ~exact.isnan()
    assert (found - exact)[known].abs().max() <= 3e-7
    small = known & (x >= -6)
    assert ((found - exact) / exact)[small].abs().max() <= (3e-4 if op == "erf" else 2e-6)
    assert (found[known & (x < -6)] <= 2 * exact[known & (x < -6)]).all()


def test_a_slope_is_near(directory, device):
    found = run(FINE, directory, device, *SLOPE).double()
    tanh = FINE.double().tanh()
    assert (found - (2 + tanh - tanh * tanh)).abs().max() <= 5e-7
    (alone,) = load(_unit(FINE, device, *SLOPE[:1], *SLOPE[2:4]), directory)(FINE.to(device))
    exact = 4 * torch.sigmoid(2 * FINE.double()) * torch.sigmoid(-2 * FINE.double())
    assert ((alone.cpu().double() - exact) / exact).abs().max() <= 1e-5


def test_silu_is_near(directory, device):
    x = HALVES[HALVES.abs() < 3e38]
    found = run(x, directory, device, *SILU).double()
    exact = x.double() * torch.sigmoid(x.double())
    error = (found - exact).abs()
    assert (error <= 1e-36 + 1e-6 * exact.abs() * (1 + x.abs().clamp(max=100))).all()
    edges = run(torch.tensor([torch.inf, -torch.inf, torch.nan, -0.0]), directory, device, *SILU)
    assert edges[0] == torch.inf
    assert edges[1:3].isnan().all()
    assert edges[3] == 0
    assert edges[3].signbit()


@pytest.mark.parametrize(
    ("computes", "wanted", "unwanted"),
    [
        (plus_one("erf"), "one_plus_erf", "tl.erf"),
        (plus_one("tanh"), "one_plus_tanh", "libdevice.tanh"),
        (SLOPE, "one_plus_tanh", "libdevice.tanh"),
        (SILU, "silu(", "/"),
        (plus_one("exp"), "exponential", "tl.exp("),
    ],
    ids=["erf", "tanh", "slope", "silu", "exp"],
)
def test_cheaper_forms_are_taken(computes, wanted, unwanted):
    text = source(*computes)
    assert wanted in text
    assert unwanted not in text


@pytest.mark.parametrize(
    ("computes", "wanted"),
    [
        ((compute("kept", "erf", "x"), compute("y", "add", "kept", 1.0)), "tl.erf"),
        ((compute("f", "erf", "x"), compute("y", "add", "f", 2.0)), "tl.erf"),
        ((compute("t", "tanh", "x"), compute("y", "mul", "t", "t")), "libdevice.tanh"),
        ((*SLOPE[:3], compute("y", "sub", 2.0, "s")), "libdevice.tanh"),
        ((*SILU[:3], compute("y", "div", "n", "d")), " / "),
        ((compute("e", "exp", "x"), compute("y", "mul", "e", 1.0)), "tl.exp("),
    ],
    ids=["stored", "another number", "a square", "another distance", "another numerator", "a product"],
)
def test_other_uses_keep_their_accuracy(computes, wanted):
    assert wanted in source(*computes)


def test_double_precision_is_kept():
    wide = (compute("f", "erf", "x", dtype="float64"), compute("y", "add", "f", 1.0, dtype="float64"))
    assert "tl.erf" in source(*wide, dtype="float64")
