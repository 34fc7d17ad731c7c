"""Record what the stages make of a corpus; compare two records. A change that keeps behaviour keeps these texts.

    python tools/same_programs.py record DIRECTORY [--corpus zoo dynamic samples drawn] [--only WORD] [--on cpu cuda]
                                             [--captures]
    python tools/same_programs.py compare BEFORE AFTER [--kinds program loop] [--show 3]

corpus  zoo      the models of integration_tests/zoo, a training step and an inference each
        dynamic  the same and small programs about sizes, all sizes symbolic
        samples  one sample (that is not empty) of each operator of torch's database, with its gradient
        drawn    programs of aotgrad's strategies, the same in every run
on      cuda     the same captures, their tensors on a GPU: nothing runs there, none is needed
captures         what bytecap writes alone, without the stages behind it: graphs and guards, in a fraction of the time

A record holds one file for each graph of each case: its documents (capture, grad, prim, cut, loop, program) as printed,
the kernels' sources among them. Names of values are numbers in order of appearance, and places in files are left out:
names and places are nobody's behaviour. Each is verified. What no document could be made of, and what it breaks, is
recorded as the error that said so.
`compare` prints the cases that differ, by kind of document, and the first lines that do. Exit code 1 if any does.
"""

from __future__ import annotations

import argparse
import copy
import difflib
import gzip
import os
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, settings

import bytecap
from aotgrad.testing.strategies import programs
from integration_tests.test_dynamic_programs import PROGRAMS, Levels
from integration_tests.zoo.families import cases
from integration_tests.zoo.reference import step
from stagefold.options import Options
from stagefold.pipeline import Pipeline
from stagewire.capture import Capture
from stagewire.codec import decode, encode
from stagewire.printer import print_document
from tools.opinfo.samples import copied, database, draw, has_gradient, is_supported, program, tensors
from tools.opinfo.ways import run

KINDS = ("capture", "grad", "prim", "cut", "loop", "program")
CORPORA = ("zoo", "dynamic", "samples", "drawn")
DRAWN = 400
PLACE = re.compile(r'  # \S+:\d+ in .*$|(?:, )?file="[^"]*", (?:first_)?line=\d+', re.MULTILINE)
SOURCE = re.compile(r"^ *\|.*$", re.MULTILINE)
NAME = re.compile(r'%(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[A-Za-z_]\w*))|"(?P<text>[A-Za-z_]\w*)"')
HEADING = "======== "

Case = tuple[str, Callable[[Callable[..., Any]], None]]
"""A name, and what runs it under a backend of bytecap."""


def canonical(printed: str) -> str:
    """A printed document without places; the names of its values are numbers, but for the text of sources.

    >>> canonical('%a: f32[2] = prims.exp(%x)  # /home/me/a.py:3 in f\\nx = "x"')
    '%0: f32[2] = prims.exp(%1)\\nx = "1"'
    """
    text = PLACE.sub("", printed)
    numbers: dict[str, int] = {}
    for found in NAME.finditer(text):
        name = found["plain"] or found["quoted"]
        if name is not None:
            numbers.setdefault(name, len(numbers))

    def renamed(found: re.Match[str]) -> str:
        if found["text"] is not None:
            return f'"{numbers[found["text"]]}"' if found["text"] in numbers else found[0]
        return f"%{numbers[found['plain'] or found['quoted']]}"

    lines = text.split("\n")
    return "\n".join(line if SOURCE.match(line) else NAME.sub(renamed, line) for line in lines)


class Recorder:
    """A backend that writes down the documents of each capture, and then runs the capture as it is."""

    def __init__(self, directory: Path, devices: list[str], captures: bool = False) -> None:
        self.directory, self.devices, self.captures = directory, devices, captures
        self.case, self.count = "", 0

    def begin(self, case: str) -> None:
        self.case, self.count = case, 0

    def __call__(self, capture: Capture, example_inputs: object) -> Callable[..., Any]:
        if self.captures:
            self.write("capture", {"capture": canonical(print_document(capture))})
        for device in () if self.captures else self.devices:
            self.write(device, documents(capture if device == "cpu" else moved(capture)))
        self.count += 1
        return bytecap.executor(capture)

    def write(self, device: str, found: dict[str, str]) -> None:
        path = self.directory / f"{re.sub('[^A-Za-z0-9_.-]+', '_', self.case)}.{self.count}.{device}.gz"
        text = "".join(f"{HEADING}{kind}\n{text}\n" for kind, text in found.items())
        path.write_bytes(gzip.compress(text.encode(), mtime=0))


def documents(capture: Capture) -> dict[str, str]:
    """The canonical text of each document that is made of a capture; an error where one is not."""
    made = {"capture": canonical(print_document(capture))}

    def observe(event: Any) -> None:
        made[KINDS[len(made)]] = canonical(print_document(event.document))

    try:
        Pipeline.build(Options(verify=True)).run(capture, observe=observe)
    except Exception as error:
        made[KINDS[len(made)]] = f"{type(error).__name__}: {error}"
    return made


def moved(capture: Capture) -> Capture:
    """The capture with all that is on the CPU on a GPU."""
    return decode(encode(capture).replace(b'"cpu"', b'"cuda:0"'))  # type: ignore[return-value]


