"""The tables of all fields of the language, from which the parser, the editors' schema and the reference are made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sagas.builtins.messaging import FORM_DESCRIPTION, SOURCE_FORM, SOURCE_TOPIC_NAME
from sagas.builtins.registry import BUILTINS, EXPRESSION
from sagas.builtins.schemas import CODE
from sagas.definition.parser import other_names
from sagas.definition.parser.field_types import (
    Arguments,
    Boolean,
    Choice,
    Condition,
    Duration,
    DurationOrWord,
    Field,
    Integer,
    Json,
    ListOf,
    ListOrExpression,
    MappingType,
    Number,
    OneOrMore,
    Schema,
    String,
    StringMap,
)
from sagas.definition.parser.redelivery_types import Redelivery
from sagas.definition.parser.schedule_types import CatchupWindow, CronExpression, OverlapPolicy, TimeZone
from sagas.definition.parser.task_queue_type import TaskQueueName
from sagas.definition.saga_ids import SAGA_NAME

if TYPE_CHECKING:
    from sagas.actions.registry import Action
    from sagas.actions.signature import Parameter, Signature


LANGUAGE_VERSION = 1
STEP_ID = "[a-z][a-z0-9_]*"
MILESTONES = ("completed", "compensated", "parked", "residue", "overdue")
RESERVED_IDS = ("do", "undo", "confirm", "probe", "output")
MAX_LABELS = 10
MAX_PARALLEL = 200

_WITH = Field("with", Arguments(), "the arguments; may contain expressions")
_TASK_QUEUE = Field(
    "task_queue", TaskQueueName(), "Temporal task queue of the worker that serves it; takes no expression"
)
_TIMEOUT = Field("timeout", Duration(), "how long one attempt may take, its COMMIT included, default 30s")
_HEARTBEAT = Field(
    "heartbeat", Duration(), "for long actions: an attempt without a heartbeat for this long counts as dead"
)
_EXECUTION = Field(
    "execution", Choice(("remote", "local")), "`local`: a Temporal local activity, for short guarded steps"
)
_ON_FAILURE = Field(
    "on_failure",
    Choice(("compensate", "park", "continue")),
    "what happens when the step fails for good, default compensate",
)

_UNDO_LEAVES = Field(
    "undo_leaves",
    ListOf(String(r"[^.]+(\.[^.]+){0,2}", "a table or a column: `audit_log`, `account.updated_at`")),
    "tables and columns that an undo does not restore, for `saga verify-undo`",
)

RETRY = MappingType(
    "retry",
    (
        Field("max_attempts", Integer(1, 1_000_000), "attempts in all, default 12"),
        Field("initial_interval", Duration(), "wait before the second attempt, default 1s"),
        Field(
            "backoff_coefficient", Number(1.0, 1000.0), "how much longer each wait is than the one before, default 2.0"
        ),
        Field("max_interval", Duration(), "the longest wait, default 1m"),
        Field("give_up_after", Duration(), "total time over all attempts"),
        Field(
            "intervals",
            ListOf(Duration(zero=True), minimum=1),
            "the waits one by one; the last one repeats; after an attempt without an answer about these",
        ),
    ),
    exclusive=(
        ("intervals", "initial_interval"),
        ("intervals", "backoff_coefficient"),
        ("intervals", "max_interval"),
    ),
    others=other_names.RETRY,
    example="write the attempts as a mapping, for example `retry: {max_attempts: 3}`",
)
_RETRY = Field("retry", RETRY, "the attempts and their intervals")

_USES = Field("uses", String(), "the action", required=True)
_OPERATION_FIELDS = (_USES, _WITH, _TIMEOUT, _HEARTBEAT, _RETRY, _TASK_QUEUE)

CONFIRMED = MappingType("confirmed", _OPERATION_FIELDS, shorthand="uses", others=other_names.OPERATION)
CONFIRM = MappingType("confirm", _OPERATION_FIELDS, shorthand="uses", others=other_names.OPERATION)
COMPENSATE = MappingType(
    "compensate",
    (
        *_OPERATION_FIELDS,
        Field("confirmed", CONFIRMED, "what undoes the step after its confirm"),
        Field("always", Boolean(), "true: it also runs after a rejection or a failure, if the step was attempted"),
    ),
    shorthand="uses",
    others=other_names.OPERATION,
    example="name an action that undoes the step; without one leave it out, and write `effect: none` if the step only "
    "reads, or `pivot: true` if it is the point of no return",
    refused=("none", "null", "false", "true", "yes", "no", "never", "nothing", "skip", "noop"),
)
PROBE = MappingType(
    "probe",
    (
        *_OPERATION_FIELDS,
        Field("done", Condition(), "CEL over `response`: true when the effect exists"),
        Field("absent", Condition(), "CEL over `response`: true when there is no effect"),
        Field("result", Condition(), "CEL over `response`: the step's result when it is done"),
    ),
    shorthand="uses",
    others=other_names.OPERATION,
)
SAVEPOINT = MappingType(
    "savepoint",
    (
        Field("attempts", Integer(2, 100), "runs of what follows in all, default 3"),
        Field("wait", Duration(zero=True), "wait before each further run, default 0s"),
    ),
)
CHECK = MappingType("check", (_USES, _WITH, _TIMEOUT, _RETRY), shorthand="uses", others=other_names.OPERATION)

STEP = MappingType(
    "a step",
    (
        Field(
            "id",
            String(STEP_ID, "a step id: lower-case letters, digits and `_`, beginning with a letter", RESERVED_IDS),
            "unique name of the step",
            required=True,
        ),
        Field("name", String(), "a description for operators, default the id"),
        _USES,
        _WITH,
        Field(
            "needs",
            OneOrMore(String(), minimum=0),
            "steps that must be done or skipped first; default everything above",
        ),
        Field("if", Condition(), "false: the step is skipped and its result is null"),
        Field("for_each", ListOrExpression(), "run once per item, with `item` and `index`"),
        Field("max_parallel", Integer(1, MAX_PARALLEL), "items at the same time, default 1"),
        _TIMEOUT,
        _HEARTBEAT,
        _RETRY,
        _ON_FAILURE,
        Field("compensate", OneOrMore(COMPENSATE), "what undoes the step; a list is tried in order"),
        Field("confirm", CONFIRM, "what makes a tentative effect final at the commit point"),
        Field("probe", PROBE, "how to find out whether an unknown attempt took effect"),
        Field("idempotent", Boolean(), "false: the participant does not honour the idempotency key"),
        Field(
            "remembers_rejections",
            Boolean(),
            "true: after a rejection no attempt with the same key has an effect, not even an earlier one",
        ),
        Field(
            "settle",
            Duration(zero=True),
            "how long after the end of the last attempt an effect may still appear, so that the probe is not believed "
            "to find none; default one minute or twice the `timeout`, the longer",
        ),
        Field("check", CHECK, "a read that runs, with those of all other steps, before the first effect"),
        Field("pivot", Boolean(), "true: the point of no return"),
        Field("effect", Choice(("none",)), "`none`: the step only reads"),
        Field(
            "commutative",
            Boolean(),
            "true: the effect and its undo only add and subtract, so their order among other sagas does not matter",
        ),
        _UNDO_LEAVES,
        Field("savepoint", SAVEPOINT, "a later failure undoes what follows and runs it again"),
        _TASK_QUEUE,
        Field("priority", Integer(1, 5), "Temporal's priority, 1 is the most urgent"),
        Field("fairness_key", String(), "Temporal's fairness key; may contain an expression"),
        _EXECUTION,
    ),
    extensible=True,
    others=other_names.STEP,
    example="write the fields of the step, for example `- {id: book, uses: shop.book}`",
)

OPERATION_DEFAULTS = MappingType("the defaults of an operation", (_RETRY, _TIMEOUT))
DEFAULTS = MappingType(
    "defaults",
    (
        _TIMEOUT,
        _HEARTBEAT,
        _RETRY,
        _ON_FAILURE,
        Field("connection", String(), "connection of `sql`, `outbox.emit` and `http` where a step names none"),
        _TASK_QUEUE,
        _EXECUTION,
        Field("compensate", OPERATION_DEFAULTS, "`retry` and `timeout` of undos, before those of the step"),
        Field("confirm", OPERATION_DEFAULTS, "`retry` and `timeout` of confirms, before those of the step"),
    ),
    extensible=True,
)

BULK_TRIGGER = MappingType(
    "`bulk`",
    (
        Field("max", Integer(1, 2_000), "the most sagas that share a workflow, default 500"),
        Field("wait", Duration(), "how long to wait for further events, up to 5s, default 50ms"),
    ),
)
KAFKA_TRIGGER = MappingType(
    "a trigger",
    (
        Field(
            "topic",
            String(SOURCE_TOPIC_NAME, SOURCE_FORM),
            "the topic whose events start or signal sagas",
            required=True,
        ),
        Field(
            "id",
            String(),
            "template of the saga's id, over `trigger`; default the saga's own `id`, else the event's id",
        ),
        Field("input", Json(), "the input of the saga, or the data of the signal; default `${{ trigger.value }}`"),
        Field("signal", String(), "sends this signal to the waiting saga `id` instead of starting one"),
        Field("filter", Condition(), "CEL over `trigger`: false ignores the event"),
        Field("bulk", BULK_TRIGGER, "sagas of events that arrive together share a workflow; needs a ledger"),
        Field(
            "redeliver",
            Redelivery(),
            "`true`: an event whose saga was compensated starts it again, after 10s, 1m, 5m, 30m and 2h; `{intervals: "
            "[1m, 10m]}`: after these waits",
        ),
    ),
)
SCHEDULE_TRIGGER = MappingType(
    "a schedule",
    (
        Field("cron", CronExpression(), "when sagas start: 5 fields of cron, or `@daily` and its like", required=True),
        Field("timezone", TimeZone(), "the time zone of `cron`, such as Europe/Berlin; default UTC"),
        Field(
            "overlap",
            OverlapPolicy(),
            "what happens while the saga of an earlier time runs: default `skip`; `buffer_one`, `buffer_all`, "
            "`allow_all` or `cancel_other`",
        ),
        Field("catchup_window", CatchupWindow(), "how late a start may be after Temporal was unavailable, default 1d"),
        Field("jitter", Duration(zero=True), "each start is delayed at random by up to this, default 0s"),
        Field("input", Json(), "the input of the saga, over `trigger`; default `{}`"),
        Field(
            "id",
            String(),
            "template of the saga's id, over `trigger`; default the saga's own `id`, else `<saga>-<scheduled time>`",
        ),
    ),
    example="write the times as a mapping, for example `schedule: {cron: 30 3 * * *, timezone: Europe/Berlin}`",
)
TRIGGERS = MappingType(
    "`triggers`",
    (
        Field("kafka", OneOrMore(KAFKA_TRIGGER), "events of topics; one trigger or a list"),
        Field("schedule", SCHEDULE_TRIGGER, "the times at which sagas start"),
    ),
)

LOCKS = MappingType(
    "`locks`",
    (
        Field("keys", ListOrExpression(), "the keys, strings; may contain expressions", required=True),
        Field("wait", DurationOrWord("fail"), "how long to wait for them, default 30s; `fail`: not at all"),
        Field("from", String(), "take them right before this step, default before the first one"),
        Field("until", Choice(("commit", "final")), "when they are released, default final"),
    ),
)

NOTIFY = MappingType(
    "a notification",
    (
        Field("when", OneOrMore(Choice(MILESTONES)), "the events that are notified", required=True),
        _USES,
        Field("with", Arguments(), "the arguments; may contain expressions, also over `event`"),
        _TIMEOUT,
        Field(
            "intervals",
            ListOf(Duration(zero=True), minimum=1),
            "waits before attempt 2, 3 …, after the last it is given up; default 1s, 5s, 30s, 5m, 30m, 2h",
        ),
        _TASK_QUEUE,
    ),
    extensible=True,
)

SAGA = MappingType(
    "a saga",
    (
        Field(
            "saga",
            String(SAGA_NAME, "a saga name: lower-case letters, digits and `-`, beginning with a letter"),
            "name of the saga and workflow type in Temporal",
            required=True,
        ),
        Field("description", String(allow_empty=True), "one sentence"),
        Field("language", Choice((LANGUAGE_VERSION,)), "version of this language"),
        Field(
            "id",
            String(),
            "template of the saga id, default `<saga>-<uuid7>`; not used by a nested saga, `<parent>/<entry id>`",
        ),
        Field("labels", StringMap(MAX_LABELS, r"[A-Za-z0-9_.-]+"), "up to 10 searchable labels, plain text"),
        Field("input", Json(), "JSON Schema 2020-12 of the input"),
        Field("output", Json(), "what a finished saga returns; may contain expressions"),
        Field(
            "deadline",
            Duration(),
            "rolls back when it passes before the commit point; from when a worker first takes the saga",
        ),
        Field("warn_after", Duration(), "only raises OVERDUE; from the same time"),
        Field("recovery", Choice(("backward", "forward")), "`forward`: never undone, every step is retriable"),
        Field("defaults", DEFAULTS, "values for steps that have none of their own"),
        Field("locks", LOCKS, "semantic locks: keys that only one saga holds at a time"),
        Field(
            "steps",
            ListOf(STEP, minimum=1, example="write a list, in which every step begins with `- id: NAME`"),
            "the steps",
            required=True,
        ),
        _UNDO_LEAVES,
        Field("notify", ListOf(NOTIFY), "notifications to other systems, best effort"),
        Field("triggers", TRIGGERS, "what starts or signals sagas automatically: events of topics, a schedule"),
        Field("publish", Choice(("each", "together")), "`together`: all Spark outputs in one catalog transaction"),
    ),
    extensible=True,
    others=other_names.SAGA,
)


_DRAFT_7 = "http://json-schema.org/draft-07/schema#"
"""The dialect that all editors and SchemaStore know; the language needs no keyword of a later one."""

DIALECT = "https://json-schema.org/draft/2020-12/schema"
"""The dialect of the settings and of the arguments of actions."""

_EXPRESSION_STRING: Schema = {"type": "string", "pattern": r"\$\{\{"}


def language_schema(actions: Mapping[str, Action] | None = None) -> Schema:
    """The JSON Schema of a saga file. With ``actions`` (`saga schema --with-actions`) it includes their arguments.

    Editors resolve YAML merge keys before they validate. The step graph and expressions are left to `saga validate`.
    """
    schema = SAGA.schema()
    step = schema["properties"]["steps"]["items"]
    arguments_of = _argument_schemas(actions or {})
    # An unknown name may be one of the project's actions or a foreign action, so names are only suggested.
    names = sorted({*arguments_of, *(actions or {})})
    step["properties"]["uses"] = {
        "description": step["properties"]["uses"]["description"],
        "anyOf": [{"enum": names}, {"type": "string", "minLength": 1}],
    }
    step["allOf"] = [_arguments_rule(name, arguments) for name, arguments in sorted(arguments_of.items())]
    return {"$schema": _DRAFT_7 if actions is None else DIALECT, "title": "Saga definition", **schema}


def _arguments_rule(name: str, arguments: Schema) -> Schema:
    needed = ["with"] if arguments.get("required") else []
    then: Schema = {"properties": {"with": arguments}}
    return {
        "if": {"properties": {"uses": {"const": name}}, "required": ["uses"]},
        "then": {**then, "required": needed} if needed else then,
    }


def _argument_schemas(actions: Mapping[str, Action]) -> dict[str, Schema]:
    schemas = {
        name: _with_expressions_allowed(_without_marks(builtin.parameters)) for name, builtin in BUILTINS.items()
    }
    for name in ("sql", "http", "outbox.emit"):
        # The connection may come from `defaults`.
        schemas[name]["required"] = [required for required in schemas[name]["required"] if required != "connection"]
    for name, action in actions.items():
        schemas[name] = _signature(action.signature)
    return schemas


def _signature(signature: Signature) -> Schema:
    properties: dict[str, Any] = dict.fromkeys(signature.unusable, False)
    for parameter in signature.parameters:
        properties |= dict.fromkeys((parameter.name, parameter.variable), _own_value(parameter))
    required = [parameter for parameter in signature.parameters if parameter.required]
    schema: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": [parameter.name for parameter in required if parameter.name == parameter.variable],
        "additionalProperties": False
        if signature.other_arguments is None
        else _value_or_expression(_own_value(signature.other_arguments)),
    }
    spelled = [[parameter.name, parameter.variable] for parameter in required if parameter.name != parameter.variable]
    if spelled:
        schema["allOf"] = [{"oneOf": [{"required": [name]} for name in names]} for names in spelled]
    return schema


def _own_value(parameter: Parameter) -> Schema:
    return _with_expressions_allowed(_with_inlined_references(dict(parameter.schema)))


def _without_marks(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_marks(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: _without_marks(value) for key, value in schema.items() if key not in (EXPRESSION, CODE, FORM_DESCRIPTION)
    }


def _with_inlined_references(schema: Any, definitions: Any = None, depth: int = 0) -> Any:
    """Inline each `$ref`, because pointers into the action's own schema do not resolve in the language's schema."""
    if isinstance(schema, list):
        return [_with_inlined_references(part, definitions, depth) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    definitions = schema.get("$defs", definitions or {})
    reference = schema.get("$ref")
    if isinstance(reference, str):
        target = definitions.get(reference.removeprefix("#/$defs/"), {})
        return _with_inlined_references(target, definitions, depth + 1) if depth < 10 else {}
    return {key: _with_inlined_references(value, definitions, depth) for key, value in schema.items() if key != "$defs"}


def _with_expressions_allowed(schema: Any) -> Any:
    """Return a copy of the schema in which every typed value may also be a string with an expression."""
    if not isinstance(schema, Mapping):
        return schema
    inner = dict(schema)
    if "properties" in inner:
        inner["properties"] = {name: _value_or_expression(part) for name, part in inner["properties"].items()}
    if isinstance(inner.get("items"), Mapping):
        inner["items"] = _value_or_expression(inner["items"])
    if isinstance(inner.get("additionalProperties"), Mapping):
        inner["additionalProperties"] = _value_or_expression(inner["additionalProperties"])
    for key in ("anyOf", "oneOf", "allOf"):
        if key in inner:
            inner[key] = [_with_expressions_allowed(part) for part in inner[key]]
    return inner


def _value_or_expression(schema: Any) -> Any:
    inner = _with_expressions_allowed(schema)
    free = not schema or (schema.get("type") == "string" and not {"pattern", "enum", "format"} & set(schema))
    return inner if free else {"anyOf": [inner, _EXPRESSION_STRING]}
