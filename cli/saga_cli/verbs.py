"""The verbs of `saga`: where each one lives. This table is the only place that knows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verb:
    """``target`` is ``module:attribute``; the attribute is a function, or a ``typer.Typer`` with sub-commands."""

    name: str
    target: str
    help: str
    group: str


_BEGIN = "Begin"
_WRITE = "Write sagas"
_RUN = "Run and look"
_DECIDE = "Step in"
_OPERATE = "Operate"

VERBS: tuple[Verb, ...] = (
    Verb("init", "saga_cli.init:init", "make a new project", _BEGIN),
    Verb("dev", "saga_cli.dev:app", "the embedded stack: up, status, logs, down", _BEGIN),
    Verb("demo", "saga_cli.demo:demo", "real shopping baskets through real databases", _BEGIN),
    Verb("validate", "saga_cli.validate:validate", "check definitions", _WRITE),
    Verb("explain", "saga_cli.explain:explain", "the plan in words, and what is undone when a step fails", _WRITE),
    Verb("simulate", "saga_cli.simulate:simulate", "every failure point, without a server", _WRITE),
    Verb("graph", "saga_cli.graph:graph", "the way forward and the way back, drawn", _WRITE),
    Verb("actions", "saga_cli.actions:actions", "the registered actions and their arguments", _WRITE),
    Verb("schema", "saga_cli.schema:schema", "JSON Schema of the language, for editors", _WRITE),
    Verb("start", "saga_cli.start:start", "start a saga, or one for each row of a file", _RUN),
    Verb("list", "saga_cli.list:list_sagas", "one line for each saga", _RUN),
    Verb("show", "saga_cli.show:show", "the whole story of one saga", _RUN),
    Verb("watch", "saga_cli.watch:watch", "the story while it happens", _RUN),
    Verb("open", "saga_cli.open:open_saga", "the saga in the Temporal Web UI", _RUN),
    Verb("cancel", "saga_cli.cancel:cancel", "ask a saga to undo what it has done", _DECIDE),
    Verb("signal", "saga_cli.signal:send_signal", "answer a saga that waits", _DECIDE),
    Verb("parked", "saga_cli.parked:parked", "what needs a person, grouped", _DECIDE),
    Verb("resolve", "saga_cli.resolve:resolve", "decide about a parked step", _DECIDE),
    Verb("notify", "saga_cli.notify:notify", "what became of a saga's notifications; send one again", _DECIDE),
    Verb("undo", "saga_cli.undo:undo", "take back a saga that has completed", _DECIDE),
    Verb("reconcile", "saga_cli.reconcile:reconcile", "do the books of sagas, databases and tables agree?", _OPERATE),
    Verb("worker", "saga_cli.worker:worker", "run a worker in the foreground", _OPERATE),
    Verb("relay", "saga_cli.relay:relay", "publish the events of the outboxes to Kafka", _OPERATE),
    Verb("serve", "saga_cli.serve:serve", "the outcome of sagas over HTTP, read-only", _OPERATE),
    Verb("trigger", "saga_cli.trigger:trigger", "start and wake sagas with events of Kafka, run consumers", _OPERATE),
    Verb("setup", "saga_cli.setup:setup", "search attributes and tables; repeatable", _OPERATE),
    Verb("doctor", "saga_cli.doctor:doctor", "check everything a saga needs to run", _OPERATE),
)

ALIASES = {"describe": "show", "view": "show", "status": "show", "ls": "list", "inbox": "parked"}


def find(name: str) -> Verb | None:
    name = ALIASES.get(name, name)
    return next((verb for verb in VERBS if verb.name == name), None)


def all_names() -> tuple[str, ...]:
    return (*(verb.name for verb in VERBS), *ALIASES)
