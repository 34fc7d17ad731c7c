"""`CallsOfHistory`: which captured call a backward fails in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from stagewire.graph import Node


class CallsOfHistory:
    """The captured calls that made the nodes of autograd's history, and the node that the engine has begun last.

    A first trace only notes whether its backward began; one that `follows` is made again of a program whose backward
    failed, and walks the history behind the results of each call.
    """

    def __init__(self, *, follows: bool = False) -> None:
        self.follows = follows
        self.backward_began = False
        self._calls: dict[Any, Node] = {}
        self._begun: Node | None = None

    def note(self, node: Node, results: list[Any]) -> list[Any]:
        """Take what no earlier call has made as made by this one; returns `results`."""
        pending = [result.grad_fn for result in results if isinstance(result, torch.Tensor)]
        while pending:
            made = pending.pop()
            if made is not None and made not in self._calls:
                self._calls[made] = node
                pending.extend(earlier for earlier, _ in made.next_functions)
        return results

    @contextmanager
    def watched(self) -> Iterator[None]:
        """A backward of which it is noted which node begins."""
        self.backward_began = True
        hooks = [made.register_prehook(partial(self._begin, node)) for made, node in self._calls.items()]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            self._calls.clear()

    def _begin(self, node: Node, gradients: Any) -> None:
        self._begun = node

    @property
    def failing_result(self) -> str | None:
        """The name of the first result of the call whose derivative was begun last; None where none was."""
        if self._begun is None or not self._begun.results:
            return None
        return self._begun.results[0].name
