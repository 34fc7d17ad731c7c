"""Random numbers by formula: `philox_state` takes from the stream what a kernel of ATen would, `philox_uniform` is the
numbers of that kernel as a function of it, which may be fused, and computed again. (All others ATen draws.)
"""

from __future__ import annotations

from primops.prims.layouts import tensor
from stagewire.expr import Dim
from stagewire.types import TensorType
from stagewire.vocabulary import Op, constraint, parameters

Shape = tuple[Dim, ...]
_I = tensor("int64", (2, 3))
_N = tensor("int64", ())


# --- constraints ---------------------------------------------------------------------------------------------------


@constraint("Seed and offset are numbers on the CPU.", ("philox_uniform", (_I, _N, (2,), 256, 1, "cpu")))
def D1(seed: TensorType, offset: TensorType, *_: object) -> str | None:
    for x in (seed, offset):
        if (x.dtype, x.shape, x.device) != ("int64", (), "cpu"):
            return f"{x.dtype}{list(x.shape)} on {x.device}"
    return None


@constraint(
    "Threads come in blocks of 256; each takes 1, 2, 4, 8 or 16 elements at a time.",
    ("philox_uniform", (_N, _N, (2,), 100, 1, "cpu")),
)
def D2(seed: TensorType, offset: TensorType, shape: Shape, threads: int, width: int, device: str) -> str | None:
    good = threads > 0 and threads % 256 == 0 and width in (1, 2, 4, 8, 16)
    return None if good else f"{threads} threads, {width} elements at a time"


@constraint("The count is a multiple of four, and a number.", ("philox_state", (3, "cpu")))
def D3(count: Dim, device: str) -> str | None:
    return None if isinstance(count, int) and count > 0 and count % 4 == 0 else f"the count is {count}"


OPS: tuple[Op, ...] = (
    Op(
        "philox_state", "random", parameters("count: size, device: word"),
        "The seed of a device's stream and its offset, which moves on by count: what a kernel of ATen takes that draws "
        "there. Numbers on the CPU, whose own stream has no offset: there it is 0, and the seed is drawn.",
        lambda count, device: (_N, _N), (D3,), 'philox_state(4, "cuda:0") -> i64[], i64[]',
        ("seed", "offset"), effect="draws",
    ),
    Op(
        "philox_uniform", "random",
        parameters("seed: tensor, offset: tensor, shape: sizes, threads: int, width: int, device: word"),
        "The numbers in 0 < x <= 1 that a kernel of ATen with so many threads draws on a GPU, each thread taking width "
        "elements that lie together (1: elements that lie `threads` apart, four a call). See `stagewire.philox`.",
        lambda seed, offset, shape, threads, width, device: (tensor("float32", shape, device),), (D1, D2),
        'philox_uniform(seed: i64[], offset: i64[], [2, 3], 256, 4, "cuda:0") -> f32[2, 3]',
    ),
)  # fmt: skip
