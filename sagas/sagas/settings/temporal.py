"""``[temporal]`` of saga.toml."""

from __future__ import annotations

from typing import Annotated

from sagas.settings.addresses import require_host_port, require_http_url
from sagas.settings.forms import FLAG, Form, OptionalText, Text, TextOrSecret, Variable, is_table, text
from sagas.settings.table import Table, setting

DEFAULT_NAMESPACE = "default"
"""The namespace if neither the settings nor the Temporal profile have one."""


class Tls(Table):
    """TLS to the Temporal server. Paths are relative to the project folder."""

    heading = "temporal.tls"
    summary = "TLS to the Temporal server. Files are PEM."

    server_name: OptionalText = setting(None, "the name that the server's certificate must have", "temporal.shop")
    ca: OptionalText = setting(None, "file of the certificate authority", "certificates/ca.pem")
    cert: OptionalText = setting(None, "file of the client certificate", "certificates/client.pem")
    key: OptionalText = setting(None, "file of its private key", "certificates/client.key")


_FLAG_OR_TLS = Form(
    "boolean or table",
    lambda written: FLAG.allows(written) or is_table(written),
    "true, false, or a table",
    lambda written: Tls.read(written) if is_table(written) else written,
    tables=(Tls,),
)


class TemporalSettings(Table):
    """How to reach Temporal. None means not set here, so the Temporal profile decides; the address has no default.

    ``embedded`` is True if the address is the one that ``saga dev up`` wrote. A Temporal profile, which may hold an API
    key for Temporal Cloud, must not be applied to that server.
    """

    heading = "temporal"
    summary = (
        "The Temporal server. What is set nowhere comes from the Temporal profile. Without an address the server of "
        "`saga dev up` is used."
    )

    embedded: bool = False
    address: Annotated[str | None, text(require_host_port), Variable("TEMPORAL_ADDRESS")] = setting(
        None, "`host:port` of the frontend", "temporal:7233"
    )
    namespace: Annotated[str | None, text(), Variable("TEMPORAL_NAMESPACE")] = setting(
        None, "the namespace; default: that of the profile, else `default`", "shop"
    )
    task_queue: Text = setting("sagas", "the task queue of the sagas")
    api_key: Annotated[TextOrSecret, Variable("TEMPORAL_API_KEY")] = setting(
        None, "an API key", {"env": "TEMPORAL_KEY"}, repr=False
    )
    tls: Annotated[bool | Tls | None, _FLAG_OR_TLS] = setting(
        None, "`true`: TLS with the system's authorities; or the table below"
    )
    profile: Annotated[str | None, text(), Variable("TEMPORAL_PROFILE")] = setting(
        None, "the Temporal profile to read", "production"
    )
    web_ui: Annotated[str | None, text(require_http_url)] = setting(
        None, "URL of the Web UI, for the links that commands print", "https://temporal.shop"
    )
