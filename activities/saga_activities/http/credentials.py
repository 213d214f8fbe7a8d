"""Authenticates and signs requests. All of it happens before the request is sent, so a failure has no effect."""

from __future__ import annotations

import asyncio
import base64
import binascii
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from urllib.parse import quote_plus

import httpx

from saga_activities.http.bounded_read import send_bounded
from saga_activities.http.bounded_stream import UnreadableBodyError
from saga_activities.http.settings import HttpSettings, SecretSetting
from saga_activities.input_limits import MAX_TOKEN_BYTES
from sagas.errors import UsageError
from sagas.settings.http_auth import OAuth2Auth
from sagas.settings.secrets import Secret
from sagas.text.printable import MASK

_MIN_MASKED_LENGTH = 6
_MAX_MASKED_SECRETS = 64


class CredentialsError(Exception):
    """No credentials were obtained; the message names their source, never a secret."""


@dataclass(frozen=True, slots=True)
class _AccessToken:
    value: str
    expires_at: float


class Credentials:
    """The credentials of one connection. Keeps the secrets it has read, only to mask them in messages and responses."""

    def __init__(self, settings: HttpSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._auth = settings, settings.auth
        self._clock = clock
        self._token: _AccessToken | None = None
        self._renewal_lock = asyncio.Lock()
        self._secrets: deque[str] = deque(maxlen=_MAX_MASKED_SECRETS)

    @property
    def header(self) -> str | None:
        """The name of the header that carries these credentials."""
        if not self._auth.kinds:
            return None
        return self._auth.header.name if self._auth.header else "authorization"

    @property
    def renewable(self) -> bool:
        """True if a 401 response may only mean that the token has expired."""
        return self._auth.oauth2 is not None

    async def headers(self, client: httpx.AsyncClient) -> dict[str, str]:
        """The headers that authenticate one request. Raises CredentialsError."""
        auth = self._auth
        try:
            if auth.bearer:
                return {"authorization": f"Bearer {self._read('bearer', auth.bearer)}"}
            if basic := auth.basic:
                user, password = self._read("basic.user", basic.user), self._read("basic.password", basic.password)
                return {"authorization": self._basic(user, password)}
            if auth.header:
                return {auth.header.name: self._read("header.value", auth.header.value)}
            if auth.oauth2:
                return {"authorization": f"Bearer {await self._access_token(auth.oauth2, client)}"}
        except UsageError as error:
            raise CredentialsError(error.message.rstrip(".")) from None
        return {}

    def forget_token(self, headers: dict[str, str]) -> None:
        """Drop the refused token, unless a concurrent request has already renewed it."""
        if self._token is not None and headers.get("authorization") == f"Bearer {self._token.value}":
            self._token = None

    def mask(self, text: str) -> str:
        """Replace every secret that this connection has used: a participant may echo what it received."""
        for secret in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(secret, MASK)
        return text

    async def _access_token(self, auth: OAuth2Auth, client: httpx.AsyncClient) -> str:
        async with self._renewal_lock:
            if self._token is None or self._clock() >= self._token.expires_at:
                self._token = await self._fetch_token(auth, client)
            return self._token.value

    async def _fetch_token(self, auth: OAuth2Auth, client: httpx.AsyncClient) -> _AccessToken:
        identity = self._read("oauth2.client_id", auth.client_id)
        secret = self._read("oauth2.client_secret", auth.client_secret)
        form = {"grant_type": "client_credentials"}
        headers = {"accept": "application/json"}
        if auth.scope:
            form["scope"] = auth.scope
        if auth.audience:
            form["audience"] = auth.audience
        if auth.send == "body":
            form |= {"client_id": identity, "client_secret": secret}
        else:
            # RFC 6749 section 2.3.1: both are form-encoded before they are joined.
            headers["authorization"] = self._basic(quote_plus(identity), quote_plus(secret))
        request = client.build_request("POST", auth.token_url, data=form, headers=headers)
        try:
            response = await send_bounded(client, request, lambda text: text)
        except (httpx.HTTPError, OSError, UnreadableBodyError) as error:
            raise CredentialsError(f"the token endpoint did not respond ({type(error).__name__})") from None
        if response.status != HTTPStatus.OK:
            raise CredentialsError(f"the token endpoint responded {response.status_line}")
        try:
            body = response.json()
            token, lifetime = body["access_token"], float(body.get("expires_in", "inf"))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            raise CredentialsError("the token endpoint responded without an access_token") from None
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise CredentialsError("the token endpoint responded with an access_token that is not a string")
        if not 0 < len(token) <= MAX_TOKEN_BYTES or math.isnan(lifetime):
            raise CredentialsError("the token endpoint responded with an access_token that cannot be used")
        self._remember(token)
        # Renewed a little early, so that it does not expire in transit.
        return _AccessToken(token, self._clock() + lifetime - min(30.0, lifetime * 0.1))

    def _basic(self, user: str, password: str) -> str:
        encoded = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._remember(encoded)
        return f"Basic {encoded}"

    def _read(self, key: str, written: str | Secret) -> str:
        if isinstance(written, str):
            return written
        value = self._settings.credential(key, written).read()
        self._remember(value)
        return value

    def _remember(self, secret: str) -> None:
        # Masking a very short secret would garble ordinary responses.
        if len(secret) >= _MIN_MASKED_LENGTH and secret not in self._secrets:
            self._secrets.append(secret)


# Signatures according to Standard Webhooks. `webhook-id` is the idempotency key, the same in every attempt;
# `webhook-timestamp` and `webhook-signature` are new in each attempt, because receivers refuse old signatures.
WEBHOOK_ID, WEBHOOK_TIMESTAMP, WEBHOOK_SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
SIGNATURE_HEADERS = (WEBHOOK_ID, WEBHOOK_TIMESTAMP, WEBHOOK_SIGNATURE)


MIN_SIGNING_KEY_BYTES = 24
"""The limits that the specification of Standard Webhooks demands."""


def signing_key(secret: SecretSetting) -> bytes:
    """The bytes of a signing secret. Raises UsageError if it is missing, malformed or too short."""
    text = secret.read()
    try:
        key = base64.b64decode(text.removeprefix("whsec_") + "==")  # "==": the padding may be missing
    except binascii.Error:
        raise UsageError(f"{secret.setting} is not a Standard Webhooks secret (whsec_ and Base64)") from None
    if len(key) < MIN_SIGNING_KEY_BYTES:
        raise UsageError(
            f"{secret.setting} is a secret of {len(key)} bytes, which can be guessed; use whsec_ and the Base64 of "
            f"{MIN_SIGNING_KEY_BYTES} to 64 random bytes"
        )
    return key


def signature_headers(secret: SecretSetting, id: str, content: bytes | None) -> dict[str, str]:
    """The three signature headers of a request with this body. Raises CredentialsError if the secret is unusable."""
    from standardwebhooks import Webhook

    try:
        webhook = Webhook(signing_key(secret))
    except UsageError as error:
        raise CredentialsError(error.message.rstrip(".")) from None
    now = datetime.now(UTC)
    signature = webhook.sign(id, now, (content or b"").decode())
    return {WEBHOOK_ID: id, WEBHOOK_TIMESTAMP: str(int(now.timestamp())), WEBHOOK_SIGNATURE: signature}
