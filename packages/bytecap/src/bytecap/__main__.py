"""Look at a saved Capture document.

    python -m bytecap FILE            where its code is, its inputs and guards as Python expressions
    python -m bytecap FILE --graph    and the graph in its printed form
    python -m bytecap FILE --run      and what its calls give, run eagerly on random inputs of the recorded types

Exit codes: 0 done, 1 a coded error (printed), 2 a wrong command line.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

import torch

from bytecap.driver.executor import interpret
from bytecap.guards import native, print_guards, print_source
from stagewire.capture import Capture
from stagewire.command import guarded
from stagewire.expr import evaluate
from stagewire.files import read_verified
from stagewire.printer import print_document
from stagewire.types import TensorType


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bytecap", description="Look at a saved Capture document.")
    parser.add_argument("file", help="a Capture document (.json, .msgpack or .txt)")
    parser.add_argument("--graph", action="store_true", help="print the graph too")
    parser.add_argument("--run", action="store_true", help="run the calls eagerly on random inputs")
    parser.add_argument("--seed", type=int, default=0, help="of the random inputs")
    given = parser.parse_args(arguments)
    return guarded(lambda: _look(given))


def _look(given: argparse.Namespace) -> int:
    document = read_verified(given.file, "capture")
    print("\n".join(describe(document)))
    if given.graph:
        print(f"\n{print_document(document)}")
    if given.run:
        print("\n".join(["", *run(document, given.seed)]))
    return 0


def describe(document: Capture) -> Iterator[str]:
    """The lines about everything but the graph."""
    code = document.code
    yield f"{code.name}  ({code.file}:{code.first_line})"
    reach = "portable" if document.portable else "refers to objects of its process"
    yield f"{len(document.graph.nodes)} calls, {reach}"
    for symbol in document.symbols:
        where = "no source" if symbol.source is None else print_source(symbol.source)
        yield f"symbol {symbol.name} = {where}, was {symbol.hint}"
    yield f"\n{len(document.inputs)} inputs"
    for item in document.inputs:
        yield f"    {item.value.name} = {print_source(item.source)}  [{item.role}]"
    yield f"\n{len(document.guards)} guards"
    yield from (f"    {line}" for line in print_guards(document.guards))


def run(document: Capture, seed: int) -> Iterator[str]:
    """The graph's outputs on random inputs, one line each."""
    generator = torch.Generator().manual_seed(seed)
    sizes = {symbol.name: symbol.hint for symbol in document.symbols if symbol.hint is not None}
    inputs = [random_tensor(item.value.type, sizes, generator) for item in document.inputs]
    with torch.set_grad_enabled(document.state.grad_enabled):
        outputs = interpret(document, inputs)
    for index, output in enumerate(outputs):
        if isinstance(output, torch.Tensor):
            norm = output.detach().to(torch.float64).norm().item()
            yield f"output {index}: {output.dtype} {tuple(output.shape)}, norm {norm:.6g}"
        else:
            yield f"output {index}: {output!r}"


def random_tensor(kind: TensorType, sizes: dict[str, int], generator: torch.Generator) -> torch.Tensor:
    """A tensor of this type; integers and booleans are zeros, which index anything."""
    dtype = native.DTYPES_BY_NAME[kind.dtype]
    shape, stride = ([evaluate(dim, sizes) for dim in dims] for dims in (kind.shape, kind.stride))
    elements = 0 if 0 in shape else 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    floating = dtype.is_floating_point or dtype.is_complex
    memory = torch.randn(elements, generator=generator) if floating else torch.zeros(elements)
    return memory.to(dtype).as_strided(shape, stride).requires_grad_(kind.requires_grad)


if __name__ == "__main__":
    sys.exit(main())
