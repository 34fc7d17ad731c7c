"""A capsule as trace events, which Perfetto (ui.perfetto.dev) and chrome://tracing open."""

from __future__ import annotations

from typing import Any

import msgspec

from stagefold.capsule.file_format import Capsule


def timeline(capsule: Capsule) -> bytes:
    """JSON: a bar for each capture, stage, pass and load, a mark for each graph break and each plain run."""
    name = {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": " ".join(capsule.index.command) or "python"}}
    rows: list[dict[str, Any]] = [name]
    for event in capsule.events:
        if event.kind in ("captured", "reused"):
            rows.append(_bar(f"capture {event.function}", "capture", event.start, event.seconds, why=event.reason))
        else:
            where = {"where": event.where, "message": event.message, "fix": event.fix}
            mark = {"name": f"{event.kind} {event.code}", "cat": "break", "ph": "i", "s": "t", "args": where}
            rows.append({**mark, "ts": event.start * 1e6, "pid": 1, "tid": 1})
    for run in capsule.runs:
        end = max((step.start + step.seconds for step in run.steps), default=run.start)
        rows.append(_bar(f"compile {run.member}", "run", run.start, end - run.start, error=run.error))
        for step in run.steps:
            form = run.digests.get(step.name, "")
            rows.append(_bar(step.name, "stage", step.start, step.seconds, run=run.member, digest=form))
        for one in run.passes:
            rows.append(_bar(one.name, "pass", one.start, one.seconds, number=one.number, changed=one.changed))
    return msgspec.json.encode({"traceEvents": rows, "displayTimeUnit": "ms"})


def _bar(name: str, kind: str, start: float, seconds: float, **more: Any) -> dict[str, Any]:
    given = {key: value for key, value in more.items() if value is not None}
    place = {"ts": start * 1e6, "dur": seconds * 1e6, "pid": 1, "tid": 1}
    return {"name": name, "cat": kind, "ph": "X", **place, "args": given}
