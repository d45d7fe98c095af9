"""The number of partitions of a stream's state: a check of the one that is asked for, and a suggestion."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from airflow_streamstate.checkpoint.guards import PROVIDER, ROCKSDB_PROVIDER
from airflow_streamstate.checkpoint.log import PARTITIONS, Checkpoint
from airflow_streamstate.checkpoint.seed import refuse_store
from airflow_streamstate.checkpoint.state_files import state_file_keys
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.errors import DataError, InvalidRequestError, ObjectMissingError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.plan.model import QueryPlan
from airflow_streamstate.plan.record import recorded_plans
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.forms import View
from airflow_streamstate.protocol.positions import QueryBeat
from airflow_streamstate.protocol.records import StateRewrite

BYTES_PER_PARTITION = 256 * 1024 * 1024
"""Files of one partition of one operator: what a task opens when it moves, and uploads in a batch, within seconds."""
ROWS_PER_PARTITION = 1_000_000


@dataclass(frozen=True)
class SuggestedPartitions(View):
    """A number of partitions for the state of one query.

    Attributes:
        now: the number today.
        state_bytes: of the files of its state as the last batch left it; None where they cannot be listed.
        state_rows: by the last heartbeat; None where unknown.
        batch_seconds: from commit to commit; None where unknown.
        reason: of the number, one sentence.
    """

    query_name: str
    now: int
    partitions: int
    state_bytes: int | None
    state_rows: int | None
    batch_seconds: float | None
    reason: str


def partitions_of(plan: QueryPlan) -> int:
    """The number of partitions that the checkpoint of a query keeps to."""
    return int(plan.pinned.get(PARTITIONS, plan.state.partitions))


def provider_of(plan: QueryPlan) -> str:
    """The class of the state store that the checkpoint of a query keeps to."""
    return plan.pinned.get(PROVIDER, plan.state.provider)


def check_changes(plans: Mapping[str, QueryPlan], before: StateRewrite | None, rewrite: StateRewrite | None) -> None:
    """Refuse to rewrite state that is as asked already, or that Spark cannot write; plans that are not known pass.

    Args:
        before: how the current deployment rewrote its state.

    Raises:
        InvalidRequestError: it is so.
    """
    if rewrite is None or not plans or rewrite.undoes is not None:
        return
    stateful = [plan for plan in plans.values() if plan.is_stateful]
    if not stateful:
        raise InvalidRequestError(
            "no query of this stream keeps state, so nothing can be rewritten",
            queries=sorted(plans),
            next_step="Leave the rewrite out.",
        )
    if rewrite.state_store is None:
        for plan in stateful:
            refuse_store(plan.query_name, provider_of(plan))
    migration = rewrite.migration
    if migration is not None and before is not None and before.migration == migration and not before.is_inverse:
        raise InvalidRequestError(
            "the current deployment started with this very migration, and it would run a second time",
            migration=migration.name,
            sha256=migration.sha256,
            next_step="Upgrade without it; to run it again on purpose change the file, if only by a comment.",
        )
    if migration is None and not rewrite.auto_migrate and all(_is_as_asked(plan, rewrite) for plan in stateful):
        raise InvalidRequestError(
            "the state is as asked already",
            partitions=rewrite.partitions,
            state_store=rewrite.state_store,
            checkpoint_format=rewrite.checkpoint_format,
            next_step="Leave that out, or ask for something else; `streamstate rescale --suggest` suggests a number.",
        )


def _is_as_asked(plan: QueryPlan, rewrite: StateRewrite) -> bool:
    return (
        rewrite.partitions in (None, partitions_of(plan))
        and (rewrite.state_store is None or provider_of(plan) == ROCKSDB_PROVIDER)
        and rewrite.checkpoint_format in (None, plan.state.checkpoint_format)
    )


def suggest_partitions(context: ControllerContext, stream_id: str) -> list[SuggestedPartitions]:
    """A number for each query with state of the current deployment.

    Raises:
        StreamNotFoundError: there is no such stream.
    """
    seen = context.observer.observe(stream_id)
    control = context.home.control(stream_id)
    beat = control.heartbeat(seen.deployment_id)
    found = []
    for name, plan in sorted(recorded_plans(control, seen.deployment_id).items()):
        if plan.is_stateful:
            folder = layout.checkpoint_folder(control.stream_id, seen.deployment_id, name)
            size = _state_bytes(Checkpoint(context.home.checkpoints, folder))
            query = None if beat is None else beat.queries.get(name)
            found.append(suggested(name, partitions_of(plan), len(plan.operators), size, query))
    return found


def suggested(
    name: str, now: int, operators: int, state_bytes: int | None, beat: QueryBeat | None
) -> SuggestedPartitions:
    """The number for one query: by the size of its state, more where the query falls behind its input."""
    rows = None if beat is None else beat.state_rows
    seconds = None if beat is None else beat.batch_seconds
    by_size = -(-(state_bytes or 0) // (BYTES_PER_PARTITION * max(operators, 1)))
    by_rows = -(-(rows or 0) // (ROWS_PER_PARTITION * max(operators, 1)))
    number = max(by_size, by_rows, 1)
    told = [words for words in (_bytes(state_bytes), None if rows is None else f"{rows:,} rows") if words]
    state = f"its state has {' and '.join(told) or 'an unknown size'}"
    if beat is not None and _falls_behind(beat) and number <= now:
        number = 2 * now
        reason = f"{state}, and it falls behind its input: more tasks work on a batch at once, where cores are free"
    elif number == now:
        reason = f"{state}, which is about right for {now}"
    elif number < now:
        took = "" if seconds is None else f" (a batch takes {seconds:.1f} s)"
        reason = f"{state}: each partition of each operator is a task and a commit in every batch{took}"
    else:
        reason = f"{state}: more than {BYTES_PER_PARTITION >> 20} MiB or {ROWS_PER_PARTITION:,} rows in a partition"
    return SuggestedPartitions(name, now, number, state_bytes, rows, seconds, reason)


def _falls_behind(beat: QueryBeat) -> bool:
    trends = [lag.trend for lag in beat.lags if lag.trend is not None]
    rates = [(each.read_per_second, each.came_per_second) for each in trends if each.least > each.least_before]
    return any(read is not None and came is not None and came > read for read, came in rates)


def _bytes(size: int | None) -> str | None:
    if size is None:
        return None
    return f"{size / (1 << 20):,.1f} MiB" if size >= 1 << 20 else f"{size / 1024:,.0f} KiB"


def _state_bytes(checkpoint: Checkpoint) -> int | None:
    with suppress(DataError, ObjectMissingError):  # a running query moves on, or its log is damaged
        batch_id = checkpoint.position().batch_id
        if batch_id is None:
            return 0
        sizes = {info.key: info.size_bytes for info in checkpoint.store.list_objects(checkpoint.key("state/"))}
        return sum(sizes[key] for key in state_file_keys(checkpoint, batch_id + 1, sizes))
    return None
