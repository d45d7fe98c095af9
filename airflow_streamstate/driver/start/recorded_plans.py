"""Reads and records the plan of a query, and what its script read, before its start."""

from __future__ import annotations

from dataclasses import replace

from airflow_streamstate.connectors.sink import connector_for, known_sinks
from airflow_streamstate.connectors.source import SendingOnceConnector
from airflow_streamstate.control.stream import last_reads, record_reads
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.ports import AnalyzedPlan, StartableQuery
from airflow_streamstate.driver.attempt.query_sources import KnownSource
from airflow_streamstate.driver.attempt.reports import MAX_REASON_CHARACTERS
from airflow_streamstate.errors import DataError
from airflow_streamstate.plan.model import (
    PACE_OPTIONS,
    SETTINGS,
    SINK_OPTIONS,
    SOURCE_OPTIONS,
    PlannedSink,
    PlannedSource,
    QueryPlan,
    RecordedPlan,
    kept_options,
)
from airflow_streamstate.plan.record import kept_operators, record_plan, with_kept_state
from airflow_streamstate.plan.spark_json import PlanFacts, read_plan
from airflow_streamstate.protocol.script_reads import ReadChange, ScriptReads, compare_reads, told

UNREAD = "its plan is not recorded"


def record_before_start(
    attempt: Attempt, name: str, startable: StartableQuery, plan: QueryPlan | None = None, first_batch_id: int = 0
) -> tuple[str, ...]:
    """Record the plan of a query where it changed; a remark if that failed, else nothing.

    Args:
        plan: as read before its checkpoint was built; None to read it now.
        first_batch_id: as in ``RecordedPlan``.
    """
    try:
        read = plan_of(attempt, name, startable) if plan is None else replace(plan, pinned=_pinned(attempt, name))
        record = RecordedPlan(
            stream_id=attempt.stream_id,
            deployment_id=attempt.deployment_id,
            query_name=name,
            number=1,
            attempt=attempt.number,
            plan=_with_own_state(attempt, name, read),
            write_id=attempt.clock.new_uuid(),
            recorded_at=attempt.clock.now(),
            first_batch_id=first_batch_id,
        )
        record_plan(attempt.control, record)
    except Exception as error:
        words = attempt.reporter.shortened(f"{type(error).__name__}: {error}", MAX_REASON_CHARACTERS, in_a_line=True)
        return (f"{UNREAD}: {words}",)
    return ()


def plan_of(attempt: Attempt, name: str, startable: StartableQuery) -> QueryPlan:
    """The plan of a query, as its start would run it.

    Raises:
        DataError: it cannot be read.
        UnavailableError, OutcomeUnknownError: the store does not answer.
        and what Spark raises.
    """
    facts, analyzed = startable.facts, startable.analyzed_plan()
    known = attempt.sources.look_up(name, startable)
    hide = attempt.reporter.redacted
    return read_plan(
        analyzed.text,
        PlanFacts(
            query_name=name,
            spark_version=attempt.spark_version,
            output_mode=facts.output_mode,
            trigger=facts.trigger,
            sink=_sink(attempt, facts.sink, analyzed),
            watermarks=facts.watermarks,
            sources=tuple(_source(attempt, source) for source in known),
            places=_places(known),
            settings=startable.session_conf(SETTINGS),
            pinned=_pinned(attempt, name),
            hide=hide,
        ),
    )


def _with_own_state(attempt: Attempt, name: str, plan: QueryPlan) -> QueryPlan:
    """Add what the checkpoint shows, where this deployment wrote or seeded its state."""
    checkpoint = attempt.checkpoint_of(name)
    is_own = attempt.number > 1 or name in attempt.queries or attempt.spec.start.mode == "seed"
    has_variables = any(operator.kind == "transform_with_state" for operator in plan.operators)
    batch_id = checkpoint.position().batch_id if is_own and has_variables and checkpoint.exists() else None
    if batch_id is None:
        return plan
    return with_kept_state(plan, kept_operators(checkpoint, batch_id, len(plan.operators)))


def _places(known: tuple[KnownSource, ...]) -> tuple[int, ...]:
    """The numbers of the sources in the plan: of named ones those of their folders."""
    if any(source.source.name for source in known):
        return tuple(source.source.log_folder for source in known)
    return tuple(range(len(known)))


