"""Random numbers by formula in kernels: C++ and Triton against plain torch, with the state taken by value on a GPU."""

import pytest
import torch

from absint.philox import uniform
from codegen import Options, load
from codegen.stage import emit
from stagewire.parser import parse_document

SEED, OFFSET = -1234567890123, 4 * (2**32 - 2)


def rows(device, rows, columns, threads, width):
    """One kernel: the numbers of each row, their mask, and the sum of what the mask keeps of x."""
    place = f"{columns}*i + j"
    return parse_document(f"""
        loop 2 {{
          binding {{
            inputs {{
              BoundInput(name="seed", type=i64[])
              BoundInput(name="offset", type=i64[])
              BoundInput(name="x", type=f32[{rows}, {columns}]{device})
            }}
            outputs {{ Fresh(result=0) Fresh(result=1) Fresh(result=2) }}
          }}
          forward {{
            buffers {{
              %seed: i64[] = input
              %offset: i64[] = input
              %x: f32[{rows}, {columns}]{device} = input
              %drawn: f32[{rows}, {columns}]{device} = kernel
              %mask: b8[{rows}, {columns}]{device} = kernel
              %total: f32[{rows}]{device} = kernel
            }}
            inputs = ("seed", "offset", "x")
            outputs = (%drawn, %mask, %total)
            steps {{
              kernel draws for i in {rows} {{
                section for j in {columns} {{
                  %e: i64 = index {place}
                  %s: i64 = load %seed[0]
                  %o: i64 = load %offset[0]
                  %d: f32 = philox(%s, %o, %e, {threads}, {width})
                  store %drawn[{place}] = %d
                  %m: b8 = lt(%d, 0.75)
                  store %mask[{place}] = %m
                  %a: f32 = load %x[{place}]
                  %k: f32 = where(%m, %a, 0.0)
                  %t: f32 = reduce sum %k
                }}
                section {{
                  store %total[i] = %t
                }}
              }}
            }}
          }}
        }}""")


CASES = [(4, 16, 256, 4), (3, 20, 256, 8), (5, 7, 256, 1), (3, 1000, 256, 2), (2, 3000, 512, 16), (1, 1, 256, 4),
         (6, 18, 256, 4)]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("target", ["triton", "cpp"])
def test_numbers_in_kernels(case, target, directory, device):
    where = device if target == "triton" else "cpu"
    document = rows(f"@{where}:0" if where == "cuda" else "", *case)
    run = load(emit(document.forward, Options(target=target)), directory)
    x = torch.rand(case[0], case[1])
    drawn, mask, total = run(torch.tensor(SEED), torch.tensor(OFFSET), x.to(where))
    expected = uniform(SEED, OFFSET, torch.arange(x.numel()), *case[2:]).reshape(x.shape)
    assert torch.equal(drawn.cpu(), expected)
    assert torch.equal(mask.cpu(), expected < 0.75)
    torch.testing.assert_close(total.cpu(), (x * (expected < 0.75)).sum(1))


def test_four_neighbours_are_made_at_once():
    def made(*case):
        return "philox_fours(" in emit(rows("", *case).forward, Options(target="triton")).source.split("def draws")[1]

    assert made(4, 16, 256, 4)
    assert made(3, 20, 256, 8)
    assert not made(3, 1000, 256, 2)
    assert not made(6, 18, 256, 4)


def test_state_is_taken_by_value_and_compiles_for_sm_90(compiled_for_sm_90):
    _, values, aligned, magic = compiled_for_sm_90(rows("@cuda:0", 4, 16, 256, 4))
    assert values == [0, 1]
    assert not set(aligned) & {0, 1}
    assert magic == "7f454c46"
