"""The trust model has a row for each port that the development stack opens."""

from __future__ import annotations

import re
from pathlib import Path

from saga_workers.devstack.dev_folder import DevFolder
from saga_workers.devstack.stack import SERVICES
from sagas.settings import load_settings

PAGE = Path(__file__).parents[3] / "docs/explanation/security.md"


def test_each_port_has_a_row(tmp_path: Path) -> None:
    (tmp_path / "saga.toml").write_text('definitions = ["."]\n', encoding="utf-8")
    settings, folder = load_settings(tmp_path, env={}), DevFolder(tmp_path)
    section = PAGE.read_text(encoding="utf-8").partition("## Ports of the development stack")[2].partition("\n## ")[0]
    listed: set[tuple[str, str]] = set()
    for row in section.splitlines():
        if (names := re.match(r"\| [^|]*\(((?:`\w+`,? ?)+)\) \|", row)) is not None:
            *services, port = re.findall("`([a-z_]+)`", names[1])
            listed |= {(service, port) for service in services}
    opened = {(kind.name, port) for kind in SERVICES for port in kind(settings, folder).ports()}
    assert listed == opened
