"""One query's trial: its checkpoint is built as a start would build it, and an empty batch runs on that.

A restored query runs the last offsets once more, on its own state. One that is seeded, or starts with nothing, has no
state to be read: for it the empty batch by which a seed is made is all there is to try.
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow_streamstate.checkpoint.guards import STATE_FORMAT, guard_state_format
from airflow_streamstate.checkpoint.missing_pin import PARTITIONS
from airflow_streamstate.checkpoint.repair import repair_before_start
from airflow_streamstate.checkpoint.trial_batches import plan_empty_batch, plan_last_again
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.ports import StartableQuery
from airflow_streamstate.driver.start.building import Builder, Built, has_positions
from airflow_streamstate.driver.start.seeding import describe_sources
from airflow_streamstate.driver.start.sinks import listed
from airflow_streamstate.driver.start.spark_check import check_spark
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.events import QueryStart
from airflow_streamstate.protocol.rehearsals import QueryOutcome

WARM_BATCH_SECONDS = 30.0
"""So long the last batch of the old version is run again at the most."""
MIN_WARM_SECONDS = 2.0
SOURCES_UNKNOWN = "how many sources it has cannot be told, so no batch was run"


def build(attempt: Attempt, builder: Builder, name: str, startable: StartableQuery) -> Built:
    """The checkpoint that a start of this query would stand on, under the keys of the rehearsal.

    Args:
        attempt: of the rehearsal.
        builder: of that attempt.
        name: the query.
        startable: the script's writer. Its sink is looked at where the query starts with nothing, and never written.

    Raises:
        StreamStateError: a start would be refused with this.
        whatever Spark raises: a seed cannot be made of this plan.
    """
    checkpoint = attempt.checkpoint_of(name)
    check_spark(attempt, name, checkpoint)
    built = builder.ensure(name, startable)
    if checkpoint.exists():
        guard_state_format(checkpoint, startable.session_conf((STATE_FORMAT,)).get(STATE_FORMAT, "1"))
    elif built.how == "fresh":
        _refuse_held_batches(startable)
    return built


def expected_start(attempt: Attempt, name: str) -> QueryStart | None:
    """How a query would start, by what the snapshot says of it; None where a start would be refused."""
    manifest = attempt.need_start_manifest()
    if manifest is None:
        return "fresh"
    known = manifest.queries.get(name)
    if known is None:
        return "fresh" if name in attempt.spec.start.fresh_queries else None
    if not has_positions(known):
        return "fresh"
    return "seeded" if known.drained else "restored"


def run_empty_batch(
    attempt: Attempt, name: str, startable: StartableQuery, built: Built
) -> tuple[QueryOutcome, tuple[str, ...]]:
    """Run an empty batch on what was built; what came of it, and what a person should know.

    Raises:
        whatever Spark raises: the plan cannot run on this state.
    """
    checkpoint = attempt.checkpoint_of(name)
    if built.how == "seeded":  # its batch has run already, in the making
        return "accepted", built.remarks
    if checkpoint.exists() and checkpoint.position().batch_id is not None:
        repair_before_start(
            checkpoint,
            attempt.deployment_id,
            partitions=lambda: startable.session_conf((PARTITIONS,)).get(PARTITIONS, ""),
        )
        plan_empty_batch(checkpoint)
        startable.run_trial_batch(attempt.uri_of(checkpoint))
        return "accepted", built.remarks
    count = startable.facts.sources_count
    if count is None:
        return "not_run", (*built.remarks, SOURCES_UNKNOWN)
    describe_sources(attempt, name, startable, {}, count)
    return "accepted", built.remarks


def run_last_again(attempt: Attempt, name: str, startable: StartableQuery, within_seconds: float) -> None:
    """Run the last batch that read anything once more, above the empty one, so that its successor in this driver finds
    a JVM that has read, computed and kept rows: most of the first batch of a cold one goes into that.

    What stands in the way only leaves the driver less warm. Of sources that may clean up behind what was read, or whose
    kind nobody knows, nothing is read again; nor where there is no time for it.
    """
    within_seconds = min(within_seconds, WARM_BATCH_SECONDS)
    if within_seconds < MIN_WARM_SECONDS:
        return
    known = attempt.sources.look_up(name, startable)
    if not known or not all(source.adapter is not None and _keeps_all(source.planned.options) for source in known):
        return
    checkpoint = attempt.checkpoint_of(name)
    try:
        if plan_last_again(checkpoint) is not None:
            startable.run_trial_batch(attempt.uri_of(checkpoint), within_seconds)
    except Exception as error:
        attempt.reporter.say(f"query {name} could not be warmed by its last batch: {type(error).__name__}: {error}")


def _keeps_all(options: Mapping[str, str]) -> bool:
    return options.get("cleansource", "off").strip().lower() == "off"


def _refuse_held_batches(startable: StartableQuery) -> None:
    """As ``starting.sinks`` before a fresh start; of one that goes on, a running predecessor's sink says nothing."""
    held = startable.held_batches(None, 0)
    if held.batch_ids:
        raise InvalidRequestError(
            "the sink holds batch ids that a fresh start would use again, and would skip them with all their new rows",
            sink=startable.sink_place(),
            held_batches=listed(held.batch_ids),
            next_step="Write to a new output, or keep the query's name, so that its batch ids go on.",
        )
