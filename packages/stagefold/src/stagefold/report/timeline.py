"""A capsule as trace events, which Perfetto (ui.perfetto.dev) and chrome://tracing open."""

from __future__ import annotations

from typing import Any

import msgspec

from stagefold.capsule.file_format import Capsule


def timeline(capsule: Capsule) -> bytes:
    """JSON: a bar for each capture, stage, pass and load, a mark for each graph break and each plain run, in the track
    of its thread."""
    rows: list[dict[str, Any]] = []
    for event in capsule.events:
        thread = event.thread
        if event.kind in ("captured", "reused"):
            name = f"capture {event.function}"
            rows.append(_bar(thread, name, "capture", event.start, event.seconds, why=event.reason))
        else:
            where = {"where": event.where, "message": event.message, "fix": event.fix}
            mark = {"name": f"{event.kind} {event.code}", "cat": "break", "ph": "i", "s": "t", "args": where}
            rows.append({**mark, "ts": event.start * 1e6, "pid": 1, "tid": thread})
    for run in capsule.runs:
        end = max((step.start + step.seconds for step in run.steps), default=run.start)
        rows.append(_bar(run.thread, f"compile {run.member}", "run", run.start, end - run.start, error=run.error))
        for step in run.steps:
            form = run.digests.get(step.name, "")
            rows.append(_bar(run.thread, step.name, "stage", step.start, step.seconds, run=run.member, digest=form))
        for one in run.passes:
            how = {"number": one.number, "changed": one.changed}
            rows.append(_bar(run.thread, one.name, "pass", one.start, one.seconds, **how))
    threads = sorted({row["tid"] for row in rows})
    names = [_name("process_name", 1, " ".join(capsule.index.command) or "python")]
    names += [_name("thread_name", thread, f"thread {thread}") for thread in threads]
    return msgspec.json.encode({"traceEvents": [*names, *rows], "displayTimeUnit": "ms"})


def _name(kind: str, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": 1, "tid": thread, "args": {"name": name}}


def _bar(thread: int, name: str, kind: str, start: float, seconds: float, **more: Any) -> dict[str, Any]:
    given = {key: value for key, value in more.items() if value is not None}
    place = {"ts": start * 1e6, "dur": seconds * 1e6, "pid": 1, "tid": thread}
    return {"name": name, "cat": kind, "ph": "X", **place, "args": given}
