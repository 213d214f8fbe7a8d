"""Follows each command that is printed for a stuck saga, in the state in which it is printed."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from saga_cli.main import command_names
from saga_spark.reconcile.findings import Finding
from saga_workers.reconcile.repair import repair_findings
from saga_workers.views.locks import list_orphans
from sagas.definition.saga_ids import UNDO_SUFFIX
from sagas.errors import SagaError
from tests.helpers.waiting import until
from tests.integration.operators.states import STATES, State
from tests.integration.operators.troubled_project import Stack

COMMAND = re.compile(
    rf"\b(?:saga (?:{'|'.join(command_names())})|temporal workflow (?:terminate|reset))\b"
    r"(?:(?! {4}|[`\n;]|, then ).)*"
)
"""A command in a text ends as in tests/unit/test_printed_commands.py: before four spaces, or a backtick."""

LOOKS = ("show", "list", "watch", "parked", "locks", "doctor", "validate", "actions", "explain")
"""Verbs that change nothing."""

CONFIRMED = ("resolve", "reconcile", "undo")
"""Verbs with --yes."""

REPAIR = "saga reconcile --repair"
"""The advice for the locks of sagas that are over, which names none of them."""

REFUSED = 9
"""The exit code of a command that is not carried out."""

FINAL = ("COMPLETED", "COMPENSATED", "RESIDUE", "TERMINATED")


@dataclass(frozen=True)
class Snapshot:
    """The rows of a saga in the database, and its state as the engine reports it."""

    state: str
    effects: Counter[str]
    locks: int

    def without(self, kept: Counter[str]) -> Snapshot:
        """The snapshot without the effects of an earlier saga that has ended."""
        return replace(self, effects=self.effects - kept)

    def harm(self, after: Snapshot) -> str | None:
        """Damage done since this snapshot; None: there is none."""
        if any(count > 1 for count in after.effects.values()):
            return f"an effect is doubled: {after.effects}"
        if after.state == "COMPENSATED" and after.effects:
            return f"compensated, and effects are left: {after.effects}"
        if after.state != "COMPENSATED" and self.effects - after.effects and after.state != "COMPENSATING":
            return f"{after.state}, and effects are lost: {self.effects - after.effects}"
        if self.locks > after.locks and after.effects and after.state not in FINAL[:3]:
            return f"{after.state}, and its locks are released over {after.effects}"
        return None


@dataclass(frozen=True)
class Followed:
    """A command that was run, with what it printed."""

    command: str
    code: int
    output: str
    harm: str | None
    before: Snapshot
    after: Snapshot


async def follow_all(stack: Stack, texts: Mapping[str, Sequence[str]]) -> dict[str, list[Followed]]:
    """Follow the advice for all states. ``texts``: what has been printed in each project."""
    followed = await asyncio.gather(*(follow(stack, state, texts[state.config]) for state in STATES))
    return {state.name: its for state, its in zip(STATES, followed, strict=True)}


async def follow(stack: Stack, state: State, seen: Sequence[str]) -> list[Followed]:
    """Run the commands that name the saga of the state, until no new one is printed."""
    id = stack.ids[state.name]
    kept = (await snapshot(stack, state, id)).effects if state.follows_ended else Counter[str]()
    texts = [*seen, *await printed(stack, state, id)]
    followed: list[Followed] = []
    done: set[str] = set()
    while commands := [command for command in commands_in(texts, state, id) if command not in done]:
        command = commands[0]
        done.add(command)
        followed.append(await run(stack, state, id, command, kept))
        if command.startswith("temporal "):  # "…; then" what was refused before
            done -= {earlier.command for earlier in followed if earlier.code == REFUSED}
        texts += [followed[-1].output, *await printed(stack, state, id)]
    return followed


FOR_MANY = ("--saga", "--connection", "--where")
"""Options of commands that concern all sagas of a name, of a connection or of a filter."""


async def follow_for_many(stack: Stack, texts: Mapping[str, Sequence[str]]) -> list[Followed]:
    """Run the commands for many sagas that the texts and `saga parked` print; the harm is that of any saga."""
    followed = []
    for config, seen in texts.items():
        listed = await stack.saga("parked", config=config)
        lines = "\n".join([*seen, listed.out]).splitlines()
        commands = [match.group().strip() for line in lines for match in COMMAND.finditer(line)]
        for command in dict.fromkeys(commands):
            words = shlex.split(command)[1:]
            if words[0] not in LOOKS and any(option in words for option in FOR_MANY):
                followed.append(await run_for_many(stack, config, command))
    return followed


async def run_for_many(stack: Stack, config: str, command: str) -> Followed:
    states = [state for state in STATES if state.config == config]

    async def of_all() -> list[Snapshot]:
        return [await snapshot(stack, state, stack.ids[state.name]) for state in states]

    before, words = await of_all(), [fill(stack, "", word) for word in shlex.split(command)[1:]]
    result = await stack.saga(*words, *(["--yes"] if words[0] in CONFIRMED else []), config=config)
    await asyncio.gather(*(rest(stack, state, stack.ids[state.name]) for state in states))
    after = await of_all()
    harms = [
        f"{state.name}: {harm}"
        for state, its, then in zip(states, before, after, strict=True)
        if its != then and not state.follows_ended and (harm := its.harm(then)) is not None
    ]
    return Followed(command, result.code, f"{result.out}\n{result.err}", "; ".join(harms) or None, before[0], after[0])


async def printed(stack: Stack, state: State, id: str) -> list[str]:
    """Output of the commands that a person uses for this saga, or for the events of the outbox."""
    asked = [("show", id)] + ([("relay", "--status")] if "event" in state.doctor else [])
    results = [await stack.saga(*words, config=state.config) for words in asked]
    return [f"{result.out}\n{result.err}" for result in results]


def commands_in(texts: Sequence[str], state: State, id: str) -> list[str]:
    """The commands about this saga that change something, each once, in the order of the texts."""
    collected: dict[str, None] = {}
    for line in "\n".join(texts).splitlines():
        for match in COMMAND.finditer(line):
            command = match.group().strip().rstrip(".,")
            words = command.split()
            about = not {id, f"{id}{UNDO_SUFFIX}", "--release"}.isdisjoint(words)
            about = about or (state.doctor == "locks" and command == REPAIR)
            if about and words[1] not in LOOKS and "--status" not in words:
                collected[command] = None
    return list(collected)


async def snapshot(stack: Stack, state: State, id: str) -> Snapshot:
    client = stack.ledger if state.config == "ledger.toml" else stack.client
    try:
        its = await stack.state(id, client)
    except SagaError:
        its = "unknown"
    rows = stack.sql("select step from effects where saga = %s", id)
    locks = stack.sql("select count(*) from saga_lock where saga_id = %s", id)[0][0]
    return Snapshot(its, Counter(step for (step,) in rows), locks)


async def run(stack: Stack, state: State, id: str, command: str, kept: Counter[str]) -> Followed:
    """Run one command, with its placeholders filled in, and wait until the saga rests. ``kept``: effects of an earlier
    saga with the id, which stay.
    """
    before = await snapshot(stack, state, id)
    words = [fill(stack, id, word) for word in shlex.split(command)[1:]]
    if "--evidence" in words:  # what the person who gives it has done
        stack.sql("delete from effects where saga = %s and step = %s", id, words[2])
    if words[0] in CONFIRMED:
        words.append("--yes")
    if command.startswith("temporal "):
        code, output = await stack.temporal(*words)
    elif words[0] == "reconcile":
        code, output = 0, await repair(stack, state, id)  # what it does after its comparison
    else:
        result = await stack.saga(*words, config=state.config)
        code, output = result.code, f"{result.out}\n{result.err}"
    after = await rest(stack, state, id)
    lost = kept - after.effects
    harm = f"effects of the earlier saga are lost: {lost}" if lost else before.without(kept).harm(after.without(kept))
    return Followed(command, code, output, harm, before, after)


def fill(stack: Stack, id: str, word: str) -> str:
    if word == "NAME":
        return id.rsplit("-", 1)[0]
    if word == "FILE":
        return str(stack.folder / f"{id.rsplit('-', 1)[0]}.saga.yaml")
    return {"{…}": "{}", "[{…}]": "[{}]", "@FILE": "{}"}.get(word, word)


async def rest(stack: Stack, state: State, id: str) -> Snapshot:
    """The snapshot when nothing has changed for a moment."""
    last: list[Snapshot] = []

    async def rests() -> bool:
        last.append(await snapshot(stack, state, id))
        return len(last) > 2 and last[-1] == last[-3] and last[-1].state != "COMPENSATING"

    await until(rests)
    return last[-1]


async def repair(stack: Stack, state: State, id: str) -> str:
    """Result of `saga reconcile --repair` for the finding that it reports for this state."""
    client = stack.ledger if state.config == "ledger.toml" else stack.client
    settings = client.project.settings
    details: dict[str, Any] = {}
    if state.reconcile == "lock_left":
        details = {
            "holder": next(
                orphan.holder for orphan in await list_orphans(client.locator, settings) if orphan.owner == id
            )
        }
    finding = Finding(state.reconcile or "open_effects", id, details=details)
    done = await repair_findings(client.locator, settings, [finding.to_json()], who="ada")
    return "\n".join(outcome["done"] for outcome in done)
