"""Our evaluation against an independent CEL implementation, on the language that both share.

Not in the table, because there the other one leaves the CEL specification: ``size`` of text beyond ASCII (it counts
bytes), errors inside ``all`` and ``exists`` (it does not absorb them), ``string(true)``. They are in
test_expression_language.py, with what we do otherwise on purpose.
"""

from __future__ import annotations

from typing import Any

import cel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sagas.expressions import ExpressionError, compile_expression
from tests.helpers.sampling import examples

CONTEXT: dict[str, Any] = {
    "n": 7,
    "zero": 0,
    "yes": True,
    "no": False,
    "s": "Grüße",
    "empty": "",
    "nothing": None,
    "list": [3, 1, 2],
    "words": ["pear", "apple"],
    "none": [],
    "map": {"a": 1, "b": {"c": [1, 2]}, "d": None},
    "lines": [{"sku": "x1", "qty": 2}, {"sku": "y2", "qty": 5}],
}

SHARED = """
1|-1|0x1F|-0x10|1.5|.5|1e3|2.5e-1|true|false|null|''|"a"|'a"b'|"a'b"|'\\n\\t\\\\'|'\\x41\\u00e9\\U0001F600\\101'
r'a\\n'|'''it's'''|\"""say "x\"""\"|[]|[1, 2,]|[1, 'a', true, null]|{}|{'a': 1}|{'a': [1, {'b': 2}]}|(1)|((n))
1 + 2 * 3|(1 + 2) * 3|10 - 4 - 3|100 / 7|-7 / 2|7 / -2|-7 % 3|7 % -3|-7 % -3|2 * -3|1 - -1|-(-5)|-n|- n + 1
1.5 + 2.25|1.5 * 2.0|7.0 / 2.0|1.5 - 3.0|-1.5|1 / 0|1 % 0|n / zero|n % zero
1 == 1|1 == 2|1 != 2|1 == 1.0|'a' == 'a'|'a' != 'b'|true == true|true == 1|null == null|1 == null|[1] == [1]
[1] == [1, 2]|[1, [2]] == [1, [2]]|{'a': 1} == {'a': 1}|{'a': 1} == {'b': 1}|{'a': 1, 'b': 2} == {'b': 2, 'a': 1}
[] == {}|1 < 2|2 <= 2|3 > 4|4 >= 5|'a' < 'b'|'b' <= 'a'|'Z' < 'a'|1.5 < 2.5|false < true|1 < 'a'|null < 1
1 + 2 == 3|1 < 2 == true|!true|!false|!!true|!1|true && false|true || false|false || false|true && true
true || 1 / 0 == 1|1 / 0 == 1 || true|false && 1 / 0 == 1|1 / 0 == 1 && false|1 / 0 == 1 || false|1 / 0 == 1 && true
true || false && false|true ? 1 : 2|false ? 1 : 2|true ? false ? 1 : 2 : 3|n > 5 ? 'big' : 'small'|true ? 1 : 1 / 0
1 ? 2 : 3|1 in [1, 2]|5 in [1, 2]|'a' in ['a']|'a' in {'a': 1}|'b' in {'a': 1}|1 in []|[1] in [[1], [2]]|n in list
'a' + 'b'|'a' + s|[1] + [2, 3]|[] + []|'a' + 1|1 + 'a'|1 + true|null + 1|'a' * 2|-'a'|[1] - [1]
s|n|missing|map.a|map.b.c|map.b.c[1]|map['a']|map.d|map.x|map['x']|nothing.x|n.x|s.x|list[0]|list[2]|list[3]|list[n]
none[0]|map.b['c'][0]|words[0]|lines[1].sku|lines[0].qty * 3|[1, 2, 3][1]|{'a': 5}.a|{'a': 5}['a']|'abc'[0]|list['a']
has(map.a)|has(map.x)|has(map.b.c)|has(map.d)|!has(map.x)|has(map.a) && map.a == 1|has({'a': 1}.a)
size('')|size('abc')|size([1, 2])|size({'a': 1})|size(n)|'abc'.size()|list.size()|map.size()|''.size()|size(list) + 1
s.contains('ü')|s.contains('')|s.contains('x')|s.startsWith('Gr')|s.endsWith('e')|s.endsWith('x')|'a.c'.startsWith('a.')
s.matches('Gr.*')|s.matches('^ü')|'abc'.matches('b')|'abc'.matches('^b$')|'abc'.matches('(')|n.contains('a')
int('12')|int('-3')|int('x')|int(7)|int(2.9)|int(-2.9)|string(1)|string('a')|double('1.5')|double(2)
list.all(x, x > 0)|list.all(x, x > 1)|none.all(x, false)|list.exists(x, x == 2)|list.exists(x, x > 5)
none.exists(x, true)|list.exists_one(x, x > 2)|list.exists_one(x, x > 1)|none.exists_one(x, true)
list.map(x, x * 2)|list.filter(x, x > 1)|list.map(x, x > 1, x * 10)|list.map(x, [x, x])
none.map(x, x)|lines.map(l, l.qty)|lines.filter(l, l.qty > 2)
lines.map(l, l.sku).size()|lines.exists(l, l.sku == 'y2')|lines.all(l, has(l.sku))|lines.all(l, has(l.nope))
list.map(x, list.map(y, x * y))|list.map(x, words.map(w, w + 'x'))|list.filter(x, x > 1).map(x, x + n).size()
{'k': 1}.map(k, k)|{'k': 1}.all(k, k == 'k')|map.exists(k, k == 'b')|n.map(x, x)
list.map(x, 6 / (x - 3))|list.map(n, n)|list.exists(x, x)|list.all(x, missing)
timestamp('2026-01-01T00:00:00Z') < timestamp('2026-01-02T00:00:00Z')|duration('1h') == duration('60m')
timestamp('2026-01-01T00:00:00Z') + duration('90m') == timestamp('2026-01-01T01:30:00Z')|duration('1h') > duration('1s')
timestamp('2026-01-02T00:00:00Z') - timestamp('2026-01-01T00:00:00Z') == duration('24h')|timestamp('x')|duration('x')
1 +|(1|[1|{'a'|'abc|a..b|1 2|a b|)|,|? 1 : 2|has(1)|list.map(1, 2)|1 === 1|@|a.1|\\|foo(1)|'a'.foo()
""".strip()


