"""Test each minor release of torch with each Python: write docs/versions.md.

    python tools/torches.py [2.14 ...] [3.13 ...] [--keep DIRECTORY]

Without arguments: every minor release from `OLDEST` on that pip offers, with every Python in `PYTHONS` that is found.
Each pair gets an environment of its own (several GB with CUDA), which is deleted afterwards; with --keep it stays in
that directory, and one that is there is used again. Rows of pairs that were not run stay as they are. Exit code 1 if a
pair failed.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "versions.md"
OLDEST = (2, 11)
"""Of torch, as in each setup.py."""
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
"""Those that no package is for get a row that says so."""
PACKAGES = ("stagewire", "absint", "loopir", "primops", "codegen", "aotgrad", "bytecap", "stagefold")
TOOLS = ("pytest", "hypothesis", "numpy", "transformers", "networkx", "expecttest")
PROGRAMS = ("compile", "effects", "dynamic_programs", "odd_inputs", "models", "training_and_generation",
            "torch_capabilities")  # fmt: skip
"""Integration tests that run captured code of every kind."""

HEAD = """\
Written by `nox -s torches` on Linux, x86-64: the newest release of each minor version of torch, with each CPython, in
an environment of its own. bytecap: its own tests. Programs: {programs} of `integration_tests`. Missing: what this torch
lacks of what the packages ask for beyond its documented interface, as `stagefold doctor` says."""
WIDTH = 120
"""Of the page's prose."""
COLUMNS = ("torch", "Python", "bytecap", "programs", "missing", "run at")
INTERRUPTED = "the tests end without a summary"


@dataclass(frozen=True)
class Row:
    """One line of the table, as text; `good` is no column."""

    torch: str
    python: str
    bytecap: str
    programs: str
    missing: str
    run_at: str
    good: bool = True

    @property
    def key(self) -> tuple[str, str]:
        """Minor versions, by which a row replaces an older one."""
        return minor(self.torch), minor(self.python)

    def line(self) -> str:
        cells = (self.torch, self.python, self.bytecap, self.programs, self.missing, self.run_at)
        return f"| {' | '.join(cells)} |"


def minor(version: str) -> str:
    """
    >>> minor("2.14.1+cu130"), minor("any")
    ('2.14', 'any')
    """
    return ".".join(version.split(".")[:2])


def number(version: str) -> tuple[int, ...]:
    """What versions are ordered by; words come last."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])) or (sys.maxsize,)


def interpreter(version: str) -> str | None:
    """A CPython of this minor version: on the PATH, or one of pyenv's."""
    installed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"), reverse=True)
    for place in (shutil.which(f"python{version}"), *map(str, installed)):
        if place and minor(_output([place, "-c", "import platform; print(platform.python_version())"])) == version:
            return place
    return None


def offered(python: str) -> dict[str, str]:
    """The newest release of each minor version of torch that the index has for this Python."""
    return newest_of_each(_output([python, "-m", "pip", "index", "versions", "torch"]))


def newest_of_each(text: str) -> dict[str, str]:
    """What `pip index versions` prints, from `OLDEST` on.

    >>> newest_of_each("torch (2.14.1)\\nAvailable versions: 2.14.1, 2.14.0, 2.11.0+cpu, 2.11.0, 2.10.0")
    {'2.11': '2.11.0', '2.14': '2.14.1'}
    """
    found = re.search(r"^Available versions: (.*)$", text, re.MULTILINE)
    releases = [one.strip() for one in found[1].split(",")] if found else []
    newest: dict[str, str] = {}
    for release in sorted(releases, key=number):
        if number(release)[:2] >= OLDEST:
            newest[minor(release)] = release.partition("+")[0]
    return newest


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


# ---- one pair


class NotInstalled(Exception):
    """pip's last words."""


def install(place: Path, python: str, torch: str) -> str:
    """An environment with everything in it; its interpreter."""
    inside = str(place / "bin" / "python")
    if not place.exists():
        subprocess.run([python, "-m", "venv", str(place)], check=True)
    sources = place / "packages"  # a copy: setuptools leaves its files beside them
    shutil.rmtree(sources, ignore_errors=True)
    shutil.copytree(ROOT / "packages", sources, ignore=shutil.ignore_patterns("build", "*.egg-info", "*.so", "tests"))
    local = [str(sources / name) for name in PACKAGES]
    for wanted in ([f"torch=={torch}"], [*local, *TOOLS]):
        done = subprocess.run([inside, "-m", "pip", "install", *wanted], capture_output=True, text=True, cwd=ROOT)
        if done.returncode:
            raise NotInstalled(_reason(done.stdout + done.stderr))
    return inside


def _reason(said: str) -> str:
    """Why pip installs nothing, in one line."""
    if held := re.search(r"\(constraint\) (torch.*)", said):
        return f"pip had the constraint {held[1]}"
    errors = re.findall(r"ERROR: (.*)", said)
    return errors[-1].replace("|", "/") if errors else "pip failed"


