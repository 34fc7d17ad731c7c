"""Kernels that compilers of C++ got wrong, and what is done about it stands in prelude.h."""

from __future__ import annotations

import torch

from codegen import load
from codegen.stage import Options, emit
from codegen.testing.reference import run_graph
from stagewire.parser import parse_document

BLOCKS = """
  loop 2 {
    binding { inputs = () outputs = () }
    forward {
      buffers {
        %x: f64[5, 2, 4] = input
        %y: f64[5, 4] = input
        %k: f64[15, 12] = input
        %z: f64[15, 12] = kernel
      }
      inputs = ("x", "y", "k")
      outputs = (%z,)
      steps {
        kernel kernel for i0 in 3, i1 in 5, i2 in 3, i3 in 4 {
          section {
            %row: i64 = index 5*i0 + i1
            %column: i64 = index 4*i2 + i3
            %below: b8 = ge(%row, 5)
            %above: b8 = lt(%row, 5)
            %left: b8 = lt(%column, 4)
            %right: b8 = ge(%column, 4)
            %a: b8 = logical_and(%left, %below)
            %b: f64 = load %x[4*i0 + 8*i1 + 4*i2 + i3 - 4] if %a
            %c: f64 = load %y[4*i1 + 4*i2 + i3] if %a
            %d: f64 = mul(%b, %c)
            %e: b8 = logical_and(%right, %above)
            %f: f64 = load %x[40*i0 + 8*i1 + 4*i2 + i3 - 4] if %e
            %g: f64 = load %y[20*i0 + 4*i1 + i3] if %e
            %h: f64 = mul(%f, %g)
            %i: b8 = logical_and(%left, %above)
            %j: f64 = load %y[20*i0 + 4*i1 + 4*i2 + i3] if %i
            %k0: f64 = load %k[60*i0 + 12*i1 + 4*i2 + i3]
            %l: f64 = where(%left, %j, %h)
            %m: f64 = where(%left, %d, %k0)
            %n: f64 = where(%below, %m, %l)
            store %z[60*i0 + 12*i1 + 4*i2 + i3] = %n
          }
        }
      }
    }
  }"""


def test_masked_loads_of_one_address(directory) -> None:
    """gcc 12 advanced the pointer to rows of y between two loads by it (its pass `ter`)."""
    graph = parse_document(BLOCKS).forward
    torch.manual_seed(0)
    x, y, k = (torch.rand(buffer.type.shape, dtype=torch.float64) for buffer in graph.buffers[:3])
    (found,) = load(emit(graph, Options()), directory)(x, y, k)
    expected = run_graph(graph, {"x": x.flatten(), "y": y.flatten(), "k": k.flatten()})["z"]
    torch.testing.assert_close(found.flatten(), expected, rtol=0, atol=0)
