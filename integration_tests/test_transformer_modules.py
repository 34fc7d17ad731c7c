"""torch's own transformer modules without gradients: eager takes ops made for inference, compiled code the parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import stagefold
from integration_tests.zoo.devices import DEVICES
from integration_tests.zoo.traces import traced

CAUSAL = torch.ones(5, 5, dtype=torch.bool).triu(1)
PADDING = torch.tensor([[False, False, True, True, False], [True] * 5])
NO_KEYS = {"key_padding_mask": PADDING}


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return request.param


def check(module: nn.Module, device: str, *args: torch.Tensor, **named: Any) -> None:
    """Compiled and eager agree, nan where eager has nan, in one graph."""

    def moved(x: Any) -> Any:
        return x.to(device) if isinstance(x, torch.Tensor) else x

    module = module.eval().to(device)
    args, named = tuple(moved(x) for x in args), {name: moved(x) for name, x in named.items()}
    compiled = stagefold.compile(module, fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(
            compiled(*args, **named), module(*args, **named), equal_nan=True, rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("weights", ["none", "mean", "each head"])
@pytest.mark.parametrize(
    "masks",
    [{}, {"attn_mask": CAUSAL}, NO_KEYS, {"attn_mask": CAUSAL, **NO_KEYS}],
    ids=["all", "causal", "padded", "both"],
)
def test_self_attention(device: str, masks: dict[str, Any], weights: str) -> None:
    torch.manual_seed(0)
    heads, x = nn.MultiheadAttention(16, 4, batch_first=True), torch.randn(2, 5, 16)
    wanted = {"need_weights": weights != "none", "average_attn_weights": weights == "mean"}
    check(heads, device, x, x, x, **masks, **wanted)


def test_attention_to_others(device: str) -> None:
    torch.manual_seed(0)
    heads = nn.MultiheadAttention(16, 2, batch_first=True)
    queries, keys = torch.randn(2, 3, 16), torch.randn(2, 7, 16)
    check(heads, device, queries, keys, keys)
    check(heads, device, queries, keys, keys + 1, need_weights=False)
    check(heads, device, queries[0], keys[0], keys[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_layer(device: str, norm_first: bool, activation: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        16, 4, 24, batch_first=True, activation=activation, norm_first=norm_first, dtype=dtype
    )
    check(layer, device, torch.randn(2, 5, 16, dtype=dtype))
    check(layer, device, torch.randn(2, 5, 16, dtype=dtype), src_mask=CAUSAL)
    check(layer, device, torch.randn(2, 5, 16, dtype=dtype), src_key_padding_mask=PADDING & ~PADDING[1])


def test_nothing_of_it_is_an_op_of_its_own(tmp_path: Path) -> None:
    """The document holds attention and products, not the op that eager takes."""
    layer = nn.TransformerEncoderLayer(16, 4, 24, batch_first=True).eval()
    compiled = stagefold.compile(layer, fullgraph=True, options={"trace_dir": str(tmp_path)})
    with torch.no_grad():
        compiled(torch.randn(2, 5, 16))
    (document,) = traced(tmp_path, "grad")
    targets = [node.target for node in document.joint.nodes]
    assert any("_scaled_dot_product" in target for target in targets)
    assert not any("encoder_layer" in target or "multi_head" in target for target in targets)
