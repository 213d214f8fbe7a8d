"""Decisions, pauses and cancels in the console of `saga serve`."""

from __future__ import annotations

import html
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace

import httpx

from saga_workers.serve.console.templates import decision_path, saga_path
from sagas.machine.decisions.form import DECISIONS
from tests.helpers.waiting import until
from tests.integration.engine.environment import begin, run_saga
from tests.integration.serve.page_markup import unwanted_markup
from tests.integration.serve.served_console import (
    SCRIPT,
    ServedConsole,
    form_token,
)


def hidden_fields(page: str) -> dict[str, str]:
    """The fields that the form of a decision has without the person who fills it in."""
    [form] = re.findall(r'<form class="decide".*?</form>', page, re.DOTALL)
    return {name: html.unescape(value) for name, value in re.findall(r'type="hidden" name="(\w+)" value="(.*?)"', form)}


async def test_an_operator_decides_about_a_parked_step(console: ServedConsole) -> None:
    parked = (await run_saga(console.client, "order", {"customer": "carl"}))["id"]
    page = saga_path(parked)
    async with console.signed_in() as staff, console.signed_in("CHIEF") as chief:
        shown = html.unescape((await chief.get(page)).text)
        links = re.findall(r'href="([^"]*/resolve[^"]*)"', shown)
        assert links == [f"{page}/resolve?step=tell&decision={decision}" for decision in DECISIONS]
        inbox = "/console/inbox"
        for shown_to_all in (page, inbox):
            assert "/resolve" not in (await staff.get(shown_to_all)).text, "who may not decide sees no button"

        async def in_inbox() -> bool:  # the visibility store lags
            return html.escape(links[0]) in (await chief.get(inbox)).text

        await until(in_inbox)
        form = (await chief.get(links[0])).text
        assert "<li>tell will be tried again: work, with value: {" in form
        fields = {**hidden_fields(form), "go": "send", "reason": SCRIPT}
        assert (fields["step"], fields["decision"]) == ("tell", "retry")
        look = await chief.post(f"{page}/resolve", data={**fields, "go": "look", "with": '{"other":\r\n1}'})
        assert (look.status_code, "{&#34;other&#34;:\n1}</textarea>" in look.text) == (200, True)
        for wrong, status, message in (
            ({"form": "guessed"}, 403, "earlier session"),
            ({"reason": " "}, 400, "Write the reason for it under “Why”"),
            ({"with": "{"}, 400, "under “Other arguments than before” is not JSON"),
            ({"with": '{"value": {"card": "•••"}}'}, 400, "only stands for a hidden value: write the value itself"),
            ({"decision": "forget"}, 400, "There is no decision `forget`"),
            ({"step": "pay"}, 409, "pay"),
        ):
            refused = await chief.post(f"{page}/resolve", data={**fields, **wrong})
            assert (refused.status_code, message in refused.text) == (status, True), refused.text
            assert ("with" in wrong) <= (SCRIPT in html.unescape(refused.text)), "the form keeps what was written"
            assert refused.text.count('role="alert"') == 1
        foreign = await chief.post(f"{page}/resolve", data=fields, headers={"Origin": "http://evil.example"})
        assert foreign.status_code == 403
        own_form = {**fields, "form": form_token((await staff.get(page)).text)}
        for refused in (await staff.get(links[0]), await staff.post(f"{page}/resolve", data=own_form)):
            assert (refused.status_code, "does not have the scope operate" in refused.text) == (403, True)

        decided = await chief.post(f"{page}/resolve", data=fields, follow_redirects=True)
        assert (decided.status_code, "The saga has accepted it" in decided.text) == (200, True), decided.text
        assert decided.history[0].status_code == 303, "who loads the answer again sends nothing"
        assert (await chief.get(str(decided.url))).text == decided.text

        async def has_ended() -> bool:
            return (await console.client.show(parked))["state"] == "COMPLETED"

        await until(has_ended)
        late = await chief.post(f"{page}/resolve", data=fields)
        assert (late.status_code, "has already ended COMPLETED" in late.text) == (409, True)
        assert (await chief.get(links[0])).status_code == 404
        story = await chief.get(page)
        assert "chief decided about tell: try again, because: &lt;script&gt;" in story.text
        assert ": accepted" not in story.text, "once"
        assert unwanted_markup(story.text + look.text + decided.text + late.text) == []


