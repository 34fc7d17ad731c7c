"""docs/from_torch_compile.md: every row's check, and the names of torch.compiler."""

from __future__ import annotations

import pytest
import torch

from tools import torch_compiler_names as names

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("name", [*names.ROWS, *names.MORE])
def test_row(name: str) -> None:
    if name in names.ROWS and not hasattr(torch.compiler, name):
        pytest.skip(f"this release of torch has no {name}")
    {**names.ROWS, **names.MORE}[name].check()


def test_names_of_torch() -> None:
    assert set(torch.compiler.__all__) <= set(names.ROWS)


def test_page() -> None:
    assert names.PAGE.read_text() == names.page()
