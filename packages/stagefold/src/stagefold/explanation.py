"""`explain(model, *args)`: where the graphs of one call end and why, what they compute, what they stand on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import bytecap
from bytecap.errors import NoTensorWork
from stagefold.backend import StagefoldBackend
from stagefold.backends import resolve_backend
from stagefold.compiled_module import CompiledModule
from stagewire.capture import Capture
from stagewire.errors import StageError


@dataclass(frozen=True)
class Break:
    """A place at which a graph ends before its function does.

    code, where, cause, fix: of the error that fullgraph=True raises. count: how many graphs end there.
    """

    code: str
    where: str
    cause: str
    fix: str
    count: int

    def __str__(self) -> str:
        times = "" if self.count == 1 else f" ({self.count} graphs end there)"
        return f"{self.code} at {self.where}{times}\n  {self.cause}\n  fix: {self.fix}"


@dataclass(frozen=True)
class Explanation:
    """What one call was captured as.

    graphs: the documents, in the order in which they were made. breaks: each place once. plain: what ran without any
    graph, each reason once. recompiled: one sentence for each capture that was made because an earlier one of the same
    code did not fit. not_recorded: of a compiled model that is to be recorded as CUDA graphs, a sentence for each of
    its programs so far that is launched each time. result: of the call.
    """

    name: str
    graphs: tuple[Capture, ...]
    breaks: tuple[Break, ...]
    plain: tuple[StageError, ...]
    recompiled: tuple[str, ...]
    not_recorded: tuple[str, ...]
    result: Any

    @property
    def guard_count(self) -> int:
        """The number of conditions that all graphs together stand on."""
        return sum(len(graph.guards) for graph in self.graphs)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        found = f"{_counted(self.graphs, 'graph')}, {_counted(self.breaks, 'break')}"
        yield f"{self.name}: {found}, {self.guard_count} guards"
        for number, each in enumerate(self.breaks, 1):
            yield f"break {number}: {each}"
        for error in self.plain:
            yield f"runs plain: {error}"
        for sentence in self.recompiled:
            yield f"compiled again: {sentence}"
        for sentence in self.not_recorded:
            yield f"no CUDA graph: {sentence}"
        for number, graph in enumerate(self.graphs, 1):
            yield from _graph_lines(number, graph)


def explain(model: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Call `model` once, with its graphs run operation by operation, and tell what it was captured as.

    model: what `compile` takes, or what it gives. The call is a real one: side effects happen.

    Errors: those of the program itself.

    >>> import torch
    >>> def f(x):
    ...     y = torch.relu(x)
    ...     return y * 2 if y.sum() > 1 else y
    >>> explanation = explain(f, torch.ones(2))
    >>> len(explanation.graphs), [found.code for found in explanation.breaks]
    (2, ['BC004'])
    """
    events: list[bytecap.Event] = []
    not_recorded = _not_recorded(getattr(model, "_backend", None))
    if isinstance(model, CompiledModule):
        model = model._orig_mod
    name = getattr(model, "__qualname__", type(model).__qualname__)
    call = bytecap.optimize(model, resolve_backend("eager", None, None, None)[0], on_event=events.append)
    result = call(*args, **kwargs)
    captured = [event for event in events if isinstance(event, bytecap.Captured)]
    broken = [event.error for event in events if isinstance(event, bytecap.Broke)]
    plain = {str(event.error): event.error for event in events if isinstance(event, bytecap.Refused)}
    return Explanation(
        name,
        tuple(event.capture for event in captured),
        tuple(_each_once(broken)),
        tuple(error for error in plain.values() if error.code != NoTensorWork.code),
        tuple(dict.fromkeys(event.reason for event in captured if event.reason is not None)),
        not_recorded,
        result,
    )


def _not_recorded(backend: Any) -> tuple[str, ...]:
    reports = backend.reports if isinstance(backend, StagefoldBackend) else ()
    return tuple(dict.fromkeys(f"{report.name}: {reason}" for report in reports for reason in report.not_recorded))


def _each_once(errors: list[StageError]) -> Iterator[Break]:
    rows = [(error.code, error.where or "an unknown place", error.message, error.fix) for error in errors]
    for row in dict.fromkeys(rows):
        yield Break(*row, rows.count(row))


def _graph_lines(number: int, graph: Capture) -> Iterator[str]:
    code = graph.code
    yield f"graph {number}: {code.name} ({code.file}:{code.first_line}), {_counted(graph.inputs, 'input')}"
    for node in graph.graph.nodes:
        results = ", ".join(value.name for value in node.results)
        line = "" if node.line is None else f"    # {node.line.file}:{node.line.line}"
        yield f"  {results} = {node.target}{line}" if results else f"  {node.target}{line}"
    lines = [f"{line.file}:{line.line}" for check in graph.checks for line in check.lines]
    if lines:
        yield f"  runs plain if these raise ({len(lines)}): {', '.join(lines)}"
    yield f"  holds while ({len(graph.guards)}):"
    yield from (f"    {line}" for line in bytecap.print_guards(graph.guards))


def _counted(items: tuple[Any, ...], what: str) -> str:
    return f"{len(items)} {what}{'' if len(items) == 1 else 's'}"
