"""Rule 9: a view within its limit shows everything that fits beside what is needed more."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from sagas.machine.view import shrink_view
from sagas.protocol.saga_view import (
    DecisionView,
    NotificationView,
    ParkedView,
    ReasonView,
    ResidueView,
    SagaView,
    StepView,
)
from sagas.protocol.size_limits import is_omitted, omitted
from sagas.text.exact_json import encode_json

AT = "2026-01-01T00:00:00Z"
LIMIT = 20_000
NEEDED = ("residue", "parked")


def size(view: SagaView) -> int:
    return len(encode_json(view.to_json()))


def row(step: str, number: int | None = None, state: Any = "DONE", **values: Any) -> StepView:
    id = step if number is None else f"{step}#{number}"
    return StepView(id=id, step=step, name=step, uses="act", state=state, generation=1, attempts=1, **values)


def random_view(seed: int) -> SagaView:
    numbers = random.Random(seed)

    def text(largest: int) -> str:
        return "x" * int(largest ** numbers.random())

    def some(largest: int) -> range:
        return range(int(largest ** numbers.random()) if numbers.random() < 0.5 else 0)

    return SagaView(
        id="s-1",
        saga="s",
        generation=1,
        state="RUNNING",
        phase="committed",
        reason=ReasonView(kind="rejected", step="pay", message="no money"),
        input={"text": text(40_000)},
        output=numbers.choice([None, {"text": text(40_000)}]),
        steps=(
            *(row(f"plain{n}", result=text(20_000)) for n in some(9)),
            *(row("each", n, result=text(500)) for n in some(400)),
            *(row("each", 1_000 + n, "FAILED", arguments={"n": text(500)}) for n in some(30)),
        ),
        parked=tuple(ParkedView(step=f"each#{n}", op="undo", since=AT, why=text(300)) for n in some(60)),
        residue=tuple(ResidueView(step=f"each#{n}", kind="effect_stays", command=text(300)) for n in some(60)),
        operator=tuple(DecisionView(step="each", decision="skip", who="mia", at=AT, reason=text(99)) for _ in some(60)),
        notifications=tuple(
            NotificationView(id=f"notify-{n}", event="e", when="parked", uses="http.post", at=AT, run="s-1/notify")
            for n in some(60)
        ),
    )


def with_each_omitted_value(small: SagaView, view: SagaView) -> Iterator[SagaView]:
    """The shrunk view with one of its omitted values again, for each of them."""
    if is_omitted(small.input):
        yield replace(small, input=view.input)
    values = {whole.id: whole for whole in view.steps}
    for number, left in enumerate(small.steps):
        for name in ("result", "arguments"):
            if is_omitted(getattr(left, name)):
                whole = replace(left, **{name: getattr(values[left.id], name)})
                yield replace(small, steps=(*small.steps[:number], whole, *small.steps[number + 1 :]))


@pytest.mark.parametrize("part", range(4))
def test_whatever_fits_is_shown(part: int) -> None:
    for seed in range(part, 400, 4):
        view = random_view(seed)
        small = shrink_view(view, LIMIT)
        assert size(small) <= LIMIT, seed
        assert small.reason == view.reason
        assert len(view.steps) == len(small.steps) + sum((small.steps_omitted or {}).values())
        assert all(size(fuller) > LIMIT for fuller in with_each_omitted_value(small, view)), seed
        bare = replace(
            view, input=omitted(40_000), steps=(), steps_omitted={"each DONE": 1}, operator=(), notifications=()
        )
        alone = replace(bare, **dict.fromkeys(NEEDED, ()))
        assert small.output == (view.output if size(alone) < LIMIT - 100 else small.output), seed
        if size(bare) < LIMIT - 100:
            assert (small.residue, small.parked) == (view.residue, view.parked), seed


def test_the_output_of_many_items_stays() -> None:
    rows = tuple(row("sign", number, result={"signature": "x" * 100}) for number in range(1_500))
    view = SagaView(id="s-1", saga="s", generation=1, state="COMPLETED", input=list(range(1_500)), output="y" * 140)
    small = shrink_view(replace(view, steps=rows), 100_000)
    assert (small.output, small.input) == (view.output, view.input)
    assert small.steps_omitted == {"sign DONE": 1_500}


def test_an_output_that_is_too_large_costs_nothing_else() -> None:
    view = SagaView(id="s-1", saga="s", generation=1, state="COMPLETED", input="x" * 5_000, output="y" * 30_000)
    rows = tuple(row("sign", number) for number in range(10))
    small = shrink_view(replace(view, steps=rows), LIMIT)
    assert small == replace(view, steps=rows, output=omitted(30_002))


def test_steps_under_way_are_left_out_last() -> None:
    rows = [replace(row("s", number), id=f"s{number}", step=f"s{number}") for number in range(300)]
    rows[250] = replace(rows[250], state="RUNNING")
    view = SagaView(id="s-1", saga="s", generation=1, state="RUNNING")
    small = shrink_view(replace(view, steps=tuple(rows)), LIMIT)
    assert [step.id for step in small.steps] == ["s250"]
    assert sum((small.steps_omitted or {}).values()) == 299