def _source(attempt: Attempt, known: KnownSource) -> PlannedSource:
    hide, planned = attempt.reporter.redacted, known.planned
    return PlannedSource(
        format=planned.format,
        adapter=known.identity.adapter,
        identity=hide(known.identity.what or planned.table or planned.options.get("path", "")),
        options=kept_options(planned.options, SOURCE_OPTIONS | PACE_OPTIONS, hide),
        name=known.source.name,
        sends_once=known.connector.sends_once if isinstance(known.connector, SendingOnceConnector) else "",
    )


def _sink(attempt: Attempt, kind: str, analyzed: AnalyzedPlan) -> PlannedSink:
    hide, sink = attempt.reporter.redacted, analyzed.sink
    connector = connector_for(sink, known_sinks().connectors)
    return PlannedSink(
        kind=kind,
        format=sink.format,
        target=hide(sink.table or sink.path or sink.options.get("topic", "")),
        adapter="" if connector is None else str(connector.name),
        skips="unknown" if connector is None else str(connector.skips),
        options=kept_options(sink.options, SINK_OPTIONS, hide),
        partitioned_by=analyzed.partitioned_by,
    )


def _pinned(attempt: Attempt, name: str) -> dict[str, str]:
    """The settings that the newest entry of the query's log pins."""
    checkpoint = attempt.checkpoint_of(name)
    numbers = checkpoint.offset_ids()
    try:
        entry = checkpoint.read_offset(max(numbers)) if numbers else None
    except DataError:
        return {}
    return {} if entry is None else {key: entry.conf[key] for key in SETTINGS if key in entry.conf}


# What the script read before this start, compared with what it read before the start that the state is from.
#
# It names causes and decides nothing: what fails here becomes a remark.

NOT_COMPARED = "what the script read is not compared with the last start"
NOT_RECORDED = "what the script read is not recorded"


def what_changed(attempt: Attempt, query_name: str) -> tuple[str, ...]:
    """Sentences on what the script read otherwise than at the last start of this query; none where nothing is known.

    Call it before ``record_after_start``. Raises nothing.
    """
    try:
        return told(_changes(attempt, query_name))
    except Exception as error:
        return (f"{NOT_COMPARED}: {_words(attempt, error)}",)


def record_after_start(attempt: Attempt, query_name: str) -> tuple[str, ...]:
    """Record what the script had read before this start; a remark if that failed, else nothing.

    After the start, so that a refused one leaves the record of the start that the state is from. Raises nothing.
    """
    if not attempt.opened.has_begun:
        return ()
    try:
        record_reads(attempt.control, _now(attempt, query_name))
    except Exception as error:
        return (f"{NOT_RECORDED}: {_words(attempt, error)}",)
    return ()


def _changes(attempt: Attempt, query_name: str) -> tuple[ReadChange, ...]:
    if not attempt.opened.has_begun:
        return ()
    for deployment_id in _deployments(attempt):
        before = last_reads(attempt.control, deployment_id, query_name)
        if before is not None:
            return compare_reads(before, _now(attempt, query_name))
    return ()


def _deployments(attempt: Attempt) -> list[str]:
    """This deployment, and that of the state with which it started."""
    manifest = attempt.start.manifest()
    before = attempt.spec.start.predecessor_id if manifest is None else manifest.deployment_id
    return [attempt.deployment_id, *(each for each in (before,) if each is not None)]


def _now(attempt: Attempt, query_name: str) -> ScriptReads:
    opened = attempt.opened
    return ScriptReads(
        stream_id=attempt.stream_id,
        deployment_id=attempt.deployment_id,
        attempt=attempt.number,
        query_name=query_name,
        files=opened.files(),
        write_id=attempt.clock.new_uuid(),
        recorded_at=attempt.clock.now(),
        others=opened.others,
        variables=opened.variables(attempt.spec.version.environment, attempt.reporter.redacted),
    )


def _words(attempt: Attempt, error: Exception) -> str:
    return attempt.reporter.shortened(f"{type(error).__name__}: {error}", MAX_REASON_CHARACTERS, in_a_line=True)
