"""Forms that browsers send to the console: read within limits, and only from its own pages."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import Request

from saga_workers.serve.console.sessions import Session
from saga_workers.serve.limits import MAX_FORM_BYTES
from saga_workers.serve.request_body import BadRequest, read_body

FORM_FIELD = "form"
"""The field with the token of the session."""

_FORM_TYPE = "application/x-www-form-urlencoded"
_MAX_FIELDS = 20


async def read_form(
    request: Request, session: Session | None = None, *, max_fields: int = _MAX_FIELDS, max_bytes: int = MAX_FORM_BYTES
) -> Mapping[str, str]:
    """The fields of a form. Raises BadRequest if it comes from a page of another server, is too large, or does not have
    the token of the ``session``.
    """
    if not _is_of_this_server(request):
        raise BadRequest(403, "the form does not come from a page of this server")
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM_TYPE:
        raise BadRequest(415, f"the body must be a form: {_FORM_TYPE}")
    body = await read_body(request, max_bytes)
    try:
        fields = dict(parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=max_fields))
    except ValueError:
        raise BadRequest(400, "the form cannot be read") from None
    if session is not None and not hmac.compare_digest(
        fields.get(FORM_FIELD, "").encode(), session.form_token.encode()
    ):
        raise BadRequest(403, "the form is of an earlier session; open the page again")
    # Browsers send each line end of a text area as CR LF.
    return {name: value.replace("\r\n", "\n") for name, value in fields.items()}


def _is_of_this_server(request: Request) -> bool:
    """True if the browser says that a page of this server has sent the form. A proxy may have another scheme."""
    try:
        origin = urlsplit(request.headers.get("origin", ""))
    except ValueError:
        return False
    return origin.scheme in ("http", "https") and origin.netloc == request.headers.get("host")


def is_encrypted(request: Request) -> bool:
    """True if the browser has sent a form over https, perhaps to a proxy."""
    return request.headers.get("origin", "").startswith("https:")
