"""How values stand in a line: what writes and reads the rows of `stagewire.forms`, and whatever has no row there.

Writing goes by the value's class. Reading goes by the type of the field, which is also the whitelist of the structs
that a text may name. Alternatives are told apart by the token they begin with; those that begin alike are read once as
far as they are alike, and of their faults the one furthest into the text is reported.
"""

from __future__ import annotations

import base64
import functools
import itertools
import operator
import re
import string
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, cast

import msgspec

from stagewire import graph, loop
from stagewire.combinators import Notation, around, commas, either, mapped, named, spelled
from stagewire.errors import ExprError
from stagewire.expr import Dim, Expr
from stagewire.forms import BODIES, FORMS, KEYWORDS, LINES, SHORT_DTYPE, STORE_SIGN
from stagewire.graph import Arg
from stagewire.scanner import (
    BARE,
    DEVICE,
    IDENTIFIER,
    INTEGER,
    LEAD,
    TARGET,
    TOKEN,
    Fault,
    Scanner,
    bare,
    is_expression,
    quote,
)
from stagewire.types import contiguous_stride

_FLOAT = re.compile(r'-?[0-9]+(?:\.[0-9]*(?:[eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)|float\("(-?inf|nan)"\)')
_NON_FINITE = re.compile(r"(?:-?inf|nan)(?![A-Za-z0-9_(])")
_PLAIN_INTEGER = re.compile(r"-?[0-9]+(?=[],)};])")
_SIGN = re.compile(r"[-+]")
_NO_CALL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?![A-Za-z0-9_(])")
_KEYWORD = re.compile(r'([A-Za-z0-9_][A-Za-z0-9_.]*|"(?:[^"\\\n]|\\.)*")[ \t\n]*=')

Field = msgspec.structs.FieldInfo
Struct = msgspec.Struct
Values = dict[str, Any]


# Forms: the rows


class Part:
    """A piece of a form: text, then a field (or several at once) in a notation; `optional` if both may be left out."""

    def __init__(self, text: str, fields: tuple[Field, ...] = (), notation: str = "", optional: bool = False) -> None:
        self.text, self.fields, self.optional = text, fields, optional
        self.key = (text, notation, optional, tuple((field.name, field.type) for field in fields))
        self._tokens = TOKEN.findall(text)
        if fields:
            first, self._get = fields[0], operator.attrgetter(*[field.name for field in fields])
            row = NOTATIONS[notation] if notation else NOTATIONS.get(first.name)
            kind = without_none(first.type) if optional else first.type
            self.notation = notation_of(kind) if row is None else row(kind)

    @property
    def leads(self) -> tuple[str, ...]:
        return tuple(LEAD.findall(self.text)[:1]) or self.notation.leads

    def write(self, item: Any) -> str:
        if not self.fields:
            return self.text
        value = self._get(item)
        if self.optional and (value == () or is_default(self.fields[0], value)):
            return ""
        return self.text + self.notation.write(value)

    def read(self, scanner: Scanner, values: Values) -> None:
        if self.optional and not scanner.at(self._tokens[0]):
            values.update({field.name: () for field in self.fields if field.required})
            return
        for token in self._tokens:
            scanner.expect(token)
        if len(self.fields) == 1:
            values[self.fields[0].name] = self.notation.read(scanner)
        elif self.fields:
            found = self.notation.read(scanner)
            values.update({field.name: value for field, value in zip(self.fields, found, strict=True)})


