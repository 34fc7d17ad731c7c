"""`as_strided` of views: it shows the memory, and its gradient is that of the view, until the memory is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from aotgrad import AotGrad
from aotgrad.errors import NoInverse
from aotgrad.testing import capture_by_torch_function, check_against_eager, eager_refuses_backward

Look = Callable[[torch.Tensor], torch.Tensor]

VIEWS: dict[str, Look] = {
    "itself": lambda x: x,
    "diagonal": lambda x: x.diagonal(),
    "transposed": lambda x: x.t(),
    "row": lambda x: x[1],
    "column": lambda x: x[:, 1],
    "rows": lambda x: x[1:],
    "every second column": lambda x: x[:, ::2],
    "expanded": lambda x: x[0].expand(2, 4),
    "windows": lambda x: x.unfold(0, 2, 2),
    "flat": lambda x: x.view(-1),
    "one of a split": lambda x: x.split(1)[1],
    "one of unbind": lambda x: x.unbind(0)[1],
    "detached": lambda x: x.detach(),
    "as_strided": lambda x: x.as_strided((2, 2), (1, 2)),
}
STRIDED: dict[str, Look] = {
    "from the view": lambda v: v.as_strided((2, 2), (2, 1)),
    "from the start of the memory": lambda v: v.as_strided((3, 2), (1, 1), 2),
    "by name": lambda v: v.as_strided(size=(2, 2), stride=(2, 1), storage_offset=1),
    "and a row of it": lambda v: v.as_strided((2, 2), (2, 1)).t()[1:],
}


def without_grad(function: Callable[..., Any], *args: Any) -> Any:
    with torch.no_grad():
        return function(*args)


def write_between(x: torch.Tensor, look: Look, strided: Look) -> Any:
    view = look(x)
    x.mul_(2)
    return strided(view)


def write_behind(x: torch.Tensor, look: Look, strided: Look) -> Any:
    view = strided(look(x))
    x.mul_(2)
    return view, view.sin()


def write_behind_without_grad(x: torch.Tensor, look: Look, strided: Look) -> Any:
    view = strided(look(x))
    without_grad(x.mul_, 2)
    return view, view.sin()


def write_source(x: torch.Tensor, look: Look, strided: Look) -> Any:
    view = look(x)
    result = strided(view)
    view.mul_(3)
    return x * 1, result, result * 2


def write_through(x: torch.Tensor, look: Look, strided: Look) -> Any:
    result = strided(look(x))
    result.mul_(3)
    return x * 1, result, result * 2


def write_twice(x: torch.Tensor, look: Look, strided: Look) -> Any:
    result = strided(look(x))
    x.mul_(2)
    before = result.cos()
    result.mul_(3)
    x.mul_(2)
    return before, x * 1, result.sin(), result


PROGRAMS: dict[str, Callable[[torch.Tensor, Look, Look], Any]] = {
    "returned": lambda x, look, strided: strided(look(x)),
    "returned and used": lambda x, look, strided: (x, look(x), strided(look(x)), x * 2),
    "used": lambda x, look, strided: strided(look(x)).sin(),
    "of a view without gradient": lambda x, look, strided: (x * 1, strided(without_grad(look, x))),
    "made without gradient": lambda x, look, strided: (x * 1, without_grad(strided, look(x))),
    "of what was written": lambda x, look, strided: (x.mul_(2), strided(look(x))),
    "of a view written before": write_between,
    "written behind": write_behind,
    "written behind without gradient": write_behind_without_grad,
    "its source written": write_source,
    "written through": write_through,
    "written twice": write_twice,
}


def hidden(transposed: bool = False) -> torch.Tensor:
    torch.manual_seed(0)
    x = (torch.rand(4, 3).t() if transposed else torch.rand(3, 4)) + 0.5
    return x.requires_grad_() * 1


def agrees(program: Callable[[torch.Tensor], Any], make: Callable[[], torch.Tensor]) -> bool | None:
    """Whether the stage compiles it (it then does what eager does); None where eager refuses it."""
    try:
        capture, _ = capture_by_torch_function(program, [make()])
    except RuntimeError:
        return None
    if eager_refuses_backward(capture, [make()]):
        return None
    try:
        check_against_eager(capture, [make()])
    except NoInverse:
        return False
    return True


@pytest.mark.parametrize("look", VIEWS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients_are_those_of_eager(program: str, look: str) -> None:
    seen = set()
    for of_input in (True, False):
        for transposed in (False, True):
            for strided in STRIDED.values():

                def run(x: torch.Tensor, strided: Look = strided, of_input: bool = of_input) -> Any:
                    y = x if of_input else x * 2
                    found = PROGRAMS[program](y, VIEWS[look], strided)
                    return found if of_input else (y, found)

                seen.add(agrees(lambda x, run=run: flat(run(x)), lambda turned=transposed: hidden(turned)))
    # (Some writes have no functional form: into transposed memory, and where elements are one.)
    assert True in seen or seen == {None}


def test_an_element_outside_of_the_view_gets_no_gradient() -> None:
    def program(x: torch.Tensor) -> Any:
        return x, x.diagonal().as_strided((2,), (1,)), torch.nn.functional.dropout(x)

    assert agrees(program, lambda: torch.rand(3, 1, requires_grad=True))


def flat(found: Any) -> tuple[torch.Tensor, ...]:
    return tuple(each for one in found for each in flat(one)) if isinstance(found, tuple) else (found,)


def complex_numbers() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.rand(3, 4, dtype=torch.complex64).requires_grad_() * 1


def written(look: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], Any]:
    def program(x: torch.Tensor) -> Any:
        view = look(x)
        x.mul_(2)
        return view, view * 1

    return program


REINTERPRETED: dict[str, tuple[Callable[[torch.Tensor], Any], Callable[[], torch.Tensor]]] = {
    "conjugate": (lambda x: x.conj().as_strided((2,), (1,), 1) * 1, complex_numbers),
    "conjugate, transposed": (lambda x: x.conj().t().as_strided((2, 2), (1, 2), 1), complex_numbers),
    "real part": (lambda x: x.real.as_strided((2, 3), (1, 2), 1) * 1, complex_numbers),
    "real part, written": (written(lambda x: x.real.as_strided((2, 3), (1, 2), 1)), complex_numbers),
    "negative": (lambda x: torch._neg_view(x.t()).as_strided((2, 2), (1, 2), 1) * 1, hidden),
    "rows as bits": (lambda x: x.detach().view(torch.int16)[1].as_strided((2, 3), (1, 2), 1) + 1, hidden),
    "complex behind": (written(lambda x: torch.view_as_complex(x.t().as_strided((2, 2), (2, 1)))), hidden),
    "in place": (lambda x: (x * 2).t().as_strided_((2, 2), (1, 2)).sin(), hidden),
    "in place, of a row": (lambda x: (x * 2)[1].as_strided_((2, 2), (1, 2)).sin(), hidden),
}


@pytest.mark.parametrize("name", REINTERPRETED)
def test_views_that_read_the_bytes_in_another_way(name: str) -> None:
    assert agrees(*REINTERPRETED[name])


def test_the_imaginary_part_of_a_conjugate_is_refused() -> None:
    capture, _ = capture_by_torch_function(
        lambda x: x.conj().imag.as_strided((2, 3), (1, 2), 1) * 1, [complex_numbers()]
    )
    with pytest.raises(NoInverse, match="conjugate"):
        AotGrad().run(capture)
