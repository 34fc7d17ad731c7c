"""Choices by time: made once, kept, made again where a record is damaged; on a GPU, with real times."""

import pytest
import torch
from msgspec.structs import replace

from codegen import Options, load
from codegen.choices import chosen
from codegen.errors import CorruptCode, LaunchFailed
from codegen.runtime import tuning
from codegen.runtime.memory_kinds import plan_memory
from codegen.runtime.tuning import Bench, Excerpts, Record, by_precision, make_choices, with_tf32
from codegen.stage import emit
from codegen.testing.product_texts import batched_scale, linear_relu, made_operands
from stagewire.program import CallExtern

TIMED = Options(target="triton", autotune="time")
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="times are of a GPU")


def placed(graph, device):
    buffers = tuple(replace(one, type=replace(one.type, device=device)) for one in graph.buffers)
    return replace(graph, buffers=buffers)


@pytest.fixture
def clock(monkeypatch):
    """What would be timed, by path; the second alternative is always the quickest."""
    asked = []

    def timed(missing, aligned, bench):
        asked.extend(missing)
        for path in missing:
            tuning.write_stored(path, tuning.msgspec.json.encode(Record(1)))
        return {path: (Record(1), {}) for path in missing}

    monkeypatch.setattr(tuning, "_timed", timed)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "a device")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return asked


def test_what_was_timed_is_kept(clock, tmp_path):
    bench = Bench(0, 90, tmp_path, None)
    assert make_choices(emit(linear_relu(20, 30, 17, "float32"), TIMED), bench) == ({0: 1}, {})
    assert make_choices(emit(linear_relu(20, 30, 17, "float32", "_other"), TIMED), bench) == ({0: 1}, {})
    assert len(clock) == 1


def test_alternatives_with_a_prologue_are_timed_too(clock, tmp_path):
    unit = emit(made_operands(20, 30, 17, "float32"), TIMED)
    assert make_choices(unit, Bench(0, 90, tmp_path, None)) == ({0: 1}, {})
    assert len(clock) == 1


def test_a_damaged_record_is_made_again(clock, tmp_path):
    bench, unit = Bench(0, 90, tmp_path, None), emit(linear_relu(20, 30, 17, "float32"), TIMED)
    make_choices(unit, bench)
    clock[0].write_bytes(b"nothing")
    with pytest.warns(CorruptCode, match="damaged"):
        assert make_choices(unit, bench) == ({0: 1}, {})
    assert len(clock) == 2


def test_precision_and_device_are_part_of_the_key(clock, tmp_path, monkeypatch):
    bench, unit = Bench(0, 90, tmp_path, None), emit(linear_relu(20, 30, 17, "float32"), TIMED)
    make_choices(unit, bench)
    make_choices(with_tf32(unit), bench)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "another")
    make_choices(unit, bench)
    assert len(set(clock)) == 3


def test_while_a_graph_is_recorded_nothing_is_timed(clock, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert make_choices(emit(linear_relu(20, 30, 17, "float32"), TIMED), Bench(0, 90, tmp_path, None)) == ({}, {})
    assert not clock


def test_other_flags_of_precision_run_what_stands_in_the_unit(monkeypatch):
    run = by_precision(True, lambda x: ("rounded", x), lambda x: ("exact", x))
    monkeypatch.setattr(tuning, "tf32_allowed", lambda: True)
    assert run(1) == ("rounded", 1)
    monkeypatch.setattr(tuning, "tf32_allowed", lambda: False)
    assert [run(2), run(3)] == [("exact", 2), ("exact", 3)]


def test_flags_of_torch_are_seen():
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        assert tuning.tf32_allowed()
        torch.set_float32_matmul_precision("highest")
        assert not tuning.tf32_allowed()
    finally:
        torch.set_float32_matmul_precision(before)


class Event:
    """The clock of the race below: each run takes what it says."""

    now = 0.0

    def __init__(self, enable_timing):
        self.at = None

    def record(self):
        self.at = Event.now

    def elapsed_time(self, end):
        return 1000 * (end.at - self.at)


def test_the_quickest_that_is_right_is_taken(directory, device, monkeypatch):
    """Alternative 0 does not compile, 1 is wrong and quick, 2 does not start, 3 is quicker than the unit, 4 is not."""
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    for name in ("FLUSH", "ROUNDS", "REPEATS"):
        monkeypatch.setattr(tuning, name, 1)
    unit = emit(placed(linear_relu(40, 64, 17, "float32"), device), TIMED)
    one = Excerpts(unit, plan_memory(chosen(unit, {})).types).of(0)
    numbers = {one.names[launch.kernel]: n for n, (*_, launch) in enumerate(unit.choices[0].alternatives)}
    seconds = {None: 5e-5, 1: 1e-5, 3: 3e-5, 4: 6e-5}

    def bind(alone, slow, library, cubins):
        number = next((numbers[name] for name in cubins if name in numbers), None)
        run = load(alone, directory)

        def timed(*inputs):
            if number == 2:
                raise LaunchFailed("result 701")
            Event.now += seconds.get(number, 1.0)
            results = run(*inputs)
            return tuple(result + 1 for result in results) if number == 1 else results

        return timed

    cubins = {info.name: "too large" if numbers.get(info.name) == 0 else None for info in one.unit.kernels}
    record = tuning._Race(one, cubins, Bench(0, 90, directory, bind)).run()
    assert record.pick == 3
    assert record.seconds[0] == pytest.approx(5e-5)
    assert record.seconds[4] == pytest.approx(3e-5)
    assert record.skipped.keys() == {0, 1, 2}
    assert record.skipped[0] == "too large"


def test_without_a_gpu_the_calls_are_made(directory):
    unit = emit(linear_relu(20, 30, 17, "float32"), TIMED)
    loaded = load(unit, directory, executor="reference")
    assert any(isinstance(one, CallExtern) for one in loaded.unit.instructions)


@on_gpu
@pytest.mark.parametrize(
    "graph",
    [
        linear_relu(300, 200, 100, "bfloat16"),
        batched_scale(8, 64, 96, 32, "float32"),
    ],
)
def test_real_times(graph, tmp_path, monkeypatch):
    unit = emit(placed(graph, "cuda:0"), TIMED)
    types = dict(zip(unit.inputs, unit.input_types, strict=True))
    inputs = [
        torch.randn(type_.shape, device="cuda", dtype=getattr(torch, type_.dtype)).as_strided(type_.shape, type_.stride)
        for type_ in types.values()
    ]
    expected = load(chosen(unit, {}), tmp_path)(*inputs)
    state = torch.cuda.get_rng_state()
    found = load(unit, tmp_path)(*inputs)
    assert torch.equal(state, torch.cuda.get_rng_state())
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
    (record,) = [
        tuning.msgspec.json.decode(tuning.read_stored(path), type=Record) for path in tmp_path.rglob("tuned/*")
    ]
    assert len(record.seconds) == 1 + len(unit.choices[0].alternatives)
    assert all(0 < one < 1 for one in record.seconds if one is not None)
    assert len([one for one in record.seconds if one is not None]) > len(record.seconds) // 2, record.skipped
    monkeypatch.setattr(tuning, "_timed", None)
    torch.testing.assert_close(load(unit, tmp_path)(*inputs), found)
