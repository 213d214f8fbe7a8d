"""``uses: http``: one request to a participant that may honour idempotency keys."""

from __future__ import annotations

from activities.http.connection import HttpConnection, HttpConnections
from activities.http.run import run_http
from activities.http.settings import HttpSettings, http_settings

__all__ = ["HttpConnection", "HttpConnections", "HttpSettings", "http_settings", "run_http"]
