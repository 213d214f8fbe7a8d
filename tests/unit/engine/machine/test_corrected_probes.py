"""A probe is asked only about the call that was made, whatever the arguments that an operator gave the step."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from saga_workers.decision_preview import consequences
from sagas.expressions import compile_value
from sagas.protocol.messages import DecisionMade
from sagas.protocol.outcomes import Outcome
from tests.helpers.sampling import examples
from tests.unit.engine.machine.driver import MachineDriver, op, probe, saga, step, undo

VALUES = ("X", "Y", "Z")
NAMES = ("acc", "region", "other")
INPUT = {"acc": "X", "region": "Y", "other": "Z"}
TEXTS = (
    *VALUES,
    *(f"${{{{ input.{name} }}}}" for name in NAMES),
    "/X/",
    "/${{ input.acc }}/",
    "${{ input.acc + 'X' }}",
    "${{ input.region == 'X' ? 'X' : input.acc }}",
)


def trees(leaf: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, Any]]:
    parts = st.dictionaries(st.sampled_from(("a", "b")), leaf, max_size=2) | st.lists(leaf, max_size=2)
    return st.dictionaries(st.sampled_from(("a", "b", "c")), leaf | parts, max_size=3)


WRITTEN = trees(st.sampled_from(TEXTS))
ASKED = trees(st.sampled_from((*TEXTS, "${{ input }}")))
KEYED = "/charges/${{ step.key }}"


def rendered(value: Any, names: Mapping[str, str], key: str = "") -> Any:
    return compile_value(value).render({"input": names, "step": {"key": key}})


@st.composite
def corrections(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any] | None, str | None, dict[str, Any]]:
    """The arguments of a step as written, those of its probe, what its condition compares, and the operator's."""
    written = draw(WRITTEN.filter(bool))
    places = [place for place, _ in _places(written)]
    asked = draw(st.none() | ASKED)
    if asked is not None and draw(st.booleans()):
        asked = {**asked, "same": _at(written, draw(st.sampled_from(places)))} if places else asked
    if asked is not None and draw(st.booleans()):
        asked = {**asked, "path": KEYED}
    compared = draw(st.none() | st.sampled_from(TEXTS[:6]))
    new = rendered(written, INPUT)
    if draw(st.booleans()):  # what the definition would give for other values
        new = rendered(written, {name: draw(st.sampled_from(VALUES)) for name in NAMES})
    for place in places:
        if draw(st.integers(0, 3)) == 0:
            new = _put(new, place, draw(st.sampled_from(VALUES)))
    if draw(st.integers(0, 4)) == 0:
        new = {**new, "added": draw(st.sampled_from(VALUES))}
    return written, asked, compared, new


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, dict):
        return [place for key, item in value.items() for place in _places(item, (*path, key))]
    if isinstance(value, list):
        return [place for number, item in enumerate(value) for place in _places(item, (*path, number))]
    return [(path, value)]


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def _put(value: Any, path: tuple[Any, ...], leaf: Any) -> Any:
    if not path:
        return leaf
    head, *rest = path
    if isinstance(value, dict):
        return {**value, head: _put(value[head], tuple(rest), leaf)}
    return [_put(item, tuple(rest), leaf) if number == head else item for number, item in enumerate(value)]


def asked_about(
    written: dict[str, Any], asked: dict[str, Any] | None, compared: str | None, new: dict[str, Any]
) -> MachineDriver:
    first = step("a", do=op("debit", written, idempotent=False), on_failure="park", settle=0.0)
    more: dict[str, Any] = {}
    if compared is not None:
        text = compared[4:-3] if compared.startswith("$") else f"'{compared}'"
        more = {"done": "response.ok", "absent": f"response.account == {text} || true"}
    lookup = replace(probe(**more), operation=op("ask", asked))
    answer = Outcome.done({"account": "X", "ok": False}) if more else "absent"
    answers: dict[str, Any] = {"a": ["rejected", "unknown", "done"], "a~probe": answer}
    driver = MachineDriver(saga(replace(first, probe=lookup, compensate=undo("credit"))), INPUT, answers)
    return driver.run().decide("a", "retry", arguments=new).run()


