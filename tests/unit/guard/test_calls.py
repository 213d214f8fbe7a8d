"""The calls around placeholders, and the functions of a statement, by its words."""

from __future__ import annotations

import pytest

from sagas.sql_text.calls import EnclosingCall, called_functions, enclosing_calls
from sagas.sql_text.parsed import parse_sql


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("insert into t (a) values (keep(:x))", [EnclosingCall("keep", None, 0, direct=True)]),
        ("insert into t (a) values (App.Keep(1, (2), :x + 1))", [EnclosingCall("keep", "app", 2, direct=False)]),
        (
            'select "Ke""ep"(f(1, 2), g(:x), :x)',
            [EnclosingCall("g", None, 0, direct=True), EnclosingCall('Ke"ep', None, 1, direct=False)],
        ),
        ("select 1 where a in (:x) and b = any(array[:x])", []),
    ],
)
def test_calls_around_a_placeholder(text: str, calls: list[EnclosingCall]) -> None:
    assert list(enclosing_calls(parse_sql(text, "postgresql"))[0]) == calls


def test_functions_that_a_statement_calls() -> None:
    text = (
        "with s (x) as (values (:x)) insert into app.t (a) select app.keep(x), f(1) from s where x in (1) group by (x)"
    )
    assert called_functions(parse_sql(text, "postgresql")) == {("app", "keep"), (None, "f"), (None, "s")}
