"""A graph that raises under autocast leaves autocast as it was before the call."""

import pytest
import torch

from bytecap import executor, optimize


def test_autocast_is_off_again_after_an_exception():
    def program(places, table):
        with torch.autocast("cpu", torch.bfloat16):
            return torch.nn.functional.embedding(places, table) @ table

    compiled = optimize(program, lambda capture, inputs: executor(capture), fullgraph=True)
    table = torch.randn(4, 4)
    assert compiled(torch.tensor([1]), table).dtype is torch.bfloat16
    with pytest.raises(IndexError):
        compiled(torch.tensor([9]), table)
    assert not torch.is_autocast_enabled("cpu")
