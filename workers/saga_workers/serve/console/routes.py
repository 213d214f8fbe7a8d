"""The addresses of the console."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from saga_workers.runtime.http_server import error_response
from saga_workers.serve.admission import Admission
from saga_workers.serve.api_tokens import Callers
from saga_workers.serve.console.batches import BatchPages
from saga_workers.serve.console.board import BoardPage
from saga_workers.serve.console.console_project import ConsoleProject
from saga_workers.serve.console.decisions import DecisionPages
from saga_workers.serve.console.html_responses import picture_response, style_response
from saga_workers.serve.console.inbox import InboxPage
from saga_workers.serve.console.many_decisions import MANY_PATH, MAX_BYTES, ManyDecisionPages
from saga_workers.serve.console.saga_pages import SagaPages
from saga_workers.serve.console.search import SearchPage
from saga_workers.serve.console.sessions import Sessions
from saga_workers.serve.console.sign_in import SignIn
from saga_workers.serve.console.templates import ICON, ICON_PATH, STYLE_PATH, style_sheet
from saga_workers.serve.console.visitors import SIGN_IN_PATH, PageNotFound, Visitor, Visitors
from saga_workers.serve.console_path import ROOT
from saga_workers.serve.operations import Operations


def console_routes(
    project: ConsoleProject, callers: Callers, admission: Admission, operations: Operations | None
) -> Sequence[Route]:
    """The pages. All of them but the sign-in, the style sheet and the icon need a session. ``operations``: those that
    visitors can ask of sagas, if any.
    """
    sessions = Sessions()
    visitors = Visitors(callers, sessions, admission)
    sign_in = SignIn(callers, sessions, visitors)
    board, search, sagas = BoardPage(project), SearchPage(project), SagaPages(project)
    inbox, batches = InboxPage(project), BatchPages(project)
    sheet = style_sheet()

    async def show_style(_: Request) -> Response:
        return style_response(sheet)

    async def show_icon(_: Request) -> Response:
        return picture_response(ICON)

    return [
        _page(STYLE_PATH, show_style),
        _page(ICON_PATH, show_icon),
        _page(SIGN_IN_PATH, sign_in.show),
        _page(SIGN_IN_PATH, sign_in.begin, method="POST"),
        _page(f"{ROOT}/sign-out", visitors.only(sign_in.end), method="POST"),
        _page(ROOT, visitors.only(board.show)),
        _page(f"{ROOT}/sagas", visitors.only(search.show)),
        _page(f"{ROOT}/sagas/{{id}}", visitors.only(sagas.show)),
        _page(f"{ROOT}/sagas/{{id}}/graph.svg", visitors.only(sagas.draw)),
        _page(f"{ROOT}/sagas/{{id}}/databases", visitors.only(sagas.show_databases)),
        *([] if operations is None else _operation_routes(project, operations, visitors)),
        _page(f"{ROOT}/inbox", visitors.only(inbox.show)),
        _page(f"{ROOT}/batches", visitors.only(batches.show_all)),
        _page(f"{ROOT}/batches/{{batch}}", visitors.only(batches.show)),
        _page(f"{ROOT}/{{rest:path}}", visitors.only(_no_such_page)),
    ]


def _operation_routes(project: ConsoleProject, operations: Operations, visitors: Visitors) -> Sequence[Route]:
    pages, many = DecisionPages(project, operations), ManyDecisionPages(project, operations)
    path = f"{ROOT}/sagas/{{id}}/{{operation}}"
    return [
        _page(MANY_PATH, visitors.operators(many.show)),
        _page(MANY_PATH, visitors.operators(many.send, asks_saga=True, max_bytes=MAX_BYTES), method="POST"),
        _page(f"{MANY_PATH}/answer", visitors.operators(many.show_answers)),
        _page(f"{ROOT}/sagas/{{id}}/answer", visitors.operators(pages.show_answer)),
        _page(path, visitors.operators(pages.show)),
        _page(path, visitors.operators(pages.send, asks_saga=True), method="POST"),
    ]


def routes_without_console() -> Sequence[Route]:
    """The answer where the console is not served, for who has come to look for it."""
    return [_page(ROOT, _no_console), _page(f"{ROOT}/{{rest:path}}", _no_console)]


def _page(path: str, endpoint: Callable[[Request], Awaitable[Response]], method: str = "GET") -> Route:
    """A page for people, which the OpenAPI document does not describe."""
    return Route(path, endpoint, methods=[method], include_in_schema=False)


async def _no_such_page(_: Request, __: Visitor) -> Response:
    raise PageNotFound("there is no such page in the console")


async def _no_console(_: Request) -> Response:
    return error_response(404, "the console is not served: set console = true under [serve] in saga.toml")
