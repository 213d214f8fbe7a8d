"""The sagas about which the HTTP API answers."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from sagas.definition.saga_ids import SAGA_NAME


@dataclass(frozen=True, slots=True)
class ProjectSagas:
    """The sagas of the project, by their ``names``."""

    names: Collection[str]

    def include(self, saga: str) -> bool:
        """True for a saga of the project; without definitions every run may be one whose type is such a name."""
        return saga in self.names if self.names else re.fullmatch(SAGA_NAME, saga) is not None