def _cells(table: str) -> list[str]:
    """``|`` parts the cells and ``||`` is the operator."""
    return [
        cell.replace("\0", "||")
        for row in table.split("\n")
        for cell in row.replace("||", "\0").split("|")
        if cell.strip()
    ]


def oracle(source: str, context: dict[str, Any]) -> tuple[str, Any]:
    try:
        return "value", cel.evaluate(source, context)
    except Exception as error:  # noqa: BLE001 - the oracle has no common error type
        return "error", str(error)


def ours(source: str, context: dict[str, Any]) -> tuple[str, Any]:
    try:
        return "value", compile_expression(source).evaluate(context)
    except ExpressionError as error:
        return "error", error.message


def comparable(mine: Any, theirs: Any) -> Any:
    """Ours as the oracle would give it: a decimal is a string with us and a float there."""
    if isinstance(theirs, float) and isinstance(mine, str):
        return float(mine)
    return mine


def assert_agree(source: str, context: dict[str, Any]) -> None:
    theirs, mine = oracle(source, context), ours(source, context)
    assert mine[0] == theirs[0], (source, mine, theirs)
    if mine[0] == "value":
        value = comparable(mine[1], theirs[1])
        assert value == theirs[1], source
        assert isinstance(value, bool) == isinstance(theirs[1], bool), source


@pytest.mark.parametrize("source", _cells(SHARED))
def test_agrees_with_the_other_implementation(source: str) -> None:
    assert_agree(source, CONTEXT)


def test_the_table_is_not_empty() -> None:
    assert len(_cells(SHARED)) > 230