class Assignments:
    """`field=value, ...`, fields at their default left out. whole: whatever is required has to be among them."""

    text, leads = "", ()

    def __init__(self, kind: type[Struct], without: Iterable[str], whole: bool) -> None:
        self.kind, self.whole = kind, whole
        self.fields = tuple(field for field in fields_of(kind) if field.name not in without)

    def write(self, item: Any) -> str:
        found = [(field, getattr(item, field.name)) for field in self.fields]
        return ", ".join([f"{field.name}={write(value)}" for field, value in found if not is_default(field, value)])

    def read(self, scanner: Scanner, values: Values) -> None:
        start = scanner.position
        for _ in scanner.items():
            field = take_field(scanner, self.kind, values)
            scanner.expect("=")
            values[field.name] = notation_of(field.type).read(scanner)
        if self.whole and scanner.at(")"):
            build(self.kind, values, start)


class Form:
    """The parts of a struct's text in order; `rest` writes the fields that they do not cover."""

    def __init__(self, kind: type[Struct], row: str | None, elsewhere: tuple[str, ...] = ()) -> None:
        self.kind = kind
        call = (Part(f"{kind.__name__}("), Assignments(kind, elsewhere, whole=True), Part(")"))
        self.parts: tuple[Part | Assignments, ...] = call if row is None else tuple(_parts(kind, row))
        covered = [field.name for part in self.parts for field in part.fields]
        self.rest = Assignments(kind, (*covered, *elsewhere), whole=False)

    def write(self, item: Any) -> str:
        return "".join([part.write(item) for part in self.parts])


def _parts(kind: type[Struct], row: str) -> Iterator[Part]:
    known = {field.name: field for field in fields_of(kind)}
    for text, names, spec, _ in string.Formatter().parse(row):
        fields = tuple(known[name] for name in names.split(",")) if names else ()
        notation, mark, before = (spec or "").partition("?")
        if mark and text:
            yield Part(text)
        yield Part(before if mark else text, fields, notation, bool(mark))


@functools.cache
def line_form(kind: Any) -> Form:
    """The form of a struct that has a line of its own, without the user's line and what stands on other lines."""
    return Form(kind, LINES.get(kind, FORMS.get(kind)), ("line", *BODIES.get(kind, ())))


@functools.cache
def fields_of(kind: Any) -> tuple[Field, ...]:
    """The fields of a struct with resolved types, in order."""
    return msgspec.structs.fields(kind)


def is_default(field: Field, value: Any) -> bool:
    """True where the field may be left out of the text."""
    return not field.required and type(value) is type(field.default) and value == field.default


def take_field(scanner: Scanner, kind: type[Struct], values: Values) -> Field:
    """Past the name of a field that `values` lacks."""
    start, known = scanner.position, {field.name: field for field in fields_of(kind)}
    name = scanner.take(IDENTIFIER, f"a field of {kind.__name__}")
    if name not in known or name in values:
        raise Fault(start, f"{kind.__name__} takes no {name!r} here; its fields: {', '.join(known)}")
    return known[name]


def build(kind: Any, values: Values, at: int) -> Any:
    """The struct with these fields; a missing one is a fault at `at`."""
    try:
        return kind(**values)
    except TypeError:
        missing = [field.name for field in fields_of(kind) if field.required and field.name not in values]
        raise Fault(at, f"{kind.__name__} lacks {', '.join(missing)}") from None


# Alternatives

Tree = Form | list[tuple[Part | Assignments, "Tree"]]
"""Forms by their parts in order: those that begin alike are one branch."""


def _tree(forms: list[Form], step: int = 0) -> Tree:
    if len(forms) == 1 and step == len(forms[0].parts):
        return forms[0]
    branches: dict[Any, list[Form]] = {}
    for form in forms:
        part = form.parts[step]
        branches.setdefault(part.key if isinstance(part, Part) else form, []).append(form)
    return [(same[0].parts[step], _tree(same, step + 1)) for same in branches.values()]


def _read_tree(tree: Tree, scanner: Scanner, values: Values) -> Form:
    """The form that stands here; its fields go into `values`."""
    while not isinstance(tree, Form):
        if len(tree) > 1:
            return _read_branches(tree, scanner, values)
        part, tree = tree[0]
        part.read(scanner, values)
    return tree


