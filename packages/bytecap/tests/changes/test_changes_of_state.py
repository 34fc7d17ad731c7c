"""Reading torch's state.

Each case is (program, arguments, a change after compilation): the compiled program must follow.
"""

from __future__ import annotations

import os
import unittest.mock

import pytest
import torch

from bytecap import Captured
from bytecap.testing.changes import Cases, check_change, setting

T = torch.arange(6.0).reshape(2, 3)
case = CASES = Cases()


def deterministic():
    return setting(torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True)


def deterministic_warn():
    def write(value):
        torch.use_deterministic_algorithms(value, warn_only=value)

    return setting(torch.is_deterministic_algorithms_warn_only_enabled, write, True)


def matmul_precision():
    return setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium")


def tf32():
    matmul = torch.backends.cuda.matmul
    return setting(lambda: matmul.allow_tf32, lambda value: setattr(matmul, "allow_tf32", value), True)


def computes(x):
    return x * 2 + torch.zeros(3) @ torch.ones(3, 3) + (x @ torch.ones(3, 3)).sum()


MODES = {
    "no_grad": torch.no_grad, "inference": torch.inference_mode, "autocast": lambda: torch.autocast("cpu"),
    "autocast, off": lambda: torch.autocast("cpu", enabled=False),
    "autocast, half": lambda: torch.autocast("cpu", torch.float16),
    "default dtype": lambda: setting(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "default device": lambda: torch.device("meta"), "deterministic": deterministic, "warn": deterministic_warn,
    "precision": matmul_precision, "anomaly": torch.autograd.detect_anomaly,
    "dual": torch.autograd.forward_ad.dual_level,
    "threads": lambda: setting(torch.get_num_threads, torch.set_num_threads, 1),
    "one-threaded engine": lambda: torch.autograd.set_multithreading_enabled(False),
}  # fmt: skip


@pytest.mark.parametrize("name", MODES)
@pytest.mark.filterwarnings("ignore:Anomaly")
def test_computing_under_a_mode(name: str) -> None:
    check_change((computes, (T.clone().requires_grad_(),), MODES[name]))


@case
def state_read_grad():
    return (lambda x: x * (2 if torch.is_grad_enabled() else 3)), (T,), torch.no_grad


@case
def state_read_inference():
    return (lambda x: x * (2 if torch.is_inference_mode_enabled() else 3)), (T,), torch.inference_mode


@case
def state_read_autocast():
    return (lambda x: x * (2 if torch.is_autocast_enabled("cpu") else 3)), (T,), lambda: torch.autocast("cpu")


@case
def state_read_autocast_dtype():
    return (
        (lambda x: x * (2 if torch.get_autocast_dtype("cpu") == torch.bfloat16 else 3)),
        (T,),
        lambda: setting(
            lambda: torch.get_autocast_dtype("cpu"), lambda v: torch.set_autocast_dtype("cpu", v), torch.float16
        ),
    )


@case
def state_read_default():
    return (
        (lambda x: (x * 2, torch.get_default_dtype())),
        (T,),
        lambda: setting(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    )


@case
def state_read_default_device():
    return (
        (lambda x: (x * 2, str(torch.get_default_device()))),
        (T,),
        # None, not "cpu": that would leave a mode behind, in this thread alone.
        lambda: setting(lambda: None, torch.set_default_device, "meta"),
    )


@case
def state_read_threads():
    return (
        (lambda x: x * torch.get_num_threads()),
        (T,),
        lambda: setting(torch.get_num_threads, torch.set_num_threads, 1),
    )


@case
def state_read_det():
    return (lambda x: x * (2 if torch.are_deterministic_algorithms_enabled() else 3)), (T,), deterministic


@case
def state_read_det_warn():
    return (
        (lambda x: x * (2 if torch.is_deterministic_algorithms_warn_only_enabled() else 3)),
        (T,),
        deterministic_warn,
    )


@case
def state_read_prec():
    return (lambda x: (x * 2, torch.get_float32_matmul_precision())), (T,), matmul_precision


@case
def state_read_tf32():
    return (lambda x: (x * 2, torch.backends.cuda.matmul.allow_tf32)), (T,), tf32


@case
def state_read_cudnn_bench():
    return (
        (lambda x: (x * 2, torch.backends.cudnn.benchmark)),
        (T,),
        lambda: setting(
            lambda: torch.backends.cudnn.benchmark, lambda v: setattr(torch.backends.cudnn, "benchmark", v), True
        ),
    )


@case
def state_read_anomaly():
    return (lambda x: (x * 2, torch.is_anomaly_enabled())), (T,), lambda: torch.autograd.detect_anomaly()


@case
def state_mkldnn():
    return (lambda x: (x * 2, torch.backends.mkldnn.enabled)), (T,), lambda: torch.backends.mkldnn.flags(enabled=False)


@case
def state_default_tensor_type():
    return (
        (lambda x: torch.ones(3) * 2),
        (T,),
        lambda: setting(lambda: torch.FloatTensor, torch.set_default_tensor_type, torch.DoubleTensor),
    )


def variable(value):
    return unittest.mock.patch.dict(os.environ, {"BYTECAP_TEST": value})


@case
def environment_variable():
    return (lambda x: x * int(os.environ.get("BYTECAP_TEST", "1"))), (T,), lambda: variable("3")


@case
def environment_variable_getenv():
    return (lambda x: x * 2 if os.getenv("BYTECAP_TEST") is None else x * 3), (T,), lambda: variable("3")


@case
def environment_variable_in():
    return (lambda x: x * 2 if "BYTECAP_TEST" in os.environ else x * 3), (T,), lambda: variable("3")


@case
def environment_variable_item():
    def program(x):
        try:
            return x * len(os.environ["BYTECAP_TEST"])
        except KeyError:
            return x + 1

    return program, (T,), lambda: variable("abc")


@pytest.mark.parametrize("name", CASES)
def test_change(name: str) -> None:
    check_change(CASES[name]())


ASKED = {
    "get": lambda x: x * 2 if os.environ.get("BYTECAP_TEST") else x * 3,
    "getenv": lambda x: x * 2 if os.getenv("BYTECAP_TEST") else x * 3,
    "in": lambda x: x * 2 if "BYTECAP_TEST" in os.environ else x * 3,
}


@pytest.mark.parametrize("value", [None, "here"])
@pytest.mark.parametrize("name", ASKED)
def test_other_environment_variables_may_come_and_go(name: str, value: str | None) -> None:
    with unittest.mock.patch.dict(os.environ, {} if value is None else {"BYTECAP_TEST": value}):
        other = unittest.mock.patch.dict(os.environ, {"BYTECAP_OTHER": "1"})
        events = check_change((ASKED[name], (T,), lambda: other))
    assert sum(isinstance(event, Captured) for event in events) == 1
