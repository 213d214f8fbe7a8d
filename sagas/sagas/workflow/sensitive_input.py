"""The definition of a nested saga, whose input has what the schema of its parent marks as sensitive."""

from __future__ import annotations

from dataclasses import replace

from temporalio import workflow

from sagas.definition.model import Definition
from sagas.definition.sensitive_paths import read_sensitive_paths, with_sensitive_paths
from sagas.protocol.payloads import SENSITIVE_MEMO
from sagas.workflow.client_fields import read_client_value


def with_marks_of_parent(definition: Definition) -> Definition:
    """The definition with the places marked that the parent of the current run names; the same one without any.

    Raises SagaApplicationError if the memo names something else.
    """
    info = workflow.info()
    memo = info.raw_memo.get(SENSITIVE_MEMO)
    if info.parent is None or memo is None:
        return definition
    paths = read_client_value(f"the memo {SENSITIVE_MEMO} has no places of an input", memo, read_sensitive_paths)
    return replace(definition, input=with_sensitive_paths(definition.input, paths)) if paths else definition
