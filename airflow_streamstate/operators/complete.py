"""``CompletePartitionsOperator``: emits an asset event for each span of event time that a stream has completed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowSkipException, Asset

from airflow_streamstate.assets import EMITTED
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.hooks.rendered import as_moment, as_seconds, optional_seconds, optional_text, whole_number
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.base import StreamStateOperator
from airflow_streamstate.protocol.codec import format_time, parse_time

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

COMPLETE_THROUGH = "complete_through"
"""The key of an asset event's extra that holds the end of the last partition that was emitted: the cursor."""
_EVENTS_READ = 50


class CompletePartitionsOperator(StreamStateOperator):
    """Emit each partition that a stream has completed since the last one, once, as an event of ``asset``.

    With them it emits an event of a second asset, the cursor, whose URI is that of ``asset`` with ``/emitted`` at its
    end. Airflow records all of them in the transaction in which the task succeeds, and the operator continues after the
    newest recorded cursor. So a task that is tried again, cleared or killed emits no partition twice and leaves none
    out. Let one run at a time do it (``max_active_runs=1``). If nothing new is complete, the task is skipped, and emits
    nothing.

    On Airflow 3.3 and later each partition is an event with its own partition key, for DAGs on a
    ``PartitionedAssetTimetable``. Earlier releases get one event for all new partitions. In both the event's extra is
    ``{stream_id, query_name, complete_through, partitions}``.

    Returns ``{stream_id, query_name, complete_through_at, deployment_id, queries, reopened_from_at, partitions}``.

    :param asset: ``assets.partitions_asset`` of the stream, or any other; it is an outlet of the task, and so is the
        cursor, which is an inlet, too.
    :param query_name: the query whose results are meant; by default all queries of the stream, each of which needs a
        watermark. (templated)
    :param partition_seconds: the length of a partition; partitions start at whole multiples of it since 1970, in UTC.
        (templated)
    :param first_partition_at: where the first partition starts that is ever emitted; by default the newest one that is
        complete at the first run. (templated)
    :param lateness_seconds: how much further than a partition's end the watermark has to be. (templated)
    :param key_format: the partition key: ``strftime`` of its beginning. The default is that of Airflow's own mappers.
    :param max_partitions: how many partitions one run emits at most; the next run continues. (templated)
    """

    template_fields: Sequence[str] = (
        *(name for name in StreamStateOperator.template_fields if name not in ("reason", "timeout_seconds")),
        "query_name",
        "partition_seconds",
        "first_partition_at",
        "lateness_seconds",
        "max_partitions",
    )

    def __init__(
        self,
        *,
        asset: Asset,
        query_name: str | None = None,
        partition_seconds: float | str = 3600,
        first_partition_at: str | None = None,
        lateness_seconds: float | str | None = None,
        key_format: str = "%Y-%m-%dT%H:%M:%S",
        max_partitions: int | str = 168,
        **kwargs: Any,
    ) -> None:
        inlets, outlets = kwargs.pop("inlets", None) or [], kwargs.pop("outlets", None) or []
        # Not the asset itself: Airflow 3.3 gives no events of an asset (status 500) while a run that one has caused is
        # queued, since such a run has no start date. No DAG runs on the cursor.
        self.cursor = Asset(f"{asset.uri}/{EMITTED}")
        super().__init__(inlets=[*inlets, self.cursor], outlets=[*outlets, asset, self.cursor], **kwargs)
        self.asset = asset
        self.query_name = query_name
        self.partition_seconds = partition_seconds
        self.first_partition_at = first_partition_at
        self.lateness_seconds = lateness_seconds
        self.key_format = key_format
        self.max_partitions = max_partitions

    def act(self, context: Context, hook: StreamStateHook) -> Mapping[str, Any]:
        length = timedelta(seconds=as_seconds(self.partition_seconds, "partition_seconds"))
        lateness = timedelta(seconds=optional_seconds(self.lateness_seconds, "lateness_seconds") or 0.0)
        stream_id, query_name = str(self.stream_id), optional_text(self.query_name)
        most = whole_number(self.max_partitions, "max_partitions")
        if most < 1:
            raise InvalidRequestError("this field is no positive number", field="max_partitions", value=most)
        emitted_at = self._emitted_through(context, stream_id, query_name)
        found = hook.client.completing.through(stream_id, query_name)
        hook.client.completing.refuse_unanswerable(found)
        result = found.to_json()
        if found.reopened_from_at is not None:
            self.log.warning(
                "An undo took results back, from %s to %s; their partitions were emitted, and are not emitted again",
                result["reopened_from_at"],
                result["complete_through_at"],
            )
        ends: list[datetime] = []
        if found.through_at is not None:
            complete_at = _floor(found.through_at - lateness, length)
            begins_at = emitted_at or as_moment(self.first_partition_at, "first_partition_at") or complete_at - length
            ends = list(_ends(_floor(begins_at, length), complete_at, length))[:most]
        if not ends:
            raise AirflowSkipException(
                f"no partition is newly complete: complete through {result['complete_through_at']}, "
                f"emitted through {None if emitted_at is None else format_time(emitted_at)}"
            )
        keys = [(end_at - length).strftime(self.key_format) for end_at in ends]
        self._emit(context, stream_id, query_name, ends[-1], keys)
        self.log.info("Emitted %d partitions: %s", len(keys), ", ".join(keys))
        return {**result, "partitions": keys}

    def _emit(
        self, context: Context, stream_id: str, query_name: str | None, through_at: datetime, keys: list[str]
    ) -> None:
        outlet: Any = context["outlet_events"][self.asset]
        extra = {"stream_id": stream_id, "query_name": query_name, COMPLETE_THROUGH: format_time(through_at)}
        context["outlet_events"][self.cursor].extra.update(extra)
        outlet.extra.update({**extra, "partitions": keys})
        if hasattr(outlet, "add_partitions"):  # Airflow 3.3
            outlet.add_partitions(keys)

    def _emitted_through(self, context: Context, stream_id: str, query_name: str | None) -> datetime | None:
        """The end of the last partition that was emitted; None before the first."""
        events: Any = context["inlet_events"][self.cursor]
        for limit in (_EVENTS_READ, None):  # each query of the stream has its own
            newest_first = events.ascending(False).limit(limit)
            for event in newest_first:
                extra = event.extra or {}
                if (extra.get("stream_id"), extra.get("query_name")) != (stream_id, query_name):
                    continue
                if COMPLETE_THROUGH in extra:
                    return parse_time(str(extra[COMPLETE_THROUGH]))
            if len(newest_first) < _EVENTS_READ:
                return None
        return None


def _floor(moment: datetime, length: timedelta) -> datetime:
    epoch = datetime(1970, 1, 1, tzinfo=timezone.utc)
    return epoch + (moment - epoch) // length * length


def _ends(begins_at: datetime, through_at: datetime, length: timedelta) -> Iterator[datetime]:
    """The ends of the partitions between, oldest first."""
    end_at = begins_at + length
    while end_at <= through_at:
        yield end_at
        end_at += length
