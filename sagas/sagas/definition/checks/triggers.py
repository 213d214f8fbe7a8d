"""Does a trigger name a signal that somebody waits for, and give an input that the saga takes?"""

from __future__ import annotations

from sagas.definition.checks.literals import mismatches
from sagas.definition.diagnostics import Report, did_you_mean
from sagas.definition.draft import Draft, kafka_triggers
from sagas.definition.records import Parsed
from sagas.definition.shapes import names


def check_triggers(draft: Draft, report: Report) -> None:
    """Report triggers whose every event would be a dead letter."""
    for trigger in kafka_triggers(draft.top):
        if trigger.values.get("signal"):
            _check_signal(draft, trigger, report)
        elif "input" in trigger:
            schema = draft.definition.input
            for node, sentence in mismatches(trigger.at("input"), schema, schema):
                report.add("SAGA132", node, sentence)


def _check_signal(draft: Draft, trigger: Parsed, report: Report) -> None:
    name = trigger.get("signal")
    if "id" not in trigger:
        report.add("SAGA131", trigger.at("signal"), "this trigger wakes a saga, and nothing says which one")
    waits = [step.step.do.with_ or {} for step in draft.steps if step.step.do.uses == "wait"]
    known = [str(arguments["signal"]) for arguments in waits if "signal" in arguments]
    # A name made by an expression may be any.
    if name in known or any("${{" in one for one in known):
        return
    help = f"`wait` steps take {names(known)}." if known else "No `wait` step of this saga takes a signal."
    report.add("SAGA130", trigger.at("signal"), f"no `wait` takes the signal `{name}`", did_you_mean(name, known, help))
