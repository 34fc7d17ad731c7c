"""What a pass through a break costs: no segment is called that has nothing to do, and drivers know the newest plan."""

from __future__ import annotations

import pytest
import torch

from bytecap import Broke, Captured, executor, optimize


def vector():
    return torch.linspace(0.1, 0.7, 4)


def captured(function):
    """The compiled function, and its events."""
    events = []
    return optimize(function, lambda capture, inputs: executor(capture), on_event=events.append), events


def entered(compiled, *args):
    """The result of a call, and how many replacements ran in it."""
    before = compiled.owner.hits
    return compiled(*args), compiled.owner.hits - before


def breaks_inside(x):
    y = x * 0.5 + 1
    if y.sum() > 1000:
        return y
    return y * 0.25 + 1


def calls_in_a_loop(x, count):
    for _ in range(count):
        x = breaks_inside(x)
    return x


def work_behind_the_loop(x, count):
    for _ in range(count):
        x = breaks_inside(x)
    return (x * 2 + 1).cos()


def calls_in_a_with(x, count):
    with torch.no_grad():
        for _ in range(count):
            x = breaks_inside(x)
    return x


@pytest.mark.parametrize("program", [calls_in_a_loop, calls_in_a_with, work_behind_the_loop])
def test_what_only_leads_to_the_next_break_is_left_to_the_driver(program):
    """Two replacements a pass, those of the callee; what lies between two calls has no graph."""
    compiled, _ = captured(program)
    for _ in range(3):
        assert torch.equal(compiled(vector(), 3), program(vector(), 3))
    assert torch.equal(compiled(vector(), 8), program(vector(), 8))
    few, many = (entered(compiled, vector(), count)[1] for count in (3, 8))
    assert many - few == 2 * (8 - 3)


def test_work_between_breaks_stays_in_segments():
    def program(x, count):
        for _ in range(count):
            x = breaks_inside(x)
            x = (x * 0.5 + 1).relu()
        return x

    compiled, events = captured(program)
    for _ in range(3):
        assert torch.equal(compiled(vector(), 5), program(vector(), 5))
    assert any(len(event.capture.graph.nodes) == 3 for event in events if isinstance(event, Captured))


def test_a_call_that_broke_once_stays_in_the_graph_of_other_passes():
    def program(x, broken):
        for at in range(6):
            x = breaks_at(x, at, broken)
        return x

    def breaks_at(x, at, broken):
        y = x * 2 + 1
        if at == broken and y.sum() > 1000:
            return y
        return y * 3 + 1

    compiled, _ = captured(program)
    for _ in range(3):
        assert torch.equal(compiled(vector(), 2), program(vector(), 2))
    _, hits = entered(compiled, vector(), 2)
    assert hits <= 5


@pytest.mark.parametrize("has_cells", [False, True])
def test_a_driver_knows_of_segments_that_were_made_after_it(has_cells):
    def program(x, kinds):
        def shift(y):
            return y + x.sum()

        for kind in kinds:
            if kind == 1:
                x = (x * 2 + 1) * x.sum().item()
            elif kind == 2:
                x = (x * 3 + 1) - x.mean().item()
            x = x.cos() * 2
        return shift(x) if has_cells else x

    if not has_cells:

        def program(x, kinds):
            for kind in kinds:
                if kind == 1:
                    x = (x * 2 + 1) * x.sum().item()
                elif kind == 2:
                    x = (x * 3 + 1) - x.mean().item()
                x = x.cos() * 2
            return x

    compiled, events = captured(program)
    for kinds in ((1, 1), (1, 2), (2, 1, 2), (1, 2, 1, 2)):
        for _ in range(2):
            assert torch.equal(compiled(vector(), kinds), program(vector(), kinds))
    made = len(events)
    places = {str(event.error.where) for event in events if isinstance(event, Broke)}
    assert len(places) == 2
    result, hits = entered(compiled, vector(), (1, 2, 1, 2))
    assert torch.equal(result, program(vector(), (1, 2, 1, 2)))
    assert hits == 5
    assert len(events) == made
