"""The responses of the console, with the headers that keep its pages to themselves."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import Response

_POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_PICTURE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'; sandbox"

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not `no-referrer`: with it a browser sends no Origin with a form.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def html_response(status: int, page: str, headers: Mapping[str, str] | None = None) -> Response:
    return Response(page.encode(), status, {**HEADERS, **(headers or {})}, "text/html; charset=utf-8")


def picture_response(svg: str) -> Response:
    """A drawing. Its own styles are in it; a browser that opens it alone runs nothing of it."""
    headers = {**HEADERS, "Content-Security-Policy": _PICTURE_POLICY}
    return Response(svg.encode(), 200, headers, "image/svg+xml")


def style_response(style_sheet: str) -> Response:
    headers = {**HEADERS, "Cache-Control": "max-age=300"}
    return Response(style_sheet.encode(), 200, headers, "text/css; charset=utf-8")


def redirect(path: str) -> Response:
    """Send the browser to another page of the console. ``path`` is encoded."""
    return Response(b"", 303, {**HEADERS, "Location": path})
