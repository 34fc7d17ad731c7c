"""FlexAttention on a CPU: the text of one function for a call.

A task is a tile of queries of one head; it goes through the tiles of keys that its blocks list, and keeps weighted sums
of values by the largest score so far (online softmax; Dao, "FlashAttention-2", 2023). Everything is float32. The
functions of the program stand where the scores are made, statement by statement, as in any kernel; in blocks that a
mask leaves whole, without the mask. torch has no gradients on a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from codegen.cpp.kernel import Text
from codegen.cpp.operations import conversion
from codegen.cpp.statements import Scope, write_statement
from codegen.cpp.types import c_type
from codegen.flex_attention import SCORES, Attention, Function, row_of_blocks
from stagewire.loop import Axis, Kernel, Load
from stagewire.statements import results, used_axes, used_values
from stagewire.types import TensorType

QUERIES, KEYS = 64, 64
"""Of a tile; keys are a multiple of the columns of `sf_tile_product`."""
COLUMNS = 32
FEW = 4
"""Queries of a head for which no tile of keys is worth being copied."""
LOG2E = 1 / math.log(2.0)


def is_written(call: Attention, types: Mapping[str, TensorType]) -> bool:
    """Whether there is a function for a call: a forward in float32 or less, on a CPU."""
    query = types[call.query]
    return query.device == "cpu" and not call.more and query.dtype in ("float32", "bfloat16", "float16")


class AttentionWriter(Text):
    """Writes the function of a call. threshold: work below which it stays on one thread."""

    def __init__(self, call: Attention, types: Mapping[str, TensorType], threshold: int) -> None:
        super().__init__(depth=1)
        functions = [one for one in call.functions if one is not None]
        axes = tuple(axis for function in functions for part in function.axes for axis in part)
        self.call, self.types, self.threshold = call, types, threshold
        self.scope = Scope(Kernel("attention", axes, ()), types)
        self.batch, self.heads, self.length, self.features = types[call.query].shape
        _, self.shared, self.keys, self.width = types[call.value].shape
        self.wide = -(-self.width // COLUMNS) * COLUMNS
        self.queries = math.gcd(QUERIES, call.block_size[0])
        self.is_few = isinstance(self.length, int) and self.length <= FEW

    def write(self) -> list[str]:
        """The lines of the body, behind the pointers."""
        call, queries, text = self.call, self.queries, self.scope.dim
        length, tiles = text(self.length), text(-(-self.length // queries))
        self.open(f"for (i64 z = 0; z < {text(self.batch * self.heads)}; z++)")
        self.open(f"for (i64 tile = 0; tile < {tiles}; tile++)")
        self.line(f"const i64 b = z / {self.heads}, h = z % {self.heads}, g = h / {self.heads // self.shared};")
        self.line(f"const i64 first = tile * {queries};")
        self.line(f"const i64 rows = first + {queries} < {length} ? {queries} : {length} - first;")
        copies = "" if self.is_few else f", key[{self.features} * {KEYS}], value[{KEYS} * {self.wide}]"
        self.line(f"f32 query[{queries} * {self.features}]{copies};")
        self.line(f"f32 scores[{queries} * {KEYS}], mixed[{queries} * {self.wide}], most[{queries}], total[{queries}];")
        self._tile(call.query, "query", "rows", "first", self.features, (self.features, 1), f" * {call.scale!r}f")
        self.line(f"for (i64 r = 0; r < {queries}; r++) most[r] = -SF_INF, total[r] = 0;")
        self.line(f"for (i64 r = 0; r < {queries} * {self.wide}; r++) mixed[r] = 0;")
        self._over_blocks()
        self._results()
        self.close(2)
        work = self.batch * self.heads * self.length * self.keys * self.features
        if isinstance(work, int) and work < self.threshold:
            return self.lines
        clause = " reduction(|:bad)" if self.scope.reports else ""
        if not isinstance(work, int):
            clause += f" if({text(work)} >= {self.threshold})"
        shared = f"  #pragma omp parallel for collapse(2) num_threads(threads) schedule(dynamic){clause}"
        return [shared, *self.lines]

    def _over_blocks(self) -> None:
        """The tiles of keys that are computed, with the mask or without."""
        blocks, (own, other), keys = self.call.blocks, self.call.block_size, self.scope.dim(self.keys)
        if not blocks:
            self.open(f"for (i64 start = 0; start < {keys}; start += {KEYS})")
            self._attend(keys, is_masked=True)
            self.close()
            return
        for number in range(0, len(blocks), 4):
            counts, places = blocks[number : number + 2]
            self.open("")
            self.line(f"const i64 row = first / {own}, count = {self._of_row(counts)};")
            self.open("for (i64 turn = 0; turn < count; turn++)")
            step = self.scope.dim(self.types[places].stride[3])
            self.line(f"const i64 from = (i64){self._of_row(places, f'turn * {step}')} * {other};")
            self.line(f"const i64 end = from + {other} < {keys} ? from + {other} : {keys};")
            self.open(f"for (i64 start = from; start < end; start += {KEYS})")
            self._attend("end", is_masked=number == 0)
            self.close(3)

    def _of_row(self, name: str, more: str = "0") -> str:
        """What is listed for the row of blocks of the task."""
        return f"{self.scope.parameter(name)}[{row_of_blocks(self.types[name], self.scope.dim)} + {more}]"

    def _attend(self, end: str, *, is_masked: bool) -> None:
        self.line(f"const i64 columns = start + {KEYS} < {end} ? {KEYS} : {end} - start;")
        self._products()
        self.open("for (i64 r = 0; r < rows; r++)")
        self.line(f"const i64 x = first + r; f32 *const row = scores + r * {KEYS}; f32 top = most[r];")
        used = [one for n, one in enumerate(self.call.functions[:2]) if one is not None and (n == 0 or is_masked)]
        for function in used:
            self._split("z", function.axes[0])
            self._split("x", function.axes[1])
            self._statements(function, of_keys=False)
        position = len(self.lines)
        self.open("for (i64 c = 0; c < columns; c++)")
        self.line("const i64 y = start + c;")
        self._scores(used, is_masked)
        self.line("row[c] = s; top = s > top ? s : top;")
        self.close()
        clause = " reduction(|:bad)" if self.scope.reports else ""
        self.lines.insert(position, "  " * self.depth + f"#pragma omp simd reduction(max:top){clause}")
        self.line("const f32 level = top == -SF_INF ? 0 : top, less = sf_exp_f32(most[r] - level);")
        self.line("f32 sum = 0;")
        self.line("#pragma omp simd reduction(+:sum)")
        self.line("for (i64 c = 0; c < columns; c++) row[c] = sf_exp_f32(row[c] - level), sum += row[c];")
        self.line(f"for (i64 c = columns; c < {KEYS}; c++) row[c] = 0;")
        self.line("total[r] = total[r] * less + sum; most[r] = top;")
        self.line(f"if (less != 1) for (i64 e = 0; e < {self.wide}; e++) mixed[r * {self.wide} + e] *= less;")
        self.close()
        self._mix()

    def _products(self) -> None:
        """The products of queries and keys, in `scores`."""
        if self.is_few:
            self._each_pair()
            self.line("f32 product = 0;")
            self.line("#pragma omp simd reduction(+:product)")
            key = self._element(self.call.key, "(start + c)")
            self.line(f"for (i64 e = 0; e < {self.features}; e++) product += query[r * {self.features} + e] * {key};")
            self.line(f"scores[r * {KEYS} + c] = product;")
            self.close(2)
            return
        self._tile(self.call.key, "key", "columns", "start", self.features, (1, KEYS))
        self._tile(self.call.value, "value", "columns", "start", self.width, (self.wide, 1))
        self.line(f"for (i64 r = columns * {self.wide}; r < {KEYS} * {self.wide}; r++) value[r] = 0;")
        self.line(f"for (i64 r = 0; r < {self.queries} * {KEYS}; r++) scores[r] = 0;")
        self.line(f"sf_tile_product<{KEYS}>(rows, {self.features}, query, {self.features}, key, scores);")

    def _mix(self) -> None:
        """Values by their weights, added to `mixed`."""
        if not self.is_few:
            self.line(f"sf_tile_product<{self.wide}>(rows, {KEYS}, scores, {KEYS}, value, mixed);")
            return
        self._each_pair()
        self.line(f"const f32 weight = scores[r * {KEYS} + c];")
        self.line("#pragma omp simd")
        value = self._element(self.call.value, "(start + c)")
        self.line(f"for (i64 e = 0; e < {self.width}; e++) mixed[r * {self.wide} + e] += weight * {value};")
        self.close(2)

    def _each_pair(self) -> None:
        self.open("for (i64 c = 0; c < columns; c++)")
        self.open("for (i64 r = 0; r < rows; r++)")

    def _scores(self, functions: Sequence[Function], is_masked: bool) -> None:
        """Lines up to `s`, a score as the functions have it, -inf where there is none."""
        score_mod, mask_mod = self.call.functions[:2]
        for function in functions:
            self._split("y", function.axes[2])
        self.line("const f32 score = row[c];")
        changed = "score" if score_mod is None else self._called(score_mod)
        kept = self._called(mask_mod) if is_masked and mask_mod is not None else ""
        self.line(f"const f32 s = {f'{kept} ? {changed} : -SF_INF' if kept else changed};")

    def _called(self, function: Function) -> str:
        """What a function makes of `score`."""
        self._statements(function, of_keys=True)
        value, dtype = function.value, self.scope.dtype(function.value, "float32")
        text = self.scope.operand(value, dtype)
        return text if dtype == "bool" else conversion(dtype, "float32", text)

    def _statements(self, function: Function, *, of_keys: bool) -> None:
        """The statements that are other for each key, or those that are not."""
        along = {axis.name for axis in function.axes[2]}
        varying: set[str] = set()
        for statement in function.statements:
            is_score = isinstance(statement, Load) and statement.buffer == SCORES
            if is_score or used_axes(statement) & along or used_values(statement) & varying:
                varying.update(results(statement))
            if is_score:
                self.scope.values[statement.result], self.scope.dtypes[statement.result] = "score", "float32"  # type: ignore[union-attr]
            elif of_keys == (not varying.isdisjoint(results(statement))):
                for text in write_statement(self.scope, statement):
                    self.line(text)

    def _split(self, flat: str, axes: Sequence[Axis]) -> None:
        """The axes that a direction of the scores is cut into."""
        rest = flat
        for number, axis in reversed(list(enumerate(axes))):
            size = self.scope.dim(axis.size)
            place = f"{rest} % {size}" if number else rest
            self.line(f"const i64 {self.scope.axes[axis.name]} = {place};")
            rest = f"({rest} / {size})"

    def _tile(
        self, buffer: str, name: str, rows: str, first: str, width: object, steps: tuple[object, object], then: str = ""
    ) -> None:
        """Copy rows of an operand to an array as float32, `steps` apart."""
        element = self._element(buffer, f"({first} + r)")
        self.open(f"for (i64 r = 0; r < {rows}; r++)")
        self.line(f"for (i64 e = 0; e < {width}; e++) {name}[r * {steps[0]} + e * {steps[1]}] = {element}{then};")
        self.close()

    def _element(self, buffer: str, row: str) -> str:
        """Element `e` of a row of an operand, as float32."""
        type_, head = self.types[buffer], "h" if buffer == self.call.query else "g"
        element = f"{self.scope.parameter(buffer)}[{self._place(type_, head, row, 'e')}]"
        load = c_type(type_.dtype).load  # type: ignore[arg-type]
        return f"{load}({element})" if load else element

    def _results(self) -> None:
        out, logsumexp, largest = self.call.results
        self.open("for (i64 r = 0; r < rows; r++)")
        self.line("const f32 all = total[r] == 0 ? 1 : total[r];")
        if out:
            self.open(f"for (i64 e = 0; e < {self.width}; e++)")
            self._store(out, f"mixed[r * {self.wide} + e] / all", "e")
            self.close()
        if logsumexp:
            self._store(logsumexp, f"(most[r] + sf_log_f32(all)) * {LOG2E!r}f")
        if largest:
            self._store(largest, f"most[r] * {LOG2E!r}f")
        self.close()

    def _store(self, buffer: str, value: str, *lanes: str) -> None:
        self.scope.written.add(buffer)
        type_ = self.types[buffer]
        store = c_type(type_.dtype).store  # type: ignore[arg-type]
        place = f"{self.scope.parameter(buffer)}[{self._place(type_, 'h', '(first + r)', *lanes)}]"
        self.line(f"{place} = {store}({value});")

    def _place(self, type_: TensorType, *ways: str) -> str:
        steps = map(self.scope.dim, type_.stride)
        return " + ".join(f"{way} * {step}" for way, step in zip(("b", *ways), steps, strict=True))
