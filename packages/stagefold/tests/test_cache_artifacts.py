"""`save_cache_artifacts`, `load_cache_artifacts`: what comes back, and what is refused."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
import torch

import stagefold
from stagefold.errors import CacheWarning

X = torch.linspace(-1, 1, 5)


def saved(directory: Path) -> bytes:
    stagefold.compile(lambda x: torch.exp(x) * 2, options={"cache_dir": directory})(X)
    made = stagefold.save_cache_artifacts(directory)
    assert made is not None
    return made[0]


def test_an_empty_cache_has_none(tmp_path: Path) -> None:
    assert stagefold.save_cache_artifacts(tmp_path) is None


def test_entries_are_put_where_none_are(tmp_path: Path) -> None:
    data, other = saved(tmp_path / "first"), tmp_path / "second"
    info = stagefold.load_cache_artifacts(data, other)
    assert info is not None
    names = [*info.programs, *info.code]
    assert all((other / name).read_bytes() == (tmp_path / "first" / name).read_bytes() for name in names)
    (other / names[0]).write_bytes(b"changed")
    assert stagefold.load_cache_artifacts(data, other) == info
    assert (other / names[0]).read_bytes() == b"changed"


def test_damaged_entries_are_made_again(tmp_path: Path) -> None:
    data, other = saved(tmp_path / "first"), tmp_path / "second"
    info = stagefold.load_cache_artifacts(data, other)
    assert info is not None
    for name in (*info.programs, *info.code):
        (other / name).write_bytes((other / name).read_bytes()[:-3])
    call = stagefold.compile(lambda x: torch.exp(x) * 2, options={"cache_dir": other})
    with pytest.warns(CacheWarning):
        torch.testing.assert_close(call(X), torch.exp(X) * 2)


@pytest.mark.parametrize("name", ["../x.program", "programs/../../x", "/tmp/x", "broken/x.json", "code/a/b/c.so"])
def test_other_places_are_refused(name: str, tmp_path: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(name, b"")
    with pytest.warns(CacheWarning, match="is no entry of a cache"):
        assert stagefold.load_cache_artifacts(packed.getvalue(), tmp_path / "cache") is None
    assert not (tmp_path / "cache").exists()


def test_other_bytes_are_refused(tmp_path: Path) -> None:
    data = saved(tmp_path / "first")
    for bad in (b"", b"nothing", data[: len(data) // 2]):
        with pytest.warns(CacheWarning, match="no artifacts"):
            assert stagefold.load_cache_artifacts(bad, tmp_path / "second") is None
