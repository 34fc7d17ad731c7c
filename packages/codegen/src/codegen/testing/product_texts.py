"""Loop graphs of products with kernels behind them, as they come from models."""

from __future__ import annotations

from stagewire.loop import LoopGraph
from stagewire.parser import parse_document

SHORT = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def linear_relu(rows: int, columns: int, depth: int, dtype: str, name: str = "") -> LoopGraph:
    """relu(linear(x)) + residual in place of the product; `name` is part of every name."""
    t, n = SHORT[dtype], name
    return parse_document(f"""
      loop 2 {{
        binding {{ inputs = () outputs = () }}
        forward {{
          buffers {{
            %x{n}: {t}[{rows}, {depth}] = input
            %w{n}: {t}[{columns}, {depth}] = input
            %b{n}: {t}[{columns}] = input
            %r{n}: {t}[{rows}, {columns}] = input
            %t{n}: {t}[{depth}, {columns}]{{1, {depth}}} = view of %w{n}
            %p{n}: {t}[{rows}, {columns}] = extern
            %y{n}: {t}[{rows}, {columns}] = kernel reuse %p{n}
          }}
          inputs = ("x{n}", "w{n}", "b{n}", "r{n}")
          outputs = (%y{n},)
          steps {{
            %p{n} = aten.addmm.default(%b{n}, %x{n}, %t{n})
            kernel tail{n} for i in {rows * columns} {{
              section {{
                %v: {t} = load %p{n}[i]
                %u: {t} = maximum(%v, 0.0)
                %o: {t} = load %r{n}[i]
                %s: {t} = add(%u, %o)
                store %y{n}[i] = %s
              }}
            }}
          }}
        }}
      }}""").forward


def batched_scale(batch: int, rows: int, columns: int, depth: int, dtype: str) -> LoopGraph:
    """0.5 * (x @ y) per batch, y being the same for each."""
    t = SHORT[dtype]
    return parse_document(f"""
      loop 2 {{
        binding {{ inputs = () outputs = () }}
        forward {{
          buffers {{
            %x: {t}[{batch}, {rows}, {depth}] = input
            %y: {t}[{batch}, {depth}, {columns}]{{0, {columns}, 1}} = input
            %p: {t}[{batch}, {rows}, {columns}] = extern
            %z: {t}[{batch}, {columns}, {rows}] = kernel
          }}
          inputs = ("x", "y")
          outputs = (%z,)
          steps {{
            %p = aten.bmm.default(%x, %y)
            kernel tail for b in {batch}, i in {rows}, j in {columns} {{
              section {{
                %v: {t} = load %p[{rows * columns}*b + {columns}*i + j]
                %u: {t} = mul(%v, 0.5)
                store %z[{rows * columns}*b + {rows}*j + i] = %u
              }}
            }}
            free %p
          }}
        }}
      }}""").forward


def made_operands(rows: int, columns: int, depth: int, dtype: str, kept: bool = False) -> LoopGraph:
    """relu(a @ c.T): a is scaled by rows in the memory of h, which a kernel made; c is a matrix in float32, rounded.

    kept: whether a is a result, so that memory must hold it.
    """
    t = SHORT[dtype]
    outputs, end = ("(%y, %a)", "") if kept else ("(%y,)", "free %a")
    return parse_document(f"""
      loop 2 {{
        binding {{ inputs = () outputs = () }}
        forward {{
          buffers {{
            %x: {t}[{rows}, {depth}] = input
            %s: {t}[{rows}] = input
            %w: f32[{columns}, {depth}] = input
            %h: {t}[{rows}, {depth}] = kernel
            %a: {t}[{rows}, {depth}] = kernel{"" if kept else " reuse %h"}
            %c: {t}[{columns}, {depth}] = kernel
            %t: {t}[{depth}, {columns}]{{1, {depth}}} = view of %c
            %p: {t}[{rows}, {columns}] = extern
            %y: {t}[{rows}, {columns}] = kernel reuse %p
          }}
          inputs = ("x", "s", "w")
          outputs = {outputs}
          steps {{
            kernel first for i in {rows * depth} {{
              section {{
                %v: {t} = load %x[i]
                %u: {t} = add(%v, 1.0)
                store %h[i] = %u
              }}
            }}
            kernel scale for i in {rows}, k in {depth} {{
              section {{
                %v: {t} = load %h[{depth}*i + k]
                %o: {t} = load %s[i]
                %u: {t} = mul(%v, %o)
                store %a[{depth}*i + k] = %u
              }}
            }}
            kernel cast for i in {columns * depth} {{
              section {{
                %v: f32 = load %w[i]
                %u: {t} = convert(%v)
                store %c[i] = %u
              }}
            }}
            {"free %h" if kept else ""}
            %p = aten.mm.default(%a, %t)
            {end}
            free %c
            kernel tail for i in {rows * columns} {{
              section {{
                %v: {t} = load %p[i]
                %u: {t} = maximum(%v, 0.0)
                store %y[i] = %u
              }}
            }}
          }}
        }}
      }}""").forward
