"""What C++ is compiled for: an instruction set of x86-64, and the sanitizers that check what it does.

    isa      ::= "native" | "x86-64-v2" | "x86-64-v3" | "x86-64-v4"
    sanitize ::= ("address" | "undefined")*

The levels are those of the x86-64 psABI. "native" is all that the processor has which loads the code: its machine code
is of this kind of processor, that of a level runs on any processor of that level or a higher one.

The environment variable CODEGEN_ISA names the highest level that this process is to use: "native" stands for it then,
and higher ones are refused, as they are where the processor lacks them.
"""

from __future__ import annotations

import ctypes
import os
import platform
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

from codegen.errors import NoSanitizer, UnsupportedInstructionSet

Isa = Literal["native", "x86-64-v2", "x86-64-v3", "x86-64-v4"]
Sanitizer = Literal["address", "undefined"]

FEATURES: dict[str, str] = {
    "x86-64-v2": "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3",
    "x86-64-v3": "abm avx avx2 bmi1 bmi2 f16c fma movbe",
    "x86-64-v4": "avx512f avx512bw avx512cd avx512dq avx512vl",
}
"""What each level adds to the one before, by the names of /proc/cpuinfo."""

PROCESSOR_FLAGS = {
    # Half precision is computed in float32, so that AVX512-FP16 is not needed; assemblers of binutils before 2.42
    # refuse what compilers emit for it (masked `vmovsh`).
    "avx512_fp16": "-mno-avx512fp16",
    # gcc prefers 256 bits on Intel's processors. On Sapphire Rapids 512 are quicker: in the geometric mean of twelve
    # patterns by 1.21 on one thread, by 1.34 on four (softmax by 1.8); older processors slow their clocks down.
    "avx512_bf16": "-mprefer-vector-width=512",
}
"""What "native" takes besides on a processor with a feature, from compilers that know the flag."""

SANITIZER_FLAGS: dict[str, tuple[str, ...]] = {
    # Line numbers and whole frames, for the report.
    "address": ("-fsanitize=address", "-g1", "-fno-omit-frame-pointer"),
    # The first fault ends the process. -fwrapv defines what signed integers do when they overflow.
    "undefined": ("-fsanitize=undefined", "-fno-sanitize-recover=undefined", "-g1"),
}
RUNTIMES = {"address": ("__asan_init", "libasan.so")}
"""A function of a runtime that has to be in the process before anything else, and where g++ has it."""


class Target(NamedTuple):
    """isa: the instruction set. sanitize: the compiler's checks, each one's fault ends the process with a report."""

    isa: Isa = "native"
    sanitize: tuple[Sanitizer, ...] = ()

    @property
    def flags(self) -> tuple[str, ...]:
        """The compiler's flags; not those of `processor_flags`."""
        checks = (flag for one in self.sanitize for flag in SANITIZER_FLAGS[one])
        return (f"-march={effective_isa(self.isa)}", *dict.fromkeys(checks))

    @property
    def processor_flags(self) -> tuple[str, ...]:
        """What this processor asks for besides, of compilers that know it."""
        if effective_isa(self.isa) != "native":
            return ()
        return tuple(flag for feature, flag in PROCESSOR_FLAGS.items() if feature in features())

    @property
    def processors(self) -> str:
        """The processors that run its machine code: those like this one, or all of a level."""
        isa = effective_isa(self.isa)
        return processor() if isa == "native" else isa

    def require(self) -> None:
        """Raise a coded error where this process cannot run such code."""
        check_target(self)
        lacking = sorted(features_of(self.isa) - features())
        if lacking:
            raise UnsupportedInstructionSet(f"this processor lacks {self.isa}: {', '.join(lacking)}")
        allowed = effective_isa("native")
        if allowed != "native" and features_of(self.isa) - features_of(allowed):
            raise UnsupportedInstructionSet(f"CODEGEN_ISA allows no more than {allowed}, the code is for {self.isa}")
        for one in self.sanitize:
            function, library = RUNTIMES.get(one, ("", ""))
            if function and not hasattr(ctypes.CDLL(None), function):
                raise NoSanitizer(f"the runtime of the {one} sanitizer ({library}) was not loaded first")


NATIVE = Target()


def check_target(target: Target) -> None:
    """Refuse names that nobody knows."""
    if target.isa not in get_args(Isa):
        raise UnsupportedInstructionSet(f"unknown instruction set {target.isa!r}; known: {', '.join(get_args(Isa))}")
    unknown = [one for one in target.sanitize if one not in SANITIZER_FLAGS]
    if unknown:
        raise NoSanitizer(f"unknown sanitizer {unknown[0]!r}; known: {', '.join(SANITIZER_FLAGS)}")


def effective_isa(isa: Isa) -> Isa:
    """`isa`, where "native" is what CODEGEN_ISA allows."""
    allowed = os.environ.get("CODEGEN_ISA")
    if isa != "native" or not allowed:
        return isa
    if allowed not in get_args(Isa):
        raise UnsupportedInstructionSet(f"CODEGEN_ISA={allowed!r} is none of {', '.join(get_args(Isa))}")
    if features_of(allowed) - features():
        raise UnsupportedInstructionSet(f"CODEGEN_ISA={allowed}, which this processor lacks")
    return allowed  # type: ignore[return-value]


def features_of(isa: str) -> frozenset[str]:
    """What a processor of a level has at least, by the names of /proc/cpuinfo; nothing is asked of "native"."""
    levels = list(FEATURES)
    upto = levels[: levels.index(isa) + 1] if isa in levels else []
    return frozenset(name for level in upto for name in FEATURES[level].split())


def host_isa() -> str:
    """The highest level that this process may use, in words."""
    limited = effective_isa("native")
    if limited != "native":
        return f"{limited} (CODEGEN_ISA)"
    levels = [level for level in FEATURES if features_of(level) <= features()]
    return f"native ({levels[-1] if levels else platform.machine()})"


def features() -> frozenset[str]:
    """What this processor has, by the names of /proc/cpuinfo; nothing where that cannot be read."""
    lines = [line for line in processor().splitlines() if line.startswith("flags")]
    return frozenset(lines[0].partition(":")[2].split()) if lines else frozenset()


@lru_cache(maxsize=1)
def processor() -> str:
    """What -march=native depends on: the architecture and the processor's feature flags."""
    text = platform.machine()
    try:
        with open("/proc/cpuinfo") as info:
            lines = info.read().partition("\n\n")[0].splitlines()
    except OSError:
        return f"{text} {platform.processor()} {platform.system()}"
    wanted = ("flags", "Features", "model name", "cpu family", "model\t", "vendor_id")
    return "\n".join([text, *sorted(line for line in lines if line.startswith(wanted))])
