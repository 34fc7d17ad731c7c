"""Names that a library may lack: which are found, and what a missing one does where it is used."""

from __future__ import annotations

import types

import pytest

from stagewire.capabilities import MISSING, Capabilities, Capability, MissingCapability, find, is_class

LIBRARY = types.ModuleType("library")
LIBRARY.__version__ = "3.1"  # type: ignore[attr-defined]
exec("def double(x): return 2 * x\nfactor = 3\nis_large = False\nclass Thing: pass", vars(LIBRARY))


def capabilities(**rows: Capability) -> Capabilities:
    return Capabilities(LIBRARY, "example", **rows)


def test_what_is_there_is_given() -> None:
    names = capabilities(double=Capability("library.double", "doubling", "nothing is doubled"))
    assert names.double(4) == 8
    assert names.has("double")
    assert names.lacking() == ()
    names.require("double")


def test_a_missing_name_is_a_placeholder() -> None:
    row = Capability("library.triple", "tripling", "nothing is tripled")
    names = capabilities(triple=row)
    assert not names.has("triple")
    assert names.lacking() == (row,)
    assert not isinstance(3, names.triple)
    assert {names.triple: 1}.get(len) is None
    with pytest.raises(MissingCapability, match=r"library 3\.1 has no library\.triple .* example uses for tripling"):
        names.triple(4)
    with pytest.raises(MissingCapability, match="tripling"):
        names.require("triple")
    assert MissingCapability.refuses_program


def test_a_class_made_of_a_missing_one_cannot_be_instantiated() -> None:
    names = capabilities(base=Capability("library.Base", "being derived from", "all", accepts=is_class))
    derived = type("Derived", (names.base,), {})
    with pytest.raises(MissingCapability, match="being derived from"):
        derived()


@pytest.mark.parametrize("path", ["library.factor", "library.factor.of", "library.Thing.method"])
def test_another_kind_is_as_good_as_missing(path: str) -> None:
    assert not capabilities(one=Capability(path, "multiplying", "nothing is multiplied")).has("one")


def test_another_name_of_the_same_meaning() -> None:
    row = Capability("library.twice", "doubling", "nothing is doubled", or_else=("library.double",))
    assert capabilities(twice=row).twice(4) == 8


def test_what_only_programs_call_is_no_loss() -> None:
    names = capabilities(known=Capability("library.other", "what programs call"))
    assert not names.has("known")
    assert names.lacking() == ()


@pytest.mark.parametrize(
    ("given", "is_loss"), [("library.double", True), ("library.is_large", False), ("library.n", False)]
)
def test_a_name_that_only_some_builds_have(given: str, is_loss: bool) -> None:
    names = capabilities(one=Capability("library.other", "large things", "these are refused", given=given))
    assert bool(names.lacking()) == is_loss


def test_a_name_that_nobody_states() -> None:
    with pytest.raises(AttributeError, match="example states no capability 'double'"):
        _ = capabilities().double


def test_find_reads_dictionaries_and_imports_modules() -> None:
    import json

    assert find(LIBRARY, "library.double.__globals__.factor") == 3
    assert find(LIBRARY, "library.double.__globals__.no") is MISSING
    assert find(json, "json.tool.main").__module__ == "json.tool"
    assert find(json, "json.no.main") is MISSING
