"""The page about security has every limit on what comes from outside, with its value."""

from __future__ import annotations

from types import ModuleType

import pytest

import saga_activities.input_limits
import saga_workers.input_limits
import sagas.input_limits
from tests.unit.test_message_form import ROOT

KIB, MIB = 1024, 1024 * 1024
YEAR = 365.25 * 86_400

PHRASES: dict[ModuleType, dict[str, tuple[str, float]]] = {
    sagas.input_limits: {
        "MAX_JSON_DEPTH": ("{} levels of lists and objects", 1),
        "MAX_DECIMAL_DIGITS": ("integers of 4,000 digits, decimals of {}", 1),
        "MAX_INTEGER_DIGITS": ("integers of {} digits", 1),
        "MAX_INPUT_VALUES": ("| an input | {} values", 1),
        "MAX_NUMBER_TEXTS": (
            "| numbers that become text in a request, an array or the events of a call | {} characters",
            1,
        ),
        "MAX_RESULT_VALUES": ("| result of a step, `output`, details of a failure | 2 MB and {} values", 1),
        "MAX_CHECK_STEPS": ("{} evaluation steps together, about a second of CPU", 1),
        "MAX_TASK_BYTES": ("more than 20,000 values or {} KiB", KIB),
        "MAX_TASK_STEPS": ("| a workflow task | after {} evaluation steps", 1),
        "MAX_FILE_BYTES": ("| definition or input in a file | {} bytes", 1),
        "MAX_DEFINITION_NODES": ("{} values after aliases", 1),
        "MAX_PREFIXED_DIGITS": ("integers of 4,000 digits ({} in hexadecimal and octal)", 1),
        "MAX_DEFINITION_CHARACTERS": ("| a definition | {} characters", 1),
        "MAX_STEPS": ("decimals of 1,000, {} steps |", 1),
        "MAX_SAGA_ID_BYTES": ("| the id of a saga | {} bytes", 1),
        "MAX_LABEL_BYTES": ("| labels of a saga | {} bytes", 1),
        "MAX_WORKFLOW_ID_BYTES": ("; {} for nested sagas", 1),
        "MAX_DURATION": ("| {} years |", YEAR),
        "MAX_RETRY_DELAY": ("| delay before the next attempt that a participant asks for | {} hour", 3600),
        "MAX_LOCK_KEYS": ("| {} keys of", 1),
        "MAX_LOCK_KEY_LENGTH": ("keys of at most {} characters", 1),
        "MAX_CANCEL_WORDS": ("who sent it | {} characters", 1),
        "MAX_UNPACKED_BYTES": ("| {} MiB, unpacked", MIB),
        "MAX_UNSIGNED_STATE_BYTES": ("without a signature {} MiB", MIB),
        "MAX_UNSIGNED_STATE_VALUES": ("without a signature 16 MiB, {} values", 1),
        "MAX_SETTINGS_BYTES": ("saga.toml {} MiB", MIB),
        "MAX_SECRET_BYTES": ("a file with a secret {} KiB", KIB),
    },
    saga_activities.input_limits: {
        "MAX_RESPONSE_BYTES": ("| body of a response over HTTP | {} MiB", MIB),
        "MAX_RESPONSE_HEADS": ("its head and the interim ones before it {} KiB", KIB),
        "MAX_SMALL_PARTS": ("{} chunks or reads, and one for each", 1),
        "RESPONSE_PART_BYTES": ("and one for each {} bytes of it", 1),
        "MAX_RESPONSE_FRAMING": ("and {} KiB of chunk headers and trailers", KIB),
        "MAX_TOKEN_BYTES": ("a token of OAuth2 {} KiB", KIB),
        "MAX_RECORD_BYTES": ("| value of a record that is read | {} MiB", MIB),
        "MAX_RECORD_VALUES": ("| value of a record that is read | 16 MiB, {} values", 1),
        "MAX_DECRYPTED_LINE": ("| a line that `saga decrypt` reads | {} MiB", MIB),
        "MAX_ENQUEUED_BYTES": ("| row of `saga_enqueued` | `input` {} bytes", 1),
        "MAX_ENQUEUED_NAME": ("names and order key {} characters", 1),
        "QUICK_CHECK_STEPS": ("those above {} evaluation steps", 1),
        "QUICK_CHECK_BYTES": ("inputs above {} KiB", KIB),
        "MAX_CHECKED_CALLERS": ("those of {} callers at the same time", 1),
        "MAX_WAITING_CHECKS": ("where {} inputs of a saga wait", 1),
    },
    saga_workers.input_limits: {
        "MAX_HEAD_BYTES": ("a head of {} KiB", KIB),
        "MAX_SMALL_CHUNKS": ("in at most {} chunks", 1),
        "CHUNK_BYTES": ("and one for each {} bytes", 1),
        "HEAD_TIMEOUT": ("a head of 16 KiB in {} seconds", 1),
        "BODY_TIMEOUT": ("(of 4 MiB for the codec endpoint) in {} seconds", 1),
        "MAX_CODEC_BYTES": ("a body of `max_body_bytes` (of {} MiB for the codec endpoint)", MIB),
        "MAX_CODEC_PAYLOADS": ("{} payloads for the codec endpoint", 1),
        "MAX_CALLBACKS_AT_ONCE": ("{} callbacks at the same time", 1),
        "MAX_CALLBACKS_OF_ADDRESS": ("{} of them to one address", 1),
        "SEND_TIMEOUT": ("a response read in {} seconds", 1),
        "MAX_CONNECTIONS": ("{} connections", 1),
        "MAX_WAITING_BODIES": ("{} MiB of bodies", MIB),
        "MAX_WAITING_BODIES_OF_TOKEN": ("{} MiB of one token", MIB),
        "MAX_WRONG_TOKENS": ("{} wrong tokens of an address", 1),
        "WRONG_TOKENS_PER_SECOND": ("and then {} a second", 1),
        "CHECK_TIMEOUT": ("`saga serve` answers 503 after {} seconds", 1),
        "MAX_TASK_VALUES": ("more than {} values or 128 KiB", 1),
        "MAX_TASK_CHECK_STEPS": ("| {} evaluation steps for all inputs of the task", 1),
        "MAX_KEPT_BYTES": ("a key and headers of more than {} KiB", KIB),
    },
}
"""For each limit the place of the page that has it, and the size of its unit."""

DERIVED = {"MAX_INTEGER_BITS"}


def shown(number: float) -> str:
    return f"{int(number):,}" if number == int(number) else str(number)


@pytest.mark.parametrize("module", PHRASES, ids=lambda module: module.__name__)
def test_the_page_about_security_has_every_limit(module: ModuleType) -> None:
    page = (ROOT / "docs/explanation/security.md").read_text(encoding="utf-8")
    section = page.partition("## Limits on input")[2].partition("\n## ")[0]
    limits = {name: value for name, value in vars(module).items() if name.isupper() and name not in DERIVED}
    assert set(PHRASES[module]) == set(limits)
    phrases = {name: phrase.format(shown(limits[name] / unit)) for name, (phrase, unit) in PHRASES[module].items()}

    assert [name for name, phrase in phrases.items() if phrase not in section] == []
