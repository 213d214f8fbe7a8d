"""Every field of the language, once. The parser, the editors' schema and the reference pages read these tables.

A field of a later part of the product is a row with ``later``; when that part comes, its row gets a shape.
"""

from __future__ import annotations

from sagas.builtins_messaging import TOPIC_NAME
from sagas.definition.records import Field, Record
from sagas.definition.shapes import (
    Arguments,
    Boolean,
    Choice,
    Condition,
    Duration,
    Integer,
    Items,
    Json,
    ListOf,
    Number,
    OneOrMore,
    Text,
    Texts,
)

LANGUAGE_VERSION = 1
SAGA_NAME = "[a-z][a-z0-9-]*"
STEP_ID = "[a-z][a-z0-9_]*"
MOMENTS = ("completed", "compensated", "parked", "residue", "overdue")
RESERVED_IDS = ("do", "undo", "confirm", "probe", "output")
MAX_LABELS = 10
MAX_PARALLEL = 200

_WITH = Field("with", Arguments(), "the arguments; may hold expressions")
_TASK_QUEUE = Field("task_queue", Text(), "Temporal task queue of the worker that serves it")
_TIMEOUT = Field("timeout", Duration(), "how long one attempt may take, default 30s")
_HEARTBEAT = Field("heartbeat", Duration(), "for long actions: an attempt is dead without a beat for this long")
_EXECUTION = Field(
    "execution", Choice(("remote", "local")), "`local`: a Temporal local activity, for short guarded steps"
)
_ON_FAILURE = Field(
    "on_failure",
    Choice(("compensate", "park", "continue")),
    "what happens when the step fails for good, default compensate",
)

RETRY = Record(
    "retry",
    (
        Field("max_attempts", Integer(1, 1_000_000), "attempts in all, default 12"),
        Field("initial_interval", Duration(), "wait before the second attempt, default 1s"),
        Field("backoff_coefficient", Number(1.0), "how much longer each wait is than the one before, default 2.0"),
        Field("max_interval", Duration(), "the longest wait, default 1m"),
        Field("give_up_after", Duration(), "total time over all attempts"),
        Field("intervals", ListOf(Duration(zero=True), minimum=1), "the waits one by one; the last one repeats"),
    ),
    exclusive=(
        ("intervals", "initial_interval"),
        ("intervals", "backoff_coefficient"),
        ("intervals", "max_interval"),
    ),
)
_RETRY = Field("retry", RETRY, "how often and how patiently it is tried")

_USES = Field("uses", Text(), "the action", required=True)
_FULL_FORM = (_USES, _WITH, _TIMEOUT, _HEARTBEAT, _RETRY, _TASK_QUEUE)

CONFIRMED = Record("confirmed", _FULL_FORM, short="uses")
CONFIRM = Record("confirm", _FULL_FORM, short="uses")
COMPENSATE = Record(
    "compensate",
    (*_FULL_FORM, Field("confirmed", CONFIRMED, "what undoes the step after its confirm")),
    short="uses",
)
PROBE = Record(
    "probe",
    (
        *_FULL_FORM,
        Field("done", Condition(), "CEL over `response`: true when the effect is there"),
        Field("absent", Condition(), "CEL over `response`: true when the effect is not there"),
        Field("result", Condition(), "CEL over `response`: the step's result when it is done"),
    ),
    short="uses",
)

STEP = Record(
    "a step",
    (
        Field(
            "id",
            Text(STEP_ID, "a step id: small letters, digits and `_`, beginning with a letter", RESERVED_IDS),
            "unique name of the step",
            required=True,
        ),
        Field("name", Text(), "a sentence for people, default the id"),
        _USES,
        _WITH,
        Field(
            "needs", OneOrMore(Text(), minimum=0), "steps that must be done or skipped first; default everything above"
        ),
        Field("if", Condition(), "false: the step is skipped and its result is null"),
        Field("for_each", Items(), "run once per item, with `item` and `index`"),
        Field("max_parallel", Integer(1, MAX_PARALLEL), "items at the same time, default 1"),
        _TIMEOUT,
        _HEARTBEAT,
        _RETRY,
        _ON_FAILURE,
        Field("compensate", OneOrMore(COMPENSATE), "what undoes the step; a list is tried in order"),
        Field("confirm", CONFIRM, "what makes a tentative effect final at the commit point"),
        Field("probe", PROBE, "how to find out whether an unknown attempt took effect"),
        Field("idempotent", Boolean(), "false: the participant does not honour the idempotency key"),
        Field("settle", Duration(zero=True), "how long a late effect may still appear, default the timeout"),
        Field("check", Json(), "a read run for all steps before the first effect", later="pre-checks"),
        Field("pivot", Boolean(), "true: the point of no return"),
        Field("effect", Choice(("none",)), "`none`: the step only reads"),
        Field("savepoint", Json(), "undo back to here only", later="savepoints"),
        _TASK_QUEUE,
        Field("priority", Integer(1, 5), "Temporal's priority, 1 is the most urgent"),
        Field("fairness_key", Text(), "Temporal's fairness key; may hold an expression"),
        _EXECUTION,
    ),
    extensible=True,
)

