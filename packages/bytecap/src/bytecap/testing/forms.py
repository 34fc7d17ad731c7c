"""The forms of generated programs: templates with holes for expressions of a type, known and new variables.

hole ::= <int> <tensor> <list> <dict> <text> <set> <deque> <box> <condition> <key> | <var_TYPE> | <new_TYPE>
"""

from __future__ import annotations

PARAMETERS = {
    "tensor": ["t0", "t1"], "int": ["n0", "n1"], "list": ["l0"], "dict": ["d0"], "text": ["s0"], "set": ["u0"],
    "deque": ["q0"], "box": ["b0"],
}  # fmt: skip
EXPRESSIONS: dict[str, tuple[str, ...]] = {
    "int": (
        "<int> + <int>", "<int> - <int>", "<int> * <int>", "<int> // 2", "<int> % 3", "-<int>", "len(<list>)",
        "<tensor>.dim()", "<tensor>.numel()", "min(<int>, <int>)", "max([0, *<list>])", "sum(<list>)", "abs(<int>)",
        "(<int> if <condition> else <int>)", "<dict>.get(<key>, <int>)", "len(<text>)", "<list>.count(<int>)",
        "sum(v * <int> for v in <list>)", "int(<condition>)", "len([k for k in <dict> if k > <key>])",
        "(lambda a, b=2: a * b)(<int>)", "<box>.value", "<box>.double", "len(<box>)", "<box>(<int>, k=<int>)",
        "sum(<set>)", "len(<set>)", "(<deque>[0] if <deque> else <int>)", "sum(counting(<int> % 5))",
        "next(iter(<list>), <int>)", "functools.reduce(operator.add, <list>, <int>)",
        "sum(itertools.accumulate(<list>))",
        "max(<list>, default=<int>)", "min(<list>, key=lambda v: -v, default=0)", "hash(<box>) % 7", "<int> ** 2 & 5",
        "sum(a * b for a, b in itertools.product(<list>[:2], <list>[:2]))", "Box.twice(<int>)", "next(walk, <int>)",
        "(lambda *a, k=<int>, **n: sum(a) + k + len(n))(*<list>, z=1)", "collections.Counter(<list>)[<int>]",
        "bool(<box>) + (<int> in <box>)", "divmod(<int>, 3)[1]", "getattr(<box>, 'lazy_one', <int>)",
        "functools.partial(max, <int>)(<int>)", "operator.itemgetter(0)([<int>])", "len(type(<box>).made)",
        "<dict>.setdefault(<key>, <int>)", "(<list> or [7])[-1]", "len(<dict>)",
    ),
    "tensor": (
        "<tensor> + <tensor>.sum()", "<tensor> * <int>", "1.5 - <tensor>", "torch.relu(<tensor>)", "<tensor>.sum()",
        "<tensor>.reshape(-1)", "<tensor>.clone()", "-<tensor>", "torch.where(<tensor> > 0, 1.0, 0.0)",
        "<tensor>.detach()",
        "(<tensor> if <condition> else <tensor>)", "sum([<tensor>.mean() for _ in <list>], <tensor>)",
        "<tensor>[..., :1]",
        "torch.stack([<tensor>.sum(), <tensor>.mean()])", "<tensor>.view(-1)[:2]", "torch.zeros(len(<list>), 2)",
        "[<tensor>, <tensor>][<int> > 1]", "<tensor>.unsqueeze(0)", "(<tensor>, <int>)[0]", "<tensor>.new_ones(2)",
    ),
    "list": (
        "[<int>, <int>]", "[]", "<list> + <list>", "<list>[<int>:<int>]", "sorted(<list>)", "list(reversed(<list>))",
        "[v + <int> for v in <list>]", "[v for v in <list> if v > <int>]", "list(range(<int> % 5))", "<list> * 2",
        "list(<dict>.values())", "[a * b for a, b in zip(<list>, <list>)]", "list(map(lambda v: v - 1, <list>))",
        "list(itertools.chain(<list>, <deque>))", "list(itertools.islice(counting(20), <int> % 4))", "list(<set>)",
        "list(counting(<int> % 6, 2))", "list(tree([<int>, [<int>, [<int>]]]))", "[*<box>]", "list(<deque>)",
        "[k for k, g in itertools.groupby(sorted(<list>))]", "sorted(<list>, key=lambda v: v % 3, reverse=True)",
        "list(filter(None, <list>))", "[len(r) for r in itertools.zip_longest(<list>, <list>)]", "<list>[::-1]",
        "list(map(operator.add, <list>, <list>))", "list(dict.fromkeys(<list>))",
        "[i for i, v in enumerate(<list>, 1)]",
        "list(itertools.takewhile(lambda v: v > <int>, <list>))", "[a for a, *rest in [[*<list>, 1]]]",
        "[a + b for a, b in itertools.pairwise(<list>)]", "list(reversed(<dict>.values()))",
        "[*<list>, <int>]", "list(<tensor>.shape)", "[<int> for a in <list>[:2] for b in <list>[:2] if a < b]",
    ),
    "dict": (
        '{"a": <int>}', "<dict> | {<key>: <int>}", "{k: v + 1 for k, v in <dict>.items()}", "dict(<dict>)",
        "{<key>: <int>, **<dict>}", "dict(zip('ab', <list>))", "dict(collections.Counter(map(str, <list>)))",
        "collections.defaultdict(int, <dict>)",
        "collections.OrderedDict(<dict>)", "{k: v for k, v in <dict>.items() if v in <set>}",
        "vars(Box(<int>)).copy()", "dict(sorted(<dict>.items()))", "<dict>.copy()",
    ),
    "text": (
        '"ab"', 'f"{<var_int>}-{<var_text>}"', "str(<int>)", "<text> + <text>", "<text>.upper()",
        'f"{<var_tensor>.shape}"',
        '", ".join(sorted(<dict>))', "repr(<list>)", 'f"{<var_int>:>4}|{<var_text>!r}"', "<text>[<int>:]",
        "str(<dict>)", "repr(<box>)", 'f"{<var_box>!r:>12}|{<var_int>:+d}"', "str(<set>)", "repr(<deque>)",
        "type(<box>).__name__",
        "'%s|%d' % (<text>, <int>)", "'-'.join(str(v) for v in <list>)", "'{:>4}{}'.format(<int>, <text>)",
        "<text>.replace('a', 'b').title()", "str([<box>, <set>])",
    ),
    "set": (
        "{<int>, <int>}", "set(<list>)", "(<set> | <set>)", "(<set> & <set>)", "<set> - {<int>}", "(<set> ^ <set>)",
        "{v % 3 for v in <list>}", "set(<dict>.values())", "set(frozenset(<list>) | <set>)",
        "<set>.union(<list>, <box>)",
        "<set>.copy()", "{*<list>, *<set>}",
    ),
    "deque": (
        "collections.deque(<list>, maxlen=<int> % 4 + 1)", "collections.deque(<list>)", "<deque>.copy()",
        "collections.deque(reversed(<deque>), 3)",
    ),
    "box": (
        "Box(<int>, <list>)", "SubBox(<int>)", "<box> + <int>", "<box> + <box>", "<int> + <box>", "Box.of(<int>)",
        "SubBox.of(<int>)", "<box>.grow(<int>)", "max(<box>, <box>)", "sorted([<box>, <box>])[0]", "copy.copy(<box>)",
        "{<box>: <box>}.popitem()[1]", "type(<box>)(<int>)",
    ),
    "condition": (
        "<box> == <box>", "<box> < <box>", "isinstance(<box>, SubBox)", "<int> in <set>", "<set> <= <set>",
        "<box> is <box>",
        "hasattr(<box>, 'extra')", "all(<list>)", "<box> in [<box>]", "<box> != <int>", "not <set>",
        "<int> < <int>", "<int> == <int>", "<int> in <list>", "<key> in <dict>", "not <condition>", "<list>",
        "<condition> and <condition>", "<condition> or <condition>", "<tensor>.dim() > <int>", "<list> == <list>",
        "0 <= <int> < <int>", "<tensor> is <tensor>", "<text> != <text>", "any(v > <int> for v in <list>)",
    ),
    "key": ('"a"', '"b"', '"c"'),
}  # fmt: skip
RISKY: dict[str, tuple[str, ...]] = {
    "int": ("<int> // <int>", "<int> % <int>", "<list>[<int>]", "<dict>[<key>]", "<list>.index(<int>)",
    "max(<list>)"),
    "tensor": (
        "<tensor> + <tensor>", "<tensor>[<int>]", "torch.cat([<tensor>, <tensor>], dim=<int>)", "<tensor>.t()",
        "torch.full((<int>, 2), 1.5)", "torch.stack([<tensor>, <tensor>])", "<tensor>.mean(-1)",
        "<tensor> @ <tensor>",
    ),
    "list": ("[<list>[<int>]]", "[1 // v for v in <list>]"),
    "dict": ('{<key>: <dict>[<key>]}',),
}  # fmt: skip
"""Forms that often raise."""

