"""``[codec]`` of saga.toml: the keys that encrypt the values of sagas where they are stored."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from sagas.errors import UsageError
from sagas.settings.forms import TEXTS, Flag, TextOrSecret
from sagas.settings.masking import remember_secret
from sagas.settings.secrets import Secret, resolve_secret
from sagas.settings.table import Table, setting


class CodecSettings(Table):
    """The keys of the payload codec."""

    heading = "codec"
    summary = "Encryption of the values of sagas, see [encrypt-values](../how-to/encrypt-values.md)."

    key: TextOrSecret = setting(
        None,
        "an AES key of 256 bits, as 64 hexadecimal digits: clients and workers encrypt with it what they send to "
        "Temporal. Several keys are separated by white space: the first one encrypts, all of them decrypt",
        {"env": "SAGA_CODEC_KEY"},
        repr=False,
    )
    outbox: Flag = setting(
        False,
        "encrypts events also in `saga_outbox`: the relay, which then needs the key, publishes them in clear",
    )
    dead_letters: Flag = setting(
        False, "encrypts keys and values of dead letters in their topics; `saga decrypt` reads them"
    )
    allowed_origins: Annotated[tuple[str, ...], TEXTS] = setting(
        (),
        "the Web UIs whose pages may ask the codec endpoint of `saga serve`. Default: the one of `[temporal] web_ui`",
        ["https://temporal.example.com"],
    )


@dataclass(frozen=True, slots=True, repr=False)
class CodecKey:
    """A key of AES-256 and its ``id``, which encrypted values name."""

    id: str
    secret: bytes


def load_codec_keys(key: str | Secret | None, root: Path) -> tuple[CodecKey, ...]:
    """The keys of ``[codec] key``: the first encrypts, all of them decrypt. None of them without the setting.

    Raises:
        UsageError: the setting cannot be resolved, or a key has another form.
    """
    if key is None:
        return ()
    texts = resolve_secret(key, setting="codec.key", root=root).split()
    if not texts or any(re.fullmatch("[0-9a-fA-F]{64}", text) is None for text in texts):
        raise UsageError(
            "codec.key needs keys of 64 hexadecimal digits, separated by white space",
            help="create one with openssl rand -hex 32",
        )
    for text in texts:
        remember_secret(text)
    return tuple(_codec_key(bytes.fromhex(text)) for text in texts)


def _codec_key(secret: bytes) -> CodecKey:
    return CodecKey(hashlib.sha256(b"saga codec key id\0" + secret).hexdigest()[:12], secret)
