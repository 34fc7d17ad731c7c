"""Units whose kernels Triton launches one by one, on the device that is current."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from codegen import Options, load
from codegen.runtime.triton_loader import TritonWrapper
from codegen.stage import emit
from stagewire.graph import Ref
from stagewire.loop import Axis, AxisAtom, Buffer, Compute, Index, Kernel, Load, LoopGraph, Section, Store, Term
from stagewire.types import contiguous


def sines(*devices):
    """y = sin(x) of 1000 elements, on each device."""
    at = Index(0, (Term(1, AxisAtom("i")),))
    types = [contiguous("float32", (1000,), device) for device in devices]
    buffers = [Buffer(f"x{k}", type_, "input") for k, type_ in enumerate(types)]
    buffers += [Buffer(f"y{k}", type_, "kernel") for k, type_ in enumerate(types)]
    bodies = [
        (Load("v", f"x{k}", at, "float32"), Compute("w", "sin", (Ref("v"),), "float32"), Store(f"y{k}", at, Ref("w")))
        for k in range(len(devices))
    ]
    steps = tuple(Kernel(f"kernel{k}", (Axis("i", 1000),), (Section((), body),)) for k, body in enumerate(bodies))
    inputs, outputs = tuple(f"x{k}" for k in range(len(devices))), tuple(Ref(f"y{k}") for k in range(len(devices)))
    graph = LoopGraph(buffers=tuple(buffers), inputs=inputs, outputs=outputs, steps=steps)
    return emit(graph, Options(target="triton"))


def test_the_device_of_a_kernel_is_current_when_it_is_launched(monkeypatch, tmp_path):
    current, seen = [torch.device("cuda:0")], []

    @contextmanager
    def device(given):
        current.append(given)
        yield
        current.pop()

    class Function:
        def __getitem__(self, grid):
            return lambda *buffers, **options: seen.append((current[-1], *(buffer.device for buffer in buffers)))

    unit = sines("cuda:0", "cuda:1")
    wrapper = TritonWrapper(unit, {})
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(wrapper, "kernels", {info.name: (Function(), info) for info in unit.kernels})
    for number in (0, 1, 0):
        buffers = [SimpleNamespace(device=torch.device("cuda", number)) for _ in range(2)]
        wrapper.launch(unit.kernels[0].name, buffers, (), {})
    assert seen == [(torch.device("cuda", number),) * 3 for number in (0, 1, 0)]
    assert current == [torch.device("cuda:0")]


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="torch.cuda.device_count() is below 2")
@pytest.mark.parametrize("devices", [("cuda:1",), ("cuda:0", "cuda:1")], ids=str)
def test_kernels_wait_for_what_is_on_the_stream_of_their_device(devices, tmp_path):
    run = load(sines(*devices), cache_dir=tmp_path, executor="reference")
    inputs = [torch.zeros(1000).to(device) for device in devices]
    run(*inputs)
    for busy in devices:
        with torch.cuda.device(busy):
            torch.cuda._sleep(100_000_000)
        for number, given in enumerate(inputs):
            given.add_(number + 1)
        expected = [given.sin() for given in inputs]
        torch.testing.assert_close(list(run(*inputs)), expected)
        assert torch.cuda.current_device() == 0
