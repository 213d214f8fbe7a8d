"""Names that other products have for the fields of this language, and for the arguments of its actions.

An unknown name is looked up here before the names that resemble it: `depends_on` is `needs`, and `action` is `uses`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sagas.errors import nearest

ADDRESS_HELP = "write the address in saga.toml, as `url` under [connections.NAME], and `connection: NAME` under `with`"
_ADDRESSES: dict[str, str] = dict.fromkeys(
    ("url", "dsn", "database", "db", "host", "server", "connection_string"), ADDRESS_HELP
)


@dataclass(frozen=True)
class OtherNames:
    """``fields``: the other names of each field, separated by blanks. ``explained``: the help for names without one."""

    fields: Mapping[str, str] = field(default_factory=dict)
    explained: Mapping[str, str] = field(default_factory=dict)

    def meant(self, name: str, names: Iterable[str]) -> str | None:
        """The field that was meant; None if none is close."""
        names, plain = tuple(names), _plain(name)
        if plain in names:
            return plain
        named = next((field for field in names if plain in self.fields.get(field, "").split()), None)
        return named or (None if plain in self.explained else nearest(name, names))

    def help(self, name: str, names: Iterable[str], otherwise: str = "") -> str:
        """The advice for an unknown name: what to write instead; ``otherwise`` if that is not clear."""
        meant = self.meant(name, names)
        return f"did you mean `{meant}`?" if meant else self.explained.get(_plain(name), otherwise)


def _plain(name: str) -> str:
    """``dependsOn`` and ``depends-on`` as ``depends_on``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).replace("-", "_").lower()


STEP = OtherNames(
    {
        "id": "key step",
        "name": "title label description",
        "uses": "action activity task call function handler operation type run",
        "with": "args arguments params parameters input inputs variables payload",
        "needs": "depends_on depends dependencies after requires runs_after wait_for previous",
        "if": "when condition only_if run_if",
        "for_each": "loop foreach each with_items iterate map over",
        "max_parallel": "concurrency parallel parallelism max_concurrency batch_size",
        "timeout": "start_to_close_timeout time_limit deadline expires",
        "heartbeat": "heartbeat_timeout",
        "retry": "retries retry_policy retry_strategy attempts max_attempts",
        "on_failure": "on_error on_fail onfailure catch failure error_policy",
        "compensate": "undo rollback revert compensation compensate_with on_rollback reverse cancel",
        "confirm": "commit on_commit finalize",
        "probe": "verify query_state reconcile lookup",
        "check": "precondition validate pre_check",
        "pivot": "point_of_no_return commit_point irreversible",
        "savepoint": "checkpoint",
        "task_queue": "queue worker_queue",
    },
    {
        **_ADDRESSES,
        "unless": 'write `if: "!(…)"`',
        **dict.fromkeys(("read_only", "readonly", "read", "side_effect", "side_effects"), "write `effect: none`"),
        **dict.fromkeys(
            ("sql", "statement", "query"), "write `uses: sql` and `with: {connection: NAME, run: the statement}`"
        ),
        **dict.fromkeys(("connection", "path", "method", "json", "body", "headers", "topic"), "write it under `with`"),
        **dict.fromkeys(
            ("output", "outputs", "register", "result", "save_as"),
            "leave it out: steps.<id>.result is the result of the step",
        ),
        **dict.fromkeys(("env", "environment"), "write values under [vars] in saga.toml, and `vars.x` in `with`"),
    },
)
SAGA = OtherNames(
    {
        "saga": "name workflow title",
        "id": "workflow_id saga_id key",
        "input": "inputs parameters params input_schema schema arguments args",
        "output": "outputs result results returns",
        "steps": "tasks activities jobs stages actions states",
        "deadline": "timeout execution_timeout run_timeout expires",
        "labels": "tags search_attributes annotations",
        "notify": "notifications hooks webhooks on_complete",
        "triggers": "on trigger events",
        "locks": "lock mutex concurrency",
    },
    {
        "version": "leave it out: a run keeps the definition it was started with; `language: 1` is the language's own",
        **dict.fromkeys(
            ("env", "variables", "vars"), "write values under [vars] in saga.toml, and `vars.x` in expressions"
        ),
        **dict.fromkeys(("connections", "connection"), "connections are in saga.toml, under [connections.NAME]"),
    },
)
RETRY = OtherNames(
    {
        "max_attempts": "attempts max_retries retries count limit maximum_attempts times max",
        "initial_interval": "interval delay wait backoff initial_delay",
        "backoff_coefficient": "factor multiplier backoff_factor exponent coefficient backoff_rate",
        "max_interval": "maximum_interval max_delay",
        "give_up_after": "timeout max_duration total_timeout deadline max_elapsed_time",
    }
)
OPERATION = OtherNames({field: STEP.fields[field] for field in ("uses", "with", "timeout", "retry")}, STEP.explained)
ARGUMENTS: Mapping[str, OtherNames] = {
    "sql": OtherNames(
        {
            "run": "sql query statement statements execute command",
            "params": "parameters args arguments binds values",
            "connection": "conn datasource",
            "expect_rows": "expected_rows rows affected_rows row_count expect",
            "rejected": "message error reject",
            "emit": "events outbox",
        },
        _ADDRESSES,
    ),
    "http": OtherNames(
        {
            "url": "uri endpoint address",
            "method": "verb",
            "json": "data payload json_body content",
            "query": "params parameters query_params",
            "headers": "header",
            "done": "success ok expected_status",
            "rejected": "reject failure",
            "rejected_when": "rejected_if reject_when refused_when",
        },
        {"timeout": "write `timeout` on the step", "retry": "write `retry` on the step"},
    ),
    "saga": OtherNames({"name": "saga workflow", "input": "with args params inputs"}),
    "kafka.publish": OtherNames({"value": "message payload body data", "events": "messages"}),
    "pass": OtherNames({"result": "value output return"}),
    "finish": OtherNames({"when": "if that condition expression", "output": "result value return"}),
    "require": OtherNames({"that": "condition if expression when", "message": "error reason rejected"}),
    "wait": OtherNames({"for": "duration seconds time delay", "signal": "event name", "until": "at date"}),
}
NO_OTHER_NAMES = OtherNames()
