"""One process that judges operators: job lines in, result lines out. It may crash; the parent starts another."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

from tools.opinfo.samples import Sample, database, draw, has_gradient
from tools.opinfo.ways import Expected, Outcome, compiled, decomposition, interpreted, symbolic

RANK = {"passed": 0, "refused": 1, "failed": 2}


def judge(info: Any, dtype: str, count: int, ways: tuple[str, ...]) -> dict[str, Any]:
    """The result of one operator and dtype: a status for each way, the worst of its samples."""
    start = time.perf_counter()
    name, gradient = info.name, has_gradient(info, dtype)
    samples, gradient = runnable(info, draw(info, dtype, count), gradient)
    found: dict[str, Any] = {"samples": len(samples), "gradient": gradient}
    for way in ways if samples else ():
        outcome, detail = _worst(WAYS[way], name, info.op, samples, gradient)
        found[way] = {"status": outcome.status, "detail": detail[:600], "externs": sorted(outcome.externs)}
    found["seconds"] = round(time.perf_counter() - start, 2)
    return found


def runnable(info: Any, samples: list[Sample], gradient: bool) -> tuple[list[Sample], bool]:
    """The samples that run in eager; without gradients if none of them has any there."""
    for wanted in (gradient, False) if gradient else (False,):
        kept = []
        for sample in samples:
            try:
                Expected(info.op, [sample], wanted)
            except Exception:
                continue  # eager's own refusal, no matter which
            kept.append(sample)
        if kept:
            return kept, wanted
    return [], False


Way = Callable[[str, Callable[..., Any], list[Sample], bool], Outcome]
WAYS: dict[str, Way] = {
    "decomposition": lambda name, op, samples, gradient: decomposition(op, samples, gradient),
    "interpreted": lambda name, op, samples, gradient: interpreted(name, Expected(op, samples, gradient)),
    "compiled": lambda name, op, samples, gradient: compiled(name, Expected(op, samples, gradient)),
    "symbolic": symbolic,
}


def _worst(way: Way, name: str, op: Any, samples: list[Sample], gradient: bool) -> tuple[Outcome, str]:
    """All samples at once; one by one if that does not pass, to tell which it is."""
    outcome = _guarded(way, name, op, samples, gradient)
    if outcome.status == "passed" or len(samples) == 1:
        return outcome, outcome.detail
    single = [_guarded(way, name, op, [sample], gradient) for sample in samples]
    worst = max(single, key=lambda o: RANK[o.status])
    bad = [i for i, o in enumerate(single) if o.status == worst.status]
    externs = frozenset().union(*(o.externs for o in single))
    if worst.status == "passed":  # together they fail, alone they do not
        return Outcome(outcome.status, "", externs), f"together only: {outcome.detail}"
    return Outcome(worst.status, "", externs), f"samples {bad} of {len(samples)}: {worst.detail}"


def _guarded(way: Way, name: str, op: Any, samples: list[Sample], gradient: bool) -> Outcome:
    try:
        return way(name, op, samples, gradient)
    except Exception as error:
        text = str(error).strip().splitlines() or [""]
        return Outcome("failed", f"{type(error).__name__}: {text[0]}")


def main() -> None:
    """Reads {"op", "dtype", "samples", "ways"} a line, writes the result a line."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # operators that print must not reach the parent
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    infos = database()
    for line in sys.stdin:
        job = json.loads(line)
        try:
            found = judge(infos[job["op"]], job["dtype"], job["samples"], tuple(job["ways"]))
        except Exception as error:
            found = {"broken": f"{type(error).__name__}: {error}"[:400]}
        print(json.dumps({"op": job["op"], "dtype": job["dtype"], **found}), file=answers, flush=True)


if __name__ == "__main__":
    main()
