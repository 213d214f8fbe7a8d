"""``auth`` of an HTTP service in saga.toml: its credentials, as references to secrets."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import model_validator

from sagas.settings.addresses import require_http_url
from sagas.settings.forms import SECRET, Form, OptionalText, is_table, one_of, text, text_or_secret
from sagas.settings.secrets import Secret
from sagas.settings.table import REQUIRED, Table, setting
from sagas.settings.wrong_setting import WrongSetting
from sagas.text.header_names import is_header_name


def _read_reference(written: Any) -> Secret:
    if not is_table(written):
        help = 'write { env = "NAME" } or { file = "path" }; it is read on the worker'
        raise WrongSetting("", "must name where the secret is stored, not contain it", help=help)
    return SECRET.read(written)


_REFERENCE = replace(SECRET, allows=lambda written: True, read=_read_reference)
_FILE = Form(
    "string",
    lambda written: text().allows(written) or (is_table(written) and [*written] == ["file"]),
    'a string or {file = "path"}',
    lambda written: written["file"] if is_table(written) else written,
)
SecretReference = Annotated[Secret, _REFERENCE]
OptionalReference = Annotated[Secret | None, _REFERENCE]


def require_header_name(name: str, header: str) -> None:
    """Raises WrongSetting for what is not a name of a header."""
    if not is_header_name(header):
        raise WrongSetting(name, "is not a header name")


class BasicAuth(Table):
    """User and password."""

    user: Annotated[str | Secret, text_or_secret()] = setting(REQUIRED, "the user", "shop")
    password: SecretReference = setting(REQUIRED, "the password", {"env": "CRM_PASSWORD"})


class HeaderAuth(Table):
    """A header of the service's own."""

    name: Annotated[str, text(require_header_name)] = setting(REQUIRED, "the name of the header", "x-api-key")
    value: SecretReference = setting(REQUIRED, "its value", {"env": "CRM_KEY"})


class OAuth2Auth(Table):
    """Client credentials (RFC 6749 section 4.4)."""

    token_url: Annotated[str, text(require_http_url)] = setting(
        REQUIRED, "the URL that issues tokens", "https://id.shop/token"
    )
    client_id: Annotated[str | Secret, text_or_secret()] = setting(REQUIRED, "the id of the client", "shop")
    client_secret: SecretReference = setting(REQUIRED, "its secret", {"env": "CRM_SECRET"})
    scope: OptionalText = setting(None, "the scope that is asked for", "orders")
    audience: OptionalText = setting(None, "passed on as it is", "crm")
    send: Annotated[Literal["basic", "body"], one_of("basic", "body")] = setting(
        "basic", "`body`: id and secret are sent in the form instead of a header"
    )


class MutualTls(Table):
    """The client certificate of the worker. Files are PEM, relative to the project folder."""

    certificate: Annotated[str, _FILE] = setting(REQUIRED, "file of the certificate", "certificates/client.pem")
    key: Annotated[str, _FILE] = setting(REQUIRED, "file of its private key", "certificates/client.key")
    password: OptionalReference = setting(None, "decrypts an encrypted key", {"env": "KEY_PASSWORD"})


class Auth(Table):
    """At most one kind of credentials, and optionally a client certificate."""

    bearer: OptionalReference = setting(None, "a token", {"env": "CRM_TOKEN"})
    basic: BasicAuth | None = setting(None, "user and password")
    header: HeaderAuth | None = setting(None, "a header of the service's own")
    oauth2: OAuth2Auth | None = setting(None, "client credentials of OAuth 2")
    mtls: MutualTls | None = setting(None, "the worker's client certificate")

    @property
    def kinds(self) -> list[str]:
        """The credentials that are sent in headers: at most one."""
        return [name for name in ("bearer", "basic", "header", "oauth2") if getattr(self, name) is not None]

    @model_validator(mode="after")
    def _check_kinds(self) -> Self:
        if len(self.kinds) > 1:
            raise WrongSetting("", f"names {' and '.join(self.kinds)}; give only one (besides mtls)")
        return self
