"""The page of a capsule, in a browser, and its timeline."""

from __future__ import annotations

import html.parser
import json
import re
import shutil
import struct
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import stagefold
from stagefold import Capsule
from stagefold.cli import main
from stagefold.report.kernels import step_rows
from stagefold.report.timeline import timeline

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def capsule(tmp_path_factory: pytest.TempPathFactory) -> Capsule:
    """A trained program at two sizes, a graph break, a function that runs plain, and a stage that fails."""
    directory = tmp_path_factory.mktemp("report")
    options = {"trace_dir": directory}
    net = stagefold.compile(nn.Sequential(nn.Linear(8, 16), nn.GELU()), options=options)
    for rows in (3, 5):
        net(torch.randn(rows, 8)).sum().backward()

    def branches(x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x) + 1
        return torch.softmax(y, -1) if y.sum() > 1 else y - 1

    stagefold.compile(branches, options=options)(torch.ones(2, 5))

    def fails(document: object) -> None:
        raise RuntimeError("not <today>")

    with pytest.raises(RuntimeError):
        stagefold.compile(torch.exp, options=options, stages={"loopir": fails})(torch.ones(3))
    return Capsule(*directory.glob("*.capsule"))


@pytest.fixture(scope="module")
def page(capsule: Capsule, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("page")
    arguments = ["report", str(capsule.path), "-o", str(directory / "page.html"), "--measure"]
    assert main([*arguments, "--timeline", str(directory / "timeline.json")]) == 0
    return directory / "page.html"


class Balanced(html.parser.HTMLParser):
    """Fails where a tag is closed that was not the last one opened."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attributes: object) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_it_tells_from_lines_to_kernels(page: Path) -> None:
    text = page.read_text()
    parser = Balanced()
    parser.feed(text.removeprefix("<!doctype html>"))
    assert parser.open == []
    for part in (
        "BC004",
        "Use torch.where or masks",
        "shape[0] was 3 and is 5",
        "torch.softmax(y, -1) if y.sum()",
        "producer and consumer",
        "RemoveDeadCode",
        "RuntimeError: not &lt;today&gt;",
        "GB/s",
        "void k0(",
        "reduce max",
        "open sizes s0",
        "grad_enabled",
    ):
        assert part in text, part


def test_it_needs_nothing_from_elsewhere(page: Path) -> None:
    text = page.read_text()
    assert not re.search(r"<(script|link|img|iframe)|url\(|@import|(?:src|href)=(?!\"#)", text)


@pytest.mark.skipif(BROWSER is None, reason="shutil.which finds no chromium (apt-get install chromium)")
def test_a_browser_shows_it(page: Path, tmp_path: Path) -> None:
    picture = tmp_path / "page.png"
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
               "--window-size=1200,1600", f"--screenshot={picture}", page.as_uri()]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert picture.exists(), done.stderr
    data = picture.read_bytes()
    assert struct.unpack(">II", data[16:24]) == (1200, 1600)
    assert len(data) > 50_000, "an empty page is a small picture"
    command[-2] = "--dump-dom"
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    assert shown.count("<details") == page.read_text().count("<details")


def test_steps_have_text_bytes_and_seconds(capsule: Capsule) -> None:
    run = capsule.runs[0]
    loop, program = capsule.document(run, "loop"), capsule.document(run, "program")
    plain = step_rows(loop, program, None)  # type: ignore[arg-type]
    assert {row.direction for row in plain} == {"forward", "backward"}
    assert all(row.seconds is None for row in plain)
    kernels = [row for row in plain if row.text]
    assert kernels
    assert all(row.loops.startswith("kernel ") and "void k" in row.text for row in kernels)
    assert any("GELU.forward" in row.origin for row in kernels)
    (weight,) = [one for one in run.inputs if one.shape == (16, 8)]
    assert weight.requires_grad


def trace_events(text: bytes) -> list[dict[str, Any]]:
    """The events of a file in the Trace Event Format, each of which is checked:
    https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU."""
    whole = json.loads(text, parse_constant=pytest.fail)  # NaN is no JSON
    assert whole["displayTimeUnit"] in ("ms", "ns")
    for row in whole["traceEvents"]:
        assert type(row["name"]) is str
        assert type(row["pid"]) is type(row["tid"]) is int
        assert type(row["args"]) is dict
        match row["ph"]:
            case "M":
                assert row["name"] in ("process_name", "thread_name")
                assert type(row["args"]["name"]) is str
            case "X":
                assert row["ts"] >= 0
                assert row["dur"] >= 0
                assert type(row["cat"]) is str
            case "i":
                assert row["ts"] >= 0
                assert row["s"] in ("g", "p", "t")
            case other:
                pytest.fail(f"an event of phase {other!r}")
    assert_nested([row for row in whole["traceEvents"] if row["ph"] == "X"])
    return list(whole["traceEvents"])


def assert_nested(bars: list[dict[str, Any]]) -> None:
    """Bars of a thread are inside one another, or apart (to 10 ns), as a stack of calls is."""
    stacks: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for bar in sorted(bars, key=lambda row: (row["ts"], -row["dur"])):
        stack = stacks.setdefault((bar["pid"], bar["tid"]), [])
        while stack and stack[-1]["ts"] + stack[-1]["dur"] <= bar["ts"] + 0.01:
            stack.pop()
        assert not stack or bar["ts"] + bar["dur"] <= stack[-1]["ts"] + stack[-1]["dur"] + 0.01, (stack[-1], bar)
        stack.append(bar)


def test_bars_that_cross_are_no_timeline() -> None:
    crossing = [{"pid": 1, "tid": 1, "ts": start, "dur": 2.0} for start in (0.0, 1.0)]
    with pytest.raises(AssertionError):
        assert_nested(crossing)
    assert_nested([{**bar, "tid": number} for number, bar in enumerate(crossing)])


def test_the_timeline_is_of_the_trace_event_format(page: Path) -> None:
    rows = trace_events(page.with_name("timeline.json").read_bytes())
    assert {row["ph"] for row in rows} == {"M", "X", "i"}
    bars = [row for row in rows if row["ph"] == "X"]
    assert {row["cat"] for row in bars} == {"capture", "run", "stage", "pass"}
    whole = {row["args"].get("run", row["name"].removeprefix("compile ")): row for row in bars if row["cat"] == "run"}
    for row in bars:
        if row["cat"] == "stage":
            outer = whole[row["args"]["run"]]
            assert outer["ts"] <= row["ts"]
            assert row["ts"] + row["dur"] <= outer["ts"] + outer["dur"] + 0.01


def test_threads_have_tracks_of_their_own(tmp_path: Path) -> None:
    together = threading.Barrier(3)

    def in_a_thread(number: int) -> None:
        def program(x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(x * number, -1).sin()

        program.__code__ = program.__code__.replace(co_qualname=f"program{number}")
        compiled = stagefold.compile(program, options={"trace_dir": str(tmp_path), "cache": False})
        together.wait()
        compiled(torch.ones(3, number + 1))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(in_a_thread, range(3)))
    (file,) = tmp_path.iterdir()
    capsule = Capsule(file)
    rows = trace_events(timeline(capsule))
    assert sorted(row["args"]["name"] for row in rows if row["name"] == "thread_name") == [
        "thread 1", "thread 2", "thread 3",
    ]  # fmt: skip
    names = {row["tid"]: row["name"][-1] for row in rows if row.get("cat") == "run"}
    assert sorted(names.values()) == ["0", "1", "2"]
    assert {event.run: event.function[-1] for event in capsule.events if event.kind == "captured"} == {
        run.member: run.name[-1] for run in capsule.runs
    }, "a capture leads to the run of its thread"


def test_an_empty_capsule_has_a_page(tmp_path: Path) -> None:
    stagefold.record(lambda: 3, to=tmp_path / "a.capsule")
    assert main(["report", str(tmp_path / "a.capsule"), "-o", str(tmp_path / "page.html")]) == 0
    assert "Nothing was compiled" in (tmp_path / "page.html").read_text()
