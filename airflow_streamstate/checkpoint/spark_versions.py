"""The moves between Spark versions that a stream may make, as measured (``docs/reference/compatibility.md``).

To a newer Spark every checkpoint may go: Spark keeps what a checkpoint pins. Back to an older Spark only the measured
moves are allowed, since an older Spark may silently take an unknown format for a known one. Positions alone (a drained
stream, seeded) may go to any Spark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from airflow_streamstate.checkpoint.entries import OffsetEntry
from airflow_streamstate.checkpoint.guards import HDFS_BACKED_PROVIDER, PROVIDER, ROCKSDB_PROVIDER
from airflow_streamstate.errors import IncompatibleUpgradeError

Line = tuple[int, int]
GONE_BACK: Mapping[str, frozenset[tuple[Line, Line]]] = {
    # 4.0 and 4.1 cannot read lists of transformWithState that 4.2 and newer wrote, and fail in the middle of a batch.
    ROCKSDB_PROVIDER: frozenset({((4, 3), (4, 2)), ((4, 1), (4, 0))}),
    HDFS_BACKED_PROVIDER: frozenset(
        ((4, before), (4, after)) for before, after in ((3, 2), (3, 1), (3, 0), (2, 1), (2, 0), (1, 0))
    ),
}
"""By state store, the measured moves back to an older Spark: (line that wrote the state, line that ran it)."""
NO_STATE = "none"
"""In place of a state store, for a query that keeps no state: only its logs are read."""
GONE_BACK_WITHOUT_STATE: frozenset[tuple[Line, Line]] = frozenset(
    {((4, 3), (4, 2)), ((4, 3), (4, 1)), ((4, 3), (4, 0)), ((4, 2), (4, 1)), ((4, 2), (4, 0)), ((4, 1), (4, 0))}
)
"""The same for queries without state, in offset log 1: their logs have had one form since 4.0."""
OFFSET_LOG_2_SINCE: Line = (4, 2)
"""Older Sparks cannot read an entry of offset log 2."""


def provider_of(entry: OffsetEntry | None) -> str:
    """The state store that an entry of the offset log pins; "" where there is none."""
    return "" if entry is None else entry.conf.get(PROVIDER, "")


def state_store_of(entry: OffsetEntry | None, *, has_state: bool) -> str:
    """The state store that an entry pins, where the query keeps state at all; "" where there is no entry."""
    return provider_of(entry) if has_state or entry is None else NO_STATE


def line_of(version: str) -> Line | None:
    """The line of a version, ``(4, 2)`` of ``4.2.1``; None where it is not known."""
    found = re.match(r"([0-9]+)\.([0-9]+)", version)
    return None if found is None else (int(found[1]), int(found[2]))


def offset_log_of(entry: OffsetEntry | None) -> str:
    """The version of the offset log of an entry; "" where there is none."""
    return "" if entry is None else entry.version


def why_not(written_by: str, runs_on: str, provider: str, offset_log: str = "") -> str | None:
    """Why another Spark cannot continue state that one Spark wrote; None where it can, or a version is unknown.

    Args:
        written_by: the version of the Spark that wrote the state; "" for unknown.
        runs_on: the version of the Spark that is to read it; "" for unknown.
        provider: the class of the state store; "" for unknown, ``NO_STATE`` for none.
        offset_log: the version of its offset log, ``v1`` or ``v2``; "" for unknown.
    """
    before, now = line_of(written_by), line_of(runs_on)
    if offset_log == "v2" and now is not None and now < OFFSET_LOG_2_SINCE:
        return "it does not know offset log 2"
    gone = GONE_BACK_WITHOUT_STATE if provider == NO_STATE else GONE_BACK.get(provider, ())
    if before is None or now is None or now >= before or (before, now) in gone:
        return None
    return "this move back loses something, or was never tried"


def refuse_move(
    written_by: str,
    runs_on: str,
    provider: str,
    offset_log: str = "",
    *,
    committed_by: str | None = None,
    **facts: object,
) -> None:
    """Refuse to continue state on a Spark that cannot read it. Arguments as ``why_not``, and:

    Args:
        committed_by: the version of the Spark that wrote the last commit, where it may be another; None for the same.
            State of the batch after it may come from the snapshot that its deployment started from.

    Raises:
        IncompatibleUpgradeError: it cannot.
    """
    reason = why_not(written_by, runs_on, provider, offset_log)
    if reason is not None:
        if committed_by is not None and why_not(committed_by, runs_on, provider, offset_log) is None:
            reason = f"either of them may have written the batch that was not committed; by the newer one, {reason}"
        raise IncompatibleUpgradeError(
            f"the state was written by a newer Spark than is to read it: {reason}",
            written_by=written_by,
            runs_on=runs_on,
            **facts,
            next_step=f"Run it on Spark {written_by or '4.2'} or newer; or drain it there: positions alone go to any"
            " Spark.",
        )
