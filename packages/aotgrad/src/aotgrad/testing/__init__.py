"""For tests of this and other stages: captures of Python functions, programs by hypothesis, comparison with eager."""

from aotgrad.testing.conformance import Tolerance as Tolerance
from aotgrad.testing.conformance import check_against_eager as check_against_eager
from aotgrad.testing.conformance import check_second_order as check_second_order
from aotgrad.testing.conformance import eager_refuses_backward as eager_refuses_backward
from aotgrad.testing.conformance import run_capture as run_capture
from aotgrad.testing.torch_function import capture_by_torch_function as capture_by_torch_function
