"""Programs on disk: what is written is read back, damage is ignored, keys follow meaning."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from stagefold.backend import StagefoldBackend
from stagefold.cache import Cache, program_key
from stagefold.errors import CacheWarning
from stagefold.options import parse_options
from stagewire.capture import Capture, Code, Input, LengthIs, Local, Relation, Symbol
from stagewire.codec import decode, encode
from stagewire.expr import symbol
from stagewire.grad import Binding
from stagewire.graph import Graph, Node, Ref, Value
from stagewire.program import Program, Unit
from stagewire.types import contiguous


def program() -> Program:
    unit = Unit(target="cpp", source="", kernels=(), inputs=(), input_types=(), outputs=(), instructions=())
    return Program(binding=Binding(inputs=(), outputs=()), forward=unit)


def capture(name: str = "x", target: str = "torch.relu", file: str = "a.py") -> Capture:
    value = Value(name, contiguous("float32", (2,)))
    node = Node(target, (Ref(name),), {}, (Value("y", value.type),))
    graph = Graph((value,), (node,), (Ref("y"),))
    return Capture(code=Code("f", file, 1), inputs=(Input(value, Local(name)),), graph=graph)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    assert cache.read("ab") is None
    cache.write("ab", program())
    assert cache.read("ab") == program()
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("damage", [b"", b"short", b"\0" * 500])
def test_damage_is_ignored_with_a_warning(tmp_path: Path, damage: bytes) -> None:
    cache = Cache(tmp_path)
    cache.write("ab", program())
    cache.path("ab").write_bytes(damage)
    with pytest.warns(CacheWarning, match="ignored"):
        assert cache.read("ab") is None


def test_an_entry_of_another_version_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import stagewire.codec

    cache = Cache(tmp_path)
    monkeypatch.setitem(stagewire.codec.VERSIONS, "program", 99)
    cache.write("ab", program())
    monkeypatch.undo()
    with pytest.warns(CacheWarning, match="version 99"):
        assert cache.read("ab") is None


def test_an_unwritable_directory_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = Cache(tmp_path / "file")
    with pytest.warns(CacheWarning, match="until this process ends"):
        cache.write("ab", program())
    assert cache.read("ab") == program()
    assert (tmp_path / "file").read_text() == ""


def test_a_directory_that_others_can_write_is_not_used(tmp_path: Path) -> None:
    """What lies there may be theirs, and it would be run."""
    Cache(tmp_path / "cache").write("planted", program())
    (tmp_path / "cache").chmod(0o777)
    cache = Cache(tmp_path / "cache")
    with pytest.warns(CacheWarning, match="others can write it") as caught:
        assert cache.read("planted") is None
    assert str(cache.home) in str(caught[0].message)
    assert tmp_path not in cache.code_directory().parents
    assert cache.home.stat().st_mode & 0o077 == 0


def test_an_entry_under_another_key_is_ignored(tmp_path: Path) -> None:
    """Its program would run on the inputs of another one."""
    cache = Cache(tmp_path)
    cache.write("ab", program())
    cache.write(
        "cd", msgspec.structs.replace(program(), forward=msgspec.structs.replace(program().forward, source="x"))
    )
    cache.path("cd").rename(cache.path("ab"))
    with pytest.warns(CacheWarning, match="written under its key"):
        assert cache.read("ab") is None


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: object, target: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    cache = Cache(tmp_path)
    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(CacheWarning, match="No space left"):
        cache.write("ab", program())
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_keys_follow_meaning_not_names() -> None:
    key = program_key(capture(), "p")
    assert program_key(capture(file="b.py"), "p") == key
    assert program_key(capture(name="z"), "p") == key
    assert program_key(capture(target="torch.exp"), "p") != key
    assert program_key(capture(), "q") != key
    guarded = msgspec.structs.replace(capture(), guards=(LengthIs(Local("x"), 2),))
    assert program_key(guarded, "p") == key


def symbolic(size: int, device: str = "cpu") -> Capture:
    value = Value("x", contiguous("float32", (symbol("n"), 3), device))
    node = Node("torch.relu", (Ref("x"),), {}, (Value("y", value.type),))
    graph = Graph((value,), (node,), (Ref("y"),))
    symbols = (Symbol("n", None, size, 2),)
    return Capture(code=Code("f", "a.py", 1), inputs=(Input(value, Local("x")),), graph=graph, symbols=symbols)


@pytest.mark.parametrize(("device", "same"), [("cpu", (5, 9, 100)), ("cuda:0", (5, 7, 8))])
def test_a_key_may_leave_sizes_open(device: str, same: tuple[int, ...]) -> None:
    assert len({program_key(symbolic(size, device), "p") for size in same}) == 3
    assert len({program_key(symbolic(size, device), "p", at_its_sizes=False) for size in same}) == 1


def test_kernels_of_attention_are_chosen_by_what_may_be_taken() -> None:
    keys = {program_key(capture(), "p")}
    with sdpa_kernel(SDPBackend.MATH):
        keys.add(program_key(capture(), "p"))
    assert len(keys) == 2


def test_tiles_of_a_gpu_are_chosen_by_the_size() -> None:
    keys = {program_key(symbolic(size, "cuda:0"), "p", at_its_sizes=False) for size in (8, 9, 100)}
    assert len(keys) == 3


def run(size: int, directory: Path, assumes: Relation | None = None) -> tuple[bool, str | None]:
    """Whether a new backend finds the program of relu for this many rows, and under which key it lies then."""
    backend = StagefoldBackend(parse_options(None, {"cache_dir": str(directory)}))
    if assumes is not None:
        backend.pipeline = Assuming(backend.pipeline, assumes)
    x = torch.randn(size, 3)
    (found,) = backend(symbolic(size), (x,))(x)
    assert torch.equal(found, torch.relu(x))
    return backend.reports[0].cached, backend.reports[0].key


class Assuming:
    """A pipeline whose programs assume something of sizes."""

    def __init__(self, pipeline: Any, relation: Relation) -> None:
        self.pipeline, self.relation = pipeline, relation

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pipeline, name)

    def run(self, *args: Any, **options: Any) -> Program:
        made = self.pipeline.run(*args, **options)
        return msgspec.structs.replace(
            made, binding=msgspec.structs.replace(made.binding, assumptions=(self.relation,))
        )


def test_a_program_that_was_made_at_other_sizes_is_found(tmp_path: Path) -> None:
    assert [run(size, tmp_path)[0] for size in (5, 9, 5, 64)] == [False, True, True, True]


def test_it_is_made_anew_where_what_it_assumes_does_not_hold(tmp_path: Path) -> None:
    small = Relation(symbol("n"), "<", 8)
    first, first_key = run(5, tmp_path, small)
    other, other_key = run(9, tmp_path, Relation(symbol("n"), ">=", 8))
    assert (first, other) == (False, False)
    assert first_key != other_key
    assert run(9, tmp_path) == (True, other_key)
    assert run(6, tmp_path) == (True, first_key)


def test_loading_is_begun_for_a_program_on_a_gpu_that_has_to_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Path | None] = []
    monkeypatch.setattr("stagefold.backend.prepare", begun.append)
    backend = StagefoldBackend(parse_options(None, {"cache_dir": str(tmp_path)}))
    on_cpu = capture()
    on_gpu = decode(encode(on_cpu).replace(b'"cpu"', b'"cuda:0"'), "capture")
    for one, expected in ((on_cpu, []), (on_gpu, [tmp_path / "code"])):
        for _ in range(2):  # the second time it is there
            backend._program(one, lambda event: None, traced=False)
        assert begun == expected
