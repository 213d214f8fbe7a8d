"""Links to runs in the Temporal Web UI."""

from __future__ import annotations

import pytest

from saga_workers.views.run_facts import web_ui_link

UI = "http://127.0.0.1:8233"


@pytest.mark.parametrize(
    ("web_ui", "id", "run_id", "link"),
    [
        (None, "order-1", "r", None),
        (UI, "order/1", "r", f"{UI}/namespaces/default/workflows/order%2F1/r/history"),
        (UI, "bulk~order-1", "", f"{UI}/namespaces/default/workflows?query=WorkflowId%3D%22bulk~order-1%22"),
        (UI, 'a"b', "", f"{UI}/namespaces/default/workflows?query=WorkflowId%3D%22a%5C%22b%22"),
    ],
)
def test_a_link_to_a_run(web_ui: str | None, id: str, run_id: str, link: str | None) -> None:
    assert web_ui_link(web_ui, "default", id, run_id) == link
