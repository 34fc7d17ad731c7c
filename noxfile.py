"""The menu: `nox -l`."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import nox

ROOT = Path(__file__).parent
PACKAGES = ("stagewire", "absint", "loopir", "primops", "codegen", "aotgrad", "bytecap", "stagefold")
"""In an order in which each comes after what it declares, quick suites first."""

TORCH_FREE = ("stagewire", "loopir")

TORCH = "2.13.0"

KEEP_BYTECODE = {"PYTHONDONTWRITEBYTECODE": ""}
"""Else each of hundreds of processes compiles what it imports."""

INTEGRATION = ("pytest", "hypothesis", "numpy", "transformers", "networkx", "expecttest", "llvmlite", "triton")
"""What the tests of all packages together need."""

LIMITS = {
    "x86-64-v2": {"CODEGEN_ISA": "x86-64-v2", "ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    "x86-64-v3": {"CODEGEN_ISA": "x86-64-v3", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
}
"""What has a process use no more than a level of x86-64."""

ON_EACH_TARGET = (
    *(
        f"packages/codegen/tests/{name}"
        for name in ("cpp", "test_meaning.py", "test_programs.py", "test_symbolic_sizes.py")
    ),
    "packages/codegen/tests/runtime/test_executors.py",
    "packages/absint/tests/test_cpu_kernels.py",
    "packages/stagefold/tests/test_freezing.py",
    *(f"integration_tests/test_{name}.py" for name in ("lstm", "half_precision", "hostile_memory", "models")),
    "--ignore=packages/codegen/tests/cpp/test_vectorised.py",
)
"""Tests whose outcome may depend on the processor: generated C++, and what is asked of ATen's kernels. What is ignored
names the levels that it compiles for, and is the same at each limit."""

ON_A_GPU = (
    "convolution_gradients", "decode", "flex_attention", "gpu", "gpu_table", "launch", "model_kernels", "optimizers",
    "peak_memory", "products", "recorded_sizes", "replay_memory", "several_ranks", "split_rows",
    "sums_and_scans", "two_gpus",
)  # fmt: skip
"""Benchmarks that need one, and the environment's own torch."""
BY_THEMSELVES = ("every_op", "engines")
"""Benchmarks with a session of their own, or none: hours of operators, other engines."""

nox.options.sessions = ["lint", "types", "tests"]
nox.options.error_on_external_run = True
nox.options.reuse_venv = "yes"


def install(session: nox.Session, *requirements: str, torch: bool = True) -> None:
    """Install under constraints.txt; torch first, so that nothing pulls another build of it.

    A package of this repository is its wheel, as `wheels` makes it.
    """
    pip = ("-q", "-c", "constraints.txt")
    if torch:
        share_torch(session)
    if any(name.startswith("stagefold") for name in requirements):
        own = wheels(session)
        old = Path(session.virtualenv.location).glob("lib/python*/site-packages/stagefold*.dist-info")
        if names := [f"stagefold-{name}" for name in PACKAGES[:-1]] + ["stagefold"] if any(old) else []:
            session.run("python", "-m", "pip", "uninstall", "-q", "-y", *names, silent=True)  # the version is the same
        pip = (*pip, "-c", str(own / "constraints.txt"))
    session.install(*pip, *requirements)


def share_torch(session: nox.Session) -> None:
    """Put torch and what it requires, one directory for all environments of a Python, on an environment's path.

    torch's Python is compiled by importing it, which leaves out what nobody uses.
    """
    site = next(Path(session.virtualenv.location).glob("lib/python*/site-packages"))
    shared = ROOT / ".nox" / f"torch-{TORCH}-{site.parent.name}"
    if not shared.exists():
        made = shared.with_name(f"{shared.name}.new")
        shutil.rmtree(made, ignore_errors=True)
        session.install("-q", "-c", "constraints.txt", "--no-compile", "--target", str(made), f"torch=={TORCH}")
        session.run("python", "-c", "import torch", env={"PYTHONPATH": str(made), **KEEP_BYTECODE}, silent=True)
        made.rename(shared)
    (site / "torch.pth").write_text(f"{shared}\n")


@cache
def _directory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="stagefold-wheels-")


