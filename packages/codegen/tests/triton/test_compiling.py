"""Kernels are compiled by processes of a server, and here where there is none."""

import os
import signal
import time
from pathlib import Path

import pytest

import stagewire
from codegen import Options, prepare
from codegen.cpp.compiler import code_key
from codegen.errors import CompileFailed
from codegen.runtime.native import executor_source
from codegen.runtime.required_cubins import required_cubins
from codegen.runtime.triton_loader import Load, Place
from codegen.stage import emit
from codegen.triton import compile_server, compiling, cubins
from codegen.triton.compile_server import divided, in_processes
from codegen.triton.compiling import module_of
from codegen.triton.cubins import Cubin, CubinSpec, cubin_of
from stagewire.program import Unit
from stagewire.testing.symbolic import factorised

DATA = Path(__file__).parent.parent / "data"


def unit_of(name: str) -> Unit:
    return emit(stagewire.load(DATA / f"{name}.json", expect="loop").forward, Options(target="triton"))


def request_of(name: str) -> tuple[list[tuple[str, object]], tuple[CubinSpec, ...]]:
    unit = unit_of(name)
    kernels = required_cubins(unit)
    return [(unit.source, kernel.job(90)) for kernel in kernels], kernels


def not_here(source: str):
    raise AssertionError("the server did not answer")


def test_kernels_of_several_sources_are_compiled_in_one_request():
    names = sorted(path.stem for path in DATA.glob("*.json"))[:6]
    parts = [request_of(name) for name in names]
    request = [one for part, _ in parts for one in part]
    kernels = [one for _, part in parts for one in part]
    results = compiling.compile_all(request, not_here)
    cubins = [cubin_of(kernel, result) for kernel, result in zip(kernels, results, strict=True)]
    assert [cubin.symbol for cubin in cubins] == [kernel.info.function or kernel.info.name for kernel in kernels]
    assert all(cubin.code[:4] == b"\x7fELF" for cubin in cubins)
    assert [cubin.warps for cubin in cubins] == [kernel.info.num_warps for kernel in kernels]


def test_one_function_is_compiled_in_several_ways_at_once():
    (source, job), *_ = request_of("softmax")[0]
    ways = [{**job, "warps": warps} for warps in (1, 2, 4, 8)] * 4
    results = compiling.compile_all([(source, way) for way in ways], not_here)
    assert [result[3] for result in results] == [way["warps"] for way in ways]


def test_a_kernel_that_triton_refuses_is_told_apart():
    request, (kernel, *_) = request_of("softmax")
    source, job = request[0]
    wrong = {**job, "signature": dict.fromkeys(job["signature"], "constexpr"), "constants": {}}
    refused, made = compiling.compile_all([(source, wrong), (source, job)], not_here)
    assert isinstance(cubin_of(kernel, made), Cubin)
    with pytest.raises(CompileFailed, match=f"kernel {kernel.info.name}: "):
        cubin_of(kernel, refused)


def test_a_server_that_has_ended_is_replaced_by_this_process_and_then_by_another(monkeypatch, tmp_path):
    request, _ = request_of("softmax")
    server = compiling.start_server()
    assert compiling.start_server() is server
    os.kill(server._process.pid, signal.SIGKILL)
    monkeypatch.setattr(compiling, "result_of", lambda function, job: (function.__name__, job["capability"]))
    found = compiling.compile_all(request, module_of)
    assert found == [(job["function"], 90) for _, job in request]
    assert compiling.start_server() is not server
    assert isinstance(compiling.compile_all(request, not_here)[0][0], bytes)


def test_preparing_begins_what_loading_waits_for(tmp_path):
    prepare(tmp_path)
    assert compiling.start_server()._process.poll() is None
    executor, end = tmp_path / f"{code_key(executor_source())}.so", time.monotonic() + 120
    while not executor.exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert executor.exists()


@pytest.fixture
def place(monkeypatch, tmp_path):
    """A place without a device, in which a callable is what it is made of; and the requests for machine code there."""
    requests = []

    def compile_all(request, module):
        requests.append(request)
        return [(str(job["divisors"]).encode(), job["function"], 0, job["warps"], False) for _, job in request]

    monkeypatch.setattr(cubins, "compile_all", compile_all)
    monkeypatch.setattr(Place, "capability", 90)
    monkeypatch.setattr(Place, "bind", lambda self, unit, slow, library, code, multiples=(): (slow, code, multiples))
    return Place(None, None, tmp_path), requests


