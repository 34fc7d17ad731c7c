"""The one version of all packages: `python tools/set_version.py` checks that they agree, with an argument it sets it.

The packages are released together (each requires its siblings at `~=` its own version), and CHANGELOG.md has a heading
for the version that they state.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
_STATED = re.compile(r'^version = "([^"]+)"$', re.MULTILINE)
_VERSION = re.compile(r"\d+\.\d+\.\d+")


def projects() -> list[Path]:
    """The pyproject.toml of each package."""
    return sorted(ROOT.glob("packages/*/pyproject.toml"))


def faults() -> list[str]:
    """What does not agree, a line each."""
    versions = {path: tomllib.loads(path.read_text())["project"]["version"] for path in projects()}
    found = [f"{path.relative_to(ROOT)}: {version}" for path, version in versions.items()]
    if len(set(versions.values())) > 1:
        return ["the packages state different versions:", *found]
    (version,) = set(versions.values())
    if f"\n## {version}" not in (ROOT / "CHANGELOG.md").read_text():
        return [f"CHANGELOG.md has no heading '## {version}'"]
    return []


def main(arguments: list[str]) -> int:
    """Set the version where one is given, then check; the exit status."""
    for version in arguments:
        if not _VERSION.fullmatch(version):
            print(f"{version!r} is no version: three numbers, such as 0.2.0")
            return 2
        for path in projects():
            text, count = _STATED.subn(f'version = "{version}"', path.read_text())
            assert count == 1, f"{path} states its version {count} times"
            path.write_text(text)
    print("\n".join(found := faults()), end="\n" if found else "")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
