"""Documents as bytes: both formats, versions and upgraders, bad input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given

import stagewire
from stagewire import codec
from stagewire.codec import KINDS, VERSIONS, Document, decode, encode, kind_of, load, save
from stagewire.digest import digest
from stagewire.errors import DecodeError, UnknownVersion
from stagewire.loop import LoopGraph
from stagewire.parser import parse_document
from stagewire.testing.strategies import prims
from stagewire.verify import verify

DATA = Path(__file__).parent / "data"
STORED = sorted(DATA.glob("v*/*.*"))


def example(kind: str) -> Document:
    return parse_document((DATA / "documents" / f"{kind}.txt").read_text(encoding="utf-8"))


def plain(kind: str) -> dict[str, Any]:
    """The wire form as JSON data."""
    found: dict[str, Any] = msgspec.json.decode(encode(example(kind)))
    return found


@pytest.mark.parametrize("path", STORED, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_stored_files_of_every_version_load(path: Path) -> None:
    document = load(path, expect=path.stem)
    verify(document)
    assert digest(document) == digest(load(path.with_suffix(".json")))
    if path.parent.name == f"v{VERSIONS[path.stem]}":
        assert document == example(path.stem)


def test_every_kind_is_stored_in_its_version() -> None:
    wanted = {f"v{version}/{kind}.{suffix}" for kind, version in VERSIONS.items() for suffix in ("json", "msgpack")}
    assert wanted <= {f"{path.parent.name}/{path.name}" for path in STORED}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suffix", [".json", ".msgpack"])
def test_saved_files_load(kind: str, suffix: str, tmp_path: Path) -> None:
    document = example(kind)
    assert kind_of(document) == kind
    save(document, tmp_path / f"a{suffix}")
    assert load(tmp_path / f"a{suffix}") == document
    assert not list(tmp_path.glob("*.part"))


def test_files_without_optional_fields_load() -> None:
    """A file from before an optional field was added reads as the field's default."""
    data = plain("grad")
    del data["body"]["binding"]["gradient_tangents"], data["body"]["rewrites"]
    document = decode(msgspec.json.encode(data))
    assert isinstance(document, stagewire.Grad)
    assert document.binding.gradient_tangents == ()


