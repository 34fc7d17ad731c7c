"""What eager refuses whatever the data: its exception arrives, and a handler of the program catches it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import bytecap


def integers(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64)


class Backend:
    """Runs captures call by call, and counts them."""

    takes_symbols = True

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, capture: Any, inputs: Any) -> Callable[..., Any]:
        self.made += 1
        return lambda *given: bytecap.interpret(capture, given)


X = torch.ones(3, 2)
CALLS = {
    "gather": (lambda x: x.gather(0, integers(3, 5)), RuntimeError),
    "scatter": (lambda x: x.scatter(0, integers(3, 5), 1.0), RuntimeError),
    "scatter_add": (lambda x: x.scatter_add(0, integers(3, 2), torch.ones(1, 2)), RuntimeError),
    "index_add": (lambda x: x.index_add(0, integers(4), x[:2]), RuntimeError),
    "index_copy": (lambda x: x.index_copy(0, integers(4), x[:2]), IndexError),
    "narrow_copy": (lambda x: torch.narrow_copy(x, 0, 0, 11), RuntimeError),
    "layer_norm": (lambda x: F.layer_norm(x, (2,), torch.ones(3)), RuntimeError),
    "class weights": (lambda x: F.nll_loss(x, integers(3), weight=torch.ones(1)), RuntimeError),
    "dtype of a condition": (lambda x: torch.where(x, x, x), RuntimeError),
    "no kernel": (lambda x: torch.gcd(x, x), NotImplementedError),
    "nothing to reduce": (lambda x: x[:0].argmax(), IndexError),
    "padding": (lambda x: F.max_pool2d(x[None], 2, padding=2), RuntimeError),
    "size 0": (lambda x: F.interpolate(x[None, None], size=(0, 2)), RuntimeError),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_the_exception_is_eagers(name: str, dynamic: bool) -> None:
    call, cls = CALLS[name]
    with pytest.raises(cls) as eager:
        call(X)
    with pytest.raises(cls) as ours:
        bytecap.optimize(call, Backend(), dynamic=dynamic)(X)
    assert type(ours.value) is type(eager.value)


@pytest.mark.parametrize("name", CALLS)
def test_a_handler_of_the_program_catches_it(name: str) -> None:
    call, _ = CALLS[name]

    def program(x: torch.Tensor) -> str:
        try:
            call(x)
        except NotImplementedError:
            return "NotImplementedError"
        except IndexError:
            return "IndexError"
        except RuntimeError:
            return "RuntimeError"
        return "nothing"

    assert bytecap.optimize(program, Backend())(X) == program(X)


def test_operands_that_fit_share_a_program_and_others_are_refused() -> None:
    backend = Backend()
    call = bytecap.optimize(lambda x, i: x.gather(0, i), backend, dynamic=True)
    for rows, columns in ((8, 4), (9, 7), (10, 6)):
        call(torch.ones(rows, columns), integers(2, columns - 1))
    assert backend.made == 1
    with pytest.raises(RuntimeError, match="Size does not match"):
        call(torch.ones(8, 4), integers(2, 5))


def test_a_tensor_of_more_dimensions_than_guards_hold_runs_plain() -> None:
    deep = torch.ones([1] * 65)
    with pytest.raises(RuntimeError, match="up to 64 dims"):
        bytecap.optimize(lambda x: x.amax(64), Backend())(deep)
    assert bytecap.optimize(lambda x: x.squeeze() * 2, Backend())(deep) == 2