def zoo(dynamic: bool | None = None) -> Iterator[Case]:
    for each in cases():
        torch.manual_seed(0)
        model = each.build()
        torch.manual_seed(1)
        inputs = each.inputs(model)
        for train in (True, False):
            own = copy.deepcopy(model).train(train)
            name = f"{'dynamic' if dynamic else 'zoo'}.{each.class_name}.{'train' if train else 'eval'}"
            yield name, partial(_step, own, inputs, train, dynamic)


def _step(model: Any, inputs: Any, train: bool, dynamic: bool | None, backend: Callable[..., Any]) -> None:
    step(model, bytecap.optimize(model, backend, dynamic=dynamic), inputs, train, seed=7, leaves=False)


def dynamic() -> Iterator[Case]:
    for name, own in PROGRAMS.items():
        x = torch.ones(5, 4, requires_grad=True)
        yield f"dynamic.{name}", lambda backend, own=own, x=x: bytecap.optimize(own, backend, dynamic=True)(x)
    image = torch.ones(2, 3, 16, 24)
    yield "dynamic.levels", lambda backend: bytecap.optimize(Levels(), backend, dynamic=True)(image)
    yield from zoo(dynamic=True)


def samples(share: slice = slice(None)) -> Iterator[Case]:
    """share: of the operators, in their order."""
    for name, info in list(database().items())[share]:
        dtype = next((d for d in ("float32", "int64", "complex64", "bool") if is_supported(info, d)), None)
        if dtype is None:
            continue
        some = draw(info, dtype, 8)
        chosen = [one for one in some if all(x.numel() for x in tensors(one.call()))][:1] or some[:1]
        gradient = has_gradient(info, dtype)

        def call(backend: Any, op: Any = info.op, chosen: Any = chosen, gradient: bool = gradient) -> None:
            run(bytecap.optimize(program, backend), op, copied(chosen), gradient)

        yield f"samples.{name}", call


def drawn() -> Iterator[Case]:
    found: list[Capture] = []

    @settings(max_examples=DRAWN, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(programs())
    def collect(one: tuple[Capture, list[torch.Tensor]]) -> None:
        found.append(one[0])

    collect()
    for number, capture in enumerate(found):
        yield f"drawn.{number}", lambda backend, capture=capture: backend(capture, ())


def record(directory: Path, corpora: list[str], only: str, devices: list[str], captures: bool) -> int:
    directory.mkdir(parents=True, exist_ok=True)
    recorder = Recorder(directory, devices, captures)
    all_cases = {"zoo": zoo, "dynamic": dynamic, "samples": samples, "drawn": drawn}
    for corpus in corpora:
        for name, call in all_cases[corpus]():
            if only not in name:
                continue
            recorder.begin(name)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    call(recorder)
                except Exception as error:  # of eager, or of the capture: part of the record
                    recorder.write("error", {"capture": f"{type(error).__name__}: {error}"})
    print(f"{len(list(directory.glob('*.gz')))} graphs in {directory}")
    return 0


def read(path: Path) -> dict[str, str]:
    """The texts of a file of a record, by kind of document."""
    parts = gzip.decompress(path.read_bytes()).decode().split(HEADING)[1:]
    return dict(part.split("\n", 1) for part in parts)  # type: ignore[misc]


def compare(before: Path, after: Path, kinds: list[str], show: int) -> int:
    """Print what differs; how many graphs do."""
    files = {path.name for directory in (before, after) for path in directory.glob("*.gz")}
    differing: Counter[str] = Counter()
    missing = 0
    for name in sorted(files):
        if not ((before / name).exists() and (after / name).exists()):
            missing += 1
            print(f"{name}: only in {before if (before / name).exists() else after}")
            continue
        first, second = read(before / name), read(after / name)
        changed = [kind for kind in kinds if first.get(kind) != second.get(kind)]
        differing.update(changed)
        if changed:
            print(f"{name}: {', '.join(changed)}")
        if changed and show > 0:
            show -= 1
            old, new = (texts.get(changed[-1], "").split("\n") for texts in (first, second))
            print(*islice(difflib.unified_diff(old, new, "before", "after", lineterm="", n=2), 60), sep="\n")
    counts = ", ".join(f"{kind} {differing[kind]}" for kind in kinds)
    print(f"{len(files)} graphs; differing: {counts}; in one record alone: {missing}")
    return 1 if differing or missing else 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="same_programs", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("record")
    one.add_argument("directory", type=Path)
    one.add_argument("--corpus", nargs="+", choices=CORPORA, default=list(CORPORA))
    one.add_argument("--only", default="", help="cases with this in their name")
    one.add_argument("--on", nargs="+", choices=("cpu", "cuda"), default=["cpu", "cuda"])
    one.add_argument("--captures", action="store_true", help="what bytecap writes alone")
    two = commands.add_parser("compare")
    two.add_argument("before", type=Path)
    two.add_argument("after", type=Path)
    two.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    two.add_argument("--show", type=int, default=3, help="of so many graphs the lines that differ")
    chosen = parser.parse_args(arguments)
    if chosen.command == "record":
        return record(chosen.directory, chosen.corpus, chosen.only, chosen.on, chosen.captures)
    return compare(chosen.before, chosen.after, chosen.kinds, chosen.show)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # models of the zoo walk over sets of texts
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})
    sys.exit(main())
