"""Dependencies: a build inside a checkout takes sibling packages from it, one made for release by their versions.

STAGEFOLD_RELEASE=1 asks for the latter. Everything else is in pyproject.toml.
"""

import os
from pathlib import Path

from setuptools import setup

PACKAGES = Path(os.path.abspath(__file__)).parent.parent
SIBLINGS = ("stagewire",)


def sibling(name):
    place = PACKAGES / name
    if os.environ.get("STAGEFOLD_RELEASE") or not (place / "pyproject.toml").is_file():
        return f"stagefold-{name}>=0.1,<0.2"
    return f"stagefold-{name} @ {place.as_uri()}"


setup(
    install_requires=["msgspec>=0.18", "torch>=2.11", *map(sibling, SIBLINGS)],
)
