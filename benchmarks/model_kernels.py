"""The kernels of a model beside what memory can do, in one step on one NVIDIA GPU.

    python benchmarks/model_kernels.py [CASE ...] [--dtype bfloat16] [--worst 9] [--sources DIRECTORY]

Cases are those of `gpu.py`. The ideal of a kernel is the time in which a copy (of 1 GiB, in the same run) moves the
bytes of what the kernel reads and writes, each once; kernels whose operands are in the cache may take less. Listed are
those that lose most. `--sources` writes their Triton source, and what the libraries' kernels take, to a file a case.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gpu
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import stagefold
from codegen.runtime.memory_kinds import plan_memory, span
from codegen.runtime.triton_loader import Place
from stagewire.program import KernelInfo, Launch, Unit

NAME = re.compile(r"kernel\d+\w*")


@dataclass
class Found:
    """Launches of one kernel at operands of the same shapes: how many, microseconds, bytes."""

    info: KernelInfo
    source: str
    shapes: tuple[str, ...]
    count: int = 0
    time: float = 0.0
    moved: int = 0
    registers: set[int] = field(default_factory=set)

    def __str__(self) -> str:
        grid, registers = "x".join(map(str, self.info.grid)), max(self.registers, default=0)
        return f"{self.info.name} grid {grid} warps {self.info.num_warps} registers {registers} {' '.join(self.shapes)}"


def launches(unit: Unit) -> Iterator[Found]:
    """The kernels that a unit launches, in order."""
    types, infos = plan_memory(unit).types, {info.name: info for info in unit.kernels}
    for one in unit.instructions:
        if not isinstance(one, Launch) or one.kernel not in infos or 0 in infos[one.kernel].grid:
            continue
        info = infos[one.kernel]
        source = source_of(unit, info.function or info.name)
        moved, shapes = 0, []
        for number, type_ in enumerate(types[name] for name in one.buffers):
            assert type_ is not None
            size = span(type_)
            ways = {way for way in ("load", "store", "atomic_add") if f"{way}(p{number} " in source}
            moved += (len(ways) or 1) * size if isinstance(size, int) else 0
            shapes.append(f"{type_.dtype}{list(type_.shape)}")
        yield Found(info, source, tuple(shapes), moved=moved)


def source_of(unit: Unit, name: str) -> str:
    """The text of a kernel, as `kernel`: those of several units may be the same."""
    found = re.search(rf"(?ms)^def {name}\(.*?(?=^\S|\Z)", unit.source)
    return found[0].replace(name, "kernel", 1) if found else ""


def events_of(step: Any) -> list[dict[str, Any]]:
    """What the GPU does in one step, in order."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        step()
        torch.cuda.synchronize()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiler.export_chrome_trace(file.name)
        events = json.loads(Path(file.name).read_text())["traceEvents"]
    kinds = ("kernel", "gpu_memcpy", "gpu_memset")
    return sorted((event for event in events if event.get("cat") in kinds), key=lambda event: event["ts"])


def copy_rate() -> float:
    """Bytes a microsecond that a copy moves, read and written."""
    x = torch.empty(1 << 28, device="cuda")
    seconds = min(gpu.timed(x.clone, 5) for _ in range(5))
    return 2 * x.nbytes / seconds / 1e6


def report(name: str, dtype: torch.dtype, rate: float, worst: int, directory: Path | None) -> None:
    units: list[Unit] = []
    bind = Place.bind

    def recording(self: Place, unit: Unit, *rest: Any, **more: Any) -> Any:
        units.append(unit)
        return bind(self, unit, *rest, **more)

    Place.bind = recording  # type: ignore[method-assign]
    try:
        case = gpu.CASES[name]
        torch.manual_seed(0)
        module, inputs = case.make()
        given = tuple(x.cuda().to(dtype) if x.is_floating_point() else x.cuda() for x in inputs)
        if isinstance(module, nn.Module):
            module = module.cuda().to(dtype).train(case.training)
        elif case.training:
            given = tuple(x.requires_grad_(x.is_floating_point()) for x in given)
        step = gpu.stepper(stagefold.compile(module, options={"cache": False}), given, case.training)
        for _ in range(2):
            step()
        torch.cuda.synchronize()
    finally:
        Place.bind = bind  # type: ignore[method-assign]
    events = events_of(step)
    ours = [event for event in events if NAME.fullmatch(event["name"])]
    known = [found for unit in units for found in launches(unit)]
    seen = [(event["name"], tuple(event["args"]["grid"]), event["args"]["block"][0]) for event in ours]
    made = [(k.info.function or k.info.name, (*k.info.grid, 1, 1)[:3], 32 * k.info.num_warps) for k in known]
    groups: dict[tuple[Any, ...], Found] = {}
    for match in difflib.SequenceMatcher(None, seen, made, autojunk=False).get_matching_blocks():
        for event, one in zip(ours[match.a :], known[match.b : match.b + match.size], strict=False):
            group = groups.setdefault((one.source, one.info.grid, one.shapes), one)
            group.moved += one.moved if group is not one else 0
            group.count, group.time = group.count + 1, group.time + event["dur"]
            group.registers.add(event["args"].get("registers per thread", 0))
    total, mine = sum(event["dur"] for event in events), sum(event["dur"] for event in ours)
    matched, ideal = sum(g.count for g in groups.values()), sum(g.moved for g in groups.values()) / rate
    print(
        f"{name:28s} {total / 1e3:7.2f} ms of the device in {len(events)}, kernels {mine / 1e3:.2f} in {len(ours)}"
        f" ({matched} known: ideal {ideal / 1e3:.2f})",
        flush=True,
    )
    order = sorted(groups.values(), key=lambda group: group.moved / rate - group.time)
    lines = [f"{g.time:8.1f} us, {g.moved / rate / g.time:.2f} of a copy, {g.count} x {g}" for g in order]
    print(*(f"   {line[:200]}" for line in lines[:worst]), sep="\n", flush=True)
    if directory is not None:
        others, counts = Counter[str](), Counter[str]()
        for event in events:
            if not NAME.fullmatch(event["name"]):
                others[event["name"]] += event["dur"]
                counts[event["name"]] += 1
        text = [f"#### {line}\n{group.source}" for line, group in zip(lines, order, strict=True)]
        text += [f"{time:8.1f} us, {counts[key]} x {key[:150]}" for key, time in others.most_common()]
        (directory / f"{name.replace(' ', '_')}.txt").write_text("\n".join(text) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--worst", type=int, default=9, help="kernels listed for each case")
    parser.add_argument("--sources", type=Path, help="a directory for the sources")
    arguments = parser.parse_args()
    if arguments.sources is not None:
        arguments.sources.mkdir(parents=True, exist_ok=True)
    rate = copy_rate()
    print(f"a copy moves {rate / 1e6:.2f} TB/s")
    for name in arguments.cases or gpu.CASES:
        report(name, getattr(torch, arguments.dtype), rate, arguments.worst, arguments.sources)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
