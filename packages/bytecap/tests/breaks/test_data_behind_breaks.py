"""Behind a break: what data decides is left open by the first capture, so that other data does not ask for another."""

from __future__ import annotations

import torch

from bytecap import Captured, Refused, executor, optimize


class Backend:
    takes_symbols = takes_data_sizes = True

    def __call__(self, capture, inputs):
        return executor(capture)


def graphs(f, *calls):
    """How many graphs are made for these calls; each gives what `f` gives."""
    events = []
    call = optimize(f, Backend(), on_event=events.append)
    for arguments in calls:
        assert torch.equal(call(*arguments), f(*arguments)), arguments
    return sum(isinstance(event, Captured) and not event.reused for event in events)


def vector():
    return torch.linspace(0.1, 0.7, 4)


def one_hot(number, count=6):
    return torch.nn.functional.one_hot(torch.tensor(number), count)


def test_a_text_made_of_a_tensor():
    def f(x, which, table):
        y = x.sin() + 1
        scale = table[f"row{which.argmax()}"]
        return (y * scale).cos() + 1

    table = {f"row{number}": float(number) * torch.ones(4) for number in range(6)}
    few = graphs(f, *((vector(), one_hot(number), table) for number in (0, 1)))
    assert graphs(f, *((vector(), one_hot(number), table) for number in range(6))) == few == 2


def test_a_message_is_made_anew():
    def f(x, log):
        y = x.sin() + 1
        log.append(f"the sum is {y.sum()}, so it is")
        return (y * 2).cos() + 1

    events, log, expected = [], [], []
    call = optimize(f, Backend(), on_event=events.append)
    for number in range(8):
        assert torch.equal(call(vector() + number, log), f(vector() + number, expected))
    assert log == expected
    assert sum(isinstance(event, Captured) for event in events) == 2


def test_an_int_that_a_branch_is_about():
    def f(x, which):
        y = x.sin() + 1
        number = which.argmax().item()
        if number > 7:
            y = y + 1
        return (y[number] * number).cos() + x

    def calls(*numbers):
        return ((torch.linspace(0.1, 0.7, 12), one_hot(number, 12)) for number in numbers)

    assert graphs(f, *calls(0, 1, 2, 5, 7, 3)) == graphs(f, *calls(0))
    assert graphs(f, *calls(0, 9, 1, 8, 11, 4)) <= graphs(f, *calls(0, 9)) == graphs(f, *calls(0)) + 1


def test_rows_whose_stride_is_their_number():
    def f(x, chosen, table):
        total = torch.zeros_like(x[0])
        for row in (chosen > 0).nonzero():
            kept = x[row].sum(0)
            total = total + (kept * table[f"row{row[0]}"]).cos()
        return total.cos()

    table = {f"row{number}": torch.tensor(float(number)) for number in range(8)}

    def calls(*counts):
        return ((torch.arange(24.0).reshape(8, 3), (torch.arange(8) < count).int(), table) for count in counts)

    assert graphs(f, *calls(3, 4, 5, 7, 2)) == graphs(f, *calls(3))


def test_views_alone_run_plain():
    def f(x):
        y = x.sin() + 1
        if y.sum() > 100:
            y = y + 1
        return y.reshape(2, 2).t()

    def writes(x):
        y = x.sin() + 1
        if y.sum() > 100:
            y = y + 1
        y[0].view(-1).add_(1)
        return y

    events = []
    assert torch.equal(optimize(f, Backend(), on_event=events.append)(vector()), f(vector()))
    assert sum(isinstance(event, Captured) for event in events) == 1
    assert [event.error.code for event in events if isinstance(event, Refused)] == ["BC009"]
    assert graphs(writes, (vector(),)) == 2