def _read_branches(tree: list[tuple[Part | Assignments, Tree]], scanner: Scanner, values: Values) -> Form:
    start, faults = scanner.position, []
    for part, branch in tree:
        found = dict(values)
        try:
            part.read(scanner, found)
            form = _read_tree(branch, scanner, found)
        except Fault as fault:
            faults.append(fault)
            scanner.position = start
        else:
            values.update(found)
            return form
    position = max(fault.position for fault in faults)
    faults = [fault for fault in faults if fault.position == position]
    told = [fault for fault in faults if not fault.expected]
    raise told[0] if told else Fault(position, expected=tuple(one for fault in faults for one in fault.expected))


Finish = Callable[[Scanner, Form, Values, int], Any]
"""What makes the struct of a form's fields, whose text began at a position."""


def _built(scanner: Scanner, form: Form, values: Values, at: int) -> Any:
    return build(form.kind, values, at)


def alternatives(forms: Iterable[Form], others: Iterable[Notation], finish: Finish = _built) -> Notation:
    """One of several notations."""
    forms = list(forms)
    groups: dict[str, list[Form]] = {}
    for form in forms:
        for lead in form.parts[0].leads or ("",):
            groups.setdefault(lead, []).append(form)

    def reader(tree: Tree) -> Callable[[Scanner], Any]:
        def read(scanner: Scanner) -> Any:
            values: Values = {}
            start = scanner.position
            form = _read_tree(tree, scanner, values)
            return finish(scanner, form, values, start)

        return read

    readers = {lead: reader(_tree(group)) for lead, group in groups.items()}
    readers |= {lead: notation.read for notation in others for lead in notation.leads or ("",)}
    fallback = readers.get("")

    def read(scanner: Scanner) -> Any:
        found = readers.get(scanner.lead(), fallback)
        if found is None:
            raise scanner.missing(*[form.kind.__name__ for form in forms])
        return found(scanner)

    return Notation(write, read)


# Types


def write(value: object) -> str:
    """Any value of a field: literals, tuples, and structs in their form where they have one."""
    kind: Any = type(value)
    return _writer(kind)(value)


@functools.cache
def _writer(kind: Any) -> Callable[[Any], str]:
    for base in kind.__mro__:
        if base in _LEAVES:
            return _LEAVES[base].write
    if not is_struct(kind):
        raise TypeError(f"{kind.__name__} is no part of a document")
    return Form(kind, FORMS.get(kind)).write


def members(kind: Any) -> tuple[Any, ...]:
    """The members of a union, or the type itself."""
    return typing.get_args(kind) if typing.get_origin(kind) in (types.UnionType, typing.Union) else (kind,)


def without_none(kind: Any) -> Any:
    return functools.reduce(operator.or_, [one for one in members(kind) if one is not type(None)])


def is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


@functools.cache
def notation_of(kind: Any) -> Notation:
    """The notation of a field of this type."""
    origin, arguments, kinds = typing.get_origin(kind), typing.get_args(kind), members(kind)
    leaf = _LEAVES.get(dict if origin is dict else kind)
    if leaf is not None:
        return leaf
    if origin is tuple:
        return Notation(write, around("(", _tuple(arguments), ")").read, ("(",))
    if origin is Literal:
        return Notation(write, spelled({word: word for word in arguments}, Scanner.take_string).read, ('"',))
    if kind != Arg and _ARGUMENTS.issuperset(kinds):
        return Notation(write, functools.partial(_read_argument, kinds))
    union = functools.cache(lambda: _union(kind, kinds))  # types refer to each other: made when it is first used
    return Notation(write, lambda scanner: union()(scanner))


