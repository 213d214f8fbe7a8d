"""Checks of a saga whose fields could be read; one file per subject."""

from __future__ import annotations

from sagas.definition.checks.activity_options import check_activity_options, check_no_effect_fields
from sagas.definition.checks.arguments import check_arguments
from sagas.definition.checks.automatic import check_automatic
from sagas.definition.checks.callbacks import check_callbacks
from sagas.definition.checks.computed_code import check_computed_code
from sagas.definition.checks.default_fields import check_default_fields
from sagas.definition.checks.expressions import check_expressions
from sagas.definition.checks.http_headers import check_http_headers
from sagas.definition.checks.input_schema import check_input_schema
from sagas.definition.checks.isolation import check_isolation, check_locks
from sagas.definition.checks.keys import check_keys
from sagas.definition.checks.kinds import check_kinds, check_participants
from sagas.definition.checks.messaging import check_messaging, check_notifications, check_requests, check_triggers
from sagas.definition.checks.probes import check_probes, check_settle
from sagas.definition.checks.rejections import check_rejections
from sagas.definition.checks.repeated_calls import check_repeated_calls
from sagas.definition.checks.spark import check_spark
from sagas.definition.checks.sql_parameters import check_sql_parameters
from sagas.definition.checks.sql_texts import check_sql_texts
from sagas.definition.checks.start_times import check_start_times
from sagas.definition.checks.task_queues import check_task_queues
from sagas.definition.checks.two_phase import check_two_phase
from sagas.definition.diagnostics import Report
from sagas.definition.parser.draft import SagaDraft


def check_draft(draft: SagaDraft, report: Report) -> None:
    """Run every check and add the findings to ``report``."""
    check_input_schema(draft, report)
    check_kinds(draft, report)
    check_participants(draft, report)
    check_probes(draft, report)
    check_settle(draft, report)
    check_rejections(draft, report)
    check_http_headers(draft, report)
    check_callbacks(draft, report)
    check_activity_options(draft, report)
    check_no_effect_fields(draft, report)
    check_default_fields(draft, report)
    check_task_queues(draft, report)
    check_repeated_calls(draft, report)
    check_arguments(draft, report)
    check_notifications(draft, report)
    check_sql_texts(draft, report)
    check_sql_parameters(draft, report)
    check_automatic(draft, report)
    check_spark(draft, report)
    check_two_phase(draft, report)
    check_messaging(draft, report)
    check_requests(draft, report)
    check_expressions(draft, report)
    check_computed_code(draft, report)
    check_keys(draft, report)
    check_start_times(draft, report)
    check_locks(draft, report)
    check_triggers(draft, report)
    check_isolation(draft, report)