STATEMENTS = (
    "<var_int> += <int>", "<var_list>.append(<int>)", "<var_list>[:1] = [<int>]", "<var_list> += <list>",
    "<var_list>.sort()", "<var_list>[<int>:] = <list>", "<var_dict>[<key>] = <int>", "<var_dict>.update(<dict>)",
    "<var_dict>.pop(<key>, None)", "<var_tensor> = <var_tensor> + <int>", "<var_tensor>.add_(<int>)",
    "<var_tensor>.view(-1)[:1] = <int>", "<var_tensor> *= <int>", 'print(<text>, <int>, sep="/")',
    "<var_int>, <var_int> = <int>, <int>", "(<var_int>, *<var_list>) = [<int>, *<list>]", "<var_list>.reverse()",
    "<var_list>.insert(<int>, <int>)", "l0 = <list>", "<var_list>.extend([v for v in <list>])", "l0 = <var_list>",
    "<var_int> = (<var_int> := <int>) * 2", "d0, <var_list> = <dict>, <list>", "t0, t1 = <tensor>, <tensor>",
    "<var_dict>.clear()", "<var_list>.pop() if <var_list> else None", "<var_dict> |= <dict>", "t0[...] = <int>",
    "assert <condition> or True, <text>",
    "<var_set>.add(<int>)", "<var_set>.discard(<int>)", "<var_set> |= <set>", "<var_set>.update(<list>)",
    "<var_set> &= <set>", "<var_set>.clear()", "<var_deque>.append(<int>)", "<var_deque>.appendleft(<int>)",
    "<var_deque>.rotate(<int>)", "<var_deque>.extend(<list>)", "<var_box>.value = <int>", "<var_box>.double = <int>",
    "<var_box>.items.append(<int>)", "<var_box>.grow()", "<var_box>.extra = <tensor>", "<var_box>.items = <var_list>",
    "<var_box>.__dict__.pop('extra', None)", "setattr(<var_box>, 'value', <int>)", "print(<box>, <set>, end=';')",
    "<var_dict>.setdefault(<key>, <int>)", "<var_tensor> = functools.partial(torch.add, <tensor>)(<int>)",
    "print(sys.exc_info()[0])", "log.append(<text>)", "u0, q0 = <set>, <deque>", "b0, <var_box> = <box>, <box>",
    "<var_box> += <int>", "walk = counting(<int>, 2)", "<var_list>[::2] = <list>[::2]",
)  # fmt: skip
RISKY_STATEMENTS = (
    "<var_list>.pop()", "<var_list>[<int>] = <int>", "del <var_list>[<int>]", "del <var_dict>[<key>]",
    "assert <condition>, <text>", "(<var_int>, *<var_list>) = <list>", "<var_list>.remove(<int>)", "del <var_int>",
    "<var_tensor>[0] = <int>", "raise ValueError(<text>)", "raise Failure(<int>, <text>)", "<var_set>.remove(<int>)",
    "raise KeyError(<text>) from ValueError(<int>)", "<var_deque>.popleft()",
    "<var_int> = walk.throw(Failure(<int>))",
    "<var_int> = next(walk)", "walk.close()", "del <var_box>.extra", "<var_int> = <box>[<int>]",
    "<var_int> = walk.send(2)",
    "<var_dict>[<key>] += 1", "raise", "<var_int> = <box>.nothing",
)  # fmt: skip
BLOCKS = (
    ("if <condition>:", "else:"),
    ("if <condition>:", "elif <condition>:", "else:"),
    ("for <new_int> in list(<list>):",),
    ("for <new_int>, <new_int> in enumerate(list(<list>)):", "else:"),
    ("for <new_int> in range(<int> % 4):",),
    ("try:", "except (IndexError, KeyError):"),
    ("try:", "except ZeroDivisionError as error:", "else:", "finally:"),
    ("try:", "finally:"),
    ("with torch.no_grad():",),
    ("with noted(log, <text>) as <new_int>:",),
    ("with Swallow(log):",),
    ("with Swallow(log) as outer, contextlib.suppress(IndexError):",),
    ("for <new_int> in counting(<int> % 5):", "else:"),
    ("for <new_int> in sorted(<set>):",),
    ("for <new_int>, <new_int> in zip(list(<list>), counting(9)):",),
    ("try:", "except Failure as failure:", "finally:"),
    ("try:", "except (Failure, TypeError) as caught:", "except Exception as caught:"),
)