@examples(100, 5_000)
@given(corrections())
@example(({"a": "/X/"}, {"path": "/X/${{ step.key }}"}, None, {"a": "/Y/"}))
@example(({"a": "X"}, {"b": "X"}, None, {"a": "Y"}))
@example(({"a": "X"}, {"a": "X", "b": "/X/"}, None, {"a": "Y"}))
@example(({"a": {"b": "X"}, "b": "Y"}, {"a": {"c": "X"}}, None, {"a": {"b": "Z"}, "b": "Y"}))
@example(({"a": "${{ input.acc }}"}, {"a": "${{ input.acc }}", "b": "Y"}, None, {"a": "Z", "added": "X"}))
@example(({"a": "X"}, None, "X", {"a": "Y"}))
@example(({"a": {}}, {"b": "X"}, None, {"a": {"a": "Y"}}))
@example(({"a": "${{ input.acc }}"}, {"b": "${{ input.other }}"}, None, {"a": "Y"}))
@example(({"a": "${{ input.acc }}", "b": "/${{ input.acc }}/"}, {"b": "X"}, None, {"a": "Y", "b": "/X/"}))
def test_a_probe_that_is_asked_asks_about_the_call(
    case: tuple[dict[str, Any], dict[str, Any] | None, str | None, dict[str, Any]],
) -> None:
    """The definition would have made this call with other values of its names, and for all such values it would have
    asked what was asked.
    """
    written, asked, compared, new = case
    driver = asked_about(written, asked, compared, new)
    if "a~probe" not in driver.log:
        assert driver.state == "PARKED"
        return
    call = driver.call("a~probe")
    if new == rendered(written, INPUT):
        assert call.arguments == (new if asked is None else rendered(asked, INPUT, "s1/a@2"))
        return
    if asked is None and compared is None:
        assert call.arguments == new
        return
    domain = (*VALUES, "?")
    worlds: list[dict[str, str]] = [
        dict(zip(NAMES, values, strict=True)) for values in itertools.product(domain, repeat=len(NAMES))
    ]
    making = [names for names in worlds if rendered(written, names) == new]
    assert making
    for names in making:
        assert call.arguments == (new if asked is None else rendered(asked, names, "s1/a@2"))
        assert rendered(compared, names) == rendered(compared, INPUT)


@pytest.mark.parametrize(
    ("written", "asked", "compared", "new", "sent"),
    [
        ({"a": "${{ input.acc }}", "b": "X"}, {"path": KEYED}, None, {"a": "Y", "b": "X"}, {"path": KEYED}),
        ({"a": "${{ input.acc }}"}, {"x": {"y": ["${{input.acc}}", 1]}}, "X", {"a": "Y"}, {"x": {"y": ["Y", 1]}}),
        (
            {"a": "${{ input.acc }}", "b": "${{ input.region }}"},
            {"path": "/${{ input.region }}/${{ step.key }}", "of": "${{ input.acc }}"},
            "${{ input.region }}",
            {"a": "Z", "b": "Y"},
            {"path": "/Y/${{ step.key }}", "of": "Z"},
        ),
        ({"a": "X"}, None, None, {"a": "Y", "b": "Z"}, {"a": "Y", "b": "Z"}),
        ({"a": "X", "b": "Y"}, {"a": "X", "path": KEYED}, "X", {"a": "X", "b": "Y"}, {"a": "X", "path": KEYED}),
    ],
)
def test_a_probe_that_follows_the_call_is_asked(
    written: dict[str, Any], asked: dict[str, Any] | None, compared: str | None, new: dict[str, Any], sent: Any
) -> None:
    driver = asked_about(written, asked, compared, new)
    assert (driver.state, driver.call("a~probe").arguments) == ("COMPLETED", rendered(sent, INPUT, "s1/a@2"))


