"""Ids of messages, what a trigger makes of an event, and what `saga trigger` would run."""

from __future__ import annotations

import dataclasses
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from saga_workers.trigger.retry import PoisonMessage
from saga_workers.trigger.saga_trigger import MAX_FILL_TIME, TriggerExpressions, fill_time
from saga_workers.trigger.trigger_process import TriggerPlan, make_plan
from sagas import Event, Message, bridge, consumer
from sagas.actions.consumers import (
    HANDLER_ATTRIBUTE,
    MAX_ID_LENGTH,
    MAX_NAME_LENGTH,
    MessageHandlers,
    load_message_handlers,
    message_id,
)
from sagas.actions.registry import Actions
from sagas.definition.loader import parse_text
from sagas.definition.model import BulkTrigger, KafkaTrigger
from sagas.definition.parser.draft import ProjectContext
from sagas.definition.snapshot import from_snapshot, to_snapshot
from sagas.errors import UsageError
from sagas.project import Project
from sagas.settings import Settings, load_settings

UUID = "0199d4b2-6f0e-7f0a-8f43-3c6f2f6b1f11"
IDS = (
    "1",
    UUID,
    UUID.upper(),
    f"{{{UUID}}}",
    UUID.replace("-", ""),
    "a1d0c6e83f027327d8461063f4ac58a6",
    "1 ",
    " 1",
    " ",
)


def test_the_id_of_a_message_is_unique_in_all_topics() -> None:
    assert message_id({}, "t", 1, 2) == message_id({"ce_id": "", "ce_source": "/a"}, "t", 1, 2) != "t-1-2"
    ones = {message_id({"ce_id": "1", "ce_source": source}, "t", 0, 0) for source in ("/a", "/b")}
    assert len(ones) == 2
    assert all(id.startswith("1-") for id in ones)
    assert message_id({"ce_id": "1"}, "t", 0, 0) == "1"


def test_events_are_the_same_only_if_their_ids_and_their_sources_are() -> None:
    events = [(id, source) for id in IDS for source in (None, "", "/a", "/b", "/a ", "/A")]
    ids = {event: message_id({"ce_id": event[0], "ce_source": event[1]}, "t", 0, 0) for event in events}
    assert all(ids[id, None] == ids[id, ""] for id in IDS)
    assert len(set(ids.values())) == len(IDS) * 5


def test_no_id_of_an_event_is_made_up_by_another_one() -> None:
    mark = message_id({"ce_id": "1", "ce_source": "/a"}, "t", 0, 0).removeprefix("1-")
    assert len(mark) == 32
    place = message_id({}, "t", 1, 2, "topic id")
    events = [
        {"ce_id": "1", "ce_source": "/a"},
        {"ce_id": f"1-{mark}"},
        {"ce_id": "1", "ce_source": mark},
        {"ce_id": place},
        {"ce_id": "t-1-2", "ce_source": "topic id"},
        {"ce_id": "t-1-2"},
        {"ce_id": "x" * 300},
        {"ce_id": message_id({"ce_id": "x" * 300}, "t", 0, 0)},
    ]
    ids = [message_id(event, "t", 1, 2, "topic id") for event in events]
    assert len({*ids, place}) == len(events) + 1
    # Of these two, the first 32 bits of SHA-256 are equal.
    first, second = (message_id({"ce_id": "1", "ce_source": f"/devices/{n}"}, "t", 0, 0) for n in (39141, 42651))
    assert first != second


def test_a_long_id_is_shortened_and_stays_its_own() -> None:
    first, second = (message_id({"ce_id": "x" * 300 + end}, "t", 0, 0) for end in "ab")
    assert first != second
    assert len(first) == len(second) == MAX_ID_LENGTH


def _message(value: Any) -> Message:
    return Message("m", "t", 0, 4, "2026-01-01T00:00:00Z", "k", value, {"ce_type": "paid"})


