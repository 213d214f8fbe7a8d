"""Words of other languages get this language's own form in their error."""

from __future__ import annotations

import pytest

from sagas.definition.loader import parse_text
from sagas.definition.parser.draft import ProjectContext
from sagas.expressions import check_types, compile_expression
from tests.unit.engine.definition.mistake import ACTIONS, BOOK, saga

INPUT = """input:
  required: [a, b, n, t, x]
  properties:
    a: {type: boolean}
    b: {type: boolean}
    n: {type: integer}
    t: {type: string}
    x: {type: array, items: {type: integer}}
"""


def diagnostic(expression: str) -> str:
    """The message and the help of the only diagnostic of an output."""
    text = saga(BOOK, f"{INPUT}output: >-\n  ${{{{ {expression} }}}}\n")
    [only] = parse_text(text, "a.saga.yaml", ProjectContext(ACTIONS))[1]
    assert (only.line, only.severity) == (11, "error")
    return f"{only.message}; {only.help}"


@pytest.mark.parametrize(
    ("expression", "form"),
    [
        # Python
        ("input.a and input.b", "write &&"),
        ("input.a or input.b", "write ||"),
        ("not input.a", "write !x"),
        ("input.a && not input.b", "write !x"),
        ("input.n not in input.x", "!(x in list)"),
        ("input.n if input.a else 2", "write condition ? a : b"),
        ("input.a == True", "write true"),
        ("input.a == False", "write false"),
        ("input.t == None", "write null"),
        ("input.t is None", "x == null"),
        ("input.t is not None", "x == null"),
        ("len(input.x)", "write size(x)"),
        ("str(input.n)", "write string(x)"),
        ("float(input.t)", "write decimal(x)"),
        ("f'a{input.n}'", "'text' + string(x)"),
        ("any(input.x)", "write list.exists(x, …)"),
        ("[i for i in input.x]", "list.map(x, …)"),
        ("input.x.filter(lambda i: i > 1)", "list.filter(x, …)"),
        ("input.n // 2", "write x / y"),
        ("(input.n // input.n) + 1", "write x / y"),
        ("input.n ** 2", "write x * x"),
        ("'a' in input.t", "write input.t.contains('a')"),
        # JavaScript
        ("input.t === 'a'", "write =="),
        ("input.t ?? 'a'", "write default(x, y)"),
        ("input.a || 'x'", "default(x, y)"),
        ("input?.t", "or default(x, y)"),
        ("input.x.length", "write size(input.x)"),
        ("input.x.map(i => i)", "list.map(x, …)"),
        ("undefined", "write null"),
        # SQL, Jinja and workflow languages
        ("input.a AND input.b", "write &&"),
        ("input.n <> 2", "write !="),
        ("input.n = 2", "write =="),
        ("coalesce(input.n, 2)", "write default(x, y)"),
        ("input.t | upper", "f(x)"),
        ("inputs.t", "write input.x"),
        ("outputs.book", "write steps.<id>.result"),
        ("env.HOME", "[vars] in saga.toml"),
        ("now()", "saga.started_at"),
        # what always fails
        ("1/0", "divides by zero"),
        ("input.n % -0", "divides by zero"),
        ("input.n ? 1 : 2", "needs true or false"),
        ("!input.t", "needs true or false"),
    ],
)
def test_the_form_of_this_language_is_named(expression: str, form: str) -> None:
    assert form in diagnostic(expression)


@pytest.mark.parametrize("expression", ["1 // one", "1 // 2 days", "// 1 / 2\n 3", "input.n / 2"])
def test_comments_and_divisions_stay_what_they_are(expression: str) -> None:
    assert check_types(compile_expression(expression), lambda path: None) == []
