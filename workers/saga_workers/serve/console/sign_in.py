"""Sign-in with a token of `[serve]`, and sign-out."""

from __future__ import annotations

import logging
import re
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response

from saga_workers.runtime.logs import fields
from saga_workers.serve.api_tokens import Callers, TooManyFailures
from saga_workers.serve.authorization import client_address
from saga_workers.serve.console.forms import is_encrypted, read_form
from saga_workers.serve.console.html_responses import html_response, redirect
from saga_workers.serve.console.sessions import COOKIE, Sessions
from saga_workers.serve.console.templates import render
from saga_workers.serve.console.visitors import SIGN_IN_PATH, Visitor, Visitors
from saga_workers.serve.console_path import ROOT
from saga_workers.serve.limits import SESSION_SECONDS
from saga_workers.serve.request_body import BadRequest
from sagas.errors import UsageError

log = logging.getLogger("saga.serve")

_OWN_PAGE = re.compile(r"/console(?:[/?][!-\[\]-~]*)?")
"""An encoded address in the console: no other server, and no backslash, which browsers take for a slash."""


class SignIn:
    """The pages that begin and end a session."""

    def __init__(self, callers: Callers, sessions: Sessions, visitors: Visitors) -> None:
        self._callers = callers
        self._sessions = sessions
        self._visitors = visitors

    async def show(self, request: Request) -> Response:
        """The form. A link from elsewhere comes without the cookie, so it may be shown to who has a session."""
        return _form(200, next_page(request.query_params.get("next")))

    async def begin(self, request: Request) -> Response:
        """Begin a session with the token in the form."""
        try:
            form = await read_form(request)
        except BadRequest as error:
            return _form(error.status, ROOT, str(error), close=True)
        following = next_page(form.get("next"))
        # A header comes with the bytes of the token, each as one character.
        authorization = f"Bearer {form.get('token', '').strip()}".encode().decode("latin-1")
        try:
            caller = self._callers.identify(authorization, client_address(request))
        except TooManyFailures:
            return _form(429, following, "Too many wrong tokens from this address. Try again in a few seconds.")
        except UsageError as error:
            log.error("the API token cannot be read: %s", error.message)
            return _form(503, following, "The tokens cannot be read; the log of saga serve has more.")
        if caller is None:
            return _form(401, following, "This is not a token of this server. Ask who runs saga serve for one.")
        if "read" not in caller.scopes:
            return _form(403, following, "This token does not have the scope read, which the console needs.")
        if (earlier := self._sessions.find(request.cookies.get(COOKIE))) is not None:
            self._sessions.end(earlier)
        session = self._sessions.begin(caller.name, authorization)
        log.info("signed in to the console", extra=fields(caller=caller.name))  # a field "token" is masked
        response = redirect(following)
        response.set_cookie(
            COOKIE,
            session.id,
            max_age=int(SESSION_SECONDS),
            path=ROOT,
            secure=is_encrypted(request),
            httponly=True,
            samesite="strict",
        )
        return response

    async def end(self, request: Request, visitor: Visitor) -> Response:
        """End the session of this browser."""
        await read_form(request, visitor.session)
        self._sessions.end(visitor.session)
        response = redirect(SIGN_IN_PATH)
        response.delete_cookie(COOKIE, path=ROOT, httponly=True, samesite="strict")
        return response


def next_page(asked: str | None) -> str:
    """The page of the console to show after the sign-in; the board in place of anything else."""
    if asked is None or not _OWN_PAGE.fullmatch(asked):
        return ROOT
    # Browsers resolve these, also encoded.
    return ROOT if ".." in unquote(asked.partition("?")[0]).split("/") else asked


def _form(status: int, following: str, problem: str = "", *, close: bool = False) -> Response:
    page = render("sign_in.html", "Sign in", next=following, problem=problem, visitor=None, place="")
    return html_response(status, page, {"Connection": "close"} if close else {})
