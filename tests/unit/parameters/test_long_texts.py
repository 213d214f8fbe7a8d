"""Long texts, such as those of stored rows: reading them takes time in proportion to their length."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from saga_activities.parameters.number_notations import notations
from saga_activities.parameters.operand_forms import is_number_text
from saga_activities.parameters.text_literals import scalar_texts
from saga_activities.parameters.time_columns import time_text
from sagas.text.exact_json import decode_json
from tests.helpers.sampling import every_nth

LENGTH = 200_000
SECONDS = 10.0
"""Of CPU, a hundred times what a busy machine takes; a search from each position of the text takes minutes."""

UNITS = (
    *("0", "0.", "0:", "00:00", "T0", "1e", "0_", ".0s", "a", "-", ",", " ", "\t"),
    *('"', '"\\"', '""', "{", "[", "\\"),
)


def json_text(text: str) -> None:
    try:
        decode_json('{"a": [' + text)
    except (ValueError, RecursionError):
        return


READERS: dict[str, Callable[[str], Any]] = {
    "times": time_text,
    "numbers": is_number_text,
    "notations": lambda text: list(notations(text)),
    "array": lambda text: list(scalar_texts(f"{{{text}}}", composite=True)),
    "composite": lambda text: list(scalar_texts(f"({text})", composite=True)),
    "json": json_text,
}


@pytest.mark.parametrize("reader", READERS)
def test_reading_takes_linear_time(reader: str) -> None:
    for unit, last in every_nth(4, product(UNITS, ("", "x", "again")), turn=list(READERS).index(reader)):
        text = unit * (LENGTH // len(unit)) + ("x" + unit if last == "again" else last)
        began = time.process_time()
        READERS[reader](text)
        assert time.process_time() - began < SECONDS, (unit, last)