def test_upgraders_run_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 1 called `opset` "ops", version 2 counted from 0; this is version 3."""

    def rename_ops(body: dict[str, Any]) -> dict[str, Any]:
        body["opset"] = body.pop("ops")
        return body

    def count_from_one(body: dict[str, Any]) -> dict[str, Any]:
        return body | {"opset": body["opset"] + 1}

    document = example("prim")
    assert isinstance(document, stagewire.Prim)
    old = plain("prim")
    monkeypatch.setitem(codec.VERSIONS, "prim", 3)
    monkeypatch.setitem(codec.UPGRADES, "prim", {1: rename_ops, 2: count_from_one})
    old["version"] = 1
    old["body"]["ops"] = old["body"].pop("opset") - 1
    assert decode(msgspec.json.encode(old)) == document
    assert decode(msgspec.msgpack.encode(old)) == document
    assert msgspec.json.decode(encode(document))["version"] == 3
    old["version"] = 0
    with pytest.raises(UnknownVersion, match=r"prim version 0 cannot be read.*upgraders from \[1, 2\]"):
        decode(msgspec.json.encode(old))


@pytest.mark.parametrize("kind", ["grad", "prim", "loop"])
def test_calls_of_version_1_have_the_effects_that_its_readers_told_by_name(kind: str) -> None:
    targets = ("aten.mm.default", "prims.rand", "aten.normal_functional.default", "aten._assert_async.msg", "mine.op.x")
    calls = [{"target": target, "args": [], "kwargs": {}, "results": []} for target in targets]
    data = plain("prim_trained" if kind == "grad" else kind) | {"document": kind, "version": 1}
    if kind == "loop":
        data["body"]["forward"]["steps"] = [{"kind": "extern"} | call for call in calls]
    else:
        data["body"]["forward"]["nodes"] = calls
    document = decode(msgspec.json.encode(data))
    assert isinstance(document, stagewire.Grad | stagewire.Prim | stagewire.Loop)
    graph = document.joint if isinstance(document, stagewire.Grad) else document.forward
    made = graph.steps if isinstance(graph, LoopGraph) else graph.nodes  # type: ignore[union-attr]
    assert [call.effect for call in made[:5]] == [None, "draws", "draws", "acts", "acts"]  # type: ignore[union-attr]


def test_a_grad_of_version_2_was_cut_and_is_joined() -> None:
    document, joint = load(DATA / "v2" / "grad.json"), example("grad").joint  # type: ignore[union-attr]
    nodes = tuple(msgspec.structs.replace(node, checkpoint=None) for node in joint.nodes)
    assert document == msgspec.structs.replace(example("grad"), joint=msgspec.structs.replace(joint, nodes=nodes))


CUT = """
prim 3 {
  binding {
    inputs { BoundInput(name="x", type=f32[s0]) }
    outputs { Fresh(result=0, requires_grad=True) }
    saved { SavedInput(input=0) SavedSize(symbol="s0") }
    tangents { Tangent(result=0, type=f32[s0]) Tangent(result=0, type=f32[s0]) }
    input_gradients = (1,)
    gradient_tangents = ((), (0, 1))
    symbols { Symbol(name="s0", source=None, hint=3) }
  }
  forward {
    input %x: f32[s0]
    %y: f32[s0] = aten.sin.default(%x)
    %unused: f32[s0] = aten.sin.default(%y)
    return %y, %unused
  }
  backward {
    input %x: f32[s0]
    input %n: int
    input %y: f32[s0]
    input %t: f32[s0]
    %unused: f32[s0] = aten.cos.default(%x) with phase="backward"
    %g: f32[s0] = aten.mine.default(%y, %t, [%n], a=%unused) with phase="backward"
    return %unused, %g
  }
}
"""


def test_names_of_a_backward_that_the_forward_has_are_others_in_the_joint_graph() -> None:
    """A value computed again, a size that was saved, a gradient that no input has, a result for the backward alone."""
    data = msgspec.json.decode(encode(parse_document(CUT))) | {"document": "grad", "version": 2}
    document = decode(msgspec.json.encode(data))
    verify(document)
    assert isinstance(document, stagewire.Grad)
    assert (
        str(document.joint)
        == """\
