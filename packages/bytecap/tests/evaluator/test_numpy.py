"""NumPy in captured code: numbers by value, known arrays at once, outside arrays as inputs of the graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bytecap import Broke, Captured, executor, optimize
from bytecap.testing import differences
from bytecap.testing.programs import Programs

np = pytest.importorskip("numpy")

PROGRAMS = Programs()


def x() -> torch.Tensor:
    return torch.arange(6.0).reshape(2, 3)


@PROGRAMS.add(x)
def functions_of_known_numbers(x):
    scale = np.sqrt(x.shape[-1])
    return x / scale, x.reshape(np.prod(x.shape)), x * np.pi, np.float32(3) + 1, np.ceil(2.5), x * np.exp(-1000.0)


@PROGRAMS.add(x, refusal="BC002")
def methods_of_an_object_of_cython(x):
    generator = np.random.default_rng(3)
    return x * torch.from_numpy(generator.random(3)), generator.integers(5)


@PROGRAMS.add(x)
def known_arrays(x):
    ends = np.cumsum([0, 1, 2])
    table = np.linspace(0, 1, 6).reshape(2, 3).astype(np.float32)
    total = 0
    for end in ends:
        total += int(end)
    return (
        x[:, ends[1] : ends[2]] * total + torch.from_numpy(table)[:, :2], torch.tensor(table) * 2,
        ends.tolist(), len(ends), ends[ends > 0].sum(), ends.shape,
        table.dtype, torch.as_tensor(np.arange(3)), table.max(axis=0).mean(),
    )  # fmt: skip


@PROGRAMS.add(x)
def arrays_that_are_returned(x):
    made = np.arange(4)
    return x * 2, made, [made], np.zeros((2, 2)) + 1


@PROGRAMS.add(x)
def arrays_that_the_code_writes(x):
    table = np.zeros((2, 3), dtype=np.float32)
    row = table[1]
    table[0] = [1, 2, 3]
    table[:, 1] += 2
    row *= 3
    order = np.array([3, 1, 2])
    order.sort()
    order[order > 2] = 7
    return x + torch.tensor(table), table.tolist(), order.tolist(), row.sum()


@PROGRAMS.add(x)
def linear_algebra(x):
    table = np.eye(2) * 4
    return x * np.linalg.det(table), np.linalg.inv(table).tolist(), np.linalg.norm([3.0, 4.0]), abs(np.fft.fft(table))


@PROGRAMS.add(x, lambda: np.float32(0.5), lambda: np.int64(3), lambda: np.bool_(True))
def numbers_as_arguments(x, rate, size, flag):
    y = x * rate if flag else x
    return y.reshape(size, -1) + size, rate * 2, rate > 0.25, size % 2 == 1, f"{rate:.2f}", rate.item(), rate.dtype


@PROGRAMS.add(x, lambda: np.arange(6.0, dtype=np.float32).reshape(2, 3), lambda: np.arange(3))
def outside_arrays_as_tensors(x, table, index):
    rows = torch.from_numpy(index)
    return (
        x + torch.from_numpy(table), torch.tensor(table) * 2, torch.as_tensor(table, dtype=torch.float64), rows + 1,
        x[:, rows], table.shape, len(index), x.new_zeros(table.ndim),
    )  # fmt: skip


@PROGRAMS.add(lambda: np.arange(3.0))
def a_tensor_over_an_array_is_written_and_returned(table):
    view = torch.from_numpy(table)
    view.add_(1)
    return view, view * 2


@PROGRAMS.add(x)
def numbers_in_data(x):
    return x * 2, torch.tensor(np.float64(2.0)), torch.tensor(np.int32(2)), torch.tensor([np.float32(1)], dtype=x.dtype)


@PROGRAMS.add(x, refusal="BC002")
def a_list_of_numbers_without_a_dtype(x):
    return x + torch.tensor([np.float64(1), 2])


@PROGRAMS.add(x)
def numpy_of_a_tensor(x):
    y = (x * 2).numpy()
    return torch.from_numpy(np.sqrt(y)) + 1


@PROGRAMS.add(x, lambda: np.arange(4))
def the_content_of_an_outside_array(x, array):
    numbers = [number + 1 for number in array]
    return x * int(array[1]) + array.sum(), (array == 2) * 1, numbers, np.exp(array / 3), -1 in array


@PROGRAMS.add(x, lambda: np.tril_indices(2))
def arrays_as_indices(x, places):
    lower = x.new_zeros(3, 3)
    lower[places[0], places[1]] = x[0]
    lower[np.array([0, 2])] += 1
    return lower, x[places], x[np.arange(2), 1:]


@PROGRAMS.add(x, lambda: np.arange(4000), refusal="BC003")
def the_content_of_a_large_outside_array(x, array):
    return x * int(array[1]) + array.sum()


@PROGRAMS.add(x, lambda: np.arange(4), refusal="BC006")
def a_view_of_an_outside_array(x, array):
    return x * 2, array[1:]


@PROGRAMS.add(x, lambda: np.arange(4))
def a_write_into_an_outside_array(x, array):
    array[1] = 7
    return x * 2, torch.from_numpy(array) + 1, array.shape, array


@PROGRAMS.add(x, lambda: np.ones((3, 4), dtype=np.float32), lambda: np.zeros(3, dtype=bool), lambda: np.arange(3.0))
def writes_into_outside_arrays(x, table, marks, numbers):
    table[1:, ..., 2] = 0.1
    table[-1] = 3
    table *= 0.3
    marks[2] = True
    numbers += 0.1
    numbers[()] = 2**20
    numbers -= 3
    return x.sum() + torch.from_numpy(table).sum(), marks, numbers


def numbers_of(dtype):
    return lambda: np.zeros(4, dtype=dtype)


@PROGRAMS.add(x, lambda: np.arange(4), refusal="BC008")
def the_content_of_an_array_that_was_written(x, array):
    y = x * 2
    array[1] = 7
    return y * int(array[1])


@PROGRAMS.add(x, lambda: np.arange(4), refusal="BC008")
def a_write_into_an_array_whose_content_was_used(x, array):
    y = x * int(array[1])
    row = array[1:]
    array[1] = 7
    return y * int(row[0])


@PROGRAMS.add(x, lambda: (lambda array: [array, array[1:]])(np.arange(4)), refusal="BC008")
def the_content_of_a_view_of_what_was_written(x, arrays):
    y = x * 2
    arrays[0][1] = 7
    return y * int(arrays[1][0])


@PROGRAMS.add(x, numbers_of(np.int8), numbers_of(np.float16))
def writes_of_numbers_that_are_rounded(x, whole, half):
    y = x * 2
    half[0] = 1.0001
    whole[0], whole[1] = 1.5, -1.5
    return y, whole, half


@PROGRAMS.add(x, numbers_of(np.float32), numbers_of(np.int32))
def writes_in_other_ways(x, array, whole):
    y = x * 2
    array[[0, 1]] = 2.0
    array[1:] = array[:-1].sum() if array is whole else 4
    array /= 2
    whole[::2] = x.numpy()[0, :2] * 2.5
    whole -= 3
    return y, array, whole


@PROGRAMS.add(x, numbers_of(np.float32), refusal="BC002")
def a_write_that_runs_backwards(x, array):
    y = x * 2
    array[::-2] = 1.0
    return y


@PROGRAMS.add(x)
def arrays_as_tensors_of_old(x):
    grid = np.indices((2, 3))
    return (
        torch.Tensor(grid) + x,
        torch.LongTensor(grid),
        torch.FloatTensor(np.ones((2, 3), dtype=np.float32)) * x,
        x.new_tensor(grid),
    )


@PROGRAMS.add(x, lambda: np.arange(3), lambda: np.arange(3.0))
def outside_arrays_as_tensors_of_old(x, index, weights):
    return (
        x[:, torch.LongTensor(index)],
        torch.FloatTensor(weights) * x,
        torch.DoubleTensor(weights) + x.new_tensor(index),
    )


@PROGRAMS.add(x, refusal="BC008")
def an_array_that_is_written_behind_a_tensor(x):
    y = x * 2
    made = np.zeros(3)
    tensor = torch.from_numpy(made)
    made[1] = 5
    return y + tensor.float()


@PROGRAMS.add(x, lambda: np.zeros(3), refusal="BC008")
def a_view_of_an_outside_array_that_is_written(x, outside):
    y = x * 2
    row = outside[1:]
    row[0] = 5
    return y + torch.tensor(outside)


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_same_as_plain(program) -> None:
    program.check()


def test_arrays_that_the_code_makes_are_new_in_each_call():
    def program(x):
        made = np.zeros(3)
        return x + 1, made, made

    captured = optimize(program, lambda capture, inputs: executor(capture), fullgraph=True)
    _, first, again = captured(torch.ones(2))
    first[0] = 5
    assert again is first
    assert captured(torch.ones(2))[1].tolist() == [0.0, 0.0, 0.0]


def test_the_numbers_of_an_outside_array_are_guarded():
    table = np.linspace(0, 1, 5)

    def program(x, step):
        return x * table[step] + table.max()

    calls(program, [(torch.ones(2), 1), (torch.ones(2), 1)])
    table[1] = 9
    calls(program, [(torch.ones(2), 1), (torch.ones(2), 4)])
    captured = optimize(program, lambda capture, inputs: executor(capture))
    for number in (3.0, 4.0, 3.0):
        table[2] = number
        assert not differences(program(torch.ones(2), 2), captured(torch.ones(2), 2))


def calls(function: Any, arguments: list[tuple[Any, ...]]) -> list[Any]:
    """Call with each arguments, plain and captured; returns the events."""
    events: list[Any] = []
    captured = optimize(function, lambda capture, inputs: executor(capture), on_event=events.append)
    for given in arguments:
        assert not differences(function(*given), captured(*given))
    return events


def test_numbers_are_guarded_by_class_and_value() -> None:
    events = calls(
        lambda x, n: x * n if n > 1 else x - 1,
        [(x(), np.int64(2)), (x(), np.int64(2)), (x(), np.int64(1)), (x(), np.int32(2)), (x(), np.int64(1))],
    )
    assert [type(event) for event in events] == [Captured] * 3


def test_numbers_that_differ_each_time_are_left_open() -> None:
    events = calls(lambda x, n: x.relu() * n, [(x(), np.float64(n)) for n in range(12)])
    assert len([event for event in events if isinstance(event, Captured)]) < 8
    assert {event.error.code for event in events if isinstance(event, Broke)} == {"BC016"}


def test_arrays_of_any_content_and_another_size() -> None:
    events = calls(
        lambda x, a: x.sum() + torch.from_numpy(a) * 2, [(x(), np.full(size, 1.5 * size)) for size in (3, 3, 4, 3, 4)]
    )
    assert [type(event) for event in events] == [Captured] * 2


class Name(str):
    __slots__ = ()


class Count(int):
    pass


def test_subclasses_of_numbers_and_texts_are_guarded_by_value() -> None:
    events = calls(
        lambda x, name, n: x * n if name == "a" else x - n,
        [(x(), Name(name), Count(n)) for name, n in (("a", 2), ("a", 2), ("b", 2), ("a", 2), ("a", 3))],
    )
    assert [type(event) for event in events] == [Captured] * 3


def test_an_outside_array_is_written_in_each_call():
    captures = []

    def steps(x, total):
        total += 1
        total[0] = 7
        return x * 2 + torch.from_numpy(total)

    compiled = optimize(steps, lambda capture, inputs: captures.append(capture) or executor(capture), fullgraph=True)
    total = np.zeros(3)
    for number in range(3):
        assert compiled(torch.ones(3), total).tolist() == [9.0, 3.0 + number, 3.0 + number]
    assert total.tolist() == [7.0, 3.0, 3.0]
    assert len(captures) == 1