def wheels(session: nox.Session) -> Path:
    """A directory with the wheels of all packages, made once in a run of nox, and constraints that name them."""
    directory = Path(_directory().name)
    constraints = directory / "constraints.txt"
    if not constraints.exists():
        builder = str(directory / "builder")  # the environment of the session stays without it
        session.install("-q", "-c", "constraints.txt", "--target", builder, "setuptools")
        build_wheels(session, "python", directory, PYTHONPATH=builder)
        made = {path.name.partition("-")[0].replace("_", "-"): path.as_uri() for path in directory.glob("*.whl")}
        constraints.write_text("".join(f"{name} @ {uri}\n" for name, uri in sorted(made.items())))
    return directory


def build_wheels(session: nox.Session, python: str, out: Path, **env: str) -> None:
    """Build the wheels of all packages with an interpreter that has setuptools."""
    for package in PACKAGES:
        shutil.rmtree(ROOT / "packages" / package / "build", ignore_errors=True)  # setuptools keeps deleted files there
    paths = [f"./packages/{package}" for package in PACKAGES]
    session.run(python, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(out), *paths,
                env={"STAGEFOLD_RELEASE": "1", **env}, external=True)  # fmt: skip


def local(*packages: str, extra: str = "") -> list[str]:
    """Requirements for `install`; the siblings that a package declares come along (see its setup.py)."""
    return [f"stagefold{extra}" if name == "stagefold" else f"stagefold-{name}{extra}" for name in packages]


def run_tests(session: nox.Session, *arguments: str, env: dict[str, str] | None = None) -> None:
    """Run pytest in as many processes as there are cores (at most 8), each with two threads of OpenMP's.

    `-- -n 0` runs the tests in one process, one after the other, which debuggers need.
    """
    session.install("-q", "-c", "constraints.txt", "pytest-xdist")
    threads = os.environ.get("OMP_NUM_THREADS", "2")
    limits = {"OMP_NUM_THREADS": threads, "OMP_WAIT_POLICY": "passive", **KEEP_BYTECODE, **(env or {})}
    session.run("pytest", "-n", "auto", "--maxprocesses", "8", "--dist", "worksteal", *arguments, env=limits)


@nox.session
def demo(session: nox.Session) -> None:
    """Compile real models on CPU and compare with eager and torch.compile (arguments go to examples/demo.py)."""
    install(session, *local(*PACKAGES), "transformers")
    session.run("python", "-m", "examples.demo", *session.posargs)


@nox.session
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def unit(session: nox.Session, package: str) -> None:
    """Test one package in an environment that holds only it and what it declares."""
    install(session, *local(package, extra="[testing]"), torch=package not in TORCH_FREE)
    if package in TORCH_FREE:
        session.run("python", "-c", "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is not None)")
    run_tests(session, f"packages/{package}/tests", "--durations=3", *session.posargs)


@nox.session
def integration(session: nox.Session) -> None:
    """Test all packages together; then what depends on the processor, limited to each level of x86-64."""
    install(session, *local(*PACKAGES, extra="[testing]"), *INTEGRATION)
    run_tests(session, "integration_tests", "--durations=5", *session.posargs)
    for level in () if session.posargs else LIMITS:
        if level == own_level():
            session.log(f"this processor is an {level}: all tests of all packages have been run at that level already")
        else:
            run_limited(session, level, ON_EACH_TARGET)


@nox.session
@nox.parametrize("level", list(LIMITS), ids=list(LIMITS))
def targets(session: nox.Session, level: str) -> None:
    """Run tests that depend on the processor with C++, ATen and oneDNN limited to a level of x86-64.

    `-- PATHS` runs others. The limits are those that codegen/README.md names.
    """
    install(session, *local(*PACKAGES, extra="[testing]"), *INTEGRATION)
    run_limited(session, level, session.posargs or ON_EACH_TARGET)


def own_level() -> str:
    """The highest level of x86-64 that this processor has, by what each adds."""
    words = set(Path("/proc/cpuinfo").read_text().split())
    return "x86-64-v4" if {"avx512f", "avx512vl"} <= words else "x86-64-v3" if "avx2" in words else "x86-64-v2"