async def test_a_decision_that_needs_evidence_is_shown_and_asks_for_it(console: ServedConsole) -> None:
    risky = (await run_saga(console.client, "risks"))["id"]
    address = saga_path(risky, "/resolve")
    required = re.compile(r'name="evidence"[^>]* required')
    async with console.signed_in("CHIEF") as chief:

        async def look(step: str, decision: str, consequence: str) -> dict[str, str]:
            form = await chief.get(decision_path(risky, step, decision))
            assert (form.status_code, consequence in form.text) == (200, True), form.text
            assert required.search(form.text), form.text
            return {**hidden_fields(form.text), "go": "send", "reason": "they called back"}

        async def send(fields: dict[str, str], **others: str) -> httpx.Response:
            return await chief.post(address, data={**fields, **others}, follow_redirects=True)

        await look("charge", "done", "the saga ends COMPLETED")
        fields = await look("charge", "compensate", "<li>block will be undone: unwork")
        refused = await send(fields)
        assert (refused.status_code, "needs “How you know it”" in refused.text) == (409, True), refused.text
        assert required.search(refused.text), "the form is still there"
        assert "they called back</textarea>" in refused.text
        assert "The saga has accepted it" in (await send(fields, evidence="no money came")).text

        async def has_parked() -> bool:
            return [row["op"] for row in (await console.client.show(risky))["parked"]] == ["undo"]

        await until(has_parked)
        fields = await look("block", "done", "the saga ends COMPENSATED")
        for seen in ({"op": "do"}, {"since": "2026-03-01T10:00:00Z"}):
            changed = await send(fields, evidence="I was there", **seen)
            assert (changed.status_code, "It has changed since" in changed.text) == (409, True), changed.text
            assert hidden_fields(changed.text)["op"] == "undo"
        assert "The saga has accepted it" in (await send(fields, evidence="I was there")).text
        assert (await console.client.show(risky))["state"] == "COMPENSATED"


async def test_an_operator_pauses_and_cancels_a_saga(console: ServedConsole) -> None:
    running = await begin(console.client, "rests")
    page = saga_path(running)
    async with console.signed_in("CHIEF") as chief:

        async def offered() -> list[str]:
            shown = (await chief.get(page)).text
            return re.findall(rf'class="button" href="{re.escape(page)}/(\w+)"', shown)

        async def ask(operation: str, words: str, answered: str) -> None:
            form = await chief.get(f"{page}/{operation}")
            assert (form.status_code, words in form.text) == (200, True), form.text
            sent = {**hidden_fields(form.text), "go": "send"}
            answer = await chief.post(f"{page}/{operation}", data=sent, follow_redirects=True)
            assert (answer.status_code, answered in answer.text) == (200, True), answer.text

        async def has_booked() -> bool:
            return any(row["id"] == "approve" and row["state"] == "RUNNING" for row in
                       (await console.client.show(running))["steps"])  # fmt: skip

        await until(has_booked)
        assert await offered() == ["cancel", "pause"]
        await ask("pause", "What is under way ends", "; in flight: approve.")
        assert await offered() == ["cancel", "resume"]
        await ask("resume", "goes on", "The saga goes on.")
        await ask("cancel", "<li>Hold the room will be undone</li>", "its completed steps are being undone")

        async def has_ended() -> bool:
            return (await console.client.show(running))["state"] == "COMPENSATED"

        await until(has_ended)
        assert await offered() == []
        assert "would refuse that now" in (await chief.get(f"{page}/cancel")).text
        for operation in ("redo", "graph"):
            assert (await chief.get(f"{page}/{operation}")).status_code == 404
        assert (await chief.get(f"{saga_path('nobody-has-it')}/cancel")).status_code == 404


async def test_an_event_that_is_not_served_is_shown_and_closed(console: ServedConsole) -> None:
    starter = await console.client.starter("sold-out")
    request = replace(await starter.check({}), redelivery={"intervals": [1.0], "passed": 1})
    page = saga_path((await starter.start(request)).id)
    async with console.signed_in("CHIEF") as chief:

        async def shown() -> str:
            return html.unescape((await chief.get(page)).text)

        reason = "It will not go on by itself: its event is not served: the last of 1 further starts was compensated"
        await until(lambda: _has(shown, reason))
        assert f'href="{page}/cancel"' in await shown()
        form = (await chief.get(f"{page}/cancel")).text
        assert "<li>nobody waits any more for its event to be served: it starts the saga no more</li>" in form
        sent = await chief.post(f"{page}/cancel", data={**hidden_fields(form), "go": "send", "reason": "he has left"})
        assert sent.status_code == 303
        assert "Its event is not offered again: closed: chief" in await shown()
        assert f'href="{page}/cancel"' not in await shown()


async def _has(shown: Callable[[], Awaitable[str]], text: str) -> bool:
    return text in await shown()
