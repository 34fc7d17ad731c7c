"""Triton units with symbolic sizes mean what their graphs mean at every size; what 32 bits do not index is known."""

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import stagewire.parser
from codegen import Options, load
from codegen.runtime.required_cubins import known_divisor, required_cubins, useful
from codegen.runtime.triton_loader import narrow
from codegen.stage import emit
from codegen.testing.compare import assert_same
from codegen.testing.reference import run_graph, span
from codegen.testing.strategies import SYMBOL_VALUES, at_value, sample_inputs, symbolic_graphs
from codegen.triton.plan import plan
from stagewire.expr import evaluate, parse_expr
from stagewire.program import Launch
from stagewire.testing.symbolic import N

FEW = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


def placed(graph, device):
    buffers = [msgspec.structs.replace(b, type=msgspec.structs.replace(b.type, device=device)) for b in graph.buffers]
    return msgspec.structs.replace(graph, buffers=tuple(buffers))


@pytest.mark.usefixtures("counting_interpreter")
@FEW
@given(symbolic_graphs(), st.integers(0, 5), st.sampled_from((2, 64)))
def test_generated_kernels(directory, device, graph, seed, hint):
    check_at_every_size(directory, device, graph, seed, hint)


@pytest.mark.usefixtures("counting_interpreter")
@FEW
@given(symbolic_graphs(scans=True), st.integers(0, 5), st.sampled_from((2, 64)))
def test_generated_scans(directory, device, graph, seed, hint):
    check_at_every_size(directory, device, graph, seed, hint)


def check_at_every_size(directory, device, graph, seed, hint):
    unit = emit(placed(graph, device), Options(target="triton"), {"n": hint})
    values = [n for n in SYMBOL_VALUES if max(span(b.type) for b in at_value(graph, n).buffers) <= 512]
    if device == "cpu":  # what Triton's interpreter cannot do
        assume("libdevice." not in unit.source)
        assume("bfloat16" not in {buffer.type.dtype for buffer in graph.buffers})
    run = load(unit, directory)
    for n in values:
        at = at_value(graph, n)
        inputs = sample_inputs(at, seed)
        types = {buffer.name: buffer.type for buffer in at.buffers}
        tensors = [inputs[name].to(device).as_strided(types[name].shape, types[name].stride) for name in at.inputs]
        found, expected = run(n, *tensors), run_graph(at, inputs)
        for output, tensor in zip(at.outputs, found, strict=True):
            assert_same(tensor.as_strided((span(types[output.name]),), (1,)).cpu(), expected[output.name])


def rows(size):
    text = f"""
      loop 2 {{
        binding {{ inputs = () outputs = () symbols {{ Symbol(name="n", source=None, hint=8, lower=2, upper=None) }} }}
        forward {{
          buffers {{
            %x: f32[n, {size}] = input
            %y: f32[n] = kernel
          }}
          inputs = ("x",)
          outputs = (%y,)
          steps {{
            kernel total for i in n {{
              section for j in {size} {{
                %v: f32 = load %x[{{{size}}}*i + j]
                %s: f32 = reduce sum %v
              }}
              section {{
                store %y[i] = %s
              }}
            }}
          }}
        }}
      }}"""
    return stagewire.parser.parse_document(text).forward


def test_tiles_follow_the_hints():
    (kernel,) = rows("2*n").steps
    assert plan(kernel, {"n": 8}).inner == 16
    assert plan(kernel, {"n": 1024}).inner == 2048
    assert plan(kernel, {"n": 1024}).grid == (N,)


def shares(statistics: str) -> str:
    """A kernel that reads rows of n elements again, for what it found in a first loop over them."""
    text = f"""
      loop 2 {{
        binding {{ inputs = () outputs = () symbols {{ Symbol(name="n", source=None, hint=8, lower=0, upper=None) }} }}
        forward {{
          buffers {{
            %x: f32[3, n] = input
            %y: f32[3, n] = kernel
          }}
          inputs = ("x",)
          outputs = (%y,)
          steps {{
            kernel shares for i in 3 {{
              section for j in n {{
                %v: f32 = load %x[{{n}}*i + j]
                {statistics}
              }}
              section for k in n {{
                %w: f32 = load %x[{{n}}*i + k]
                %d: f32 = sub(%w, %s)
                store %y[{{n}}*i + k] = %d
              }}
            }}
          }}
        }}
      }}"""
    return stagewire.parser.parse_document(text).forward


@pytest.mark.usefixtures("counting_interpreter")
@pytest.mark.parametrize("statistics", ["%s: f32 = reduce sum %v", "%s, %q, %c: f32 = reduce welford %v"])
def test_rows_that_fit_their_tile_are_taken_as_a_whole(statistics, directory, device):
    graph = placed(shares(statistics), device)
    unit = emit(graph, Options(target="triton"), {"n": 16})
    assert "def shares0_whole(" in unit.source
    assert "for base" in unit.source.split("def shares0_tiles(")[1]
    assert "for base" not in unit.source.split("def shares0_whole(")[1].split("def shares0_tiles(")[0]
    run = load(unit, directory)
    for n in (1, 5, 16, 17, 40, 0):
        x = torch.randn(3, n, device=device)
        found = x.sum(1, keepdim=True) if "sum" in statistics else x.mean(1, keepdim=True)
        torch.testing.assert_close(run(x)[0], x - found)


def test_sizes_are_limited_to_what_32_bits_index():
    limits = dict(narrow(emit(rows("2*n"), Options(target="triton"))))
    assert {str(size) for size in limits} >= {"n", "2*n", "2*n**2"}


def test_machine_code_for_sizes_that_are_multiples():
    """Sizes of which every term is one are known to be: these loads are of several elements at a time."""
    unit = emit(rows("2*n"), Options(target="triton"), multiples=(("n", 8), ("unused", 2)))
    assert unit.multiples == useful(unit) == (("n", 8),)
    (launch,) = (one for one in unit.instructions if isinstance(one, Launch))
    (plain,), (even,) = required_cubins(unit), required_cubins(unit, unit.multiples)
    assert dict(zip(map(str, launch.sizes), plain.sizes, strict=True)) == {"n": 1, "2*n": 2}
    assert dict(zip(map(str, launch.sizes), even.sizes, strict=True)) == {"n": 8, "2*n": 16}
    assert not useful(emit(rows(32), Options(target="triton"), multiples=(("m", 8),)))


@pytest.mark.parametrize(
    ("size", "divisor"),
    [("n", 8), ("m", 1), ("2*n", 16), ("n**2*m", 16), ("4*m", 4), ("n + 2", 2), ("(n + 1)//(2)", 4),
     ("16*((m + 7)//(8))", 16), ("(n + 1)//(2)*n", 16), ("(m + 1)//(2)", 1), (48, 16), (0, 16)],
)  # fmt: skip
def test_what_is_known_of_a_size(size, divisor):
    dim = size if isinstance(size, int) else parse_expr(size)
    assert known_divisor(dim, (("n", 8),)) == divisor
    for k in range(1, 6):
        assert evaluate(dim, {"n": 8 * k, "m": k}) % divisor == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="runs machine code")
def test_sizes_that_are_no_multiples_run_other_machine_code(directory):
    unit = emit(placed(rows("2*n"), "cuda:0"), Options(target="triton"), {"n": 64}, (("n", 16),))
    run = load(unit, directory)
    for n in (64, 16, 37, 2, 640, 5):
        x = torch.randn(n, 2 * n, device="cuda")
        torch.testing.assert_close(run(x)[0], x.sum(1))
