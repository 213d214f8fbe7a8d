"""The signature of an action is its schema: what cannot be given by name is refused where it is written."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sagas import Step, action
from sagas.actions import NOTE, load_actions
from sagas.errors import UsageError


def any_positions(*values: int) -> None: ...


def any_names(step: Step, **values: int) -> None: ...


def by_position(step: Step, value: int, /) -> None: ...


@pytest.mark.parametrize(
    ("function", "shown"),
    [(any_positions, "*values"), (any_names, "**values"), (by_position, "step")],
)
def test_what_has_no_name_is_refused(function: Callable[..., Any], shown: str) -> None:
    with pytest.raises(UsageError, match="cannot give by name") as refused:
        action("stock.take")(function)
    assert "stock.take" in refused.value.message
    assert shown in refused.value.message


def test_a_wrapped_function_shows_the_signature_it_wraps() -> None:
    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return call

    @action("stock.take")
    @logged
    def take(step: Step, sku: str, quantity: int = 1) -> None: ...

    parameters = getattr(take, NOTE).parameters
    assert [(one.name, one.required) for one in parameters] == [("sku", True), ("quantity", False)]


def test_the_sentence_reaches_who_loads_the_file(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("from sagas import action\n\n\n@action('stock.take')\ndef take(**values): ...\n")
    with pytest.raises(UsageError, match=r"the action stock\.take takes \*\*values"):
        load_actions(["./bad.py"], tmp_path)