def _context(value: Any) -> dict[str, Any]:
    return {"trigger": _message(value).as_trigger(), "vars": {"floor": 3}, "saga": {"name": "s"}}


def test_forwarded_values_keep_their_type() -> None:
    values = TriggerExpressions(
        KafkaTrigger("t", input={"all": "${{ trigger.value }}", "half": "${{ trigger.value.n }}"})
    )
    assert values.input(_context({"n": 1.5})) == {"all": {"n": 1.5}, "half": 1.5}
    assert TriggerExpressions(KafkaTrigger("t")).input(_context({"n": 1.5})) == {"n": 1.5}
    assert TriggerExpressions(KafkaTrigger("t", input=["${{ trigger.offset + 1 }}"])).input(_context(None)) == [5]


def test_filter_and_id_are_over_the_event() -> None:
    trigger = KafkaTrigger("t", id="s-${{ trigger.key }}", filter="${{ trigger.value.n > vars.floor }}")
    assert TriggerExpressions(trigger).matches(_context({"n": 4}))
    assert not TriggerExpressions(trigger).matches(_context({"n": 3}))
    assert TriggerExpressions(trigger).id(_context({})) == "s-k"


@pytest.mark.parametrize(
    "input",
    ["${{ trigger.value }}", {"n": "${{ trigger.value.n }}"}, {"all": ["${{ trigger.value['n'] }}"]}],
)
def test_the_id_of_a_start_has_the_integers_of_the_schema(input: Any) -> None:
    values = TriggerExpressions(KafkaTrigger("t", id="s-${{ trigger.value.n }}-${{ trigger.value.x }}", input=input))
    context = _context({"n": Decimal("14.0"), "x": Decimal("1.0")})
    checked = input_of(values.input(context))
    assert values.id_of_start(context, checked) == ("s-14-1" if input == "${{ trigger.value }}" else "s-14-1.0")
    assert context == _context({"n": Decimal("14.0"), "x": Decimal("1.0")})


def input_of(value: Any) -> Any:
    """The input as a schema completes it that says `integer` everywhere."""
    if isinstance(value, dict):
        return {name: input_of(part) for name, part in value.items()}
    return [input_of(part) for part in value] if isinstance(value, list) else int(value)


@pytest.mark.parametrize(
    ("trigger", "message"),
    [
        (KafkaTrigger("t", filter="${{ trigger.value.missing > 3 }}"), "`filter` cannot be evaluated"),
        (KafkaTrigger("t", filter="${{ trigger.key }}"), "`filter` is not a boolean"),
        (KafkaTrigger("t", id="${{ trigger.value.missing }}"), "`id` cannot be evaluated"),
        (KafkaTrigger("t", id="${{ trigger.headers }}"), "for this event `id` is a map, not a string or a number"),
        (KafkaTrigger("t", id="${{ '' }}"), "for this event `id` is empty"),
        (KafkaTrigger("t", input="${{ trigger.value.missing }}"), "`input` cannot be evaluated"),
    ],
)
def test_a_failing_expression_rejects_the_event(trigger: KafkaTrigger, message: str) -> None:
    with pytest.raises(PoisonMessage, match=message):
        _made(TriggerExpressions(trigger), _context({"n": 1}))


@pytest.mark.parametrize("field", ["id", "input", "filter"])
def test_no_reason_quotes_an_event_of_a_saga_with_sensitive_values(field: str) -> None:
    """An expression may take apart what becomes such a value."""
    part = "${{ int(trigger.value.card.split('-')[1]) > 1 }}"
    schema = {"type": "object", "properties": {"card": {"type": "string", "x-sensitive": True}}}
    fields: dict[str, Any] = {field: part}
    trigger, context = KafkaTrigger("t", **fields), _context({"card": "4000-kanari"})
    with pytest.raises(PoisonMessage, match="'kanari'"):
        _made(TriggerExpressions(trigger, {}), context)
    with pytest.raises(PoisonMessage) as refused:
        _made(TriggerExpressions(trigger, schema), context)
    assert f"`{field}` cannot be evaluated for this event: `{part}` fails" in str(refused.value)
    assert "kanari" not in str(refused.value)


