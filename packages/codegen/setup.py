"""Dependencies: a build inside a checkout takes sibling packages from it, one made for release by their versions.

STAGEFOLD_RELEASE=1 asks for the latter. Everything else is in pyproject.toml. The packages are released together: a
sibling is taken in a patch release of this package's own version.
"""

import os
import tomllib
from pathlib import Path

from setuptools import setup

HERE = Path(os.path.abspath(__file__)).parent
PACKAGES = HERE.parent
VERSION = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]["version"]
SIBLINGS = ("stagewire", "absint")


def sibling(name):
    place = PACKAGES / name
    if os.environ.get("STAGEFOLD_RELEASE") or not (place / "pyproject.toml").is_file():
        return f"stagefold-{name}~={VERSION}"
    return f"stagefold-{name} @ {place.as_uri()}"


setup(
    install_requires=["torch>=2.11", "msgspec>=0.18", "filelock>=3.12", *map(sibling, SIBLINGS)],
)
