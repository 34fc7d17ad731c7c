"""Copies of compiled modules that others make."""

import torch

import stagefold


def test_the_copy_of_nn_data_parallel_is_the_originals():
    """`nn.DataParallel` writes the dictionary of attributes of what `type(module)` makes."""
    net = torch.nn.Linear(3, 2)
    copy = stagefold.compile(net)._replicate_for_data_parallel()
    assert type(copy) is torch.nn.Linear
    assert copy is not net
    copy._former_parameters = {}
    assert not hasattr(net, "_former_parameters")