def _made(values: TriggerExpressions, context: dict[str, Any]) -> list[Any]:
    return [values.matches(context), values.id(context), values.input(context)]


TRIGGERED = """
saga: shop
triggers:
  kafka:
    - {topic: orders, filter: trigger.key != null}
    - {topic: orders, id: "${{ trigger.key }}", signal: paid, input: {n: 1}}
    - {topic: others}
steps: [{id: pay, uses: wait, with: {signal: paid}}]
"""


def test_triggers_are_read_and_do_not_travel_with_a_run() -> None:
    definition, diagnostics = parse_text(TRIGGERED, "shop.saga.yaml", ProjectContext())
    assert definition is not None, diagnostics
    assert definition.triggers == (
        KafkaTrigger("orders", filter="${{ trigger.key != null }}"),
        KafkaTrigger("orders", "${{ trigger.key }}", {"n": 1}, "paid"),
        KafkaTrigger("others"),
    )
    plain, _ = parse_text(
        TRIGGERED.replace(TRIGGERED[TRIGGERED.index("triggers") : TRIGGERED.index("steps")], ""), "", ProjectContext()
    )
    assert plain is not None
    assert plain.digest == definition.digest
    assert "triggers" not in to_snapshot(definition)
    assert from_snapshot(to_snapshot(definition)) == definition


def test_one_reader_for_each_topic_of_a_saga(tmp_path: Path) -> None:
    (tmp_path / "shop.saga.yaml").write_text(TRIGGERED, encoding="utf-8")
    project = Project(Settings(root=tmp_path, definition_folders=(tmp_path,)), Actions(), MessageHandlers())
    assert [(definition.saga, topic) for definition, topic in make_plan(project).triggers] == [
        ("shop", "orders"),
        ("shop", "others"),
    ]
    assert make_plan(project, ["shop"]).consumers == ()


def test_no_readers_give_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "a.saga.yaml").write_text("saga: a\nsteps: [{id: b, uses: wait, with: {for: 1s}}]\n", encoding="utf-8")
    project = Project(Settings(root=tmp_path, definition_folders=(tmp_path,)), Actions(), MessageHandlers())
    with pytest.raises(UsageError, match="reads no topic"):
        make_plan(project)
    triggered = Project(Settings(root=tmp_path, definition_folders=(tmp_path,)), Actions(), MessageHandlers())
    (tmp_path / "shop.saga.yaml").write_text(TRIGGERED, encoding="utf-8")
    with pytest.raises(UsageError, match="the saga a has no trigger"):
        make_plan(triggered, ["a"])
    with pytest.raises(UsageError, match="there is no trigger, consumer or bridge shp; did you mean shop"):
        make_plan(triggered, ["shop", "shp"])


SETTINGS = """
definitions = ["."]
kafka = {bootstrap_servers = "127.0.0.1:1", outbox = "shop"}
connections.shop.url = "sqlite:///shop.db"
"""

ASKS = """
saga: asks
steps: [{id: ask, uses: kafka.request, compensate: kafka.request, with: {topic: commands, value: {}}}]
"""


