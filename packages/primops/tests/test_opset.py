"""What is written from the records is current; what they claim holds."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from primops.meanings import MEANINGS
from primops.opset import encode_opset
from primops.prims import FAMILIES, RECORDS
from primops.prims.record import Record
from primops.spec import specification

SPEC = Path(__file__).parents[1] / "SPEC.md"


def test_spec_is_current() -> None:
    assert SPEC.read_text() == specification(), "write it again: python -m primops spec > SPEC.md"


def test_the_opset_as_json_names_every_prim() -> None:
    data = msgspec.json.decode(encode_opset())
    assert [prim["name"] for prim in data["prims"]] == list(RECORDS)


def test_names_are_unique_across_families() -> None:
    assert sum(len(family.RECORDS) for family in FAMILIES) == len(RECORDS)


@pytest.mark.parametrize("record", RECORDS.values(), ids=lambda r: r.name)
def test_each_prim_has_a_meaning_and_an_example_of_its_own(record: Record) -> None:
    assert record.name in MEANINGS
    assert record.doc.endswith(".")
    assert re.match(rf"{record.name}\(.*\) -> .+", record.example)
    assert len({c.label for c in record.constraints}) == len(record.constraints)
