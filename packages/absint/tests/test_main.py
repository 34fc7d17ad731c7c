"""`python -m absint`."""

from absint.__main__ import coverage, describe
from absint.rules import RULES


def test_coverage_lists_every_rule():
    table = coverage()
    assert table.splitlines()[-1] == f"{len(RULES)} overloads"
    for name in ("add.Tensor", "convolution", "view"):
        assert f" {name} " in table.replace("\n", " ")


def test_describe_says_what_an_overload_writes():
    text = describe("aten.add_.Tensor")
    assert "writes   ['self']" in text
    assert "becomes  aten.add.Tensor" in text


def test_describe_lists_what_is_demanded_of_the_operands():
    text = describe("aten.scatter_.src")
    assert "asks     its kernel" in text
    assert "C2       no dimension of index is larger than that of src" in text
    assert "not scatter.src(Meta(float32[3, 5]), 0, Meta(int64[3, 5]), Meta(float32[1, 5]))" in text
