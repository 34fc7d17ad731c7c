"""Names that are imported when they are asked for."""

from __future__ import annotations

import pytest

from stagewire.lazy_names import lazy_names


def test_a_name_is_that_of_its_module() -> None:
    find = lazy_names("package", {"json": "dumps loads", "math": "floor"})
    assert find("loads")("1") == 1
    assert find("floor")(1.5) == 1


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'package' has no attribute 'dump'"):
        lazy_names("package", {"json": "dumps"})("dump")