def run_limited(session: nox.Session, level: str, paths: Iterable[str]) -> None:
    """Run tests as on a processor of a level of x86-64, if this one has it."""
    if level > own_level():
        session.log("this processor lacks AVX2: nothing is run at x86-64-v3")
        return
    run_tests(session, *paths, "--durations=5", env=LIMITS[level])


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """Run every package's tests in its own environment, the integration tests, and what depends on the processor."""
    for package in PACKAGES:
        session.notify(f"unit({package})")
    session.notify("integration")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, import contracts, and the forbidden parts of torch."""
    install(session, "ruff", "import-linter", *local("stagewire"), torch=False)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("python", "tools/forbidden_imports.py")
    session.run("python", "tools/private_names.py")
    session.run("python", "tools/import_circles.py")
    session.run("python", "tools/retired_words.py")
    session.run("python", "tools/set_version.py")
    sources = ":".join(str(ROOT / "packages" / package / "src") for package in PACKAGES)
    session.run("lint-imports", env={"PYTHONPATH": sources})


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation as a site below build/site; a warning is an error (`-- serve` shows it as you write)."""
    session.install("-q", "-c", "constraints.txt", "mkdocs", "mkdocs-material", "mkdocstrings", "mkdocstrings-python")
    command = session.posargs or ["build", "--strict", "--quiet"]
    session.run("mkdocs", *command, env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session
def types(session: nox.Session) -> None:
    """Check types: strict on stagewire."""
    install(session, "mypy", *local("stagewire"), "hypothesis", torch=False)
    session.run("mypy", "--strict", "packages/stagewire/src/stagewire")


@nox.session
def bench(session: nox.Session) -> None:
    """Time patterns and models beside eager and torch.compile, write docs/performance.md (`-- --quick`: few, no page).

    Then the benchmarks of single parts, which take no arguments from here.
    """
    install(session, *local(*PACKAGES), "transformers")
    tables = ("micro", "models")
    for name in tables:
        page = () if "--quick" in session.posargs else ("--page",)
        session.run("python", f"benchmarks/{name}.py", *page, *session.posargs)
    for script in sorted((ROOT / "benchmarks").glob("*.py")):
        if script.stem not in (*tables, *ON_A_GPU, *BY_THEMSELVES):
            session.run("python", str(script.relative_to(ROOT)))


@nox.session
def engines(session: nox.Session) -> None:
    """Time inference beside ONNX Runtime and OpenVINO (see benchmarks/engines.py)."""
    install(session, *local(*PACKAGES), "transformers", "onnx", "onnxscript", "onnxruntime", "openvino")
    session.run("python", "benchmarks/engines.py", *session.posargs)


@nox.session
def fuzz(session: nox.Session) -> None:
    """Run the property tests alone, on new examples and 34 times as many (see conftest.py): 10,000 Python programs."""
    install(session, *local(*PACKAGES, extra="[testing]"))
    places = session.posargs or [f"packages/{package}/tests" for package in PACKAGES]
    session.run("pytest", *places, env={"HYPOTHESIS_PROFILE": "fuzz"})


@nox.session
def mutants(session: nox.Session) -> None:
    """Plant 240 wrong edits in passes, decompositions, rules, lowerings, emission and guards; say what finds them.

    Property tests alone are run. `-- --quick`: three of each area; see tools/mutants/__main__.py.
    """
    install(session, *INTEGRATION, "msgspec", "sympy", "bytecode", "platformdirs", "filelock", "rich")
    for package in PACKAGES:  # from the tree: the edited functions are found by the files that they came from
        session.install("-q", "-c", "constraints.txt", "--no-deps", "-e", f"./packages/{package}")
    session.run("python", "-m", "tools.mutants", *session.posargs, env={"OMP_NUM_THREADS": "1"})


@nox.session
def opinfo(session: nox.Session) -> None:
    """Run torch's operator database through the pipeline and write docs/coverage.md (see tools/opinfo/__main__.py)."""
    install(session, *local(*PACKAGES), "expecttest", "numpy")
    session.run("python", "-m", "tools.opinfo", *session.posargs)


@nox.session
def refusals(session: nox.Session) -> None:
    """Run what eager may refuse, eager as the oracle, and write docs/refusals.md (see tools/refusals/__main__.py)."""
    install(session, *local(*PACKAGES), "expecttest", "numpy")
    session.run("python", "-m", "tools.refusals", *session.posargs)


@nox.session
def modules(session: nox.Session) -> None:
    """Compare torch's database of modules with eager, forward and backward (see tools/modules.py)."""
    install(session, *local(*PACKAGES), "expecttest", "numpy")
    session.run("python", "-m", "tools.modules", *session.posargs)


@nox.session
def leaks(session: nox.Session) -> None:
    """Do what must not keep memory a thousand times and more: calls, recompiles, resets, refusals."""
    install(session, *local("bytecap", extra="[testing]"))
    session.run("pytest", "packages/bytecap/tests/test_leaks.py", *session.posargs, env={"BYTECAP_LEAKS": "40"})


@nox.session
def threads(session: nox.Session) -> None:
    """Run the programs of many threads a hundred times each, with bytecap alone and with all stages."""
    install(session, *local(*PACKAGES), *INTEGRATION)
    places = session.posargs or ["packages/bytecap/tests/test_threads.py", "integration_tests/test_threads.py"]
    session.run("pytest", *places, env={"THREAD_ROUNDS": "100"})


@nox.session
def sanitize(session: nox.Session) -> None:
    """Run generated C++, then the tests of bytecap's hook and guards with its C extension, under gcc's sanitizers."""
    install(session, *local(*PACKAGES, extra="[testing]"), *INTEGRATION)
    session.run("python", "tools/sanitize_kernels.py")
    session.run("python", "tools/sanitize.py", *session.posargs)


@nox.session(python=["3.11", "3.12", "3.13"])
def hook(session: nox.Session) -> None:
    """Run the tests of bytecap's frame hook and drivers, which need no torch, on each version of CPython at hand."""
    session.install("-q", "-c", "constraints.txt", "pytest", "bytecode", "msgspec")
    session.run("python", "tools/hook_alone.py", *session.posargs)


@nox.session(venv_backend="none")
def torches(session: nox.Session) -> None:
    """Run bytecap's tests and whole programs on each release of torch with each Python; write docs/versions.md.

    `-- 2.14 3.13` chooses versions. constraints.txt is for `tests`: here every other wheel is taken as it comes.
    """
    session.run(sys.executable, "tools/torches.py", *session.posargs, external=True)


@nox.session
def models(session: nox.Session) -> None:
    """Run transformers models beside eager and torch.compile (`-- --quick`: without it); write docs/models.md."""
    install(session, *local(*PACKAGES), "pytest", "hypothesis", "numpy", "transformers")
    session.run("pytest", "integration_tests", "-m", "models")
    session.run("python", "-m", "integration_tests.zoo", "--out", "docs/models.md", *session.posargs)


@nox.session
def gpu(session: nox.Session) -> None:
    """Run the tests that are marked `gpu`, of all packages together: on an NVIDIA GPU, else in Triton's interpreter.

    Single kernels first, whole programs after them. Where nothing can be installed, the same by hand:
    `python -m pytest packages/*/tests integration_tests -m gpu`.
    """
    install(session, *local(*PACKAGES, extra="[testing]"), "triton", *INTEGRATION)
    suites = [f"packages/{package}/tests" for package in PACKAGES]
    session.run("pytest", *suites, "integration_tests", "-m", "gpu", "--durations=5", *session.posargs)


@nox.session
def wheelhouse(session: nox.Session) -> None:
    """Build wheels of all packages and collect the dependencies: `nox -s wheelhouse -- 3.12` for that Python.

    The C extension is compiled by the named interpreter (python3.12 on the PATH). torch, Triton and CUDA are left to
    the target machine.
    """
    version = session.posargs[0] if session.posargs else f"{sys.version_info.major}.{sys.version_info.minor}"
    out = ROOT / "wheelhouse" / version
    python = f"python{version}"
    session.run(python, "-m", "venv", session.create_tmp() + "/build", external=True)
    builder = session.create_tmp() + "/build/bin/python"
    session.run(builder, "-m", "pip", "install", "-q", "-c", "constraints.txt", "setuptools", "wheel", external=True)
    build_wheels(session, builder, out)
    session.run(builder, "-m", "pip", "download", "-q", "--only-binary=:all:", "-c", "constraints.txt", "-d", str(out),
                "msgspec", "sympy", "bytecode", "networkx", "platformdirs", "filelock", "rich", "hypothesis", "pytest",
                "numpy", external=True)  # fmt: skip
