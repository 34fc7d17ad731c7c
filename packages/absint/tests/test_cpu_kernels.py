"""What is asked of ATen is what ATen does."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from absint.cpu_kernels import cpu_kernels, onednn_computes, onednn_takes_lstm


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_onednn_packs_weights_of_what_it_computes(dtype: torch.dtype) -> None:
    def pack() -> None:
        weight = torch.randn(4, 3, 3, 3).to(dtype).to_mkldnn()
        torch._C._nn.mkldnn_reorder_conv2d_weight(weight, [0, 0], [1, 1], [1, 1], 1, [2, 3, 8, 8])

    if onednn_computes(dtype):
        pack()
    else:
        with pytest.raises(RuntimeError):
            pack()


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_who_computes_an_lstm(dtype: torch.dtype, grad: bool) -> None:
    layer, x = torch.nn.LSTM(5, 6).to(dtype), torch.randn(3, 2, 5).to(dtype)
    for enabled in (True, False):
        with torch.backends.mkldnn.flags(enabled=enabled), torch.set_grad_enabled(grad):
            with torch.profiler.profile() as profile:
                layer(x)
            calls = {event.name for event in profile.events()}
            assert onednn_takes_lstm(dtype) == ("aten::mkldnn_rnn_layer" in calls)


def test_limits_of_onednn_are_seen() -> None:
    script = "from absint.cpu_kernels import cpu_kernels; print(cpu_kernels())"
    limits = {"ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default"}
    done = subprocess.run([sys.executable, "-c", script], env=os.environ | limits, capture_output=True, text=True)
    assert done.stdout.strip() == "DEFAULT;oneDNN=float32", done.stderr
    assert cpu_kernels().endswith("oneDNN=float32") == (not onednn_computes(torch.bfloat16))
