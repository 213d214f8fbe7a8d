"""One HTTP participant at run time: its credentials, and one bounded exchange on a connection of its own."""

from __future__ import annotations

import functools
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from types import TracebackType
from typing import Any

import httpx

from saga_activities.http.allowed_hosts import send_foreign
from saga_activities.http.bounded_read import ACCEPT_ENCODING, send_bounded
from saga_activities.http.credentials import SIGNATURE_HEADERS, Credentials, CredentialsError, signature_headers
from saga_activities.http.request import HttpRequest, redirect_target
from saga_activities.http.response import HttpResponse
from saga_activities.http.settings import HttpSettings
from sagas.errors import Unequipped, UsageError
from sagas.settings.http_auth import MutualTls

_REDIRECTS = (301, 302, 303, 307, 308)
_MAX_REDIRECTS = 5
_LIMITS = httpx.Limits(max_connections=100, max_keepalive_connections=0)
"""A connection carries one request. What a server sends behind a response would answer the next request, of another
saga, and no check before that request is certain: the bytes may be in buffers of TLS, or still on their way. A new
connection costs a millisecond of CPU. Nor does a server close an idle one while a request is on its way."""

_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")

Trace = Callable[[str, Mapping[str, Any]], Awaitable[None]]
"""Receives the events of a request on its connection, as httpcore names them; an error that it raises breaks it off."""


@functools.cache
def _public_authorities() -> ssl.SSLContext:
    """Trusts the public authorities. Loading them takes 15 ms of CPU, and no connection changes this context."""
    return httpx.create_ssl_context()


class HttpConnection:
    """A participant and its open connections. Created once per worker, closed at shutdown.

    It belongs to the event loop in which it is first used. ``trace`` receives the events of requests to the
    connection's own host.
    """

    def __init__(self, settings: HttpSettings, trace: Trace | None = None) -> None:
        self.settings = settings
        self._extensions = {} if trace is None else {"trace": trace}
        self.credentials = Credentials(settings)
        self._client: httpx.AsyncClient | None = None
        self._foreign_client: httpx.AsyncClient | None = None

    @property
    def managed_headers(self) -> tuple[str, ...]:
        """Headers that a definition may not set, because the connection sets them."""
        signed = SIGNATURE_HEADERS if self.settings.signing_secret is not None else ()
        return tuple(name for name in (self.settings.key_header, self.credentials.header, *signed) if name)

    def label(self, url: str) -> str:
        """The participant's name in messages: the connection's name, else the host."""
        return self.settings.name or httpx.URL(url).netloc.decode("ascii")

    async def authenticate(self, request: HttpRequest) -> dict[str, str]:
        """The headers that authenticate a request: none for another host than the connection's.

        Raises CredentialsError, before any request is sent.
        """
        return {} if request.foreign else await self.credentials.headers(self._open_client())

    def sign(self, request: HttpRequest, id: str) -> dict[str, str]:
        """The headers with which the participant can verify this request; empty if the connection does not sign.

        Another host gets none: it could show the signed request to the participant. Raises CredentialsError, before
        any request is sent.
        """
        secret = self.settings.signing_secret
        if secret is None or request.is_read or request.foreign:
            return {}
        return signature_headers(secret, id, request.content)

    async def exchange(self, request: HttpRequest, headers: Mapping[str, str]) -> HttpResponse:
        """Send once and read the response. Only read requests follow redirects, and only within the same origin.

        Raises InvalidRequestError if the host must not be called, UnreadableBodyError, and httpx.HTTPError, of which
        ConnectError and ProxyError mean that nothing was sent.
        """
        url = request.url
        response = await self._send(request, url, headers)
        for _ in range(_MAX_REDIRECTS):
            # Credentials are never sent to another origin, and a redirected write would be another effect.
            if not (request.is_read and response.status in _REDIRECTS):
                break
            target = redirect_target(url, response.headers.get("location", ""))
            if target is None:
                break
            url = target
            response = await self._send(request, url, headers)
        return response

    async def _send(self, request: HttpRequest, url: str, headers: Mapping[str, str]) -> HttpResponse:
        merged = {**self.settings.headers, **request.headers, **headers}
        mask = self.credentials.mask
        if request.foreign:
            client, hosts = self._open_foreign_client(), self.settings.allowed_hosts
            return await send_foreign(client, hosts, request.method, url, merged, request.content, mask)
        client = self._open_client()
        message = client.build_request(request.method, url, headers=merged, content=request.content)
        message.extensions |= self._extensions
        return await send_bounded(client, message, mask)

    async def aclose(self) -> None:
        """Close the clients. A later use opens new ones."""
        clients, self._client, self._foreign_client = (self._client, self._foreign_client), None, None
        for client in clients:
            if client is not None:
                await client.aclose()

    async def __aenter__(self) -> HttpConnection:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _open_client(self) -> httpx.AsyncClient:
        if self._client is None:
            # A proxy of the environment would read what is sent over plain HTTP to this machine.
            direct = {f"all://{host}": None for host in _LOOPBACK}
            self._client = _new_client(verify=self._tls(self.settings.auth.mtls), mounts=direct)
        return self._client

    def _open_foreign_client(self) -> httpx.AsyncClient:
        """Without a proxy, which would resolve the name again."""
        if self._foreign_client is None:
            self._foreign_client = _new_client(verify=self._tls(None), trust_env=False)
        return self._foreign_client

    def _tls(self, mtls: MutualTls | None) -> ssl.SSLContext:
        ca = self.settings.ca
        if ca is None and mtls is None:
            return _public_authorities()
        try:
            context = ssl.create_default_context(cafile=str(ca)) if ca else httpx.create_ssl_context()
        except OSError as error:
            raise CredentialsError(
                f"the file {ca} of the certificate authority cannot be used: {error.strerror or error}"
            ) from None
        if mtls is None:
            return context
        certificate, key = self.settings.root / mtls.certificate, self.settings.root / mtls.key
        try:
            # Without a password OpenSSL would prompt on the worker's terminal.
            password = self.settings.credential("mtls.password", mtls.password).read() if mtls.password else ""
            context.load_cert_chain(certificate, key, password=lambda: password)
        except UsageError as error:
            raise CredentialsError(error.message.rstrip(".")) from None
        except (OSError, ValueError) as error:
            raise CredentialsError(
                f"the certificate {certificate} with the key {key} cannot be used "
                f"({getattr(error, 'strerror', None) or type(error).__name__})"
            ) from None
        return context


