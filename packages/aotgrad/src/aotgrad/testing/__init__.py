"""For tests of this and other stages: captures of plain Python functions, and hypothesis strategies of captures."""

from aotgrad.testing.torch_function import capture_by_torch_function as capture_by_torch_function
