"""Standard Webhooks: the receiver can tell who sent a request, that nobody changed it, and which ones are repeated.

``webhook-id`` is the idempotency key, the same in every attempt; ``webhook-timestamp`` and ``webhook-signature`` are
made for each attempt, because receivers refuse what was signed long ago.
"""

from __future__ import annotations

import binascii
from datetime import UTC, datetime

from saga_activities.http.credentials import CredentialsError
from saga_activities.http.settings import SecretText
from sagas.errors import UsageError

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
HEADERS = (ID, TIMESTAMP, SIGNATURE)


def signature_headers(secret: SecretText, id: str, content: bytes | None) -> dict[str, str]:
    """The three headers of a request with this body. Raises CredentialsError: there is no usable secret."""
    from standardwebhooks.webhooks import EmptyWebhookSecretError, Webhook

    try:
        webhook = Webhook(secret.read())
    except UsageError as error:
        raise CredentialsError(error.message.rstrip(".")) from None
    except (binascii.Error, EmptyWebhookSecretError):
        raise CredentialsError(f"{secret.setting} is no secret of Standard Webhooks (whsec_ and Base64)") from None
    now = datetime.now(UTC)
    signature = webhook.sign(id, now, (content or b"").decode())
    return {ID: id, TIMESTAMP: str(int(now.timestamp())), SIGNATURE: signature}
