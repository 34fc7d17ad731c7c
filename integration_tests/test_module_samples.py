"""A fixed sample of torch's database of modules, captured whole; `nox -s modules` runs the whole of it."""

from __future__ import annotations

import pytest

pytest.importorskip("expecttest", reason="torch's database of modules imports it")

from tools.modules import check, module_db

SAMPLE = frozenset(
    {"nn.Linear", "nn.Bilinear", "nn.Conv2d", "nn.ConvTranspose1d", "nn.GroupNorm", "nn.InstanceNorm2d", "nn.RNN",
     "nn.LSTMCell", "nn.LSTM", "nn.Embedding", "nn.EmbeddingBag", "nn.MultiheadAttention", "nn.TransformerDecoderLayer",
     "nn.Transformer", "nn.CrossEntropyLoss", "nn.PixelShuffle", "nn.FractionalMaxPool2d", "nn.RReLU", "nn.Softmax2d",
     "nn.TripletMarginLoss", "nn.ReflectionPad3d"}
)  # fmt: skip


@pytest.mark.parametrize("info", [info for info in module_db if info.name in SAMPLE], ids=lambda info: info.name)
def test_agrees_with_eager(info) -> None:
    row = check(info, "eager", 4)
    assert row.counts["equal"] > 0
    assert row.counts["equal"] == row.counts.total(), row.notes


def test_what_is_refused_is_said() -> None:
    (info,) = [info for info in module_db if info.name == "nn.LazyConv1d"]
    row = check(info, "eager", 1)
    assert row.counts == {"refused": 2}
    assert "BC003" in str(row)
