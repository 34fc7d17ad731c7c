"""What eager refuses is refused, on some operators of torch's database; `nox -s refusals` runs all of it."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("expecttest", reason="torch's operator database imports it")

import stagefold
from tools.opinfo.samples import Sample, database
from tools.refusals.__main__ import main
from tools.refusals.cases import Case, cases
from tools.refusals.judge import FAULTS, Judge, Raised, is_steady, status
from tools.refusals.pool import Pool, eager_alone
from tools.refusals.report import report

SAMPLE = ("add", "stack", "roll", "nn.functional.linear", "gather", "index_add", "nn.functional.layer_norm")


def test_what_eager_refuses_is_refused(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    code = main([*SAMPLE, "--misfits", "5", "--results", str(results)])
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    assert [row for row in rows if row.get("status") in FAULTS or "broken" in row] == []
    assert {row["op"] for row in rows if row.get("status") == "same"} >= {"stack", "roll", "gather", "index_add"}
    assert code == 0


def test_cases_are_the_same_each_time() -> None:
    info = database()["gather"]
    first, second = cases(info, 12), cases(info, 12)
    assert [(c.kind, c.what) for c in first] == [(c.kind, c.what) for c in second]
    assert {c.kind for c in first} == {"error input", "misfit"}
    for a, b in zip(first, second, strict=True):
        if a.kind == "misfit":  # error inputs have memory that nothing has written
            torch.testing.assert_close(a.sample.call(), b.sample.call(), equal_nan=True)


def judged(op: Any) -> set[str]:
    """The statuses of a call of `op` on a tensor of three, judged as one that refuses three."""
    fitting, misfit = Sample(torch.ones(2), (), {}), Sample(torch.ones(3), (), {})
    rows = list(Judge().rows("made", 0, Case("misfit", "three", op, misfit, fitting, gradient=False)))
    return {row["status"] for row in rows if "status" in row}


def test_a_call_that_is_computed_where_eager_raises_is_found() -> None:
    def lax(x: torch.Tensor) -> torch.Tensor:
        if not stagefold.is_compiling() and x.shape[0] == 3:
            raise RuntimeError("three")
        return x + 1

    assert judged(lax) == {"silent"}


def test_a_case_whose_answer_eager_takes_from_other_memory_is_left_out() -> None:
    pivots = torch.arange(1, 4, dtype=torch.int32)  # one less than there are rows
    sample = Sample(torch.ones(4, 4), (pivots,), {})
    case = Case("misfit", "three pivots", torch.lu_unpack, sample, sample, gradient=False)
    assert not is_steady(case, None)
    assert not is_steady(case, Raised(RuntimeError(), "forward"))
    fitting = Sample(torch.ones(3, 3), (pivots,), {})
    assert is_steady(Case("misfit", "fits", torch.lu_unpack, fitting, fitting, gradient=False), None)


def test_another_class_and_another_phase_are_found() -> None:
    expected = Raised(IndexError(), "forward")
    assert status(expected, Raised(RuntimeError(), "forward")) == "other"
    assert status(expected, Raised(IndexError(), "backward")) == "other"
    assert status(Raised(RuntimeError(), "forward"), Raised(NotImplementedError(), "forward")) == "same"
    assert status(None, expected) == "refused"


class Info(SimpleNamespace):
    """A stand-in for an OpInfo: its name."""

    formatted_name: str


def dies_at_the_second(link: Any, info: Any, first: int, misfits: int) -> None:
    """What `work` does, for three cases of which compiled code does not survive one."""
    for number in range(first, 3):
        row = {"op": info.formatted_name, "case": number, "kind": "misfit", "what": str(number), "eager": "None"}
        link.send({**row, "begins": "fixed"})
        if number == 1:
            os._exit(139)
        link.send({**row, "way": "fixed", "status": "same", "ours": "None"})
    link.send({"again": None})


def lives(info: Any, first: int, last: int, misfits: int) -> None:
    """A process of eager alone that survives its cases."""


def dies(info: Any, first: int, last: int, misfits: int) -> None:
    """One that does not."""
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_crash_ends_its_case_alone() -> None:
    infos = [Info(formatted_name="a"), Info(formatted_name="b")]
    rows = list(Pool(infos, 1, 2, target=dies_at_the_second, alone=lives).rows())
    for name in "ab":
        own = [row for row in rows if row["op"] == name]
        assert [row.get("status", "done") for row in own] == ["same", "crashed", "same", "done"]
    assert "| misfits | fixed | 4 | 0 | 0 | 2 | 0 | 0 |" in report(rows)
    assert "exit code 139" in report(rows)
    assert "of 2 operators,\nat most 1 misfits each" in report(rows)


def test_what_eager_alone_does_not_survive_is_no_crash_of_ours() -> None:
    rows = list(Pool([Info(formatted_name="a")], 1, 1, target=dies_at_the_second, alone=dies).rows())
    assert [row.get("status", "done" if "done" in row else "left out") for row in rows] == [
        "same", "left out", "same", "done"
    ]  # fmt: skip
    page = report(rows, 2)
    assert "## Faults\n\nNone.\n\n## Left out\n" in page
    assert "\n| a | 1 | eager alone ends the process when it is repeated |\n" in page
    assert "of 1 of 2 operators (the others are still to be run)" in page


def test_a_case_in_which_eager_damages_memory_is_found() -> None:
    def corrupted(input: Any) -> Any:
        ctypes.memset(torch.empty(64).data_ptr() - 16, 0xFF, 512)
        return input

    class Damaging(Info):
        error_inputs_func = True

        def error_inputs(self, device: str) -> list[Any]:
            given = SimpleNamespace(input=torch.ones(2), args=(), kwargs={})
            return [SimpleNamespace(sample_input=given)]

        def supported_dtypes(self, device: str) -> set[torch.dtype]:
            return set()

    for op, is_deadly in ((corrupted, True), (torch.sin, False)):
        info = Damaging(formatted_name="a", op=op)
        process = multiprocessing.get_context("fork").Process(target=eager_alone, args=(info, 0, 0, 0))
        process.start()
        process.join()
        assert ((process.exitcode or 0) < 0) is is_deadly
