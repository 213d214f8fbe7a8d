"""A project as a simulated run sees it."""

from __future__ import annotations

from sagas.definition.checks.results import result_schema
from sagas.project import Project
from sagas.simulation.run import Outside


def outside_of(project: Project) -> Outside:
    """The project's definitions, its ``[vars]``, and what its actions say about their results."""
    schemas = {name: result_schema(action) for name, action in project.actions.items()}
    known = {name: schema for name, schema in schemas.items() if schema is not None}
    return Outside(project.definitions, project.settings.vars, known)