DEFAULTS = Record(
    "defaults",
    (
        _TIMEOUT,
        _HEARTBEAT,
        _RETRY,
        _ON_FAILURE,
        Field("connection", Text(), "connection of `sql`, `outbox.emit` and `http` where a step names none"),
        _TASK_QUEUE,
        _EXECUTION,
    ),
    extensible=True,
)

KAFKA_TRIGGER = Record(
    "a trigger",
    (
        Field(
            "topic",
            Text(TOPIC_NAME, "the name of a topic: letters, digits, `.`, `-` and `_`, and none of Kafka's own"),
            "the topic whose events start sagas, or wake them",
            required=True,
        ),
        Field(
            "id", Text(), "template of the saga's id, over `trigger`; default the saga's own `id`, else the event's id"
        ),
        Field("input", Json(), "the input of the saga, or the data of the signal; default `${{ trigger.value }}`"),
        Field("signal", Text(), "wakes the waiting saga `id` with this signal instead of starting one"),
        Field("filter", Condition(), "CEL over `trigger`: false leaves the event out"),
    ),
)
TRIGGERS = Record(
    "`triggers`",
    (
        Field("kafka", OneOrMore(KAFKA_TRIGGER), "events of topics; one trigger or a list"),
        Field("schedule", Json(), "points in time", later="scheduled starts"),
    ),
)

NOTIFY = Record(
    "a notification",
    (
        Field("when", OneOrMore(Choice(MOMENTS)), "the moments at which somebody is told", required=True),
        _USES,
        Field("with", Arguments(), "the arguments; may hold expressions, also over `event`"),
        _TIMEOUT,
        Field(
            "intervals",
            ListOf(Duration(zero=True), minimum=1),
            "waits before attempt 2, 3 …, then it is given up; default 1s, 5s, 30s, 5m, 30m, 2h",
        ),
        _TASK_QUEUE,
    ),
    extensible=True,
)

TOP = Record(
    "a saga",
    (
        Field(
            "saga",
            Text(SAGA_NAME, "a saga name: small letters, digits and `-`, beginning with a letter"),
            "name of the saga and workflow type in Temporal",
            required=True,
        ),
        Field("description", Text(allow_empty=True), "one sentence"),
        Field("language", Choice((LANGUAGE_VERSION,)), "version of this language"),
        Field("id", Text(), "template of the saga id, default `<saga>-<uuid7>`"),
        Field("labels", Texts(MAX_LABELS, r"[A-Za-z0-9_.-]+"), "up to 10 searchable labels, plain text"),
        Field("input", Json(), "JSON Schema 2020-12 of the input"),
        Field("output", Json(), "what a finished saga returns; may hold expressions"),
        Field("deadline", Duration(), "leads backward when it passes before the commit point"),
        Field("warn_after", Duration(), "only raises OVERDUE"),
        Field("recovery", Choice(("backward", "forward")), "`forward`: never undone, every step is retriable"),
        Field("defaults", DEFAULTS, "values for steps that have none of their own"),
        Field("locks", Json(), "semantic locks", later="semantic locks"),
        Field("steps", ListOf(STEP, minimum=1), "the steps", required=True),
        Field("notify", ListOf(NOTIFY), "who is told, best effort, when the saga comes to certain moments"),
        Field("triggers", TRIGGERS, "what starts or wakes sagas of itself: events of topics"),
        Field("publish", Choice(("each", "together")), "`together`: all Spark outputs in one catalog transaction"),
    ),
    extensible=True,
)

LATER_ACTIONS: dict[str, str] = {}