def _union(kind: Any, kinds: tuple[Any, ...]) -> Callable[[Scanner], Any]:
    """Leaves, and structs in their forms; a form that begins with a `kind` itself follows one that does not."""
    forms = [Form(one, FORMS.get(one)) for one in kinds if is_struct(one) and one not in _LEAVES]
    after = {form.parts[1].text: form for form in forms if _follows(form, without_none(kind))}
    leaves = [notation_of(one) for one in kinds if one in _LEAVES or not is_struct(one)]
    numbers = [Notation(write, _read_number)] if float in kinds else []
    first = alternatives([form for form in forms if form not in after.values()], leaves + numbers).read

    def read(scanner: Scanner) -> Any:
        item = first(scanner)
        while after and (form := after.get(scanner.lead())) is not None:
            values = {form.parts[0].fields[0].name: item}
            for part in form.parts[1:]:
                part.read(scanner, values)
            item = form.kind(**values)
        return item

    return read


def _follows(form: Form, kind: Any) -> bool:
    first = form.parts[0]
    return not first.text and bool(first.fields) and first.fields[0].type == kind


# Notations of parts


def named_or(call: str, what: str) -> Notation:
    """An identifier, or `call("any other name")`."""
    identifier = Notation(str, lambda scanner: scanner.take(_NO_CALL, what))
    return either(around(f"{call}(", _STRING, ")"), identifier, lambda name: not IDENTIFIER.fullmatch(name))


def _assigned(item: Notation) -> Notation:
    """Results in front of a call: `%a, %b = `, or nothing."""
    nothing = Notation(lambda _: "", lambda _: ())
    return either(around("", commas(item), " = ")._replace(leads=("%", "_")), nothing, bool)


def _tuple(arguments: tuple[Any, ...]) -> Notation:
    """The items of a tuple of any length, or of one of each of these types."""
    each = [notation_of(one) for one in arguments if one is not ...]
    any_length = ... in arguments

    def read(scanner: Scanner) -> tuple[Any, ...]:
        start = scanner.position
        notations = itertools.repeat(each[0]) if any_length else each
        found = tuple([one.read(scanner) for _, one in zip(scanner.items(), notations, strict=False)])
        if not any_length and len(found) != len(each):
            raise Fault(start, f"a tuple of {len(each)} items has {len(found)}")
        return found

    return Notation(write, read)


def _read_target(scanner: Scanner) -> str:
    if scanner.lead() in KEYWORDS:
        raise scanner.missing("a qualified name")
    return scanner.take_name(TARGET, "a qualified name")


def _write_arguments(both: tuple[tuple[Arg, ...], dict[str, Arg]]) -> str:
    args, kwargs = both
    return ", ".join([*map(write, args), *[f"{bare(key)}={write(arg)}" for key, arg in kwargs.items()]])


def _read_arguments(scanner: Scanner) -> tuple[tuple[Arg, ...], dict[str, Arg]]:
    args: list[Arg] = []
    kwargs: dict[str, Arg] = {}
    for _ in scanner.items():
        start = scanner.position
        if _KEYWORD.match(scanner.text, start):
            key = _NAME.read(scanner)
            scanner.expect("=")
            if key in kwargs:
                raise Fault(start, f"the argument {key!r} stands twice")
            kwargs[key] = _ARG.read(scanner)
        elif kwargs:
            raise Fault(start, "a positional argument follows a keyword argument")
        else:
            args.append(_ARG.read(scanner))
    return tuple(args), kwargs


def _write_layout(sizes: tuple[tuple[Dim, ...], tuple[Dim, ...]]) -> str:
    shape, stride = sizes
    try:
        contiguous = len(shape) == len(stride) and contiguous_stride(shape) == stride
    except ExprError:  # a document that the verifier refuses prints as well
        contiguous = False
    return _SHAPE.write(shape) + ("" if contiguous else _STRIDE.write(stride))


def _read_layout(scanner: Scanner) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
    shape = _SHAPE.read(scanner)
    return shape, _STRIDE.read(scanner) if scanner.at("{") else contiguous_stride(shape)


