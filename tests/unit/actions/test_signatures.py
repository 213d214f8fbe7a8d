"""The signature of an action is its schema: what it takes by name, and what is refused where it is written."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict, Unpack

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field, WithJsonSchema

from sagas import Step, action
from sagas.actions.registry import Action, load_actions
from sagas.actions.signature import read_signature
from sagas.definition.action_arguments import bind
from sagas.definition.parser.language import language_schema
from sagas.errors import UsageError


def any_positions(*values: int) -> None: ...


def by_position(step: Step, value: int, /) -> None: ...


@pytest.mark.parametrize(
    ("function", "shown"),
    [(any_positions, "*values"), (by_position, "value")],
)
def test_positional_only_parameters_are_refused(function: Callable[..., Any], shown: str) -> None:
    with pytest.raises(UsageError, match="cannot pass by name") as refused:
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

    parameters = read_signature(take).parameters
    assert [(parameter.name, parameter.required) for parameter in parameters] == [("sku", True), ("quantity", False)]


def test_the_error_is_raised_when_the_file_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("from sagas import action\n\n\n@action('stock.take')\ndef take(*values): ...\n")
    with pytest.raises(UsageError, match=r"the action stock\.take takes \*values"):
        load_actions(["./bad.py"], tmp_path)


def test_a_file_that_exits_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "leaves.py").write_text("import sys\n\nsys.exit(3)\n")
    with pytest.raises(UsageError, match=r"the action file \./leaves\.py cannot be loaded: SystemExit: 3"):
        load_actions(["./leaves.py"], tmp_path)


def move(step: Step, from_: str, to: str, in_: int = 0) -> None: ...


def any_names(step: Step, id: str, **values: int) -> None: ...


def step_by_position(step: Step, /, **values: Any) -> None: ...


class Sizes(TypedDict):
    width: int
    depth: NotRequired[int]


def typed_names(step: Step, **sizes: Unpack[Sizes]) -> None: ...


@pytest.mark.parametrize(
    ("function", "given", "bound"),
    [
        (move, {"from": "a", "to": "b"}, {"from_": "a", "to": "b"}),
        (move, {"from_": "a", "to": "b", "in": 3}, {"from_": "a", "to": "b", "in_": 3}),
        (any_names, {"id": "a", "from": 1, "from_": 2}, {"id": "a", "from": 1, "from_": 2}),
        (any_names, {"id": "a"}, {"id": "a"}),
        (step_by_position, {"step": 1, "self": 2}, {"step": 1, "self": 2}),
        (typed_names, {"width": 1}, {"width": 1}),
    ],
)
def test_arguments_reach_the_function(function: Callable[..., Any], given: Any, bound: Any) -> None:
    arguments = bind(Action("stock.take", function), given)
    assert arguments == bound
    function(None, **arguments)


@pytest.mark.parametrize(
    ("function", "given", "message"),
    [
        (move, {"from": "a", "from_": "b", "to": "c"}, "'from' and 'from_' name the same argument; give only one"),
        (move, {"to": "b"}, "stock.take needs the argument 'from'"),
        (move, {"from": "a", "to": "b", "on": 1}, "takes no argument 'on'; it takes from, to, in"),
        (any_names, {"id": "a", "size": "big"}, "argument size is text, and the parameter is a whole number"),
        (any_names, {"id": "a", "step": 1}, "takes no argument 'step'"),
        (step_by_position, {"_saga": 1}, "takes no argument '_saga'"),
        (typed_names, {"depth": 1}, "needs the argument 'width'"),
        (typed_names, {"width": "4929"}, "argument width is text, and the parameter is a whole number"),
        (move, {"from": "a", "to": "b", "in": "007"}, "argument in is text, and the parameter is a whole number"),
        (typed_names, {"width": 1, "height": 1}, "takes no argument 'height'; it takes width, depth"),
    ],
)
def test_arguments_that_do_not_fit(function: Callable[..., Any], given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bind(Action("stock.take", function), given)


@pytest.mark.parametrize(
    ("function", "given", "fits"),
    [
        (move, {"from": "a", "to": "b"}, True),
        (move, {"from_": "a", "to": "b"}, True),
        (move, {"from": "a", "from_": "a", "to": "b"}, False),
        (move, {"to": "b"}, False),
        (any_names, {"id": "a", "more": 1}, True),
        (any_names, {"id": "a", "more": "${{ input.n }}"}, True),
        (any_names, {"id": "a", "more": "many"}, False),
        (typed_names, {"width": 1, "height": 1}, False),
    ],
)
def test_type_annotations_match_the_schema(function: Callable[..., Any], given: Any, fits: bool) -> None:
    schema = language_schema({"stock.take": Action("stock.take", function)})
    saga = {"saga": "shop", "steps": [{"id": "a", "uses": "stock.take", "with": given, "pivot": True}]}
    assert Draft202012Validator(schema).is_valid(saga) is fits


class NoData:
    """pydantic has no schema for its values."""


class RaisesItself:
    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        raise ZeroDivisionError("a mistake in the class")


class Incomplete(BaseModel):
    line: Missing  # pyright: ignore[reportUndefinedVariable]  # noqa: F821


@pytest.mark.parametrize(
    ("annotation", "why"),
    [
        (NoData, "Unable to generate pydantic-core schema for <class '.*NoData'>"),
        (list[NoData], "Unable to generate"),
        (5, "Unable to generate pydantic-core schema for 5"),
        (Incomplete, "is not fully defined"),
        (RaisesItself, "ZeroDivisionError: a mistake in the class"),
        (Annotated[str, Field(pattern="(")], "regex parse error"),
        (Annotated[int | str, Field(discriminator="kind")], "not a valid discriminated union"),
        (Annotated[int, WithJsonSchema({"$ref": "#/x"})], "KeyError"),
        (Annotated[int, WithJsonSchema({"type": "nonsense"})], "is not valid at `type`: 'nonsense' is not valid under"),
        (list[Annotated[int, WithJsonSchema({"minimum": "5"})]], "is not valid at `items.minimum`: '5' is not of"),
        (Literal[NoData()], "Unable to serialize"),  # pyright: ignore[reportInvalidTypeForm]
    ],
)
def test_an_annotation_without_a_schema_is_refused_with_its_place(annotation: Any, why: str) -> None:
    async def score(step: Step, lines: Any, **others: Any) -> None: ...

    score.__annotations__ = {"step": Step, "lines": annotation, "others": annotation}
    signature = read_signature(score)
    for parameter in (*signature.parameters, signature.other_arguments):
        assert parameter is not None
        with pytest.raises(UsageError, match=why) as refused:
            _ = parameter.schema
        assert "Set `" not in refused.value.message
        place = f"the function score in test_signatures.py: the annotation of the parameter {parameter.variable}"
        assert refused.value.message.startswith(f"{place} has no JSON Schema: ")
        assert "\n" not in refused.value.message


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="pydantic accepts it")
def test_a_typed_dict_that_python_does_not_describe_names_the_other_one() -> None:
    async def score(step: Step, lines: list[Sizes]) -> None: ...

    with pytest.raises(UsageError, match=r"score in test_signatures\.py: .*parameter lines has a TypedDict") as refused:
        _ = read_signature(score).parameters[0].schema
    assert "from typing_extensions import TypedDict" in (refused.value.help or "")


@pytest.mark.parametrize("annotation", ["Missing", "1 +"])
def test_an_annotation_that_cannot_be_evaluated_names_its_function(annotation: str) -> None:
    async def score(step: Step, lines: Any) -> None: ...

    score.__annotations__["lines"] = annotation
    with pytest.raises(
        UsageError, match=r"the function score in test_signatures\.py: an annotation cannot be resolved"
    ):
        read_signature(score)
