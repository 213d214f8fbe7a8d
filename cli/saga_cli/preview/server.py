"""The server of `saga preview`: pages that follow the files from which they are made."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from saga_cli.definition_checks import relative_path
from saga_cli.preview.page import SCRIPT, error_page
from saga_cli.preview.rendering import files_of_actions, render, saga_name
from saga_workers.runtime.http_server import http_app
from sagas.definition.loader import find_definition_files
from sagas.errors import UsageError, did_you_mean
from sagas.settings import Settings
from sagas.text.printable import printable_line
from sagas.text.shortening import shorten

LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")
"""The hosts as which a browser may ask: a page of another site, whose name is made to lead here, asks as that."""

Versions = Mapping[str, tuple[int, int] | None]


@dataclass(frozen=True, slots=True)
class _Page:
    """A page with its number, the files that were ``read`` for it, and the versions of these and of all definitions."""

    number: int
    html: str
    read: Sequence[str]
    versions: Versions
    is_stale: bool


class Preview:
    """The pages of the project of ``config``. ``only``: the path of the definition that is shown first."""

    def __init__(self, config: Path, settings: Settings, only: str | None = None) -> None:
        self._config = config
        self._folders = tuple(map(str, settings.definitions))
        self._actions = files_of_actions(settings)
        self._only = only
        self._pages: dict[str | None, _Page] = {}
        self._rendering = asyncio.Lock()

    @property
    def app(self) -> Starlette:
        """The routes, for a browser on this machine."""
        routes = [
            Route("/", self._answer_page),
            Route("/version", self._answer_version),
            Route(SCRIPT, self._answer_script),
        ]
        return http_app(routes, [Middleware(TrustedHostMiddleware, allowed_hosts=list(LOOPBACK))])

    async def _answer_page(self, request: Request) -> Response:
        file = request.query_params.get("file")
        if file is None and self._only is not None and "all" not in request.query_params:
            return RedirectResponse(page_address(self._only))
        if file is not None and file not in await asyncio.to_thread(self._files):
            self._pages.pop(file, None)
            message = f"the project has no definition file {printable_line(shorten(file))}"
            return HTMLResponse(error_page(message, None, version="0", heading="No such definition"), 404)
        async with self._rendering:
            page = self._pages.get(file)
            if page is None or await asyncio.to_thread(self._has_changed, page):
                page = self._pages[file] = await self._render(file, 1 if page is None else page.number + 1)
        return HTMLResponse(page.html, headers={"Cache-Control": "no-store"})

    async def _answer_version(self, request: Request) -> Response:
        file = request.query_params.get("file")
        page = self._pages.get(file)
        if page is None:
            return PlainTextResponse("1" if file in await asyncio.to_thread(self._files) else "0")
        changed = await asyncio.to_thread(self._has_changed, page)
        return PlainTextResponse(str(page.number + changed), headers={"Cache-Control": "no-store"})

    async def _answer_script(self, _: Request) -> Response:
        text = await asyncio.to_thread(Path(__file__).with_name("follow.js").read_text, encoding="utf-8")
        return Response(text, media_type="text/javascript")

    async def _render(self, file: str | None, number: int) -> _Page:
        started = time.time_ns()
        try:
            rendered = await render(self._config, file, str(number))
        except UsageError as error:
            html, folders = error_page(error.message, error.help, version=str(number)), self._folders
            previous = self._pages.get(file)
            read = [str(self._config), *self._actions, *(previous.versions if previous else ())]
        else:
            read, html, folders = rendered.read, rendered.page, tuple(rendered.folders) or self._folders
        self._folders = folders
        versions = await asyncio.to_thread(self._versions, read)
        # A file that was saved meanwhile may have been read before.
        saved = range(started, time.time_ns())
        is_stale = any(version is not None and version[0] in saved for version in versions.values())
        return _Page(number, html, read, versions, is_stale)

    def _files(self) -> set[str]:
        return set(_definition_files(self._config.parent, self._folders))

    def _versions(self, files: Iterable[str]) -> Versions:
        every = {str(self._config.parent / file) for file in files}
        every |= {str(self._config.parent / file) for file in self._files()}
        return {file: _version(file) for file in every}

    def _has_changed(self, page: _Page) -> bool:
        """Return whether a file of the page is another one now, or a definition was added or removed."""
        return page.is_stale or self._versions(page.read) != page.versions


def page_address(file: str) -> str:
    """The address of the page of a definition file, on the server."""
    return f"/?{urlencode({'file': file})}"


def file_of(config: Path, folders: Iterable[Path], saga: str) -> str:
    """The path of the definition file of a saga, which may have errors. Raises UsageError if there is none."""
    names = {saga_name(config.parent / file): file for file in _definition_files(config.parent, map(str, folders))}
    if saga in names:
        return names[saga]
    others = tuple(name for name in names if name is not None)
    raise UsageError(f"there is no saga {saga}{did_you_mean(saga, others)}", help="without a name, all are listed")


def _definition_files(root: Path, folders: Iterable[str]) -> list[str]:
    """The paths of all definition files, as diagnostics name them in the folder of saga.toml."""
    existing = [root / folder for folder in folders if (root / folder).exists()]
    return [str(relative_path(file, root)) for file in find_definition_files(existing)]


def _version(file: str) -> tuple[int, int] | None:
    try:
        stat = os.stat(file)
    except OSError:
        return None
    return (stat.st_mtime_ns, stat.st_size)
