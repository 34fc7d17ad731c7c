"""Write docs/one_op.md: softmax in training, from the line of Python to the kernels.

    python tools/one_op.py [--check]

Every listing is what the stages make of `program` at this commit; nothing is run but the program itself, eagerly. With
--check the page is only compared. Neither a GPU nor Triton is needed, and the processor is named (x86-64-v3), so that
every machine writes the same page.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

import torch

import bytecap
from stagefold.options import parse_options
from stagefold.pipeline import Event, Pipeline
from stagewire.capture import Capture
from stagewire.codec import decode, encode
from stagewire.printer import print_document

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "one_op.md"


def program(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


PROSE = """\
# One op: softmax in training

What `stagefold.compile` makes of one line, in the order in which it happens. `python tools/one_op.py` writes this page;
a test compares it. `STAGEFOLD_TRACE=trace` records those of any program, `stagefold show` prints them.

```python
{call}
```

`x` is `f32[8, 16]` and requires a gradient. Listings leave out what stood in an earlier one.

## 1. Capture: the calls of torch

Written by **bytecap**: it evaluates the bytecode of the frame before the frame runs, on abstract tensors, and writes
down each call of torch and each fact that it relied on. Decided here: what is captured, and what is guarded. Softmax
is one node under its Python name; its type is absint's rule for it.

```
{capture}
```

Code: `packages/bytecap/src/bytecap/nodes/torch_calls.py` (the call),
`packages/absint/src/absint/rules/reduce.py` (the type),
`packages/bytecap/src/bytecap/guards/compile.py` (the guards, as a program for the evaluator in C).

## 2. Grad: functional ATen, forward and backward in one graph

Written by **aotgrad**: it replays the capture on types with torch's own autograd on, runs the engine, and records what
reaches ATen. Decided here: which gradients there are, and how results and inputs of the graph are those of the call
(the binding). The derivative is the engine's: there is no table of derivatives. `phase` says which nodes are of the
backward.

```
{grad}
```

Code: `packages/aotgrad/src/aotgrad/tracer/joint.py`, `packages/aotgrad/src/aotgrad/passes/__init__.py`.

## 3. Prim: the same graph in prims