def tested(python: str, paths: list[str], log: Path) -> tuple[str, bool]:
    """The last line of pytest, and whether all is well."""
    command = [python, "-m", "pytest", "-p", "no:cacheprovider", *paths]
    with log.open("w") as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT)
    summary = re.findall(r"^=* ?((?:\d+ \w+,? ?)+) in [\d.]+s", log.read_text(errors="replace"), re.MULTILINE)
    if done.returncode:
        print(log.read_text(errors="replace")[-6000:])
    counts = re.sub(r",? \d+ (warnings?|deselected)", "", summary[-1]).strip() if summary else INTERRUPTED
    return counts if done.returncode == 0 else f"**{counts}**", done.returncode == 0


def missing(python: str) -> str:
    """The names that this torch lacks, and what that costs."""
    code = "from stagefold.doctor import missing_names; print(*[row.what for row in missing_names()])"
    said = subprocess.run([python, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True).stdout
    return ", ".join(f"`{name}`" for name in said.split()) or "nothing"


def run(place: Path, python: str, torch: str, version: str) -> Row:
    """Test one pair."""
    now = f"{datetime.date.today()}, {_output(['git', '-C', str(ROOT), 'rev-parse', '--short', 'HEAD'])}"
    try:
        inside = install(place, python, torch)
    except NotInstalled as reason:
        is_held_back = "constraint" in str(reason)  # by the settings of pip on this machine: nothing was tested
        return Row(torch, version, f"not tested: {reason}", "", "", now, good=is_held_back)
    names = "import platform, torch; print(torch.__version__, platform.python_version())"
    release, version = _output([inside, "-W", "ignore", "-c", names]).split()
    suite, is_good = tested(inside, ["packages/bytecap/tests"], place / "bytecap.log")
    paths = [f"integration_tests/test_{name}.py" for name in PROGRAMS]
    programs, are_good = tested(inside, paths, place / "programs.log")
    return Row(release, version, suite, programs, missing(inside), now, good=is_good and are_good)


def refused(python: str, version: str) -> Row | None:
    """A row for a Python that the packages are not for; None for the others."""
    project = tomllib.loads((ROOT / "packages" / "stagefold" / "pyproject.toml").read_text())["project"]
    asked = project["requires-python"]
    code = (
        "import sys; from pip._vendor.packaging.specifiers import SpecifierSet as S; print(S(sys.argv[1]).contains(%r))"
    )
    if _output([python, "-c", code % f"{version}.0", asked]) == "True":
        return None
    return Row("any", version, f"not for this Python: requires-python is {asked}", "", "", str(datetime.date.today()))


# ---- the page


def rows_of(text: str) -> list[Row]:
    """The rows of a page."""
    lines = [line for line in text.splitlines() if line.startswith("| ")][1:]
    return [Row(*(cell.strip() for cell in line.strip("|").split("|"))) for line in lines if "---" not in line]


def page_of(rows: list[Row]) -> str:
    """The page, of the last row of each pair of versions."""
    last = {row.key: row for row in rows}
    ordered = sorted(last.values(), key=lambda row: (number(row.torch), number(row.python)))
    table = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|", *(row.line() for row in ordered)]
    head = textwrap.fill(HEAD.format(programs=", ".join(f"`{name}`" for name in PROGRAMS)), WIDTH)
    return "\n".join(["# Versions of torch and Python", "", head, "", *table]) + "\n"


def pairs(chosen: list[str]) -> Iterator[tuple[str, str, str | None]]:
    """(interpreter, its minor version, release of torch); None for the release where pip refuses this Python."""
    for version in PYTHONS:
        named = [one for one in chosen if one.startswith("3.")]
        python = interpreter(version) if not named or version in named else None
        if python is None:
            continue
        if refused(python, version):
            yield python, version, None
            continue
        for short, release in offered(python).items():
            if not [one for one in chosen if one.startswith("2.")] or short in chosen:
                yield python, version, release


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", help="2.14: of torch; 3.13: of Python")
    parser.add_argument("--keep", type=Path, help="where environments stay")
    chosen = parser.parse_args(arguments)
    bad = 0
    for python, version, torch in pairs(chosen.versions):
        with tempfile.TemporaryDirectory(prefix="torches-") as temporary:
            place = (chosen.keep or Path(temporary)) / f"{version}-{minor(torch or 'none')}"
            row = refused(python, version) if torch is None else run(place.absolute(), python, torch, version)
        assert row is not None
        PAGE.write_text(page_of([*(rows_of(PAGE.read_text()) if PAGE.exists() else []), row]))
        print(row.line(), flush=True)
        bad += not row.good
    return 1 if bad else 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    raise SystemExit(main(sys.argv[1:]))