input %x: f32[s0]
input %y_: f32[s0]
input %t: f32[s0]
%y: f32[s0] = aten.sin.default(%x)
%unused: f32[s0] = aten.sin.default(%y)
%unused_: f32[s0] = aten.cos.default(%x) with phase="backward"
%g: f32[s0] = aten.mine.default(%y_, %t, [s0], a=%unused_) with phase="backward"
return %y, %g"""
    )
    assert document.binding.gradient_tangents == ((0, 1),)


@pytest.mark.parametrize("slot", [{"kind": "saved_input", "input": 9}, {"kind": "saved_result", "result": 9}])
def test_a_cut_that_saves_what_is_not_there_is_refused(slot: dict[str, Any]) -> None:
    data = msgspec.json.decode(encode(parse_document(CUT))) | {"document": "grad", "version": 2}
    data["body"]["binding"]["saved"][0] = slot
    with pytest.raises(DecodeError, match="grad does not decode: forward and backward do not meet"):
        decode(msgspec.json.encode(data))


@given(prims(cut=True))
def test_every_cut_of_version_2_is_a_joint_graph_that_verifies(document: stagewire.Prim) -> None:
    data = msgspec.msgpack.decode(encode(document, "msgpack")) | {"document": "grad", "version": 2}
    verify(decode(msgspec.msgpack.encode(data)))


@pytest.mark.parametrize("body", [b"3", b"[]", b'{"forward": 3}', b'{"forward": {"nodes": 3}}', b'{"forward": [1]}'])
def test_malformed_bodies_of_version_1_are_refused(body: bytes) -> None:
    with pytest.raises(DecodeError, match="prim does not decode"):
        decode(b'{"document": "prim", "version": 1, "producer": "", "body": ' + body + b"}")


@pytest.mark.parametrize("version", [0, -1, 4, 10**9])
def test_unknown_versions_are_refused(version: int) -> None:
    data = plain("prim") | {"version": version}
    with pytest.raises(UnknownVersion, match=f"prim version {version} cannot be read: this stagewire reads up to 3"):
        decode(msgspec.json.encode(data))


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(UnknownVersion, match="unknown document kind 'graph'; known: capture, grad, prim"):
        decode(msgspec.json.encode(plain("prim") | {"document": "graph"}))


def test_another_kind_than_expected_is_refused() -> None:
    with pytest.raises(DecodeError, match="expected a loop document, got a prim document"):
        decode(encode(example("prim")), expect="loop")


def test_a_body_of_another_kind_is_refused() -> None:
    data = plain("prim") | {"document": "loop", "version": VERSIONS["loop"]}
    with pytest.raises(DecodeError, match="loop does not decode"):
        decode(msgspec.json.encode(data))


@pytest.mark.parametrize("format", ["json", "msgpack"])
@pytest.mark.parametrize("kind", KINDS)
def test_truncated_bytes_are_refused(kind: str, format: codec.Format) -> None:
    data = encode(example(kind), format)
    for length in (0, 1, 10, len(data) // 2, len(data) - 1):
        with pytest.raises(DecodeError):
            decode(data[:length])
    with pytest.raises(DecodeError):
        decode(data + b"{}")


@pytest.mark.parametrize(
    "data", [b"[]", b"{}", b"null", b"\x00", b"\xff\xfe", b'{"document": 3}', b"PK\x03\x04", b"{\xff}"]
)
def test_foreign_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(DecodeError) as error:
        decode(data)
    assert error.value.code == "SW001"


PATHS = [
    (("forward", "nodes", 1, "args", 0, "name"), 3, "`$.forward.nodes[1].args[0].name`"),
    (("forward", "nodes", 0, "target"), None, "`$.forward.nodes[0].target`"),
    (("forward", "inputs", 0, "type", "dtype"), "float33", "`$.forward.inputs[0].type.dtype`"),
    (("forward", "inputs", 0, "type", "kind"), "tensor2", "`$.forward.inputs[0].type.kind`"),
    (("forward", "inputs", 0, "type", "shape", 1), "four", "`$.forward.inputs[0].type.shape[1]`"),
    (("binding", "outputs", 0, "result"), 0.5, "`$.binding.outputs[0].result`"),
    (("opset",), "1", "`$.opset`"),
]


@pytest.mark.parametrize(("path", "value", "says"), PATHS)
@pytest.mark.parametrize("module", [msgspec.json, msgspec.msgpack])
def test_a_wrong_type_is_refused_with_its_path(path: tuple[Any, ...], value: Any, says: str, module: Any) -> None:
    data = plain("prim")
    part: Any = data["body"]
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    with pytest.raises(DecodeError) as error:
        decode(module.encode(data))
    assert says in error.value.message
    assert error.value.message.startswith("prim does not decode")


def test_a_missing_field_is_refused_with_its_path() -> None:
    data = plain("prim")
    del data["body"]["forward"]["nodes"][0]["target"]
    with pytest.raises(DecodeError, match=r"missing required field `target` - at `\$\.forward\.nodes\[0\]`"):
        decode(msgspec.json.encode(data))


def test_deep_nesting_is_refused() -> None:
    text = b"[" * 100_000 + b"]" * 100_000
    data = b'{"document":"prim","version":1,"producer":"","body":' + text + b"}"
    with pytest.raises(DecodeError):
        decode(data)


def test_load_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(encode(example("loop"))[:100])
    with pytest.raises(DecodeError, match=r"at .*broken\.json"):
        load(path)
    path.write_bytes(msgspec.json.encode(plain("loop") | {"version": 99}))
    with pytest.raises(UnknownVersion, match=r"at .*broken\.json"):
        load(path)
