"""Lets browsers with a session see the pages of the console, and sends the others to sign in."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from temporalio.service import RPCError

from saga_workers.ledger.run_ledger import LedgerUnavailable
from saga_workers.serve.admission import Admission
from saga_workers.serve.api_tokens import Caller, Callers
from saga_workers.serve.console.html_responses import html_response, redirect
from saga_workers.serve.console.sessions import COOKIE, Session, Sessions
from saga_workers.serve.console.templates import render
from saga_workers.serve.console_path import ROOT
from saga_workers.serve.limits import MAX_FORM_BYTES
from saga_workers.serve.request_body import BadRequest, with_body
from sagas.errors import SagaError, UsageError

log = logging.getLogger("saga.serve")

SIGN_IN_PATH = f"{ROOT}/sign-in"


@dataclass(frozen=True, slots=True)
class Visitor:
    """The sender of a request with a session."""

    caller: Caller
    session: Session

    @property
    def may_operate(self) -> bool:
        """True if the token may operate sagas."""
        return "operate" in self.caller.scopes


Page = Callable[[Request, Visitor], Awaitable[Response]]
Turn = Callable[[str], AbstractAsyncContextManager[None]]
"""Waits until the process does not do too much at once, for everybody and for the token of this name."""


class PageNotFound(Exception):
    """There is no such saga, batch or page; the message says which."""


class Visitors:
    """The browsers that have signed in with a token that may read."""

    def __init__(self, callers: Callers, sessions: Sessions, admission: Admission) -> None:
        self._callers = callers
        self._sessions = sessions
        self._admission = admission

    def only(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        """The page as an endpoint that only a visitor sees."""
        return self._endpoint(page, self._admission.page)

    def operators(
        self, page: Page, *, asks_saga: bool = False, max_bytes: int = MAX_FORM_BYTES
    ) -> Callable[[Request], Awaitable[Response]]:
        """The page as an endpoint for visitors whose token may operate sagas. ``asks_saga``: it waits for a worker.

        ``max_bytes``: of its form.
        """

        async def show(request: Request, visitor: Visitor) -> Response:
            if not visitor.may_operate:
                raise BadRequest(403, "this token does not have the scope operate")
            return await page(request, visitor)

        turn = self._admission.operation if asks_saga else self._admission.page
        return self._endpoint(show, turn, max_bytes)

    def _endpoint(
        self, page: Page, turn: Turn, max_bytes: int = MAX_FORM_BYTES
    ) -> Callable[[Request], Awaitable[Response]]:

        async def answer(request: Request) -> Response:
            try:
                visitor = self.find(request)
            except UsageError as error:
                log.error("the API token cannot be read: %s", error.message)
                return _problem(503, "The token of this session cannot be read; the log of saga serve has more.")
            if visitor is None:
                return redirect(f"{SIGN_IN_PATH}?next={quote(_asked_page(request), safe='')}")
            return await self._answer(request, visitor, page, turn, max_bytes)

        return answer

    def find(self, request: Request) -> Visitor | None:
        """The sender of a request; None without a session, and if its token is not valid any more or may not read.

        Raises UsageError if the tokens cannot be read.
        """
        session = self._sessions.find(request.cookies.get(COOKIE))
        if session is None:
            return None
        caller = self._callers.caller_of(session.authorization)
        if caller is None or "read" not in caller.scopes:
            self._sessions.end(session)
            return None
        return Visitor(caller, session)

    async def _answer(self, request: Request, visitor: Visitor, page: Page, turn: Turn, max_bytes: int) -> Response:
        try:
            if request.method == "POST":
                # A form that arrives slowly keeps nobody waiting.
                request = await with_body(request, max_bytes)
            async with turn(visitor.caller.name):
                return await page(request, visitor)
        except PageNotFound as error:
            return _problem(404, str(error), visitor)
        except BadRequest as error:
            return _problem(error.status, str(error), visitor)
        except LedgerUnavailable as error:
            log.warning("a page of the console cannot be shown: %s", error.message)
            return _problem(503, "The ledger does not answer; the log of saga serve has more.", visitor)
        except UsageError as error:
            return _problem(400, error.message, visitor)
        except SagaError as error:
            log.warning("a page of the console cannot be shown: %s", error.message)
            return _problem(503, error.message, visitor)
        except RPCError as error:
            return _problem(503, f"Temporal does not answer: {error.message}", visitor)
        except TimeoutError:
            return _problem(503, "Temporal or a worker does not answer in time. Open the page again.", visitor)


def _asked_page(request: Request) -> str:
    """The address of the page, to go back to after the sign-in; the board in place of a form."""
    if request.method == "POST":
        return ROOT
    query = request.url.query
    return request.scope["path"] + (f"?{query}" if query else "")


def _problem(status: int, message: str, visitor: Visitor | None = None) -> Response:
    title = "Not found" if status == 404 else "That did not work"
    return html_response(status, render("problem.html", title, message=message, visitor=visitor, place=""))
