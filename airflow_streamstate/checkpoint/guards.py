"""Settings, triggers, checkpoints and Spark versions that are refused before anything is touched (Law 10)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NoReturn

from airflow_streamstate.checkpoint.log import SOURCES_NAMED, Checkpoint, OffsetEntry
from airflow_streamstate.checkpoint.state_files import unsupported_state_file
from airflow_streamstate.errors import IncompatibleUpgradeError, UnsupportedCheckpointError

HDFS_BACKED_PROVIDER = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
STATE_READERS_SINCE = (4, 0)
"""Spark's readers of state came with this line."""
REWRITES_SINCE = (4, 2)
"""Spark's state writer, which a rewrite of state needs, came with this line."""
ROCKSDB_PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
KNOWN_TRIGGERS = ("processingTime", "once", "availableNow")

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
STATE_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
OFFSET_LOG_FORMAT = "spark.sql.streaming.offsetLog.formatVersion"
_SINKS_NAMED = "spark.sql.streaming.queryEvolution.enableSinkEvolution"
"""Spark 4.2+: with it the commit log is in version 3, which distinguishes sinks by their names."""
_FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_KNOWN_FILE_MANAGER = ".FileContextBasedCheckpointFileManager"
_ASYNC_PROGRESS = "asyncProgressTrackingEnabled"


def _is_true(value: str) -> bool:
    return value.strip().lower() == "true"


_REFUSED_SETTINGS: tuple[tuple[str, Callable[[str], bool], str], ...] = (
    (PROVIDER, lambda value: value not in (HDFS_BACKED_PROVIDER, ROCKSDB_PROVIDER), "an unknown state store provider"),
    (STATE_FORMAT, lambda value: value.strip() not in ("1", "2"), "this state checkpoint format"),
    (OFFSET_LOG_FORMAT, lambda value: value.strip() not in ("1", "2"), "this offset log format"),
    (_SINKS_NAMED, _is_true, "commit log 3, of named sinks,"),
    (_FILE_MANAGER, lambda value: not value.endswith(_KNOWN_FILE_MANAGER), "another checkpoint file manager"),
    # Spark asks Hadoop's configuration for it, which this prefix reaches, too.
    (
        f"spark.hadoop.{_FILE_MANAGER}",
        lambda value: not value.endswith(_KNOWN_FILE_MANAGER),
        "another checkpoint file manager",
    ),
)


def guard_start(conf: Mapping[str, str], options: Mapping[str, str], trigger: str) -> None:
    """Refuse a query that no barrier ends, or whose checkpoints are not known here.

    Args:
        conf: the session's settings, as far as set; a setting that is not there has Spark's default.
        options: the writer's own options, in any case.
        trigger: ``processingTime``, ``once`` or ``availableNow``; anything else is refused.

    Raises:
        UnsupportedCheckpointError: names the setting, option or trigger.
    """
    if trigger not in KNOWN_TRIGGERS:
        refuse_trigger(trigger)
    for name, value in options.items():
        if name.lower() == _ASYNC_PROGRESS.lower() and _is_true(value):
            raise _refused("asynchronous progress tracking knows no barrier", option=name)
    # Spark takes RocksDB's settings in any case; others in a wrong case have no effect, and are refused all the same.
    lowered = {name.lower(): value for name, value in conf.items()}
    for setting, is_refused, what in _REFUSED_SETTINGS:
        chosen = lowered.get(setting.lower())
        if chosen is not None and is_refused(chosen):
            raise _refused(f"{what} is not supported", setting=setting, value=chosen)
    if _is_true(lowered.get(SOURCES_NAMED.lower(), "")) and lowered.get(OFFSET_LOG_FORMAT.lower(), "1").strip() != "2":
        raise UnsupportedCheckpointError(
            "named sources need offset log 2: in offset log 1 Spark gives offsets to sources by their places",
            setting=SOURCES_NAMED,
            value="true",
            next_step=f"Set {OFFSET_LOG_FORMAT} to 2, or remove the names.",
        )
    if lowered.get(STATE_FORMAT.lower(), "1").strip() == "2" and lowered.get(PROVIDER.lower()) != ROCKSDB_PROVIDER:
        raise _refused("state checkpoint format 2 is RocksDB's alone", setting=STATE_FORMAT, value="2")


def refuse_trigger(trigger: str, next_step: str = "", **context: object) -> NoReturn:
    """Raise the ``UnsupportedCheckpointError`` of a trigger that knows no barrier.

    Args:
        next_step: what else can be done, as the end of a sentence.
        context: where it is asked for.
    """
    raise UnsupportedCheckpointError(
        f"the trigger {trigger} knows no barrier, and no stop, drain or snapshot works without one",
        **context,
        trigger=trigger,
        known=KNOWN_TRIGGERS,
        next_step=f"Give the query one of these triggers, or run it without streamstate{next_step}.",
    )


