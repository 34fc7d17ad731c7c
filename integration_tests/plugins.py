"""Distributions of examples/ as installed: their modules and entry points are found, nothing is copied."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from codegen import targets
from stagefold import pipeline
from stagewire import stage, vocabulary

CACHES = (targets.find, pipeline.registering_packages, stage.registered, vocabulary.namespaces)
ROOT = Path(__file__).resolve().parent.parent


@contextmanager
def installed(project: Path, folder: Path) -> Iterator[None]:
    """The distribution whose pyproject.toml lies in `project`; its metadata is written below `folder`."""
    stated = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    name = stated["name"].replace("-", "_")
    info = folder / f"{name}-{stated['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {stated['version']}\n")
    groups = stated["entry-points"].items()
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in rows.items()) for group, rows in groups]
    (info / "entry_points.txt").write_text("\n".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        modules = set(sys.modules)
        for path in (folder, project):
            patch.syspath_prepend(str(path))
        _forget(groups_of=stated["entry-points"])
        yield
        for module in set(sys.modules) - modules:
            if getattr(sys.modules[module], "__file__", None) and str(project) in str(sys.modules[module].__file__):
                del sys.modules[module]
    _forget(groups_of=stated["entry-points"])


def _forget(groups_of: Mapping[str, Mapping[str, str]]) -> None:
    for namespace in groups_of.get(vocabulary.GROUP, ()):
        vocabulary._REGISTERED.pop(namespace, None)
    for cached in CACHES:
        cached.cache_clear()