def test_a_step_whose_probe_was_not_asked_says_why() -> None:
    driver = asked_about({"a": "X"}, {"b": "X"}, None, {"a": "Y"})
    (parked,) = driver.story["parked"]
    assert parked["why"] == (
        "Timeout: no answer; its probe was not asked, because it does not follow the arguments of --with and might "
        "find the effect of another call: look there"
    )


@pytest.mark.parametrize(
    ("written", "new", "asks"),
    [
        ({"a": "${{ item.acc }}", "b": "${{ item.n }}"}, {"a": "Z", "b": 1}, True),
        ({"a": "${{ item.acc }}", "b": "${{ index }}"}, {"a": "Z", "b": 0}, False),
        ({"a": "${{ item.acc }}", "b": "${{ input.other }}"}, {"a": "Z", "b": [{"acc": "X", "n": 1}]}, False),
    ],
)
def test_the_position_and_the_list_of_an_item_come_with_its_value(
    written: dict[str, Any], new: dict[str, Any], asks: bool
) -> None:
    first = step("a", do=op("debit", written, idempotent=False), on_failure="park", settle=0.0)
    lookup = replace(probe(), operation=op("ask", {"account": "${{ item.acc }}"}))
    first = replace(first, for_each="${{ input.other }}", probe=lookup, compensate=undo("credit"))
    answers: dict[str, Any] = {"a#0": ["rejected", "unknown", "done"], "a#0~probe": "absent"}
    driver = MachineDriver(saga(first), {"other": [{"acc": "X", "n": 1}]}, answers).run()
    driver.decide("a#0", "retry", arguments=new).run()
    assert ("a#0~probe" in driver.log, driver.state) == (asks, "COMPLETED" if asks else "PARKED")


@pytest.mark.parametrize("retried", ["rejected", "unknown"])
@pytest.mark.parametrize(("asked", "warns"), [("${{ input.acc }}", False), ("/${{ input.acc }}/", True), (None, False)])
def test_the_preview_of_a_correction_says_that_the_probe_will_not_be_asked(
    asked: str | None, warns: bool, retried: str
) -> None:
    first = step("a", do=op("debit", {"a": "${{ input.acc }}"}, on="shop"), on_failure="park", settle=0.0)
    lookup = None if asked is None else replace(probe(), operation=op("ask", {"of": asked}))
    answers: dict[str, Any] = {"a": [retried, "done"], "a~probe": "unknown"}
    driver = MachineDriver(saga(replace(first, probe=lookup)), INPUT, answers).run()
    decision = DecisionMade("a", "retry", "another account", "ada", driver.now, arguments={"a": "Z"})
    assert driver.machine.check_decision(decision) is None
    said = [words for words in consequences(driver.machine, decision) if "the probe of a will not follow" in words]
    assert len(said) == warns
    assert all("the call may have happened" in words for words in said)


@pytest.mark.parametrize(("id", "asks"), [("fee-${{ input.region }}", True), ("fee-${{ input.acc }}", False)])
def test_the_id_of_the_saga_comes_with_what_it_is_made_of(id: str, asks: bool) -> None:
    first = step("a", do=op("debit", {"a": "${{ input.acc }}"}, idempotent=False), on_failure="park", settle=0.0)
    lookup = replace(probe(), operation=op("ask", {"of": "${{ saga.id }}"}))
    definition = saga(replace(first, probe=lookup, compensate=undo("credit")), id=id)
    answers: dict[str, Any] = {"a": ["rejected", "unknown", "done"], "a~probe": "absent"}
    driver = MachineDriver(definition, INPUT, answers).run().decide("a", "retry", arguments={"a": "Z"}).run()
    assert ("a~probe" in driver.log) == asks
