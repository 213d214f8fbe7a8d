"""Random expressions over hostile values: a value or one ExpressionError, with bounded work."""

from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from sagas.expressions import ExpressionError, compile_expression, compile_value
from sagas.expressions.limits import MAX_RESULT_VALUES, MAX_STEPS, VALUES_PER_STEP, WorkMeter
from sagas.text.exact_json import encode_json
from tests.helpers.sampling import examples

DEEP: Any = 1
for _ in range(150):
    DEEP = [DEEP]
VALUES: dict[str, Any] = {
    "huge": 10**3_990 + 7,
    "more": 10**6_000,
    "minus": -(2**64),
    "digits": "7" * 3_999,
    "fraction": "1." + "1" * 990,
    "small": "1e-900",
    "float": 1.7976931348623157e308,
    "nan": float("nan"),
    "inf": float("inf"),
    "text": "x" * 200_000,
    "half": "\ud800",
    "null": None,
    "yes": True,
    "many": list(range(20_000)),
    "mixed": [1, "1", None, 1.5, [], {}, True, 10**3_990],
    "names": {f"k{at}" * 3: at for at in range(5_000)},
    "odd": {"": 1, "a.b": 2, "\n": 3},
    "deep": DEEP,
    "path": "../../etc",
    "pattern": "(.{1,30}){1,30}$",
}
ATOMS = [
    *VALUES,
    "i",
    "0",
    "1",
    "-1",
    "1e300",
    "0.1",
    "9" * 3_999,
    "'a'",
    "''",
    "null",
    "true",
    "[]",
    "{}",
    "names.zzz",
]
BINARY = ["+", "-", "*", "/", "%", "==", "!=", "<", ">=", "in", "&&", "||"]
ONE = ["size", "int", "decimal", "string", "bool", "timestamp", "duration", "date", "sum", "min", "max", "round",
       "sort", "join", "lower", "upper", "sha256", "uuid", "path_part", "url_segment", "url_path", "has",
       "!", "-"]  # fmt: skip
TWO = ["matches", "contains", "startsWith", "split", "join", "round", "default", "min", "date"]
LOOPS = ["all", "exists", "exists_one", "filter", "map"]


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(BINARY), inner),
        st.builds("{}({})".format, st.sampled_from(ONE), inner),
        st.builds("{}({}, {})".format, st.sampled_from(TWO), inner, inner),
        st.builds("{}.{}({})".format, inner, st.sampled_from(TWO), inner),
        st.builds("{}.{}(i, {})".format, inner, st.sampled_from(LOOPS), inner),
        st.builds("({} ? {} : {})".format, inner, inner, inner),
        st.builds("{}[{}]".format, inner, inner),
        st.builds("[{}, {}]".format, inner, inner),
        st.builds("{{'a': {}, string({}): 1}}".format, inner, inner),
    )


EXPRESSIONS = st.recursive(st.sampled_from(ATOMS), _grown, max_leaves=12)
ANY_SPEED: Any = list(HealthCheck)


def evaluate(source: str) -> None:
    """Counted, not measured: a busy machine takes longer. What would not end at all is interrupted by pytest."""
    meter = WorkMeter()
    with contextlib.suppress(ExpressionError):
        encode_json(compile_expression(source).evaluate(VALUES, meter))
    with contextlib.suppress(ExpressionError):
        compile_value(f"a ${{{{ {source} }}}} b").render(VALUES, meter)
    assert not meter.exceeds(2 * MAX_STEPS + MAX_RESULT_VALUES // VALUES_PER_STEP)


@examples(150, 20_000, suppress_health_check=ANY_SPEED)
@given(EXPRESSIONS)
def test_an_expression_over_hostile_values_ends_without_a_traceback(source: str) -> None:
    evaluate(source)


@examples(150, 20_000, suppress_health_check=ANY_SPEED)
@given(st.text(max_size=60) | st.text("()[]{}.,:?!+-*/%<>=&|'\"\\ \nabxi0123456789e$", max_size=60))
def test_random_text_is_an_expression_or_a_mistake(source: str) -> None:
    evaluate(source)