def _new_client(**options: Any) -> httpx.AsyncClient:
    _limit_log_levels()
    # The caller enforces one overall timeout. Cookies would carry one saga's session into another.
    return httpx.AsyncClient(
        timeout=None,  # noqa: S113
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        headers={
            "user-agent": "saga-orchestrator",
            "accept": "application/json, */*;q=0.5",
            "accept-encoding": ACCEPT_ENCODING,
            "connection": "close",
        },
        limits=_LIMITS,
        **options,
    )


def _limit_log_levels() -> None:
    """The HTTP library logs headers (DEBUG) and queries (INFO), which hold secrets and personal data."""
    logging.getLogger("httpcore").setLevel(logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)


class HttpConnections:
    """All HTTP participants of a worker by name; closed together at shutdown."""

    def __init__(self, settings: Mapping[str, HttpSettings], trace: Trace | None = None) -> None:
        self._connections = {name: HttpConnection(each, trace) for name, each in settings.items()}
        self._unnamed = HttpConnection(HttpSettings(""), trace)

    def get(self, name: str | None) -> HttpConnection:
        """The connection of this name; for None, one without a URL and credentials.

        Raises Unequipped for a name that is not in saga.toml.
        """
        if name is None:
            return self._unnamed
        try:
            return self._connections[name]
        except KeyError:
            raise Unequipped(
                f"there is no HTTP connection {name!r}",
                help=f'add [connections.{name}] with kind = "http" to saga.toml',
            ) from None

    async def aclose(self) -> None:
        """Close every connection."""
        for connection in (self._unnamed, *self._connections.values()):
            await connection.aclose()
