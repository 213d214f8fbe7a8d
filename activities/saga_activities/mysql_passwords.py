"""Passwords of MySQL and MariaDB: none is sent in clear over a connection without TLS.

A process that answers at the server's address could ask for it so, and the driver would send it.
"""

from __future__ import annotations

from functools import cache

from sqlalchemy import URL


def refused_plugins(url: URL) -> dict[str, type]:
    """The driver's ``auth_plugin_map``: methods that send the password as it is, unless the URL asks for TLS."""
    if any(name.startswith("ssl") for name in url.query):
        return {}
    return {"mysql_clear_password": _refusal(), "dialog": _refusal()}


@cache
def _refusal() -> type:
    """The refusal, whose driver is imported here: a project without such a database need not have it."""
    from asyncmy.errors import OperationalError

    class PasswordInClear:
        def __init__(self, connection: object) -> None:
            raise OperationalError(
                2059, "the server asks for the password in clear, and the connection has no TLS; set ssl_ca in the url"
            )

    return PasswordInClear
