"""Where a query stands: shared by events, heartbeats and manifests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.fields import EventTime, Milliseconds


@dataclass(frozen=True)
class StateLeft:
    """State of one operator that a drain could not flush.

    Attributes:
        operator: Spark's name of it, e.g. ``stateStoreSave``.
        operator_id: its number in the plan.
        reason: why the rows could not be flushed.
    """

    operator: str
    operator_id: int
    rows: int
    reason: str


@dataclass(frozen=True)
class WatermarkSpec:
    """One ``withWatermark`` of a query."""

    column: str
    delay_ms: Milliseconds


@dataclass(frozen=True)
class SourceIdentity:
    """What one source of a query is.

    Attributes:
        adapter: the source connector that said so; "" where none knows it.
        what: what it reads, in that connector's words; equal while offsets mean the same.
        log_folder: the number of Spark's own log of it, below ``sources/``.
        marks: ids that tell it from others of its name, when its offset was kept.
    """

    adapter: str
    what: str
    log_folder: int = 0
    marks: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SourceMove:
    """How the position of one source was moved on purpose.

    Attributes:
        source: what it reads, in words.
        from_offset: where it stood, as Spark wrote it; ``-`` for nothing read yet.
        to_offset: where it goes on.
        passed_over: how much of its input is never read: a gap. None where unknown.
        read_again: how much of it is read a second time. None where unknown.
        unit: of both: ``rows``, ``files``, ``versions``; "" where both are unknown.
    """

    source: str
    from_offset: str
    to_offset: str
    passed_over: int | None = None
    read_again: int | None = None
    unit: str = ""


@dataclass(frozen=True)
class QueryPosition:
    """Where one query ended, or was captured.

    Attributes:
        batch_id: last committed batch; None for none.
        end_offsets: per source, that batch's end offset as Spark's own JSON text, ``-`` for none. In the order of the
            plan; of named sources, in the order of their names.
        planned_batch_id: a batch that Spark had planned and not committed; the successor runs it first (1a.6).
        watermark_at: event-time watermark (of before the flush, for a drain); None for none.
        state_rows_left: rows in the state afterwards; None where not counted.
        state_left: which operators hold them, for a drain.
        rows_written_early: rows that the flush wrote; None without a flush.
        rows_dropped: rows dropped as late in the attempt that ended, by Spark's count; None where not counted.
        open_windows_from_at, open_windows_until_at: earliest start and latest end of the windows that the flush closed
            early; None where unknown.
    """

    batch_id: int | None
    end_offsets: tuple[str, ...] = ()
    planned_batch_id: int | None = None
    watermark_at: EventTime | None = None
    state_rows_left: int | None = None
    state_left: tuple[StateLeft, ...] = ()
    rows_written_early: int | None = None
    open_windows_from_at: EventTime | None = None
    open_windows_until_at: EventTime | None = None
    rows_dropped: int | None = None
