"""One object passed twice, after a capture in which there were two, and the other way round."""

from __future__ import annotations

import pytest
import torch

from bytecap import executor, optimize
from bytecap.testing import differences


def writes_a_tensor(first, second):
    first.add_(1)
    return first * second


def writes_a_list(first, second):
    first.append(1)
    return torch.ones(2) * len(second)


def writes_a_dict(first, second):
    first["new"] = 1
    return torch.ones(2) * len(second)


def writes_inside(first, second):
    first[0].append(1)
    return torch.ones(2) * len(second[0])


CASES = [
    (writes_a_tensor, lambda: torch.arange(3.0)),
    (writes_a_list, lambda: [1, 2]),
    (writes_a_dict, lambda: {"a": 1}),
    (writes_inside, lambda: [[1]]),
]


@pytest.mark.parametrize(("function", "make"), CASES, ids=lambda value: value.__name__.strip("<>"))
@pytest.mark.parametrize("order", ["apart, together", "together, apart"])
def test_aliased_arguments(function, make, order):
    def arguments(together):
        first = make()
        return (first, first) if together else (first, make())

    captures = []

    def backend(capture, example_inputs):
        captures.append(capture)
        return executor(capture)

    call = optimize(function, backend, fullgraph=True)
    for word in order.split(", ") * 2:
        expected, got = arguments(word == "together"), arguments(word == "together")
        want, have = function(*expected), call(*got)
        assert differences((want, expected), (have, got)) == []
    assert len(captures) == 2


def test_a_class_in_between_gets_the_method_that_super_finds():
    class Base:
        def scale(self, x):
            return x + 1

    class Middle(Base):
        pass

    class Last(Middle):
        def scale(self, x):
            return super().scale(x) * 2

    last = Last()
    call = optimize(lambda x: last.scale(x), lambda capture, inputs: executor(capture), fullgraph=True)
    x = torch.ones(2)
    assert torch.equal(call(x), (x + 1) * 2)
    Middle.scale = lambda self, x: x + 10
    assert torch.equal(call(x), (x + 10) * 2)
