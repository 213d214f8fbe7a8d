"""The batches of `saga start --from`, with how far each is."""

from __future__ import annotations

from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response

from saga_workers.batch.batch_view import list_batches, read_batch
from saga_workers.batch.reporter import check_batch_id
from saga_workers.serve.console.console_project import ConsoleProject
from saga_workers.serve.console.html_responses import html_response
from saga_workers.serve.console.templates import render
from saga_workers.serve.console.visitors import PageNotFound, Visitor
from sagas.errors import UsageError

_MAX_BATCHES = 50


class BatchPages:
    """The list of batches, and one of them."""

    def __init__(self, project: ConsoleProject) -> None:
        self._project = project

    async def show_all(self, _: Request, visitor: Visitor) -> Response:
        listed = await list_batches(self._project.locator.temporal, self._project.task_queue, _MAX_BATCHES)
        page = render(
            "batches.html",
            "Batches",
            visitor=visitor,
            place="batches",
            entries=listed,
            limit=_MAX_BATCHES,
            is_full=len(listed) >= _MAX_BATCHES,
        )
        return html_response(200, page)

    async def show(self, request: Request, visitor: Visitor) -> Response:
        try:
            batch = check_batch_id(unquote(request.path_params["batch"]))
            view = await read_batch(self._project.locator, batch, self._project.task_queue)
        except UsageError as error:
            raise PageNotFound(error.message) from None
        page = render("batch.html", f"Batch {view.id}", visitor=visitor, place="batches", view=view)
        return html_response(200, page)