def guard_checkpoint(checkpoint: Checkpoint) -> None:
    """Refuse an existing checkpoint in a format not known here, by the ends of its logs and the names of its state.

    Raises:
        UnsupportedCheckpointError: names the file.
        DataError: an entry is damaged.
    """
    for batch_id in checkpoint.offset_ids()[-2:]:
        entry = checkpoint.read_offset(batch_id)
        for setting, is_refused, what in _REFUSED_SETTINGS:
            pinned = None if entry is None else entry.conf.get(setting)
            if pinned is not None and is_refused(pinned):
                raise _refused(f"{what} is not supported", key=checkpoint.offset_key(batch_id), value=pinned)
        if entry is not None and entry.version == "v1" and _is_true(entry.conf.get(SOURCES_NAMED, "")):
            raise _refused("named sources in offset log 1 are not supported", key=checkpoint.offset_key(batch_id))
    for batch_id in checkpoint.commit_ids()[-1:]:
        checkpoint.read_commit(batch_id)
    for info in checkpoint.store.list_objects(checkpoint.key("state/")):
        if unsupported_state_file(info.key.rpartition("/")[2]):
            raise _refused("the HDFS-backed state store in format 2 is not supported", key=info.key)


def guard_state_format(checkpoint: Checkpoint, asked: str) -> None:
    """Refuse to continue with state in another checkpoint format than the session's ``STATE_FORMAT`` (``asked``).

    Spark does not pin this format: it would look for files of the session's format, and find none.

    Raises:
        UnsupportedCheckpointError: they differ; names both.
        DataError: the last commit is damaged.
    """
    commits = checkpoint.commit_ids()
    last = checkpoint.read_commit(commits[-1]) if commits else None
    if last is None or last.has_state_ids == (asked.strip() == "2"):
        return
    if not last.has_state_ids and next(iter(checkpoint.store.list_objects(checkpoint.key("state/"))), None) is None:
        return  # a query without state has no ids in any format
    written = "2" if last.has_state_ids else "1"
    raise UnsupportedCheckpointError(
        f"this checkpoint's state is in format {written}, and the session asks for format {asked}",
        checkpoint=checkpoint.prefix,
        setting=STATE_FORMAT,
        next_step=f"Set {STATE_FORMAT} to {written}; a drained stream is seeded in any format.",
    )


def _refused(message: str, **context: object) -> UnsupportedCheckpointError:
    return UnsupportedCheckpointError(
        message, **context, next_step="Run this query without streamstate, or with the setting that is supported."
    )


# The moves between Spark versions that a stream may make, as measured (``docs/reference/compatibility.md``).
#
# To a newer Spark every checkpoint may go: Spark keeps what a checkpoint pins. Back to an older Spark only the
# measured moves are allowed, since an older Spark may silently take an unknown format for a known one. Positions
# alone (a drained stream, seeded) may go to any Spark.

Line = tuple[int, int]
MERGE_OPERATOR = "spark.sql.streaming.stateStore.rocksdb.mergeOperatorVersion"
"""How RocksDB keeps lists: Spark 4.2 and newer pin it, as 1 in a checkpoint that an older Spark has begun."""
OLDER_LISTS = f"{ROCKSDB_PROVIDER} with merge operator 1"
"""The state store of such a checkpoint, whose lists older Sparks can read."""
OLDEST: Line = (3, 5)
"""The first line of Spark on which drivers run, and whose checkpoints are continued."""
_BACK_TO_3_5: frozenset[tuple[Line, Line]] = frozenset(((4, minor), (3, 5)) for minor in range(4))
_BACK_TO_OLDER_LISTS: frozenset[tuple[Line, Line]] = frozenset(
    ((4, before), (4, after)) for before in (2, 3) for after in (0, 1)
)
# Spark 3.5 has no transformWithState, and so no lists of it (``_LISTS``).
_BACK_IN_ROCKSDB: frozenset[tuple[Line, Line]] = frozenset({((4, 3), (4, 2)), ((4, 1), (4, 0)), *_BACK_TO_3_5})
GONE_BACK: Mapping[str, frozenset[tuple[Line, Line]]] = {
    ROCKSDB_PROVIDER: _BACK_IN_ROCKSDB,
    OLDER_LISTS: _BACK_IN_ROCKSDB | _BACK_TO_OLDER_LISTS,
    HDFS_BACKED_PROVIDER: frozenset(
        ((4, before), (4, after)) for before, after in ((3, 2), (3, 1), (3, 0), (2, 1), (2, 0), (1, 0))
    )
    | _BACK_TO_3_5,
}
"""By state store, the measured moves back to an older Spark: (line that wrote the state, line that ran it)."""
_LISTS = "Spark 4.1 and older fail on the lists of transformWithState in RocksDB of a stream that a newer Spark started"
"""Why moves of ``_BACK_TO_OLDER_LISTS`` failed, in the middle of a batch."""
NO_STATE = "none"
"""In place of a state store, for a query that keeps no state: only its logs are read."""
GONE_BACK_WITHOUT_STATE: frozenset[tuple[Line, Line]] = frozenset(
    {((4, 3), (4, 2)), ((4, 3), (4, 1)), ((4, 3), (4, 0)), ((4, 2), (4, 1)), ((4, 2), (4, 0)), ((4, 1), (4, 0))}
    | _BACK_TO_3_5
)
"""The same for queries without state, in offset log 1: their logs have had one form since 3.5."""
OFFSET_LOG_2_SINCE: Line = (4, 2)
"""Older Sparks cannot read an entry of offset log 2."""


