"""Programs run plain and captured: settings that choose kernels."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from bytecap import executor, optimize
from bytecap.testing import Programs, check

PROGRAMS = Programs()


def heads() -> torch.Tensor:
    return torch.randn(1, 2, 4, 8, generator=torch.Generator().manual_seed(3))


def flags() -> tuple[bool, ...]:
    return (
        torch.backends.cuda.flash_sdp_enabled(),
        torch.backends.cuda.math_sdp_enabled(),
        torch.backends.cudnn.enabled,
        torch.backends.cudnn.benchmark,
        torch.backends.mkldnn.enabled,
    )


@pytest.fixture(autouse=True)
def flags_put_back():
    before = flags()
    yield
    torch.backends.cuda.enable_flash_sdp(before[0])
    torch.backends.cuda.enable_math_sdp(before[1])
    torch.backends.cudnn.benchmark = before[3]


@PROGRAMS.add(heads)
def attention(q):
    with sdpa_kernel(SDPBackend.MATH):
        inside = flags()
        y = F.scaled_dot_product_attention(q, q, q)
    return y, inside, flags()


@PROGRAMS.add(heads)
def attention_of_old(q):
    with torch.backends.cuda.sdp_kernel(enable_flash=False, enable_mem_efficient=False):
        return F.scaled_dot_product_attention(q, q, q)


@PROGRAMS.add(heads)
def order_in_memory(q):
    """Which that of the kernel is."""
    q = q.transpose(1, 2).contiguous().transpose(1, 2)
    found = [F.scaled_dot_product_attention(q, q, q)]
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION]):
        found.append(F.scaled_dot_product_attention(q, q, q, None, 0.0, True, scale=0.3))
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            found.append(F.scaled_dot_product_attention(q, key=q, value=q, attn_mask=q[..., :4] > 0))
        found.append(F.scaled_dot_product_attention(q, q[:, :1], q[:, :1], enable_gqa=True))
    return found, [one.stride() for one in found]


@PROGRAMS.add(heads, refusal="BC005")
def refused_attention(q):
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, q)


@PROGRAMS.add(heads)
def cudnn(x):
    with torch.backends.cudnn.flags(enabled=False):
        inside = flags()
        y = x * 2
    return y, inside, flags()


@PROGRAMS.add(heads)
def assigned(x):
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    y = x * 2
    inside = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = before
    return y, before, inside


@PROGRAMS.add(heads, refusal="BC002")
def precision(x):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    y = x @ x.mT
    torch.set_float32_matmul_precision(before)
    return y


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_same_as_plain(program):
    program.check()


def leaves_changed(x):
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.enable_math_sdp(False)
    return x * 2


def test_what_is_left_changed_is_set():
    torch.backends.cudnn.benchmark = False
    optimize(leaves_changed, lambda c, _: executor(c), fullgraph=True)(torch.ones(2))
    assert (torch.backends.cudnn.benchmark, torch.backends.cuda.math_sdp_enabled()) == (True, False)


def breaks_inside(x):
    seen = []
    with sdpa_kernel(SDPBackend.MATH):
        y = x * 2
        if y.sum() > 0:
            seen.append(torch._C._get_flash_sdp_enabled())
        y = y + 1
    return y, seen, flags()


def test_a_break_inside_finds_it_set():
    check(lambda: (breaks_inside, ((torch.ones(2),), {})), whole=False)


def test_a_setting_is_guarded():
    call = optimize(
        lambda x: x * (2 if torch.backends.cudnn.benchmark else 3), lambda c, _: executor(c), fullgraph=True
    )
    torch.backends.cudnn.benchmark = False
    assert call(torch.ones(1)).item() == 3
    torch.backends.cudnn.benchmark = True
    assert call(torch.ones(1)).item() == 2


def test_a_program_made_under_another_setting_is_another():
    """Equal captures share what a backend made, which may have asked for it."""
    made = []

    def backend(capture, example_inputs):
        made.append(torch.backends.cudnn.enabled)
        return executor(capture)

    doubled = optimize(lambda x: (x * 2, torch.backends.cudnn.enabled)[0], backend, fullgraph=True)
    x = torch.ones(2)
    for enabled in (True, False, True):
        with torch.backends.cudnn.flags(enabled=enabled):
            doubled(x)
    assert made == [True, False]
