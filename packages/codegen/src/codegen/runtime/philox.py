"""Random numbers that kernels compute by formula: the state that they start from, and whether they are ATen's here.

    philox_state(count, device) -> seed, offset      the call `stagefold.philox_state.default` of programs
    random_threads(cache) -> int                     of ATen's kernels on the GPUs of this process; 0: draw with ATen

Which number an element gets is part of ATen's kernels, not of its interface. So the formula is held against these
kernels once for each version of torch and kind of device; where they differ, programs leave the drawing to ATen.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import warnings
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from absint import philox
from codegen.content_store import FORMAT, read_stored, write_stored
from codegen.errors import NotOnHost, OtherNumbers
from codegen.torch_capabilities import TORCH
from stagewire.philox import THREADS_OF_A_BLOCK, count_for, threads_for

SEED, OFFSET = 0x1234_5678_9ABC_DEF0, 4 * ((1 << 32) - 2)
"""For the check: all words of the counter take part, as the calls of a large tensor carry into the second."""
CHECKED = (
    ("dropout", "float32", 1, 1),
    ("dropout", "float32", 777, 1),
    ("dropout", "float32", 1022, 2),
    ("dropout", "float64", 5000, 2),
    ("dropout", "float16", 2**22 + 4, 4),
    ("dropout", "bfloat16", 4096, 8),
    ("dropout", "bfloat16", 2**23, 8),
    ("bernoulli", "bool", 3000, 1),
    ("bernoulli", "float32", 3000, 1),
    ("bernoulli", "bfloat16", 2**22, 1),
)
"""Masks that are compared: kernel, dtype, number of elements, elements that a thread takes at a time."""
EAGER = "eager"
"""The answer where they are equal."""


def philox_state(count: int, device: str) -> tuple[Tensor, Tensor]:
    """`absint.philox.philox_state`; not while a graph is recorded."""
    try:
        return philox.philox_state(count, device)
    except RuntimeError as error:
        raise NotOnHost(f"the random state of {device} cannot be read: {error}") from error


class _State(ctypes.Structure):
    _fields_ = (("seed", ctypes.c_uint64), ("offset", ctypes.c_uint64))


@lru_cache(maxsize=64)
def native_state(device: str) -> tuple[int, int, int] | None:
    """Addresses, for the native executor: of what gives and moves the state of a generator, of the generator of
    `device`, and of what tells whether a stream is recorded. None where this torch has no such function.
    """
    if not device.startswith("cuda") or not torch.cuda.is_available():
        return None
    torch.cuda.init()
    try:
        engine = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"))[ENGINE]
        captured = ctypes.CDLL("libcuda.so.1").cuStreamIsCapturing
        engine.restype, engine.argtypes = _State, [ctypes.c_void_p, ctypes.c_uint64]
        trial = torch.Generator(device)
        trial.manual_seed(SEED)
        trial.set_offset(OFFSET)
        state = engine(trial._cdata, 8)
        generator = torch.cuda.default_generators[torch.device(device).index or 0]._cdata
    except (AttributeError, OSError):
        return None
    if (state.seed, state.offset, trial.get_offset()) != (SEED, OFFSET, OFFSET + 8):
        return None
    addresses = (ctypes.cast(function, ctypes.c_void_p).value or 0 for function in (engine, captured))
    address, asks = addresses
    return address, generator, asks


ENGINE = "_ZN2at17CUDAGeneratorImpl20philox_engine_inputsEm"
"""at::CUDAGeneratorImpl::philox_engine_inputs(count) -> seed and offset, two words in registers."""


def random_threads(cache: Path) -> int:
    """The most threads that ATen's random kernels have on the GPUs that this process sees.

    0 where there are none, where they are not all alike, or where the formula is not theirs (with a warning).
    """
    if not torch.cuda.is_available():
        return 0
    kinds = {_described(number) for number in range(torch.cuda.device_count())}
    return _checked(cache, *kinds.pop()) if len(kinds) == 1 else 0


def _described(number: int) -> tuple[str, int]:
    properties = torch.cuda.get_device_properties(number)
    blocks = properties.multi_processor_count * (properties.max_threads_per_multi_processor // THREADS_OF_A_BLOCK)
    return properties.name, blocks * THREADS_OF_A_BLOCK


@lru_cache(maxsize=8)
def _checked(cache: Path, name: str, threads: int) -> int:
    """`threads`, or 0; the answer is kept on disk."""
    about = json.dumps([FORMAT, name, threads, torch.__version__, torch.version.cuda, CHECKED])
    path = cache / f"{hashlib.sha256(about.encode()).hexdigest()[:24]}.random"
    kept = read_stored(path)
    answer = None if kept is None else kept.decode()
    if answer is None:
        answer = EAGER if TORCH.has("fused_dropout") and all(agrees(*one, threads) for one in CHECKED) else "other"
        write_stored(path, answer.encode())
    if answer == EAGER:
        return threads
    warnings.warn(
        f"torch {torch.__version__} draws other random numbers on {name} than expected: ATen draws them",
        OtherNumbers, stacklevel=4,
    )  # fmt: skip
    return 0


KERNELS: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "dropout": lambda x, generator: TORCH.fused_dropout(x, 0.5, generator)[1] != 0,
    "bernoulli": lambda x, generator: x.bernoulli_(0.5, generator=generator) != 0,
}
"""ATen's: the mask for x, each element with the probability 0.5."""


def agrees(kernel: str, dtype: str, count: int, width: int, most: int) -> bool:
    """Whether a kernel of ATen draws the numbers of the formula, and moves the offset as far."""
    generator = torch.Generator("cuda")
    generator.manual_seed(SEED)
    generator.set_offset(OFFSET)
    threads = threads_for(count, most)
    drawn = KERNELS[kernel](torch.ones(count, dtype=getattr(torch, dtype), device="cuda"), generator)
    computed = philox.uniform(SEED, OFFSET, torch.arange(count, device="cuda"), threads, width) < 0.5
    return torch.equal(drawn, computed) and generator.get_offset() == OFFSET + count_for(count, threads)