def _either(*choices: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(*choices)


def _infix(left: st.SearchStrategy[str], ops: list[str], right: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(left, st.sampled_from(ops), right).map(lambda parts: f"({parts[0]} {parts[1]} {parts[2]})")


INTEGERS = st.sampled_from(["n", "zero", "map.a", "list[0]", "lines[1].qty", "size(words)"]) | st.integers(-9, 9).map(
    str
)
STRINGS = st.sampled_from(["s", "'a'", "'ü'", "words[0]", "lines[0].sku", "''", "r'\\d'"])
BOOLEANS = st.sampled_from(["yes", "no", "true", "false", "has(map.a)", "has(map.zz)", "nothing == null"])
LISTS = st.sampled_from(["list", "none", "[1, 2]", "[n, zero]", "lines.map(l, l.qty)"])


@st.composite
def integer_expressions(draw: st.DrawFn, depth: int = 3) -> str:
    if depth == 0:
        return draw(INTEGERS)
    deeper = integer_expressions(depth - 1)
    return draw(
        _either(
            INTEGERS,
            _infix(deeper, ["+", "-", "*", "/", "%"], deeper),
            deeper.map(lambda e: f"-({e})"),
            list_expressions(depth - 1).map(lambda e: f"size({e})"),
            st.tuples(list_expressions(depth - 1), deeper).map(lambda p: f"{p[0]}[{p[1]}]"),
            st.tuples(boolean_expressions(depth - 1), deeper, deeper).map(lambda p: f"({p[0]} ? {p[1]} : {p[2]})"),
        )
    )


@st.composite
def list_expressions(draw: st.DrawFn, depth: int = 3) -> str:
    if depth == 0:
        return draw(LISTS)
    deeper, numbers = list_expressions(depth - 1), integer_expressions(depth - 1)
    return draw(
        _either(
            LISTS,
            _infix(deeper, ["+"], deeper),
            st.tuples(deeper, numbers).map(lambda p: f"{p[0]}.map(x, x * ({p[1]}))"),
            st.tuples(deeper, numbers).map(lambda p: f"{p[0]}.filter(x, x < {p[1]})"),
            st.tuples(deeper, numbers).map(lambda p: f"{p[0]}.map(n, n > {p[1]}, n - 1)"),
        )
    )


@st.composite
def boolean_expressions(draw: st.DrawFn, depth: int = 3) -> str:
    if depth == 0:
        return draw(BOOLEANS)
    deeper, numbers, lists = (
        boolean_expressions(depth - 1),
        integer_expressions(depth - 1),
        list_expressions(depth - 1),
    )
    loops = st.sampled_from(["all", "exists", "exists_one"])
    return draw(
        _either(
            BOOLEANS,
            _infix(deeper, ["&&", "||", "==", "!="], deeper),
            deeper.map(lambda e: f"!({e})"),
            _infix(numbers, ["<", "<=", ">", ">=", "==", "!="], numbers),
            _infix(STRINGS, ["<", ">=", "==", "!="], STRINGS),
            st.tuples(STRINGS, st.sampled_from(["contains", "startsWith", "endsWith"]), STRINGS).map(
                lambda p: f"{p[0]}.{p[1]}({p[2]})"
            ),
            _infix(numbers, ["in"], lists),
            _infix(lists, ["==", "!="], lists),
            st.tuples(lists, loops, numbers).map(lambda p: f"{p[0]}.{p[1]}(x, x * 2 > {p[2]})"),
        )
    )


@examples(60, 5_000)
@given(st.one_of(boolean_expressions(), integer_expressions(), list_expressions()))
def test_agrees_on_generated_expressions(source: str) -> None:
    assert_agree(source, CONTEXT)


@examples(100, 5_000)
@given(st.text(alphabet="ab1.2'\"[](){}:,?|&!+-*/%<>= \\rnx", max_size=25))
def test_any_source_gives_a_result_or_a_one_line_error(source: str) -> None:
    kind, answer = ours(source, {"a": 1, "b": [1, {"n": 2}]})
    assert kind == "value" or (isinstance(answer, str) and "\n" not in answer)
