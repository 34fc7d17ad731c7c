"""Programs lowered as for a GPU, several kernels each, in Triton's interpreter on the CPU: beside eager, no GPU needed.

What one kernel means, codegen's own tests say. Here several kernels of a program share functions, and passes for GPUs
(parts of long reductions, rows in registers, scans in parts) meet the kernels that are made of them.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

import codegen
import stagefold
import stagewire
from aotgrad import AotGrad, PartitionStage
from codegen.stage import Options, emit
from codegen.testing.interpreter import count_by_arguments
from loopir.stage import LoopIR
from primops.stage import Primops
from stagewire.grad import SavedInput
from stagewire.loop import Loop
from stagewire.program import Launch

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU's own tests run these kernels there"),
]


class Captured(Exception):
    """A capture is all that is wanted."""


def lowered(function: Callable[..., torch.Tensor], *args: torch.Tensor, dynamic: bool | None = None) -> Loop:
    """The loops of a function as they are on a GPU, on memory of the CPU again."""
    captures: list[stagewire.Capture] = []

    def keep(capture: stagewire.Capture) -> stagewire.Grad:
        captures.append(capture)
        raise Captured

    keep.takes_symbols = True  # type: ignore[attr-defined]
    options = {"cache": False}
    with pytest.raises(Captured):
        stagefold.compile(function, stages={"aotgrad": keep}, options=options, dynamic=dynamic)(*args)
    moved = stagewire.decode(stagewire.encode(captures[0]).replace(b'"cpu"', b'"cuda:0"'), expect="capture")
    loop = LoopIR().run(PartitionStage().run(Primops().run(AotGrad().run(moved))))
    return stagewire.decode(stagewire.encode(loop).replace(b'"cuda:0"', b'"cpu"'), expect="loop")


def check(
    function: Callable[..., torch.Tensor], *args: torch.Tensor, directory: Path, dynamic: bool | None = None
) -> None:
    """Results, and gradients of what requires them, beside eager's."""
    loop = lowered(function, *args, dynamic=dynamic)
    named = dict(zip(inspect.signature(function).parameters, args, strict=True)) | getattr(function, "tables", {})
    given = [named[one.name] for one in loop.binding.inputs]
    results = codegen.load(emit(loop.forward, Options(target="triton")), directory)(*[one.detach() for one in given])
    wanted = getattr(function, "reference", function)(*args)
    exact = wanted.dtype == args[0].dtype == torch.float32
    forward, backward = (2e-4, 2e-3) if exact else (2e-2, 4e-2)
    torch.testing.assert_close(results[loop.binding.outputs[0].result], wanted.detach(), rtol=forward, atol=forward)
    if loop.backward is None:
        return
    saved = [given[s.input].detach() if isinstance(s, SavedInput) else results[s.result] for s in loop.binding.saved]
    found = codegen.load(emit(loop.backward, Options(target="triton")), directory)(*saved, torch.ones_like(wanted))
    leaves = [one for one in given if one.requires_grad]
    gradients = iter(torch.autograd.grad(wanted, leaves, torch.ones_like(wanted)))
    for number, one in zip(loop.binding.input_gradients, given, strict=True):
        if one.requires_grad:
            torch.testing.assert_close(found[number], next(gradients), rtol=backward, atol=backward)


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape).to(dtype).requires_grad_()


def constant(shape: tuple[int, ...]) -> torch.Tensor:
    """Without a gradient."""
    return half(*shape).detach()


def half(*shape: int) -> torch.Tensor:
    return drawn(*shape, dtype=torch.bfloat16)


