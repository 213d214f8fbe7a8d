"""The consumer groups for which a dead letter is that was sent to its topic again."""

from __future__ import annotations

import pytest

from saga_activities.kafka.dead_letter_headers import groups_of_resent, is_resent

TOPIC, GROUP = ("sagadlqtopic", b"orders"), ("sagadlqgroup", b"saga-consumer-book")


@pytest.mark.parametrize(
    ("headers", "groups"),
    [
        ([TOPIC, GROUP], {"saga-consumer-book"}),
        ([TOPIC, GROUP, ("sagadlqgroup", b"saga-bridge-fees")], {"saga-consumer-book", "saga-bridge-fees"}),
        ([("sagadlqtopic", b"others"), GROUP], set()),
        ([GROUP], set()),
        ([TOPIC], set()),
        ([TOPIC, ("sagadlqgroup", None)], set()),
        ([TOPIC, ("sagadlqgroup", b"")], set()),
    ],
)
def test_a_record_without_a_group_is_for_every_reader(
    headers: list[tuple[str, bytes | None]], groups: set[str]
) -> None:
    assert groups_of_resent("orders", headers) == groups
    assert is_resent("orders", {name: (raw or b"").decode() for name, raw in headers}) == bool(groups)
