"""A fixed sample of torch's operator database, all three ways; `nox -s opinfo` runs the whole of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("expecttest", reason="torch's operator database imports it")

import stagefold
from tools.opinfo.__main__ import main
from tools.opinfo.report import WAYS, report, worst_status
from tools.opinfo.samples import Sample, copied, database
from tools.opinfo.ways import Expected, compiled, symbolic
from tools.opinfo.worker import judge

SAMPLE = (
    ("add", "float32"), ("cummax", "float32"), ("fft_rfft", "float32"), ("index_select", "bfloat16"),
    ("nn_functional_max_pool2d", "float32"), ("nn_functional_interpolate_bilinear", "float32"),
    ("nn_functional_layer_norm", "float32"), ("bernoulli", "float32"), ("special_zeta", "float64"),
    ("scatter_reduce_amax", "float32"), ("sort", "int64"), ("masked_softmax", "float32"), ("__rpow__", "complex64"),
    ("topk", "bfloat16"), ("logical_xor", "bool"),
)  # fmt: skip


@pytest.mark.parametrize(("op", "dtype"), SAMPLE, ids=str)
def test_operators_agree_with_eager_in_every_way(op: str, dtype: str) -> None:
    found = judge(database()[op], dtype, 2, tuple(WAYS))
    assert found["samples"] > 0
    for way in WAYS:
        assert found[way]["status"] == "passed", found[way]["detail"]


def test_a_refused_operator_runs_right_in_the_default_mode() -> None:
    found = judge(database()["nonzero"], "float32", 1, ("compiled",))
    assert found["compiled"]["status"] == "refused"
    assert "BC004" in found["compiled"]["detail"]


def test_a_wrong_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from primops.decompositions import TABLE

    monkeypatch.setitem(TABLE, "aten.sinh.default", TABLE["aten.cosh.default"])
    import torch

    expected = Expected(torch.sinh, [Sample(torch.ones(3), (), {})], False)
    outcome = compiled("sinh", expected)
    assert outcome.status == "failed"
    assert "off by" in outcome.detail


def test_a_half_that_eager_lets_overflow_is_judged_by_float64() -> None:
    import torch

    from tools.opinfo.judge import Run, faults

    def run(*values: float, dtype: torch.dtype = torch.float16) -> Run:
        return Run([torch.tensor(values, dtype=dtype)], None, ())

    eager, wide = run(float("inf"), float("-inf"), 8.0), run(59959.8, -236445.0, 8.0, dtype=torch.float64)
    assert faults(run(59968.0, float("-inf"), 8.0), eager, lambda: wide, False) == []
    assert faults(run(60900.0, float("-inf"), 8.0), eager, lambda: wide, False) != []
    assert faults(run(59968.0, float("inf"), 8.0), eager, lambda: wide, False) != []


def test_copies_keep_strides_and_share_nothing() -> None:
    import torch

    base = torch.randn(4, 6)
    (copy,) = copied([Sample(base[:, ::2], (base[:, ::2].t(),), {})])
    assert copy.input.stride() == (6, 2)
    assert copy.args[0].stride() == (2, 6)
    copy.input.zero_()
    assert base[:, ::2].any()


def test_the_command_keeps_results_and_writes_the_report(tmp_path: Path) -> None:
    results, text = tmp_path / "results.jsonl", tmp_path / "coverage.md"
    given = ["--op", "neg", "--dtype", "int64", "--samples", "1", "--jobs", "1"]
    assert main([*given, "--results", str(results), "--report", str(text)]) == 0
    (row,) = [json.loads(line) for line in results.read_text().splitlines()]
    assert (row["op"], row["dtype"], worst_status(row)) == ("neg", "int64", "passed")
    assert "| int64 | 1 | 1 | 0 | 0 | 0 | 0 | 100.0 % | 100.0 % |" in report([row])


def test_calls_that_differ_in_sizes_share_a_program() -> None:
    import torch

    samples = [Sample(torch.randn(n, 4, requires_grad=True), (0,), {}) for n in (3, 5, 7)]
    outcome = symbolic("std", torch.std, samples, gradient=True)
    assert (outcome.status, outcome.detail) == ("passed", "1 programs for 1 kinds in 3 samples")


def test_a_wrong_result_at_another_size_is_told() -> None:
    import torch

    def differs(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if stagefold.is_compiling() and x.shape[0] > 4 else x + 2

    outcome = symbolic("differs", differs, [Sample(torch.ones(n), (), {}) for n in (3, 5)], gradient=False)
    assert outcome.status == "failed"
    assert outcome.detail.startswith("sample 1: result 0")