def perceptron(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return F.relu(F.relu(x @ a) @ b) @ c


def attention(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    q, k, v = (F.layer_norm(x, (64,), g) @ w).view(2, 16, 3, 4, 16).permute(2, 0, 3, 1, 4)
    return x + ((q @ k.transpose(-1, -2) / 4).softmax(-1) @ v).transpose(1, 2).reshape(2, 16, 64)


def residual(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, g: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Twice what a transformer does: the gradients of a and b are sums of what kernels of rows write and read."""
    for _ in range(2):
        x = x + F.gelu(F.linear(F.layer_norm(x, (64,), g, b), w, a))
    return F.layer_norm(x, (64,), g, b)


def normalised(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.relu(F.batch_norm(F.conv2d(x, w, padding=1), None, None, g, b, True))


def patches(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(F.conv2d(x, w, b, stride=4).flatten(2).transpose(1, 2), (24,))


def with_infinities(x: torch.Tensor) -> torch.Tensor:
    """Columns that begin with -inf for longer than a tile is, and one that is infinite from somewhere on."""
    x[:70, :3] = -torch.inf
    x[90, 2:5] = torch.inf
    return x


DOCUMENTS, BIAS = torch.arange(70) // 30, torch.linspace(-1, 1, 4 * 140).view(4, 140)


def causal(b: torch.Tensor, h: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return query >= key


def same_document(b: torch.Tensor, h: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return (DOCUMENTS[query] == DOCUMENTS[key]) & (query > 2)  # the first three see no key


def bounded(score: torch.Tensor, b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return score / (1 + score.abs()) + (k - q) * torch.exp2(-(h + 1.0))  # the interpreter has no tanh


def biased(score: torch.Tensor, b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return score * (1 + b) + BIAS[h, q - k + 70]


def by_functions(score_mod: Any, mask_mod: Any, block: int = 32) -> Callable[..., torch.Tensor]:
    """FlexAttention, and the log-sum-exp added to its result."""
    if mask_mod is None:  # what eager takes then, made outside: torch makes no tensors on a GPU that is not there
        one, none = torch.ones(1, 1, 1, dtype=torch.int32), torch.zeros(1, 1, 1, 1, dtype=torch.int32)
        mask = BlockMask.from_kv_blocks(one, none, BLOCK_SIZE=1 << 30, seq_lengths=(1, 1))
    else:
        mask = create_block_mask(mask_mod, None, None, 70, 70, device="cpu", BLOCK_SIZE=block)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out, rows = flex_attention(q, k, v, score_mod, mask, enable_gqa=True, return_lse=True)
        return out + rows.masked_fill(rows == -torch.inf, 0.0).unsqueeze(-1)

    def written_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Eager refuses gradients on the CPU."""
        k, v = (one.float().repeat_interleave(2, 1) for one in (k, v))
        scores = q.float() @ k.mT / q.shape[-1] ** 0.5
        places = torch.meshgrid(*(torch.arange(size) for size in scores.shape), indexing="ij")
        scores = score_mod(scores, *places) if score_mod else scores
        scores = scores.masked_fill(~mask_mod(*places), -torch.inf) if mask_mod else scores
        rows = scores.logsumexp(-1, keepdim=True)
        rows = rows.masked_fill(rows == -torch.inf, 0.0)
        return ((scores - rows).exp() @ v).to(q.dtype) + rows

    blocks = {f"mask_{name}": one for name, one in vars(mask).items() if isinstance(one, torch.Tensor)}
    attend.tables = {**blocks, "DOCUMENTS": DOCUMENTS, "BIAS": BIAS}  # type: ignore[attr-defined]
    attend.reference = written_out  # type: ignore[attr-defined]
    return attend


def heads(width: int = 16, dtype: torch.dtype = torch.float32, length: int = 70) -> list[torch.Tensor]:
    return [drawn(2, count, n, width, dtype=dtype) for count, n in ((4, length), (2, 70), (2, 70))]


def grown(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cat([y, F.conv_transpose2d(x.relu(), w, b, stride=2)], 1).relu()


def small(*shape: int) -> torch.Tensor:
    return (torch.randn(*shape) / 8).bfloat16().requires_grad_()


def token(x: torch.Tensor, g: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """A gated layer of one row, as in decoding: a norm, two matrices that are read in one loop, and one more."""
    h = F.rms_norm(x, (64,), g)
    return x + F.linear(F.silu(F.linear(h, a)) * F.linear(h, b), c)


def one_query(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


def three(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Products of one row that share a launch."""
    return torch.cat((F.linear(x, a), F.linear(x, b), F.linear(x, c)), 1)


PROGRAMS = {
    "a token's layer": lambda: (token, half(1, 64), half(64), small(96, 64), small(96, 64), small(64, 96)),
    "a token's layer of odd sizes": lambda: (
        token,
        drawn(1, 64),
        drawn(64),
        drawn(51, 64),
        drawn(51, 64),
        drawn(64, 51),
    ),
    "products of a token": lambda: (three, *map(constant, ((1, 64), (40, 64), (8, 64), (8, 64)))),
    "one query": lambda: (
        one_query,
        *map(constant, ((2, 4, 1, 16), (2, 2, 40, 16), (2, 2, 40, 16))),
        torch.arange(40)[None] < torch.tensor([[[[3]]], [[[40]]]]),
    ),
    "kernels of one text": lambda: (perceptron, drawn(64, 32), drawn(32, 128), drawn(128, 64), drawn(64, 16)),
    "attention": lambda: (attention, drawn(2, 16, 64), drawn(64, 192), drawn(64)),
    "batch norm": lambda: (normalised, drawn(4, 3, 16, 16), drawn(8, 3, 3, 3), drawn(8), drawn(8)),
    "patches": lambda: (patches, half(2, 3, 18, 13), half(24, 3, 4, 4), half(24)),
    "patches of results": lambda: (
        grown,
        *(half(*n).detach() for n in ((2, 16, 3, 5), (16, 8, 2, 2), (8,), (2, 4, 6, 10))),
    ),
    "1x1 of odd images": lambda: (lambda x, w: F.conv2d(x, w).relu(), half(2, 16, 5, 7), half(24, 16, 1, 1)),
    "flex_attention": lambda: (by_functions(biased, None), *heads()),
    "flex_attention of half precision": lambda: (by_functions(bounded, causal), *heads(dtype=torch.float16)),
    "flex_attention, blocks": lambda: (by_functions(bounded, causal, 16), *heads(24)),
    "flex_attention, documents": lambda: (by_functions(None, same_document), *heads()),
    "loss": lambda: (lambda x, t: F.cross_entropy(x, t), drawn(32, 600), torch.randint(0, 600, (32,))),
    "loss of images": lambda: (lambda x, t: F.cross_entropy(x, t), drawn(2, 7, 8, 8), torch.randint(0, 7, (2, 8, 8))),
    "layer norm": lambda: (lambda x, w, b: F.layer_norm(x, (4200,), w, b), drawn(5, 4200), drawn(4200), drawn(4200)),
    "layer norm of long rows": lambda: (lambda x: F.layer_norm(x, (40000,)), torch.randn(3, 40000)),
    "layer norm of long rows of half precision": lambda: (
        lambda x, w: F.layer_norm(x, (20000,), w),
        constant((3, 20000)),
        constant((20000,)),
    ),
    "layer norm of many rows": lambda: (
        lambda x, c, w, b: F.layer_norm(x + c, (40,), w, b),
        drawn(2, 800, 40),
        drawn(40),
        drawn(40),
        drawn(40),
    ),
    "norm of many rows": lambda: (
        lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w,
        drawn(1600, 32),
        drawn(32),
    ),
    "layer norm of a prime number of rows": lambda: (
        lambda x, w, b: F.layer_norm(x, (24,), w, b),
        drawn(1607, 24),
        drawn(24),
        drawn(24),
    ),
    "residuals of many rows": lambda: (
        residual,
        drawn(4, 400, 64),
        (drawn(64, 64) / 8).detach().requires_grad_(),
        drawn(64),
        drawn(64),
        drawn(64),
    ),
    "softmax over columns": lambda: (lambda x: x.softmax(0), drawn(300, 24)),
    "sum of rows in parts": lambda: (lambda x: x.sum(1), drawn(3, 6000)),
    "positions in parts": lambda: (lambda x: x.argmax(0), torch.randint(-9, 9, (1040, 24)).float()),
    "scan of columns in parts": lambda: (lambda x: x.cumsum(0), torch.randn(2048, 40)),
    "scan of a long row": lambda: (lambda x: (x * 2).cumsum(0).relu() + x, torch.randn(40000)),
    "scan of many columns": lambda: (lambda x: (x * 2).cumsum(0) + x, torch.randn(10, 3080)),
    "log of sums along columns": lambda: (lambda x: x.logcumsumexp(0), with_infinities(torch.randn(140, 12))),
}


def rows_by_index(cache: torch.Tensor, at: torch.Tensor, new: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    cache.index_copy_(1, at, new)
    return q @ cache.transpose(1, 2)


def rows_by_slice(cache: torch.Tensor, at: torch.Tensor, new: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    cache[:, 5:6] = new + at
    return q @ cache.transpose(1, 2)


@pytest.mark.parametrize("step", [rows_by_index, rows_by_slice])
def test_rows_of_a_cache_are_written_in_place(step: Callable[..., torch.Tensor], tmp_path: Path) -> None:
    args = torch.randn(2, 16, 8), torch.tensor([5]), torch.randn(2, 1, 8), torch.randn(2, 3, 8)
    loop = lowered(step, *[one.clone() for one in args])
    assert [mutation.in_place for mutation in loop.binding.mutations] == [True]
    unit = emit(loop.forward, Options(target="triton"))
    (kernel,) = [one for one in unit.instructions if isinstance(one, Launch)]  # the rows; what stays is not copied
    (info,) = [one for one in unit.kernels if one.name == kernel.kernel]
    assert info.grid[0] == 1
    named = dict(zip(inspect.signature(step).parameters, args, strict=True))
    given = [named[one.name] for one in loop.binding.inputs]
    kept = args[0].clone()
    results = codegen.load(unit, tmp_path)(*given)
    torch.testing.assert_close(results[loop.binding.outputs[0].result], step(kept, *args[1:]))
    assert torch.equal(args[0], kept)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "_validate_device", lambda *tensors: None)  # which refuses gradients on the CPU
    function, *args = PROGRAMS[name]()
    check(function, *args, directory=tmp_path)


def test_programs_of_open_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count_by_arguments(monkeypatch)
    function, *args = PROGRAMS["norm of many rows"]()
    check(function, *args, directory=tmp_path, dynamic=True)
