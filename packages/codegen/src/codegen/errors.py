"""Coded errors of codegen."""

from __future__ import annotations

from stagewire.errors import StageError
from stagewire.private_files import CacheWarning

OUT_OF_RANGE, ZERO_DIVISOR, NO_SUCH_VALUE = 1, 2, 4
"""Bits of a kernel's status word."""


class NoCompiler(StageError):
    """No C++ compiler on this machine."""

    code = "CG001"
    fix = (
        "Install one (Debian and Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++; "
        "macOS: xcode-select --install), pip install stagefold[zig], or name one in the environment variable CXX."
    )


class CompileFailed(StageError):
    """The compiler refused an emitted source; the text holds its first messages."""

    code = "CG002"
    fix = "Report the Program document, if no stage or op of your own wrote the text. A newer compiler may also help."


class CompilerFault(StageError):
    """The compiler cannot be started, was ended, or made machine code that does not load: the machine is at fault."""

    code = "CG018"
    fix = "`stagefold doctor` says which compiler it is; name another one in the environment variable CXX."


class MissingKernel(StageError):
    """A unit launches a kernel that its source does not define."""

    code = "CG019"
    fix = "The stage that wrote the Program document has a fault; report it with the document."


class UnsupportedType(StageError):
    """A dtype that the emitter has no arithmetic for."""

    code = "CG003"
    fix = "Keep the op an extern call (loopir does so for complex and 8-bit floating types)."


class UnknownOp(StageError):
    """A `Compute` statement whose op the emitter does not know."""

    code = "CG004"
    fix = "Lower the op to known ones, or add a row to codegen/cpp/operations.py."


class MalformedLoop(StageError):
    """A `Loop` document that breaks a rule of its grammar."""

    code = "CG005"
    fix = "The stage that wrote the Loop document has a fault; report it with the document."


class IndexOutOfRange(StageError, IndexError, RuntimeError):
    """An index value outside the dimension it indexes, met while a kernel ran (eager raises one or the other)."""

    code = "CG006"
    fix = (
        "Check the index tensors: 0 <= index < size must hold, or -size <= index < size in x[index], index_put, "
        "take, put and index_fill."
    )


class IntegerDivisionByZero(StageError, RuntimeError, ZeroDivisionError):
    """An integer division by zero, met while a kernel ran."""

    code = "CG007"
    fix = "Check the divisor tensor for zeros."


class ValueOutOfRange(StageError, RuntimeError):
    """A value outside of what an operator takes, met while a kernel ran."""

    code = "CG021"
    fix = "Check the operand: binary_cross_entropy takes probabilities, 0 <= p <= 1 (nan is none)."


class WrongInput(StageError, TypeError):
    """A tensor given to a loaded unit has another type than the program was compiled for."""

    code = "CG008"
    fix = "Pass tensors of the dtype, shape and strides that the program states, or compile again for these."


class UnknownTarget(StageError):
    """A target that no installed distribution registers, or one that was made for another codegen."""

    code = "CG009"
    fix = "Install the distribution that registers it."


class BadTarget(StageError):
    """The emit() or load() of a target returned something else than units, or than one `Bound` for each unit."""

    code = "CG022"
    fix = "Return what `codegen.targets.Target` says: `write_unit` makes a unit, `run_functions` a Bound."


class UnknownExtern(StageError):
    """An extern call of an operator that the running torch does not have."""

    code = "CG010"
    fix = "Import the library that registers the operator, or use the torch version that wrote the document."


class WrongResult(StageError):
    """An operator of the running torch returned another dtype or shape than the program was written for."""

    code = "CG011"
    fix = "Compile again with the torch version that runs the program."


class OperatorFailed(StageError, RuntimeError):
    """An operator of ATen's raised (mostly for want of memory) in a run that cannot be done again: the inputs were
    given up, or written. What it said is on the standard error output."""

    code = "CG017"
    fix = "Give the run less work or more memory: a smaller batch, checkpoints."


class LaunchFailed(StageError):
    """The CUDA driver did not start a kernel; the message gives its result (a `CUresult`)."""

    code = "CG012"
    fix = "Look the number up in the driver's documentation; an earlier failure of the device may be the cause."


class NotOnHost(StageError):
    """A program that computes random numbers by formula runs while the caller records a CUDA graph: the state of the
    generator is not known to the host then."""

    code = "CG013"
    fix = 'Compile with options={"primops.random_threads": 0}, or mode="reduce-overhead": ATen draws the numbers then.'


class UnsupportedDevice(StageError):
    """A program with tensors on a device for which no kernels are written (meta)."""

    code = "CG014"
    refuses_program = True
    fix = "Keep this device's tensors outside of compiled code, or move them to a CPU or a CUDA device."


class UnsupportedInstructionSet(StageError):
    """A program, or the environment variable CODEGEN_ISA, names an instruction set that this machine lacks or that
    nobody knows."""

    code = "CG015"
    fix = 'Compile again with options={"codegen.isa": "native"}, or for a level that this processor has.'


class NoSanitizer(StageError):
    """A program whose C++ is to be checked by a sanitizer that is unknown, or not in this process."""

    code = "CG016"
    fix = "Start Python with LD_PRELOAD=$(g++ -print-file-name=libasan.so); the C++ compiler has to be gcc's."


class CorruptCode(CacheWarning):
    """A machine-code cache entry whose bytes do not match their digest; it was ignored and made again."""


class SlowExecutor(UserWarning):
    """The native executor does not fit the running torch; programs run correctly, with more overhead a step."""


class NotRecorded(UserWarning):
    """A program that was to be a CUDA graph cannot be recorded; it runs correctly, launched each time."""


class OtherNumbers(UserWarning):
    """ATen's random kernels draw other numbers than the formula of programs; programs leave the drawing to ATen."""


class UnsupportedKernel(StageError):
    """A kernel that the emitter of the target has no form for; the message names the op, dtype or size."""

    code = "CG020"
    fix = "Use the other target for this program, or keep the op an extern call."
