"""The prims as data: the vocabulary `prims`, one file a family."""

from __future__ import annotations

from primops.prims import casts, creation, elementwise, indexing, random, reductions, scans, shapes, windows
from stagewire.vocabulary import Vocabulary, register

FAMILIES = (elementwise, casts, shapes, creation, random, reductions, scans, indexing, windows)
VOCABULARY = register(
    Vocabulary(
        namespace="prims",
        version=7,
        ops={op.name: op for family in FAMILIES for op in family.OPS},
        families={family.OPS[0].family: family.__doc__ or "" for family in FAMILIES},
    )
)
"""The prims as data: one `stagewire.vocabulary.Op` each."""

OPS = VOCABULARY.ops
OPSET = VOCABULARY.version
"""The version of the vocabulary, which every `Prim` names."""