def _read_outputs(scanner: Scanner) -> tuple[Arg, ...]:
    """Up to the end of the line's values."""
    ended = scanner.at_end() or scanner.line_ended() or scanner.lead() in ("}", "with")
    return () if ended else cast("tuple[Arg, ...]", _ARGS.read(scanner))


# Leaves


@functools.lru_cache(maxsize=4096)
def _reads_back(text: str) -> bool:
    return is_expression(text) and INTEGER.fullmatch(text) is None


def _read_dim(scanner: Scanner) -> Dim:
    """An integer or an expression, whose text is kept as it stands."""
    if (number := scanner.match(_PLAIN_INTEGER)) is not None:
        return int(number.group())
    text = scanner.take_expression()
    return int(text) if INTEGER.fullmatch(text) else Expr(text)


def _read_number(scanner: Scanner) -> int | float | Expr | graph.NonFinite:
    """Of an argument: an integer, a float with a point or an exponent, `inf`, or an expression."""
    if (found := scanner.match(_NON_FINITE)) is not None:
        return graph.NonFinite(cast(Any, found.group()))
    found = scanner.match(_FLOAT)
    return _DIM.read(scanner) if found is None else float(found[1] or found[0])


def _read_parenthesis(scanner: Scanner) -> Arg:
    """A tuple, or an expression that begins with a parenthesis: a tuple has a comma after its first item."""
    start = scanner.position
    scanner.expect("(")
    items: tuple[Arg, ...] = _ARGS.read(scanner)
    if (len(items) != 1 or scanner.text[scanner.end - 1] == ",") and scanner.accept(")"):
        return graph.Tuple(items)
    scanner.position = start
    return _read_dim(scanner)


def _read_argument(kinds: tuple[Any, ...], scanner: Scanner) -> Any:
    """An argument of some classes."""
    start = scanner.position
    value = _ARG.read(scanner)
    if not isinstance(value, kinds):
        raise Fault(start, expected=tuple([kind.__name__ for kind in kinds]))
    return value


def _write_index(index: loop.Index) -> str:
    """`16*i0 + {s0*2}*i1 + (r0)//4 + 3`; symbolic sizes stand in braces."""
    signs: dict[Dim, str] = {1: "", -1: "-"}
    factors = [signs.get(one.coefficient, _BRACED.write(one.coefficient) + "*") for one in index.terms]
    terms = [factor + write(one.atom) for factor, one in zip(factors, index.terms, strict=True)]
    if not terms or index.constant != 0:
        terms.append(_BRACED.write(index.constant))
    return terms[0] + "".join(f" - {term[1:]}" if term[0] == "-" else f" + {term}" for term in terms[1:])


def _read_index(scanner: Scanner) -> loop.Index:
    """A sum of terms and at most one constant, which comes last."""
    terms: list[loop.Term] = []
    negative = scanner.accept("-")
    while True:
        found = _read_term(scanner, negative)
        sign = scanner.match(_SIGN)
        if isinstance(found, loop.Term):
            terms.append(found)
        elif sign is not None:
            raise Fault(scanner.position, "the constant comes last in an index")
        if sign is None:
            return loop.Index(0 if isinstance(found, loop.Term) else found, tuple(terms))
        negative = sign.group() == "-"


def _read_term(scanner: Scanner, negative: bool) -> loop.Term | Dim:
    """A term, or the constant."""
    start = scanner.position
    if not (scanner.at("{") or scanner.text[start : start + 1].isdigit()):
        return loop.Term(-1 if negative else 1, _ATOM.read(scanner))
    number = _BRACED.read(scanner)
    if negative and isinstance(number, Expr):
        raise Fault(start, "a symbolic coefficient has no sign in front")
    number = -number if negative else number
    return loop.Term(number, _ATOM.read(scanner)) if scanner.accept("*") else number


