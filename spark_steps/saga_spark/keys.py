"""Names derived from a step, so that a retry computes them again instead of remembering them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """One output of one entry of one saga: what is staged, published and taken back as a whole.

    ``step`` is the ledger id (``facts``, ``facts#2``); ``output`` the output's name; ``generation`` grows when the
    entry runs again after it was taken back.
    """

    saga_id: str
    step: str
    generation: int
    output: str = "output"

    @property
    def key(self) -> str:
        """The publish key: the same for every attempt and every generation. 32 hexadecimal digits."""
        text = "\0".join((self.saga_id, self.step, self.output))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def name(self) -> str:
        """Publish key and generation: what a sink remembers."""
        return f"{self.key}-g{self.generation}"

    def folder(self, epoch: int) -> str:
        """Where one attempt stages, relative to the stage area."""
        return f"{self.key}/g{self.generation}/e{epoch}"


@dataclass(frozen=True, slots=True)
class Mark:
    """What a sink stores inside its own commit, so that it can tell later whose commit it was.

    ``epoch`` is the fencing token under which the manifest was staged, ``sha`` the manifest's SHA-256.
    """

    target: Target
    epoch: int
    sha: str
    saga: str = ""

    def properties(self) -> dict[str, str]:
        """As texts: the properties of a snapshot, the fields of a pointer."""
        return {
            "saga.id": self.target.saga_id,
            "saga.step": self.target.step,
            "saga.output": self.target.output,
            "saga.key": self.target.key,
            "saga.generation": str(self.target.generation),
            "saga.epoch": str(self.epoch),
            "saga.manifest": self.sha,
        }
