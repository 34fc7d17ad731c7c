"""Kernels as loops over the rows and columns of a product; which calls may be one with which kernels."""

import pytest

from codegen import Options
from codegen.choices import chosen
from codegen.stage import emit
from codegen.testing.product_texts import SHORT, batched_scale, linear_relu
from codegen.triton.products import Product, tiles_for
from codegen.triton.sites import find_sites
from codegen.triton.tuning import SM_90
from stagewire.parser import parse_document
from stagewire.program import Allocate, CallExtern, Launch, Release


def sites(graph):
    types = {buffer.name: buffer.type for buffer in graph.buffers}
    return list(find_sites(graph, types)[1].values())


def test_a_kernel_in_place_of_the_product_is_one_with_it():
    (site,) = sites(linear_relu(8, 768, 100, "bfloat16"))
    assert site.epilogue is not None
    assert [axis.size for axis in (*site.epilogue.rows, *site.epilogue.columns)] == [8, 768]
    assert not site.kept


def test_a_turned_result_is_one_with_the_product():
    (site,) = sites(batched_scale(3, 10, 20, 5, "float32"))
    assert [axis.size for part in (site.epilogue.batch, site.epilogue.rows) for axis in part] == [3, 10]


def test_the_product_has_no_memory_under_a_template():
    unit = emit(linear_relu(8, 768, 100, "bfloat16"), Options(target="triton", autotune="time"))
    own, other = chosen(unit, {}).instructions, chosen(unit, {0: 0}).instructions
    assert any(isinstance(one, CallExtern) for one in own)
    assert [type(one) for one in other if not isinstance(one, Release)][-2:] == [Allocate, Launch]
    assert not any("p" in one.buffers for one in other if isinstance(one, Launch))


def chain(text, dtype="float32"):
    t = SHORT[dtype]
    return parse_document(f"""
      loop 2 {{
        binding {{ inputs = () outputs = () }}
        forward {{
          buffers {{
            %x: {t}[16, 16] = input
            %w: {t}[16, 16] = input
            %p: {t}[16, 16] = extern
            %q: {t}[16, 16] = extern
            %y: {t}[16, 16] = kernel
            %z: {t}[16] = kernel
          }}
          inputs = ("x", "w")
          outputs = (%y,)
          steps {{ {text} }}
        }}
      }}""").forward


ADD = """
  kernel add for i in 256 {
    section { %a: f32 = load %p[i] %b: f32 = load %q[i] %c: f32 = add(%a, %b) store %y[i] = %c }
  }"""


def test_of_two_products_for_one_kernel_the_last_is_one_with_it():
    found = sites(chain(f"%p = aten.mm.default(%x, %w) %q = aten.mm.default(%w, %x) {ADD}"))
    assert {site.product.result: site.kernel is not None for site in found} == {"p": False, "q": True}


def test_a_kernel_that_sums_over_rows_is_not_one_with_it():
    total = """
      %p = aten.mm.default(%x, %w)
      kernel total for i in 16 {
        section for j in 16 { %a: f32 = load %p[16*i + j] %s: f32 = reduce sum %a }
        section { store %z[i] = %s }
      }"""
    (site,) = sites(chain(total))
    assert site.kernel is None


def test_a_call_that_may_write_an_operand_stands_between():
    text = "%p = aten.mm.default(%x, %w) %q = aten.relu_.default(%x) " + ADD
    (site,) = sites(chain(text))
    assert site.kernel is None


def test_a_kernel_that_takes_sizes_is_not_one_with_it():
    graph = chain(f"%p = aten.mm.default(%x, %w) {ADD.replace('load %q[i]', 'load %q[{n}*i]')}")
    (site,) = sites(graph)
    assert site.kernel is None


def test_nothing_is_chosen_unless_asked_for():
    assert not emit(linear_relu(8, 16, 16, "float32"), Options(target="triton")).choices
    assert not sites(chain("%p = aten.mm.default(%x, %w)", "float64"))


@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 4096, 4096), (4096, 3072, 768), (8192, 50264, 768), (3, 17, 100000)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_some_tiles_suit_each_product(sizes, dtype):
    rows, columns, depth = sizes
    tiles = tiles_for(Product("a", "b", "c", 1, rows, columns, depth, (0, columns, 1)), dtype)
    assert 1 <= len(tiles) <= SM_90.timed_tiles
    assert len(set(tiles)) == len(tiles)
    for tile in tiles:
        assert tile.shared(4 if dtype == "float32" else 2) <= SM_90.shared_memory
        assert tile.rows <= max(16, 2 * rows)
        assert tile.columns <= max(16, 2 * columns)