_INTEGER = Notation(str, lambda scanner: int(scanner.take(INTEGER, "an integer")))
_STRING = Notation(quote, Scanner.take_string, ('"',))
_NAME = named(BARE, "a name")
_REF = around("%", _NAME)
_DTYPE = spelled(SHORT_DTYPE)._replace(leads=())  # an unknown one is no other kind of type
_DIM = either(
    around("Expr(text=", mapped(_STRING, operator.attrgetter("text"), Expr), ")"),
    Notation(str, _read_dim),
    lambda dim: not isinstance(dim, int) and not _reads_back(dim.text),
)
_BRACED = either(around("{", _DIM, "}"), _INTEGER, lambda dim: not isinstance(dim, int))
_SHAPE, _STRIDE = around("[", commas(_DIM), "]"), around("{", commas(_DIM), "}")
_BYTES = mapped(
    around("bytes(", _STRING, ")"),
    lambda value: base64.b64encode(value).decode(),
    functools.partial(base64.b64decode, validate=True),
)
_ARGUMENTS = frozenset(typing.get_args(Arg))
_ARG = Notation(write, lambda scanner: notation_of(Arg).read(scanner))
_ARGS = commas(_ARG)
_ATOM = Notation(write, lambda scanner: notation_of(loop.Atom).read(scanner))
_AFTER_COLON = around(": ", _ARG)
_PAIRS = commas(
    Notation(
        lambda pair: quote(pair[0]) + _AFTER_COLON.write(pair[1]),
        lambda scanner: (scanner.take_string(), _AFTER_COLON.read(scanner)),
    )
)

_LEAVES: dict[Any, Notation] = {
    type(None): spelled({None: "None"}),
    bool: spelled({True: "True", False: "False"}),
    int: _INTEGER,
    float: Notation(
        lambda value: repr(value) if value - value == 0 else f'float("{value}")',
        lambda scanner: float(_read_argument((float, int), scanner)),
    ),
    str: _STRING,
    bytes: _BYTES,
    tuple: Notation(lambda items: f"({_ARGS.write(items)}{',' if len(items) == 1 else ''})", _read_parenthesis),
    dict: mapped(around("{", _PAIRS, "}"), dict.items, dict),
    graph.Tuple: Notation(lambda value: write(value.items), _read_parenthesis, ("(",)),
    Expr: _DIM,
    Dim: _DIM,
    loop.Index: Notation(_write_index, _read_index),
}

NOTATIONS: dict[str, Callable[[Any], Notation]] = {
    "name": lambda _: _NAME,
    "ref": lambda _: _REF,
    "refs": lambda _: commas(_REF),
    "kept": lambda _: _assigned(either(spelled({"": "_"}), _REF, operator.not_)),
    "values": lambda _: _assigned(notation_of(graph.Value)),
    "target": lambda _: Notation(lambda name: quote(name) if name in KEYWORDS else bare(name, TARGET), _read_target),
    "device": lambda _: named(DEVICE, "a name"),
    "attribute": lambda _: named(IDENTIFIER, "an attribute"),
    "local": lambda _: named_or("local", "a source"),
    "axis": lambda _: named_or("axis", "an axis"),
    "dtype": lambda _: _DTYPE,
    "store": lambda _: spelled(STORE_SIGN),
    "word": lambda kind: spelled({word: word for word in typing.get_args(kind)}),
    "commas": lambda kind: commas(notation_of(typing.get_args(kind)[0])),
    "pairs": lambda _: _PAIRS,
    "arguments": lambda _: Notation(_write_arguments, _read_arguments),
    "layout": lambda _: Notation(_write_layout, _read_layout),
    "grad": lambda _: Notation(lambda grad: " grad" if grad else "", lambda scanner: scanner.accept("grad")),
    "outputs": lambda _: Notation(lambda outputs: " " * bool(outputs) + _ARGS.write(outputs), _read_outputs),
    "braced": lambda _: _BRACED,
}
"""By the name that a row gives it, the notation of a field of a type."""
