"""Loops that take a cheaper function where every argument allows it: the text of a kernel, rewritten.

Lanes cannot branch, so that a function which is exact for every argument pays for the largest one at each point. A
loop that calls one is written twice, behind a loop that looks at the arguments: `sf_sin_f32` becomes `sf_near_sin_f32`
where none of them is too large, `sf_fmod_f32` becomes `sf_near_fmod_f32` where no quotient is. (nan is as good as any
number.)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

FAR = {
    **dict.fromkeys(("sin", "cos"), "__builtin_fabsf({0}) >= 32768.0f"),
    **dict.fromkeys(("fmod", "remainder", "floor_div"), "__builtin_fabsf({0}) >= 0x1p28f * __builtin_fabsf({1})"),
}
"""By function: when its arguments are too large for the cheaper one."""
_CALL = re.compile(rf"\bsf_({'|'.join(FAR)})_f32\(")
_DEFINITION = re.compile(r"\s*(?:const )?\w+ (v\w+) = (.*);$")
_VALUE = re.compile(r"\bv\w+")


def near_loops(lines: Sequence[str]) -> list[str]:
    """The lines, with each loop of lanes that has such a call in both forms."""
    made: list[str] = []
    position = 0
    while position < len(lines):
        stop = _end_of_loop(lines, position)
        loop = lines[position:stop]
        made += _twice(loop) if any(_CALL.search(line) for line in loop[2:]) else loop
        position = stop
    return made


def _end_of_loop(lines: Sequence[str], start: int) -> int:
    """Behind the loop of lanes that starts here; behind this line, where none does."""
    if not lines[start].lstrip().startswith("#pragma omp simd"):
        return start + 1
    indent = lines[start + 1][: -len(lines[start + 1].lstrip())]
    return next(n for n in range(start + 2, len(lines)) if lines[n] == indent + "}") + 1


def _twice(loop: Sequence[str]) -> list[str]:
    head, body = loop[1], loop[2:-1]
    indent = head[: -len(head.lstrip())]
    conditions = dict.fromkeys(condition for line in body for condition in _conditions(line))
    tests = [f"{indent}  far |= {condition};" for condition in conditions]
    looks = [f"{indent}#pragma omp simd reduction(|:far)", head, *_slice(body, conditions), *tests, f"{indent}}}"]
    near = [_CALL.sub(r"sf_near_\1_f32(", line) for line in loop]
    inner = [f"{indent}i32 far = 0;", *looks, f"{indent}if (far) {{", *_deeper(loop), f"{indent}}} else {{",
             *_deeper(near), f"{indent}}}"]  # fmt: skip
    return [f"{indent}{{", *_deeper(inner), f"{indent}}}"]


def _conditions(line: str) -> list[str]:
    """When the arguments of the calls are too large."""
    found = []
    for call in _CALL.finditer(line):
        depth, end, start, arguments = 1, call.end(), call.end(), []
        while depth:
            depth += {"(": 1, ")": -1}.get(line[end], 0)
            if depth == 0 or (depth == 1 and line[end] == ","):
                arguments.append(line[start:end].strip())
                start = end + 1
            end += 1
        found.append(FAR[call[1]].format(*arguments))
    return found


def _slice(body: Sequence[str], conditions: Iterable[str]) -> list[str]:
    """The definitions that the conditions need, in order."""
    needed = {name for condition in conditions for name in _VALUE.findall(condition)}
    kept: list[str] = []
    for line in reversed(body):
        found = _DEFINITION.match(line)
        if found is not None and found[1] in needed:
            needed.update(_VALUE.findall(found[2]))
            kept.append(line)
    return kept[::-1]


def _deeper(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines]
