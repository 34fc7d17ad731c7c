"""What a call of a document may not be, whatever is registered: operators that read or write files, odd keywords.

A document is data from somewhere. Its calls compute tensors from tensors; what else an operator may do is left to the
libraries that this process has imported (see SECURITY.md).
"""

from __future__ import annotations

import keyword

FILE_OPERATORS = frozenset(("aten.from_file", "aten.save", "debugprims.load_tensor"))
"""Operators of torch that are given the name of a file; all of their overloads."""


def opens_files(target: str) -> bool:
    """Whether a target is one of `FILE_OPERATORS`, under any of its names.

    >>> opens_files("aten.from_file.default"), opens_files("torch.from_file"), opens_files("aten.add.Tensor")
    (True, True, False)
    """
    if target == "torch.from_file":
        return True
    operator = target.removeprefix("torch.ops.")
    return any(operator == name or operator.startswith(f"{name}.") for name in FILE_OPERATORS)


def is_keyword_name(name: str) -> bool:
    """Whether Python can pass an argument by this name: `f(name=...)`, or `f(**{name: ...})` for `RESERVED`."""
    return name.isidentifier() and (name in RESERVED or not keyword.iskeyword(name))


RESERVED = frozenset({"from"})
"""Reserved words of Python that are names of arguments in torch: `x.random_(**{"from": 3})`."""
