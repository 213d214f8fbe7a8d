"""The ids of a log line are fields: after the message in a text, members of the object in JSON."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from saga_workers.runtime.logs import LogFormat, configure_logs, fields


@pytest.fixture(autouse=True)
def restored_root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers, root.level = handlers, level


def _logged(format: LogFormat, capsys: pytest.CaptureFixture[str]) -> str:
    configure_logs(format)
    logging.getLogger("saga.relay").warning(
        "lease lost: %s", "why", extra=fields(outbox="shop", shard=3, saga_id="a-1")
    )
    return capsys.readouterr().err


def test_a_text_line_ends_with_the_fields(capsys: pytest.CaptureFixture[str]) -> None:
    line = _logged("text", capsys)
    assert line.split(" ", 1)[1] == "WARNING saga.relay a-1: lease lost: why outbox=shop shard=3\n"


def test_a_json_line_has_the_fields_as_members(capsys: pytest.CaptureFixture[str]) -> None:
    line = json.loads(_logged("json", capsys))
    assert (line["message"], line["outbox"], line["shard"], line["saga_id"]) == ("lease lost: why", "shop", 3, "a-1")
