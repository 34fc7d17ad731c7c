"""Drawn loads and damage of stored machine code: what is whole is not made again, and ends in the directory."""

import itertools
import warnings
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from codegen.content_store import read_stored
from codegen.cpp import machine_code
from codegen.cpp.compiler import code_key
from codegen.cpp.machine_code import compile_sources
from codegen.errors import CorruptCode
from stagewire.private_files import temporary_directory

RUNS = itertools.count()
"""What is kept in the temporary directory is known to the whole process: each example has sources of its own."""


class Compiled:
    """In place of a compilation: its machine code is the source."""

    made: ClassVar[list[str]] = []

    def __init__(self, compiler, source, *, scratch, target):
        self.source = source

    def machine_code(self):
        self.made.append(self.source)
        return self.source.encode()

    def end(self):
        pass


numbers = st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True)
steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(("load", "damage", "remove")), st.sampled_from("ab"), numbers),
        st.tuples(st.sampled_from(("load", "remove")), st.none(), numbers),
    ),
    max_size=10,
)


@settings(max_examples=60, suppress_health_check=list(HealthCheck), deadline=None)
@given(steps)
def test_what_is_whole_is_not_made_again(tmp_path_factory, steps):
    run, home = next(RUNS), tmp_path_factory.mktemp("code")
    folders = {"a": home / "a", "b": home / "b", None: temporary_directory()}
    whole = {place: set() for place in folders}
    sources = [f"// {home} {run} {number}" for number in range(3)]
    for what, place, numbers in steps:
        paths = [folders[place] / f"{code_key(sources[number])}.so" for number in numbers]
        if what == "load":
            missing = set(numbers) - whole[place] - whole[None]
            with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
                warnings.simplefilter("ignore", CorruptCode)
                patch.setattr(machine_code, "Compilation", Compiled)
                patch.setattr(Compiled, "made", [])
                given = None if place is None else folders[place]
                assert compile_sources([sources[number] for number in numbers], given) == paths
                assert sorted(Compiled.made) == sorted(sources[number] for number in missing)
            whole[place] |= set(numbers)
            assert [read_stored(path) for path in paths] == [sources[number].encode() for number in numbers]
            continue
        whole[place] -= set(numbers)
        for path in paths:
            if what == "remove":
                path.unlink(missing_ok=True)
            elif path.exists():
                path.write_bytes(path.read_bytes()[:-1])
