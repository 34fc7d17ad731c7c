"""Every sample compiles to machine code for an H100 or H200 (sm_90) on a machine without a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import stagewire
from codegen.triton.tuning import SM_90
from stagewire.testing.symbolic import factorised

HERE = Path(__file__).parent


def test_samples_compile_for_sm_90(tmp_path):
    samples = sorted(str(path) for path in (HERE.parent / "data").rglob("*.json"))
    softmax = stagewire.load(HERE.parent / "data" / "softmax.json", expect="loop")
    stagewire.save(factorised(softmax, {100: "n"}), tmp_path / "rows_of_n.json")
    samples.append(str(tmp_path / "rows_of_n.json"))
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, str(HERE / "compile_samples.py"), *samples]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    kernels = [line.split() for line in done.stdout.splitlines()]
    assert len(kernels) >= len(samples)
    assert all(magic == "7f454c46" and int(size) > 1000 for _, size, magic in kernels)


@pytest.mark.parametrize(
    ("script", "least"),
    [
        ("compile_templates.py", 12),
        ("compile_depthwise.py", 11),
        ("compile_horizontal_fusion.py", 4),
        ("compile_flex_attention.py", 7),
    ],
)
def test_functions_of_other_forms_compile_for_sm_90_within_its_shared_memory(script, least, tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, str(HERE / script)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    kernels = [line.split() for line in done.stdout.splitlines()]
    assert len(kernels) >= least
    assert all(magic == "7f454c46" and int(shared) <= SM_90.shared_memory for _, _, shared, magic in kernels)