Written by **primops**: ATen ops become prims, of which each has a meaning in loops; what has none stays a call of ATen.
Decided here: the numerics (the maximum is subtracted, as ATen's kernel does). The graph is lowered once.

```
{prim}
```

Code: `packages/primops/src/primops/decompositions/normalisation.py`,
`packages/primops/src/primops/prims/reductions.py` (`amax`, `sum` as data).

## 4. Prim, cut: forward and backward

Written by the slot **partition** (aotgrad's second stage): a minimum cut. Decided here: what is saved. On a CPU the
backward reads the result of the forward, which the caller holds anyhow; on a GPU it is given two numbers a row and
computes the exponentials again (below).

```
{cut}
```

Code: `packages/aotgrad/src/aotgrad/partition/min_cut.py`.

## 5. Loop: fused kernels over buffers

Written by **loopir**: each prim becomes a loop nest, nests are fused. Decided here: what is one kernel, what is stored
and what is computed again (each decision is in the document, with its reason), and the memory. Nothing yet of threads,
vectors or tiles. A kernel is parallel over its axes (`i0`); at each point its sections run in order.

```
{loop}
```

Code: `packages/loopir/src/loopir/pipeline.py` (the passes in order), `packages/stagewire/src/stagewire/loop.py` (what a
kernel means).

## 6. Program: sources, and the instructions that run them

Written by **codegen**. Decided here: vectors, tiles, threads, the instruction set. The forward in C++ (what it needs of
the prelude, `sf_exp_f32`, is left out):

```cpp
{cpp}
```

The same forward for a GPU (`target="auto"` takes Triton for tensors on a CUDA device). The maximum and the sum of each
row are stored for the backward, which is given them and the input.

```python
{triton}
```

The rest of the unit is data: kernels with their launch parameters, types of inputs, instructions.

```
{unit}
```

Code: `packages/codegen/src/codegen/stage.py`, and from there `cpp/` or `triton/`.

## 7. The call

`codegen.load` compiles the sources (or fetches machine code by their hash) and gives a callable for each unit, run by
the native executor; `aotgrad.bind` makes of both one callable on the caller's tensors, a `torch.autograd.Function`
between them. bytecap replaces the frame's code by: check the guards, call it, return. The next call of the same code
does that alone.

Code: `packages/codegen/src/codegen/load.py`, `packages/aotgrad/src/aotgrad/bind.py`.
"""


def captured() -> Capture:
    """The capture of `program`."""
    found: list[Capture] = []

    def backend(capture: Capture, example_inputs: object) -> object:
        found.append(capture)
        return bytecap.executor(capture)

    bytecap.optimize(program, backend)(torch.zeros(8, 16, requires_grad=True))  # type: ignore[arg-type]
    return found[0]


def documents(capture: Capture, **options: str) -> dict[str, str]:
    """The printed documents that the stages make of a capture, by slot."""
    printed: dict[str, str] = {}

    def observe(event: Event) -> None:
        printed[event.stage] = cleaned(print_document(event.document))

    chosen = {f"codegen.{name}": value for name, value in options.items()}
    Pipeline.build(parse_options(None, chosen)).run(capture, observe=observe)
    return printed


def cleaned(printed: str) -> str:
    """Without the lines of the user's program, which all are the same one here."""
    return re.sub(r"  # \S+:\d+ in \w+$", "", printed, flags=re.MULTILINE).replace(f"{ROOT}/", "")


def block(printed: str, *names: str) -> str:
    """The parts of a printed document that have these names, one after the other, without their indentation."""
    found = []
    for name in names:
        match = re.search(rf"^( *){name}(?: \{{\n.*?^\1\}}$| = [^\n]*$)", printed, re.MULTILINE | re.DOTALL)
        if match is not None:
            found += [line.removeprefix(match[1]) for line in match[0].splitlines()]
    return "\n".join(found)


def source(unit: str, first: str) -> str:
    """The text of a unit's source from the last line that begins with `first` on."""
    lines = [line.strip(" ").removeprefix("|") for line in block(unit, "source").splitlines()[1:-1]]
    start = max(number for number, line in enumerate(lines) if line.startswith(first))
    return "\n".join(lines[start:]).strip()


def without_nodes(graph: str) -> str:
    """A printed graph, its nodes counted."""
    lines = graph.splitlines()
    nodes = [line for line in lines if re.match(r" +%", line)]
    kept = [line for line in lines if line not in nodes]
    kept.insert(-2, f"  ... {len(nodes)} nodes of the joint graph")
    return "\n".join(kept)


def page() -> str:
    """The text of docs/one_op.md."""
    capture = captured()
    cpu = documents(capture, isa="x86-64-v3")
    gpu = documents(decode(encode(capture).replace(b'"cpu"', b'"cuda:0"')))  # type: ignore[arg-type]
    cut, unit = cpu["partition"], block(cpu["codegen"], "forward")
    graphs = (without_nodes(block(cut, name)) for name in ("forward", "backward"))
    return PROSE.format(
        call=inspect.getsource(program).strip(),
        capture=block(cleaned(print_document(capture)), "graph", "guards"),
        grad=block(cpu["aotgrad"], "binding", "joint"),
        prim=block(cpu["primops"], "joint"),
        cut="\n".join((block(cut, "saved", "input_gradients"), *graphs, block(cut, "partition"))),
        loop="\n".join(
            f"{name}:\n{block(block(cpu['loopir'], name), 'steps', 'decisions')}" for name in ("forward", "backward")
        ),
        cpp=source(unit, 'extern "C" void'),
        triton=source(block(gpu["codegen"], "forward"), "@triton.jit"),
        unit=block(unit, "kernels", "instructions", "isa"),
    )


def main(arguments: list[str]) -> int:
    text = page()
    missing = [path for path in re.findall(r"`(packages/[^`]+)`", text) if not (ROOT / path).exists()]
    if missing:
        print(f"the page names files that are not there: {', '.join(missing)}", file=sys.stderr)
        return 1
    if "--check" not in arguments:
        PAGE.write_text(text)
    elif PAGE.read_text() != text:
        print("docs/one_op.md is not what `python tools/one_op.py` writes", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
