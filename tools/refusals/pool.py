"""A process for each operator: a crash, a hang or damaged memory ends no more than the case it is of."""

from __future__ import annotations

import faulthandler
import multiprocessing
import multiprocessing.connection
import os
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from tools.refusals.cases import cases
from tools.refusals.judge import Judge, attempt, program

TIME_LIMIT = 180
"""Seconds without a row after which a process is ended."""
REPEATS, REPEATING = 200, 60
"""So often is each case run in eager alone, and so many seconds in all, to see whether eager damages memory."""
Row = dict[str, Any]
_FORK = multiprocessing.get_context("fork")


def work(link: Any, info: Any, first: int, misfits: int) -> None:
    """The child: rows of the cases from `first` on; ends after a silent one, which may have damaged memory."""
    _quiet()
    judge = Judge()
    for number, case in enumerate(cases(info, misfits)):
        if number < first:
            continue
        found = set()
        for row in judge.rows(info.formatted_name, number, case):
            link.send(row)
            found.add(row.get("status"))
        if "silent" in found:
            link.send({"again": number + 1})
            return
    link.send({"again": None})


def _quiet() -> None:
    faulthandler.disable()
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")


def eager_alone(info: Any, first: int, last: int, misfits: int) -> None:
    """The child that runs cases in eager, over and over: one that writes outside of its operands dies of it.

    `lu_unpack` with pivots of more matrices than there are does so.
    """
    _quiet()
    until = time.monotonic() + REPEATING
    for case in cases(info, misfits)[first : last + 1]:
        for _ in range(REPEATS):
            if time.monotonic() > until:
                return
            attempt(program(case.op), case.sample, case.gradient)


@dataclass
class Child:
    """A running process, its first case, the row it sent last, and when."""

    info: Any
    first: int
    process: Any
    link: Any
    last: Row = field(default_factory=dict)
    heard: float = field(default_factory=time.monotonic)


class Pool:
    """Runs operators in forked processes, `jobs` at once, and yields the rows that judge a case.

    target: runs an operator. alone: runs cases of one in eager.
    """

    def __init__(
        self,
        infos: list[Any],
        misfits: int,
        jobs: int,
        target: Callable[..., None] = work,
        alone: Callable[..., None] = eager_alone,
    ) -> None:
        self.waiting = [(info, 0) for info in reversed(infos)]
        self.misfits, self.jobs, self.target, self.alone = misfits, jobs, target, alone
        self.children: list[Child] = []

    def rows(self) -> Iterator[Row]:
        while self.waiting or self.children:
            while self.waiting and len(self.children) < self.jobs:
                self._start(*self.waiting.pop())
            ready = multiprocessing.connection.wait([child.link for child in self.children], timeout=5)
            for child in list(self.children):
                if child.link in ready:
                    yield from self._receive(child)
                elif time.monotonic() - child.heard > TIME_LIMIT:
                    child.process.kill()

    def _start(self, info: Any, first: int) -> None:
        ours, theirs = _FORK.Pipe(duplex=False)
        process = _FORK.Process(target=self.target, args=(theirs, info, first, self.misfits))
        process.start()
        theirs.close()
        self.children.append(Child(info, first, process, ours))

    def _receive(self, child: Child) -> Iterator[Row]:
        try:
            row = child.link.recv()
        except EOFError:
            self._end(child)
            yield from self._crash(child)
            return
        child.heard = time.monotonic()
        if "again" in row:
            self._end(child)
            if row["again"] is not None:
                self.waiting.append((child.info, row["again"]))
            else:
                yield {"op": child.info.formatted_name, "done": self.misfits}
            return
        child.last = row
        if "status" in row or "left out" in row:
            yield row

    def _crash(self, child: Child) -> Iterator[Row]:
        """What the process that ended was at; the cases after it go on in another."""
        last = child.last
        if not last:
            yield {"op": child.info.formatted_name, "broken": f"no cases (exit code {child.process.exitcode})"}
            return
        row = {k: v for k, v in last.items() if k not in ("begins", "way", "status", "ours")}
        code = child.process.exitcode
        if code == 1 and "begins" in last:  # an exception that nothing has caught
            yield {"op": last["op"], "broken": f"{last['what']}: a fault of the tool (exit code 1)"}
        elif last.get("begins") == "eager":
            yield {**row, "left out": f"eager ends the process (exit code {code})"}
        elif "begins" in last and self._eager_dies(child, last["case"]):
            yield {**row, "left out": "eager alone ends the process when it is repeated"}
        elif "begins" in last:
            yield {**row, "way": last["begins"], "status": "crashed", "ours": f"exit code {code}"}
        self.waiting.append((child.info, last["case"] + 1))

    def _eager_dies(self, child: Child, last: int) -> bool:
        """Whether a process of eager alone does not survive what the process that ended has run."""
        process = _FORK.Process(target=self.alone, args=(child.info, child.first, last, self.misfits))
        process.start()
        process.join()
        return (process.exitcode or 0) < 0

    def _end(self, child: Child) -> None:
        child.process.join()
        child.link.close()
        self.children.remove(child)