ENCODING = "spark.sql.streaming.stateStore.encodingFormat"
"""Spark 4.0 and newer pin this."""
_USUAL_FORMS = {ENCODING: "unsaferow", "spark.sql.streaming.stateStore.rowChecksum.enabled": "false"}
"""Pinned settings of the form of rows that Spark 3.5 ignores: it would take other bytes for rows."""


def provider_of(entry: OffsetEntry | None) -> str:
    """The state store that an entry of the offset log pins; "" without an entry."""
    return "" if entry is None else entry.conf.get(PROVIDER, "")


def state_store_of(entry: OffsetEntry | None, *, has_state: bool) -> str:
    """The state store that an entry pins, as ``pinned_store``, where the query keeps state at all; "" without one."""
    if entry is None:
        return ""
    return pinned_store(entry.conf) if has_state else NO_STATE


def pinned_store(conf: Mapping[str, str]) -> str:
    """The state store of these settings, as an entry pins them, for ``why_not``.

    Rows in a form that was not tried back on an older Spark make another one of it, and so do older lists.
    """
    store = conf.get(PROVIDER, "")
    if store == ROCKSDB_PROVIDER and conf.get(MERGE_OPERATOR, "1") == "1":
        store = OLDER_LISTS
    return " with ".join(
        (store, *(name for name, usual in _USUAL_FORMS.items() if conf.get(name, usual).lower() != usual))
    )


def line_of(version: str) -> Line | None:
    """The line of a version, ``(4, 2)`` of ``4.2.1``; None where it is not known."""
    found = re.match(r"([0-9]+)\.([0-9]+)", version)
    return None if found is None else (int(found[1]), int(found[2]))


def offset_log_of(entry: OffsetEntry | None) -> str:
    """The version of the offset log of an entry; "" without an entry."""
    return "" if entry is None else entry.version


def why_not(written_by: str, runs_on: str, provider: str, offset_log: str = "") -> str | None:
    """Why another Spark cannot continue state that one Spark wrote; None where it can, or a version is unknown.

    Args:
        written_by: the version of the Spark that wrote the state; "" for unknown.
        runs_on: the version of the Spark that is to read it; "" for unknown.
        provider: the class of the state store; "" for unknown, ``NO_STATE`` if the query keeps none.
        offset_log: the version of its offset log, ``v1`` or ``v2``; "" for unknown.
    """
    before, now = line_of(written_by), line_of(runs_on)
    if offset_log == "v2" and now is not None and now < OFFSET_LOG_2_SINCE:
        return "it does not know offset log 2"
    gone = GONE_BACK_WITHOUT_STATE if provider == NO_STATE else GONE_BACK.get(provider, ())
    if before is None or now is None or now >= before or (before, now) in gone:
        return None
    if provider == ROCKSDB_PROVIDER and (before, now) in _BACK_TO_OLDER_LISTS:
        return _LISTS
    return "this move back loses something, or was never tried"


def refuse_spark(version: str) -> None:
    """Refuse a Spark on which no stream was tried; its version may be unknown ("").

    Raises:
        UnsupportedCheckpointError: it is one.
    """
    line = line_of(version)
    if line is not None and line < OLDEST:
        raise UnsupportedCheckpointError(
            f"streams need Spark 3.5 or newer, and this is Spark {version}",
            spark_version=version,
            next_step="Name a newer Spark by --spark, or by SPARK_HOME.",
        )


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
        UnsupportedCheckpointError: no stream runs on that Spark, fresh ones included.
    """
    refuse_spark(runs_on)
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
