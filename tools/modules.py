"""torch's database of modules (ModuleInfo: each class of torch.nn with constructors and inputs) against eager.

    python -m tools.modules [--backend stagefold] [--samples 3] [NAME...]

Prints one line for each class: samples that agree with eager in results, parameters, buffers and gradients, in training
and in evaluation; samples refused, with the reason; samples that differ. Exits with 1 if any differs.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.testing._internal.common_modules import ModuleInfo, module_db

import stagefold
from bytecap.testing.comparison import differences
from stagewire.errors import StageError


@dataclass
class Row:
    """What became of the samples of one class."""

    name: str
    counts: Counter[str] = field(default_factory=Counter)
    notes: dict[str, None] = field(default_factory=dict)

    def __str__(self) -> str:
        numbers = "  ".join(f"{self.counts[kind]:4}" for kind in KINDS)
        return "\n      ".join([f"{self.name:34} {numbers}", *self.notes])


KINDS = ("equal", "refused", "different")


def samples(info: ModuleInfo, most: int | None) -> Iterator[tuple[Any, Any]]:
    """(module, its forward's arguments); modules that need another device or more are left out."""
    for training in (True, False):
        found = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=True, training=training)
        for sample in list(found)[:most]:
            if sample.forward_input is None:
                continue
            torch.manual_seed(1)
            made = sample.constructor_input
            yield info.module_cls(*made.args, **made.kwargs).train(training), sample.forward_input


def outcome(module: torch.nn.Module, call: Callable[..., Any], arguments: Any) -> Any:
    """What a call and its backward leave: results or the class of the error, arguments and module with gradients."""
    torch.manual_seed(0)
    args, kwargs = _clone(arguments.args), _clone(arguments.kwargs)
    result: Any = None
    try:
        result = call(*args, **kwargs)
        losses = [(leaf * leaf.conj()).real.sum() for leaf in _tensors(result) if leaf.requires_grad]
        if losses:
            torch.stack([loss.double() for loss in losses]).sum().backward()
    except StageError:
        raise
    except Exception as error:
        result = type(error).__name__
    return result, args, kwargs, dict(module.named_parameters()), dict(module.named_buffers())


def _clone(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if type(value) in (tuple, list):
        return type(value)(_clone(item) for item in value)
    return {key: _clone(item) for key, item in value.items()} if type(value) is dict else value


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)


def check(info: ModuleInfo, backend: str, most: int | None) -> Row:
    """Compare the samples of one class."""
    row = Row(info.name)
    for module, arguments in samples(info, most):
        twin = copy.deepcopy(module)
        try:
            found = outcome(twin, stagefold.compile(twin, backend=backend, fullgraph=True), arguments)
        except StageError as error:
            row.counts["refused"] += 1
            row.notes[f"{error.code}: {error.message.splitlines()[0]}"] = None
            continue
        differ = differences(outcome(module, module, arguments), found)
        row.counts["different" if differ else "equal"] += 1
        row.notes.update(dict.fromkeys(text[:300] for text in differ[:1]))
    return row


def main(arguments: list[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.modules", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of class names; all classes by default")
    parser.add_argument("--backend", default="eager")
    parser.add_argument("--samples", type=int, default=None, help="samples of each class and mode; all by default")
    options = parser.parse_args(arguments)
    total: Counter[str] = Counter()
    print(f"{'':34} {'  '.join(KINDS)}")
    with warnings.catch_warnings(), contextlib.suppress(BrokenPipeError):
        warnings.simplefilter("ignore")
        for info in module_db:
            if not options.names or any(name in info.name for name in options.names):
                row = check(info, options.backend, options.samples)
                total.update(row.counts)
                print(row, flush=True)
    print(Row("total", total))
    return 1 if total["different"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
