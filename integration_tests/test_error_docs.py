"""Every error code has a program that triggers it, and docs/errors.md shows what that prints."""

from __future__ import annotations

import gc
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import error_docs  # noqa: E402
from error_docs import Section, message_of  # noqa: E402

SECTIONS = error_docs.sections()
CODES = [pytest.param(section, code, id=code) for section in SECTIONS for code in section.classes]


@cache
def message(package: str, code: str) -> str:
    return message_of(next(section for section in SECTIONS if section.package == package), code)


@pytest.mark.parametrize(("section", "code"), CODES)
def test_the_trigger_of_a_code_gives_that_code(section: Section, code: str) -> None:
    assert message(section.package, code).startswith(f"{code}: ")


def test_every_trigger_is_of_a_code() -> None:
    for section in SECTIONS:
        assert {name for name in vars(section.triggers) if error_docs.TRIGGER.fullmatch(name)} == set(section.classes)


def test_the_page_is_up_to_date() -> None:
    page = error_docs.page(lambda section, code: message(section.package, code))
    assert error_docs.PAGE.read_text() == page, "run: python tools/error_docs.py"


def test_a_code_without_a_trigger_is_found() -> None:
    section = SECTIONS[0]
    code, error = next(iter(section.classes.items()))
    with pytest.raises(LookupError, match=f"{code} has no trigger"):
        message_of(Section("another", {code: error}, error_docs), code)


def test_a_trigger_of_another_code_is_found() -> None:
    triggers = vars(SECTIONS[0].triggers)
    with pytest.raises(LookupError, match="the trigger of SW001 gives: SW002"):
        message_of(SECTIONS[0]._replace(triggers=type("Swapped", (), {"SW001": triggers["SW002"]})), "SW001")


def test_a_code_of_two_classes_is_found() -> None:
    clash = type("Clash", (SECTIONS[0].classes["SW001"],), {"__module__": "stagewire.errors", "code": "SW001"})
    with pytest.raises(ValueError, match="SW001 belongs to Clash and to DecodeError"):
        error_docs.codes("stagewire")
    del clash
    gc.collect()  # classes are in cycles, and a subclass that lives on is one more owner of the code
