"""The short way that accepts most calls of `sql` accepts none that the schema of the action refuses."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sagas.definition import call_arguments
from sagas.definition.call_arguments import argument_problem

SCALARS = st.none() | st.booleans() | st.integers(-2, 3) | st.decimals(0, 3, places=1) | st.sampled_from(["", "text"])
VALUES: st.SearchStrategy[Any] = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(st.just("n"), SCALARS)
STATEMENTS = VALUES | st.fixed_dictionaries(
    {"sql": st.just("select 1") | VALUES},
    optional={"params": VALUES, "expect_rows": VALUES, "rejected": VALUES, "other": VALUES},
)
CALLS = st.fixed_dictionaries(
    {"connection": st.just("shop"), "run": st.lists(STATEMENTS, max_size=2) | VALUES},
    optional={"params": VALUES, "expect_rows": VALUES, "emit": VALUES, "two_phase": VALUES, "other": VALUES},
)


@given(CALLS)
def test_what_is_plain_fits(arguments: dict[str, Any]) -> None:
    if call_arguments._is_plain_sql(arguments):
        assert argument_problem("sql", {**arguments, "two_phase": False}) is None  # which is not plain


def test_usual_calls_are_plain() -> None:
    statement = {"sql": "update x set n = :n", "params": {"n": Decimal("1.5")}, "expect_rows": 1, "rejected": "none"}
    assert call_arguments._is_plain_sql({"connection": "shop", "run": [statement, {"sql": "select 1"}]})
