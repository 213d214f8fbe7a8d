"""``uses: http``: one request to a participant that may honour idempotency keys."""

from __future__ import annotations

from saga_activities.http.attempt import run_http
from saga_activities.http.callbacks import CallbackAddresses, read_callback, request_of
from saga_activities.http.connection import HttpConnection, HttpConnections
from saga_activities.http.settings import HttpSettings, http_settings

__all__ = [
    "CallbackAddresses",
    "HttpConnection",
    "HttpConnections",
    "HttpSettings",
    "http_settings",
    "read_callback",
    "request_of",
    "run_http",
]
