"""The C extension; everything else is in pyproject.toml."""

import pathlib

from setuptools import Extension, setup

SOURCES = pathlib.Path("src/bytecap/_evalframe")

setup(
    ext_modules=[
        Extension(
            "bytecap._evalframe",
            sources=sorted(str(path) for path in SOURCES.glob("*.c")),
            depends=sorted(str(path) for path in SOURCES.glob("*.h")),
            extra_compile_args=["-O2", "-std=c11", "-Wall", "-Wextra", "-fvisibility=hidden"],
        )
    ]
)
