"""Kernels are compiled by processes of a server, and here where there is none."""

import os
import signal
from pathlib import Path

import pytest

import stagewire
from codegen import Options
from codegen.errors import CompileFailed
from codegen.runtime.triton_source import import_source
from codegen.runtime.wanted import wanted
from codegen.stage import emit
from codegen.triton import compiling
from codegen.triton.compile_server import in_processes
from codegen.triton.cubin import Cubin, Wanted, cubin_of

DATA = Path(__file__).parent.parent / "data"


def request_of(name: str) -> tuple[list[tuple[str, object]], tuple[Wanted, ...]]:
    unit = emit(stagewire.load(DATA / f"{name}.json", expect="loop").forward, Options(target="triton"))
    kernels = wanted(unit)
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
    found = compiling.compile_all(request, lambda source: import_source(source, tmp_path))
    assert found == [(job["function"], 90) for _, job in request]
    assert compiling.start_server() is not server
    assert isinstance(compiling.compile_all(request, not_here)[0][0], bytes)


def test_work_of_a_process_that_dies_is_missing():
    def work(number: int) -> int:
        if number == 3:
            os._exit(1)
        return number * number

    found = in_processes(work, range(6), 6)
    assert 3 not in found
    assert all(value == key * key for key, value in found.items())
    assert in_processes(work, [5, 4, 0], 2) == {5: 25, 4: 16, 0: 0}