def test_consumers_and_bridges_are_found_in_the_modules(tmp_path: Path) -> None:
    (tmp_path / "readers.py").write_text(
        "from __future__ import annotations\nfrom sagas import bridge, consumer\n\n"
        "@consumer('orders', connection='shop')\nasync def book(message): ...\n\n"
        "@bridge('orders', to='copy', name='copier')\ndef copy(message): return message.value\n",
        encoding="utf-8",
    )
    message_handlers = load_message_handlers(["./readers.py"], tmp_path)
    assert [(consumer.name, consumer.topic, consumer.connection) for consumer in message_handlers.consumers] == [
        ("book", "orders", "shop")
    ]
    assert [(bridge.name, bridge.to) for bridge in message_handlers.bridges] == [("copier", "copy")]

    (tmp_path / "shop.saga.yaml").write_text(TRIGGERED, encoding="utf-8")
    (tmp_path / "asks.saga.yaml").write_text(ASKS, encoding="utf-8")
    (tmp_path / "saga.toml").write_text(SETTINGS, encoding="utf-8")
    project = Project(load_settings(tmp_path), Actions(), message_handlers)
    all_of_them = {"shop", "book", "copier", "replies"}
    assert readers_in(make_plan(project)) == all_of_them
    for name in all_of_them:
        assert readers_in(make_plan(project, [name])) == {name}, "the others are not run"
    assert readers_in(make_plan(project, ["copier", "replies"])) == {"copier", "replies"}


def readers_in(plan: TriggerPlan) -> set[str]:
    """The names of `--only` that the plan has."""
    names = {definition.saga for definition, _ in plan.triggers}
    return (
        names | {each.name for each in (*plan.consumers, *plan.bridges)} | ({"replies"} if plan.reply_topics else set())
    )


def test_consumer_mistakes_are_reported_when_it_is_loaded() -> None:
    def handle(message: Message) -> None: ...

    async def wait(message: Message) -> None: ...

    with pytest.raises(UsageError, match="must be at least 1"):
        consumer("t", connection="shop", max_attempts=0)(handle)
    with pytest.raises(UsageError, match="longer than"):
        consumer("t", connection="shop", name="x" * (MAX_NAME_LENGTH + 1))(handle)
    with pytest.raises(UsageError, match="plain `def`"):
        bridge("t", to="u")(wait)
    wrong: Any
    for wrong in ("a b/c", "", "__consumer_offsets", 5, None):
        with pytest.raises(UsageError, match="not a valid topic name"):
            consumer(wrong, connection="shop")(handle)
        with pytest.raises(UsageError, match="not a valid topic name"):
            bridge("t", to=wrong)(handle)
    with pytest.raises(UsageError, match="at most 245 characters"):
        bridge("t" * 246, to="u")(handle)
    with pytest.raises(UsageError, match="would read what it writes"):
        bridge("t", to="t")(handle)
    for wrong in (0, "3", 1.5):
        with pytest.raises(UsageError, match="at least 1"):
            bridge("t", to="u", max_attempts=wrong)(handle)
        with pytest.raises(UsageError, match="at least 1"):
            consumer("t", connection="shop", max_attempts=wrong)(handle)
    wrong = "5s"
    with pytest.raises(UsageError, match="must be a number of seconds above 0"):
        consumer("t", connection="shop", timeout=wrong)(handle)
    handler = getattr(consumer("t", connection="shop")(handle), HANDLER_ATTRIBUTE)
    with pytest.raises(UsageError, match="two consumers are named handle"):
        MessageHandlers([handler, dataclasses.replace(handler, function=wait)])


def test_a_message_outside_of_a_consumer_has_no_database() -> None:
    message = _message({})
    for use in (lambda: message.sql, lambda: message.emit("t"), lambda: message.newer("a", 1)):
        with pytest.raises(UsageError, match="only a consumer"):
            use()
    assert Event("t", None, 1).headers == {}


def test_events_wait_for_others_only_where_all_of_them_share_workflows() -> None:
    def waiting(*waits: float) -> list[KafkaTrigger]:
        return [KafkaTrigger("t", bulk=BulkTrigger(wait=wait)) for wait in waits]

    assert fill_time(waiting(0.3, 0.06)) == pytest.approx(0.03)
    assert fill_time(waiting(5.0)) == MAX_FILL_TIME
    assert fill_time(waiting(0.0)) == 0
    assert fill_time([*waiting(0.3), KafkaTrigger("t", signal="paid")]) == 0
