"""`page(capsule)`: one self-contained HTML page, from the user's lines to kernels."""

from __future__ import annotations

import html
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import bytecap
from stagefold.capsule.file_format import Capsule, Event, Run
from stagefold.capsule.inputs import inputs_of
from stagefold.report.kernels import StepRow, step_rows
from stagefold.report.style import STYLE
from stagewire.capture import Capture
from stagewire.grad import Grad
from stagewire.loop import Loop
from stagewire.prim import Prim
from stagewire.printer import print_document
from stagewire.program import Program

_COLOURS = {"aotgrad": 0, "primops": 1, "partition": 2, "loopir": 4, "codegen": 6, "load": 5}


def page(capsule: Capsule, *, measure: bool = False, cache: Path | None = None) -> str:
    """The page. measure: run each program on its recorded inputs, here, for the seconds of its kernels."""
    index = capsule.index
    machine = index.machine
    title = " ".join(map(os.path.basename, index.command[:1])) or capsule.path.name
    body = "".join((
        f"<h1>{_text(title)}</h1>",
        f'<div class="soft small">{_text(index.started)} · stagefold {_text(index.stagefold)} · torch '
        f"{_text(machine.torch)} · Python {_text(machine.python)} · {machine.threads} threads · {_text(machine.system)}"
        f"{''.join(' · ' + _text(device) for device in machine.devices)}</div>",
        *_tiles(capsule),
        *_troubles(capsule),
        "<h2>Programs</h2>",
        *(_run_card(capsule, run, measure, cache) for run in capsule.runs),
        "" if capsule.runs else '<div class="card soft">Nothing was compiled.</div>',
    ))  # fmt: skip
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{_text(title)}</title>'
    head = f"<head>{head}<style>{STYLE}</style></head>"
    return f"<!doctype html><html lang=en>{head}<body><main>{body}</main></body></html>\n"


def _text(value: object) -> str:
    return html.escape(str(value))


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"


def _size(count: int | None) -> str:
    if count is None:
        return "–"
    value, units = float(count), ["B", "KB", "MB", "GB"]
    while value >= 1000 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.3g} {units[0]}"


def _tiles(capsule: Capsule) -> Iterator[str]:
    again = [event for event in capsule.events if event.reason is not None]
    breaks = [event for event in capsule.events if event.kind == "broke"]
    plain = [event for event in capsule.events if event.kind in ("refused", "limit")]
    failed = [run for run in capsule.runs if run.error is not None]
    steps = sum(step.seconds for run in capsule.runs for step in run.steps)
    captured = sum(event.seconds for event in capsule.events)
    rows = [
        ("programs", len(capsule.runs), ""),
        ("graph breaks", len(breaks), "warn"),
        ("compiled again", len(again), "warn"),
        ("run plain", len(plain), "bad"),
        ("failed", len(failed), "bad"),
        ("capture", _duration(captured), ""),
        ("compile and load", _duration(steps), ""),
    ]
    tiles = (
        f'<div class="tile {kind if count else ""}"><b>{count}</b><span class="soft small">{name}</span></div>'
        for name, count, kind in rows
    )
    yield f'<div class="tiles">{"".join(tiles)}</div>'


_TROUBLES = {"broke": ("graph break", "warn"), "refused": ("runs plain", "bad"), "limit": ("limit", "bad")}


def _troubles(capsule: Capsule) -> Iterator[str]:
    """What ends graphs, what runs plain, what was compiled again and why; each place once."""
    known = [event for event in capsule.events if event.kind not in ("captured", "reused")]
    if known:
        yield "<h2>Where graphs end</h2>"
    counts: dict[tuple[str, ...], int] = {}
    for event in known:
        key = (event.kind, event.code, str(event.where), event.message, event.fix)
        counts[key] = counts.get(key, 0) + 1
    for (kind, code, where, message, fix), count in counts.items():
        word, look = _TROUBLES[kind]
        times = f" · {count} times" if count > 1 else ""
        yield (
            f'<div class="card {look}"><span class="badge {look}">{word}</span> <b>{_text(code)}</b> '
            f'<code>{_text(where)}</code><span class="soft small">{times}</span><div>{_text(message)}</div>'
            f'<div class="fix small"><b>Fix</b> {_text(fix)}</div></div>'
        )
    again = [event for event in capsule.events if event.reason is not None]
    if again:
        rows = [[_text(one.function), _link(one), f"<code>{_text(one.reason)}</code>"] for one in again]
        yield "<h2>Compiled again</h2>"
        yield f'<div class="card">{_table(["function", "program", "the value that changed"], rows)}</div>'