def test_kernels_of_units_that_are_loaded_together_are_compiled_at_once_and_kept(place):
    place, requests = place
    units = [unit_of("softmax"), unit_of("layer_norm")]
    names = [info.name for unit in units for info in unit.kernels]
    for _ in range(2):
        first, second = place.load([Load(unit, "slow", None) for unit in units])
        assert [cubin.symbol for _, code, _ in (first, second) for cubin in code.values()] == names
    assert [[job["function"] for _, job in request] for request in requests] == [names, []]


def test_kernels_are_asked_for_before_the_executor_is_and_run_step_by_step_without_one(monkeypatch, tmp_path):
    asked: list[str] = []

    def compile_all(request, module):
        asked.extend(job["function"] for _, job in request)
        return [(b"code", job["function"], 0, job["warps"], False) for _, job in request]

    monkeypatch.setattr(cubins, "compile_all", compile_all)
    monkeypatch.setattr(Place, "capability", 90)
    unit = unit_of("softmax")
    place = Place(None, lambda: asked.append("executor"), tmp_path)
    assert place.load([Load(unit, "slow", None)]) == ["slow"]
    assert asked == [*(info.name for info in unit.kernels), "executor"]


def test_machine_code_for_all_sizes_is_made_when_it_is_needed(place):
    place, requests = place
    graph = factorised(stagewire.load(DATA / "softmax.json", expect="loop"), {100: "n"}).forward
    unit = emit(graph, Options(target="triton"), multiples=(("n", 4),))
    ((general, even, multiples),) = place.load([Load(unit, "slow", None)])
    assert multiples == unit.multiples == (("n", 4),)
    (name,) = even
    assert len(requests) == 1
    slow, plain, none = general.made
    assert (slow, none) == ("slow", ())
    assert plain[name].code != even[name].code
    assert len(requests) == 2


def test_known_machine_code_is_taken_where_sizes_do_not_change_it(place):
    place, requests = place
    graph = factorised(stagewire.load(DATA / "softmax.json", expect="loop"), {100: "n"}).forward
    unit = emit(graph, Options(target="triton"), multiples=(("n", 4),))
    known = {info.name: Cubin(b"known", info.name, 0, 4) for info in unit.kernels}
    ((_, even, _),) = place.load([Load(unit, "slow", None, known)])
    assert all(cubin.code != b"known" for cubin in even.values())
    fixed = unit_of("layer_norm")
    known = {info.name: Cubin(b"known", info.name, 0, 4) for info in fixed.kernels}
    ((_, code, _),) = place.load([Load(fixed, "slow", None, known)])
    assert code == known
    assert [len(request) for request in requests] == [1, 0]


def test_what_kernels_share_is_imported_once_and_they_where_they_are_compiled(monkeypatch, tmp_path):
    (source, job), *_ = request_of("softmax")[0]
    shared, functions = divided(source, [job["function"]])
    imported: list[str] = []

    def in_turn(work, numbers, count):
        assert imported == [shared]
        return {number: work(number) for number in numbers}

    monkeypatch.setattr(compile_server, "in_processes", in_turn)
    monkeypatch.setattr(compile_server, "import_file", lambda path, known: imported.append(path.read_text()) or Any())
    monkeypatch.setattr(compile_server, "result_of", lambda function, job: function)
    assert compile_server.answer([(source, job)] * 3, tmp_path) == dict.fromkeys(range(3), job["function"])
    assert imported == [shared, *[functions[job["function"]]] * 3]


class Any:
    """A module with any function."""

    def __getattr__(self, name: str) -> str:
        return name


def test_a_source_is_divided_into_what_is_shared_and_functions():
    source = "import triton\n\n\n@triton.jit\ndef helper(a):\n    return a\n\n\n@triton.jit\ndef kernel(p):\n    pass\n"
    shared, functions = divided(source, ["kernel"])
    assert shared + functions["kernel"] == source
    assert functions["kernel"].startswith("@triton.jit\ndef kernel(")
    assert divided(source, ["kernel", "helper"])[0] == "import triton\n\n\n"
    assert divided("nothing", []) == ("nothing", {})


def test_work_of_a_process_that_dies_is_missing():
    def work(number: int) -> int:
        if number == 3:
            os._exit(1)
        return number * number

    found = in_processes(work, range(6), 6)
    assert 3 not in found
    assert all(value == key * key for key, value in found.items())
    assert in_processes(work, [5, 4, 0], 2) == {5: 25, 4: 16, 0: 0}
