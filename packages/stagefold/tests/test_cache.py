"""Programs on disk: what is written is read back, damage is ignored, keys follow meaning."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from stagefold.cache import Cache, program_key
from stagefold.errors import CacheWarning
from stagewire.capture import Capture, Code, Input, LengthIs, Local
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
    with pytest.warns(CacheWarning, match="cannot write"):
        Cache(tmp_path / "file").write("ab", program())


def test_keys_follow_meaning_not_names() -> None:
    key = program_key(capture(), "p")
    assert program_key(capture(file="b.py"), "p") == key
    assert program_key(capture(name="z"), "p") == key
    assert program_key(capture(target="torch.exp"), "p") != key
    assert program_key(capture(), "q") != key
    guarded = msgspec.structs.replace(capture(), guards=(LengthIs(Local("x"), 2),))
    assert program_key(guarded, "p") == key
