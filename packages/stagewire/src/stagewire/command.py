"""What the command lines of all packages share: exit codes, and carrying a file through a stage.

    python -m PACKAGE IN [-o OUT]

Exit codes: 0 done, 1 a coded error or a file that cannot be read or written (printed), 2 a wrong command line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from stagewire.codec import Document
from stagewire.errors import StageError
from stagewire.files import read_verified, write
from stagewire.printer import print_document

Made = TypeVar("Made", bound=Document)


def guarded(command: Callable[[], int]) -> int:
    """Run a command; a coded error, or a file that cannot be read or written, is printed and gives exit code 1."""
    try:
        code = command()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader of a pipe (head, less) has seen enough. What is left in the buffer goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except StageError as error:
        print(error, file=sys.stderr)
    except OSError as error:
        print(f"{error.filename or 'the output'}: {error.strerror}", file=sys.stderr)
    return 1


def carry(
    path: str | Path,
    kind: str | None,
    run: Callable[[Any], Made],
    *,
    output: str | Path | None = None,
    show: bool | None = None,
) -> Made:
    """Read a document from a file, verify it, run a stage on it, write what comes out and return it.

    kind: of what is read; None for any. It is printed with `show`, which by default holds when there is no `output`.
    """
    made = run(read_verified(path, kind))
    if output is not None:
        write(made, output)
    if output is None if show is None else show:
        print(print_document(made), end="")
    return made
