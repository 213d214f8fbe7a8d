"""The reference of the Python API lists every public name of `sagas`."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import sagas
from saga_workers.client import SagaHandle
from sagas.protocol.saga_view import SagaView

PAGE = Path(__file__).parents[2] / "docs/reference/python-api.md"


def test_every_public_name_is_on_the_page() -> None:
    listed = re.findall(r"^::: sagas\.([\w.]+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted([*sagas.__all__, "testing.saga", "testing.Sagas"])


def test_every_public_name_can_be_imported_and_is_described() -> None:
    assert all(getattr(sagas, name).__doc__ for name in sagas.__all__)


def test_the_example_of_the_client_uses_what_it_has() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (example,) = [block for block in blocks if "Client.connect" in block]
    owners = {
        "client": sagas.Client,
        "handle": SagaHandle.__dataclass_fields__ | vars(SagaHandle),
        "view": SagaView.__dataclass_fields__,
        "sagas": sagas,
    }
    used = {
        (node.value.id, node.attr)
        for node in ast.walk(ast.parse(example))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in owners
    }
    missing = [
        (owner, name)
        for owner, name in used
        if not (name in owners[owner] if isinstance(owners[owner], dict) else hasattr(owners[owner], name))
    ]
    assert not missing
    assert {("client", "start"), ("client", "signal"), ("client", "view"), ("client", "cancel")} <= used
    assert ("handle", "result") in used