def _link(event: Event) -> str:
    if event.run is None:
        return '<span class="soft">guards alone</span>'
    return f'<a href="#{_text(event.run)}">{_text(event.run.partition("_")[0])}</a>'


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    def cells(tag: str, row: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=n' if place in numbers else ''}>{cell}</{tag}>" for place, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{cells("th", heads)}</tr>{body}</table></div>'


def _details(title: str, note: str, content: str, *, opened: bool = False) -> str:
    start = "<details open>" if opened else "<details>"
    return f'{start}<summary>{_text(title)} <span class="soft small">{_text(note)}</span></summary>{content}</details>'


def _pre(text: str) -> str:
    return f"<pre>{_text(text)}</pre>"


def _run_card(capsule: Capsule, run: Run, measure: bool, cache: Path | None) -> str:
    documents = {form: capsule.document(run, form) for form in run.digests}
    capture, loop, program = (documents.get(form) for form in ("capture", "loop", "program"))
    assert isinstance(capture, Capture)
    rows: list[StepRow] = []
    if isinstance(program, Program):
        known = measure and run.inputs and all(one.kind != "missing" for one in run.inputs)
        rows = step_rows(loop, program, inputs_of(capsule, run) if known else None, cache)
    code = capture.code
    total = sum(step.seconds for step in run.steps)
    badges = [f'<span class="badge">{len(capture.graph.nodes)} calls</span>']
    if rows:
        launches = sum(not row.name.startswith("aten.") and bool(row.text) for row in rows)
        badges.append(f'<span class="badge">{launches} kernels, {len(rows) - launches} calls of ATen</span>')
    if any(row.direction == "backward" for row in rows):
        badges.append('<span class="badge">trained</span>')
    if capture.symbols:
        badges.append(f'<span class="badge good">open sizes {_text(", ".join(s.name for s in capture.symbols))}</span>')
    if run.error is not None:
        badges.append('<span class="badge bad">failed</span>')
    return "".join((
        f'<div class="card" id="{_text(run.member)}"><b style="font-size:17px">{_text(run.name)}</b> '
        f'<span class="soft">{_text(run.member.partition("_")[0])} · {_duration(total)}</span> {" ".join(badges)}'
        f'<div class="soft small mono">{_text(code.file)}:{code.first_line}</div>',
        f'<div class="card bad">{_text(run.error)}</div>' if run.error else "",
        _stage_bar(run),
        _details("Your lines", "and what became of each", _lines(run, capture, rows), opened=True),
        _kernels(rows, measure),
        *_decisions(documents),
        _settings(run),
        _guards(capture),
        _passes(run),
        "<h3>Documents</h3>",
        *(_details(form, f"{run.digests[form][:12]}", _pre(print_document(one))) for form, one in documents.items()),
        "</div>",
    ))  # fmt: skip


def _stage_bar(run: Run) -> str:
    total = sum(step.seconds for step in run.steps) or 1.0
    parts, legend = [], []
    for step in run.steps:
        colour = f"var(--c{_COLOURS.get(step.name, 3)})"
        parts.append(f'<i style="width:{100 * step.seconds / total:.2f}%;background:{colour}"></i>')
        legend.append(f'<span><i style="background:{colour}"></i>{_text(step.name)} {_duration(step.seconds)}</span>')
    return f'<div class="bar">{"".join(parts)}</div><div class="legend">{"".join(legend)}</div>'


def _lines(run: Run, capture: Capture, rows: Sequence[StepRow]) -> str:
    """Each line that the graph names, its text, its calls and the steps that compute them."""
    found: dict[str, list[str]] = {}
    for node in capture.graph.nodes:
        found.setdefault(str(node.line or "no line"), []).append(node.target.removeprefix("torch.nn.functional."))
    lines = []
    for place, calls in found.items():
        node = next(one for one in capture.graph.nodes if str(one.line or "no line") == place)
        text = run.lines.get(node.line.file, {}).get(node.line.line, "").strip() if node.line else ""
        where = f"{os.path.basename(node.line.file)}:{node.line.line}" if node.line else "–"
        steps = dict.fromkeys((row.name, row.direction, bool(row.text)) for row in rows if row.origin == place)
        chips = [f'<span class="chip">{_text(call)}</span>' for call in dict.fromkeys(calls)]
        chips += [
            f'<span class="chip {"kernel" if kernel else "call"} {"back" if direction == "backward" else ""}">'
            f"{'← ' if direction == 'backward' else '→ '}{_text(name)}</span>"
            for name, direction, kernel in steps
        ]
        function = _text(node.line.function) if node.line else ""
        left = f'<div class="mono soft" title="{_text(place)}">{_text(where)}<br>{function}</div>'
        right = f'<div><code>{_text(text)}</code><div class="chips">{"".join(chips)}</div></div>'
        lines.append(f'<div class="line">{left}{right}</div>')
    return "".join(lines)


def _kernels(rows: Sequence[StepRow], measure: bool) -> str:
    if not rows:
        return ""
    longest = max((row.seconds or 0.0 for row in rows), default=0.0) or 1.0
    table = []
    for row in rows:
        texts = [
            _details("loops", "", _pre(row.loops)) if row.loops else "",
            _details("code", "", _pre(row.text)) if row.text else "",
        ]
        meter = f'<span class="meter" style="width:{60 * row.seconds / longest:.0f}px"></span>' if row.seconds else ""
        rate = "–" if not row.seconds or row.bytes is None else f"{row.bytes / row.seconds / 1e9:.1f} GB/s"
        table.append([
            row.direction, f"<code>{_text(row.name)}</code>", _text(", ".join(row.computes)) + "".join(texts),
            _size(row.bytes), f"{meter}{_duration(row.seconds)}", rate,
        ])  # fmt: skip
    heads = ["direction", "step", "computes", "bytes", "seconds", "rate"]
    note = "quickest of five runs, one step at a time" if measure else "not measured: stagefold report --measure"
    return _details("Kernels and calls", note, _table(heads, table, (3, 4, 5)), opened=True)


def _decisions(documents: dict[str, Any]) -> Iterator[str]:
    """What passes decided, with the reason."""
    rows = []
    for form, document in documents.items():
        match document:
            case Grad():
                rows += [[form, "kept" if one.refused else "rewritten", _text(one.what), _text(one.reason), ""]
                         for one in document.rewrites]  # fmt: skip
            case Prim(forward=graph, partition=report) if graph is not None and document.backward is not None:
                recomputed = ", ".join(report.recomputed) or "nothing"
                saved = f"{report.saved_bytes} bytes (without recomputation {report.saved_bytes_without_recompute})"
                rows.append([form, "saved", saved, f"recomputed: {_text(recomputed)}", ""])
            case Loop():
                for direction, graph in (("forward", document.forward), ("backward", document.backward)):
                    for one in graph.decisions if graph is not None else ():
                        saved = _text(one.bytes_saved) if one.bytes_saved else ""
                        look = "warn" if one.action == "refused" else ""
                        action = f'<span class="badge {look}">{one.action}</span>'
                        rows.append([direction, action, _text(", ".join(one.subjects)), _text(one.reason), saved])
    if rows:
        heads = ["in", "decision", "of", "reason", "bytes saved"]
        yield _details("Decisions", f"{len(rows)}, each with its reason", _table(heads, rows, (4,)))


def _settings(run: Run) -> str:
    stages = []
    for row in run.stages:
        told = ", ".join(f"{name}={value}" for name, value in row.told.items())
        stages.append([_text(row.slot), _text(row.name), _text(row.version), _text(told)])
    options = _pre("\n".join(f"{key} = {value}" for key, value in run.options.items())) if run.options else ""
    inputs = []
    for number, one in enumerate(run.inputs):
        kind = one.dtype or type(one.value).__name__
        inputs.append([str(number), _text(kind), _text(list(one.shape)), _text(one.device), one.kind])
    content = _table(["slot", "stage", "version", "told by the machine"], stages) + options
    content += _table(["input", "dtype", "shape", "device", "numbers"], inputs) if inputs else ""
    return _details("Stages, options and inputs", f"{len(run.inputs)} inputs", content)


def _guards(capture: Capture) -> str:
    lines = list(bytecap.print_guards(capture.guards))
    return _details("Guards", f"it is used again while these {len(capture.guards)} hold", _pre("\n".join(lines)))


def _passes(run: Run) -> str:
    mark = '<span class="badge good">changed</span>'
    rows = [
        [_text(one.slot), _text(one.name), mark if one.changed else "", _duration(one.seconds)] for one in run.passes
    ]
    title = f"{len(rows)}, of which {sum(one.changed for one in run.passes)} changed something"
    return _details("Passes", title, _table(["slot", "pass", "", "seconds"], rows, (3,)))
