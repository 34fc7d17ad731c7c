"""Dependencies: a build inside a checkout takes sibling packages from it, one made for release by their versions.

STAGEFOLD_RELEASE=1 asks for the latter. Everything else is in pyproject.toml. The packages are released together: a
sibling is taken in a patch release of this package's own version.
"""

import os
import tomllib
from pathlib import Path

from setuptools import Extension, setup

HERE = Path(os.path.abspath(__file__)).parent
PACKAGES = HERE.parent
VERSION = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]["version"]
SIBLINGS = (
    "stagewire",
    "absint",
)
SOURCES = Path("src/bytecap/_evalframe")


def sibling(name):
    place = PACKAGES / name
    if os.environ.get("STAGEFOLD_RELEASE") or not (place / "pyproject.toml").is_file():
        return f"stagefold-{name}~={VERSION}"
    return f"stagefold-{name} @ {place.as_uri()}"


setup(
    install_requires=["bytecode>=0.16", "msgspec>=0.18", "torch>=2.11", *map(sibling, SIBLINGS)],
    ext_modules=[
        Extension(
            "bytecap._evalframe",
            sources=sorted(str(path) for path in SOURCES.glob("*.c")),
            depends=sorted(str(path) for path in SOURCES.glob("*.h")),
            extra_compile_args=["-O2", "-g0", "-std=c11", "-Wall", "-Wextra", "-fvisibility=hidden"],
        )
    ],
)
