"""One query's checkpoint: the text of its offset and commit logs, our mark in it (1a.1), and its position (1a.6)."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from datetime import datetime
from typing import Literal, get_args

from airflow_streamstate.errors import (
    DataError,
    OutcomeUnknownError,
    UnavailableError,
    UnsupportedCheckpointError,
    VersionConflictError,
)
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.older_python import pairwise, zipped
from airflow_streamstate.retry import Retry
from airflow_streamstate.store.base import Store, bounded_get
from airflow_streamstate.store.transfer import keys_below

# The text of ``offsets/<N>`` and ``commits/<N>``, and our mark in it (1a.1).
#
# Spark's own entries survive parse and format byte for byte, but for the order of sources in offset log 2, which has
# no meaning. An entry of ours copies entry N and adds one key to ``conf``; Spark ignores keys that it does not know
# there, and never copies them into its own entries.

BarrierKind = Literal["stop", "drain", "fence"]
MARK_KEY = "streamstate.barrier"
FLUSH_WATERMARK_MS = 253402128000000
"""9999-12-30T00:00:00Z: flushes every window and timer; the last second of year 9999 breaks readers east of UTC."""
NO_OFFSET = "-"
"""The source line of a source that has no offset yet."""

PARTITIONS = "spark.sql.shuffle.partitions"
"""Every Spark pins this."""
SOURCES_NAMED = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
"""Spark 4.2+ pins this: ``true`` where sources have names, by which it finds their offsets (offset log 2 alone)."""

STATE_IDS = "stateUniqueIds"
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
_SOURCE_KEY = re.compile(r"[A-Za-z0-9_]+")
_OFFSET_FIELDS = ("batchWatermarkMs", "batchTimestampMs", "conf")


@dataclass(frozen=True)
class BarrierMark:
    """Whose barrier an entry is.

    Attributes:
        deployment_id: the deployment in whose log the entry is; also of a fence, which its successor writes.
        attempt: the attempt of that deployment that was running, or is fenced.
        command_id: the command that asked for it.
        write_id: unique per put, so that an unknown outcome can be read back (Law 8).
    """

    kind: BarrierKind
    stream_id: str
    deployment_id: str
    attempt: int
    command_id: str
    write_id: str


@dataclass(frozen=True)
class OffsetEntry:
    """One entry of the offset log, version 1 or (Spark 4.2+) version 2.

    Attributes:
        batch_watermark_ms: the watermark the batch runs with.
        batch_timestamp_ms: the batch's ``current_timestamp``.
        conf: the settings Spark pins per query, in their order; our mark is one more key.
        source_lines: end offset of each source as Spark wrote it, ``-`` if not set; of version 2 in ``offset_order``.
        extra: further fields of the JSON line, kept.
        source_keys: of version 2, the key of each line: the source's name, or its number in the plan where sources have
            no names. Empty in version 1.
    """

    batch_watermark_ms: int
    batch_timestamp_ms: int
    conf: Mapping[str, str]
    source_lines: tuple[str, ...]
    extra: Mapping[str, object] = field(default_factory=dict)
    version: str = "v1"
    source_keys: tuple[str, ...] = ()

    @property
    def source_names(self) -> tuple[str, ...]:
        """The names that the script gave its sources, line by line; empty where it gave none."""
        return self.source_keys if self.conf.get(SOURCES_NAMED, "").lower() == "true" else ()

    @property
    def mark(self) -> BarrierMark | None:
        """Our mark, or None if the entry is Spark's own.

        Raises:
            DataError: there is a mark of a form that this version does not know (Law 7).
        """
        text = self.conf.get(MARK_KEY)
        return None if text is None else _parse_mark(text)

    @property
    def is_ours(self) -> bool:
        """Whether a barrier put this entry here, readable or not."""
        return MARK_KEY in self.conf


@dataclass(frozen=True)
class CommitEntry:
    """One entry of the commit log, version 1 or (with state checkpoint format 2) version 2.

    ``extra`` keeps further fields of its JSON line.
    """

    next_batch_watermark_ms: int
    extra: Mapping[str, object] = field(default_factory=dict)
    version: str = "v1"

    @property
    def has_state_ids(self) -> bool:
        """Whether its state is in checkpoint format 2: files are distinguished by unique ids, which it has."""
        return bool(self.extra.get(STATE_IDS))

    def state_ids(self, operator_id: int, partition: int) -> frozenset[str]:
        """The unique ids of the state that this batch left in a partition, one for each store; empty in format 1."""
        found = self.extra.get(STATE_IDS)
        partitions = found.get(str(operator_id)) if isinstance(found, dict) else None
        if not isinstance(partitions, list) or partition >= len(partitions):
            return frozenset()
        return frozenset(str(one) for one in partitions[partition] or ())


def parse_offset_entry(body: bytes, *, key: str) -> OffsetEntry:
    """The entry in these bytes; ``key`` is named in errors.

    Raises:
        UnsupportedCheckpointError: another version of the offset log (Law 10).
        DataError: cut short or damaged.
    """
    lines = _lines(body, key)
    _check_version(lines[0], key, "offset log", ("v1", "v2"))
    if len(lines) < 2:
        raise _damaged(key, "the line of metadata is missing")
    metadata = _json_object(lines[1], key)
    conf = metadata.get("conf")
    if not isinstance(conf, dict) or not all(isinstance(value, str) for value in conf.values()):
        raise _damaged(key, "conf is not an object of strings")
    keys, offsets = _keyed(lines[2:], key) if lines[0] == "v2" else ((), tuple(lines[2:]))
    for line in offsets:
        if line != NO_OFFSET:
            _check_offset(line, key)
    return OffsetEntry(
        batch_watermark_ms=_whole_number(metadata, "batchWatermarkMs", key),
        batch_timestamp_ms=_whole_number(metadata, "batchTimestampMs", key),
        conf=conf,
        source_lines=offsets,
        extra={name: value for name, value in metadata.items() if name not in _OFFSET_FIELDS},
        version=lines[0],
        source_keys=keys,
    )


def offset_order(key: str) -> tuple[int, str]:
    """The sort key of the lines of offset log 2: numbers in the order of the plan, names in their own.

    Spark writes its map in no order.
    """
    return (int(key), key) if _NUMBER.fullmatch(key) else (0, key)


def format_offset_entry(entry: OffsetEntry) -> bytes:
    """The bytes of an entry, as Spark would write them."""
    metadata = {
        "batchWatermarkMs": entry.batch_watermark_ms,
        "batchTimestampMs": entry.batch_timestamp_ms,
        "conf": dict(entry.conf),
        **entry.extra,
    }
    lines = entry.source_lines
    if entry.version == "v2":
        lines = tuple(f"{key}:{line}" for key, line in zipped(entry.source_keys, lines))
    return "\n".join([entry.version, _compact(metadata), *lines]).encode()


def parse_commit_entry(body: bytes, *, key: str) -> CommitEntry:
    """The entry in these bytes; ``key`` is named in errors.

    Raises:
        UnsupportedCheckpointError: another version (Law 10).
        DataError: cut short or damaged.
    """
    lines = _lines(body, key)
    _check_version(lines[0], key, "commit log", ("v1", "v2"))
    if len(lines) != 2:
        raise _damaged(key, f"{len(lines)} lines where 2 belong")
    metadata = _json_object(lines[1], key)
    return CommitEntry(
        next_batch_watermark_ms=_whole_number(metadata, "nextBatchWatermarkMs", key),
        extra={name: value for name, value in metadata.items() if name != "nextBatchWatermarkMs"},
        version=lines[0],
    )


def format_commit_entry(entry: CommitEntry) -> bytes:
    """The bytes of an entry, as Spark would write them."""
    metadata = {"nextBatchWatermarkMs": entry.next_batch_watermark_ms, **entry.extra}
    return f"{entry.version}\n{_compact(metadata)}".encode()


def stop_entry(base: OffsetEntry | None, mark: BarrierMark) -> OffsetEntry:
    """The entry of a stop or a fence over ``base``: the same offsets, the same watermark, an empty batch.

    Over no batch at all (``base`` None) it names no source: Spark that is started over it without repair refuses
    ("There are [0] sources in the checkpoint offsets").
    """
    if base is None:
        return OffsetEntry(0, 0, {MARK_KEY: _format_mark(mark)}, ())
    return dataclasses.replace(base, conf=_marked(base, mark))


def drain_entry(base: OffsetEntry, mark: BarrierMark, batch_timestamp_ms: int | None = None) -> OffsetEntry:
    """The entry of a drain over ``base``: the same offsets, the watermark at the end of time.

    Args:
        base: the last committed batch's entry.
        mark: of kind ``drain``.
        batch_timestamp_ms: a later batch time, where processing-time timers are to fire; else that of ``base``.
    """
    return dataclasses.replace(flush_entry(base, batch_timestamp_ms), conf=_marked(base, mark))


def flush_entry(base: OffsetEntry, batch_timestamp_ms: int | None = None) -> OffsetEntry:
    """As ``drain_entry``, without our mark."""
    timestamp = base.batch_timestamp_ms if batch_timestamp_ms is None else batch_timestamp_ms
    return dataclasses.replace(unmarked(base), batch_watermark_ms=FLUSH_WATERMARK_MS, batch_timestamp_ms=timestamp)


def unmarked(entry: OffsetEntry) -> OffsetEntry:
    """The entry without our mark."""
    return dataclasses.replace(entry, conf={name: value for name, value in entry.conf.items() if name != MARK_KEY})


def _marked(base: OffsetEntry, mark: BarrierMark) -> dict[str, str]:
    return {**unmarked(base).conf, MARK_KEY: _format_mark(mark)}


def _format_mark(mark: BarrierMark) -> str:
    return _compact(dataclasses.asdict(mark))


def _parse_mark(text: str) -> BarrierMark:
    try:
        raw = json.loads(text)
        mark = BarrierMark(
            kind=raw["kind"],
            stream_id=str(raw["stream_id"]),
            deployment_id=str(raw["deployment_id"]),
            attempt=int(raw["attempt"]),
            command_id=str(raw["command_id"]),
            write_id=str(raw["write_id"]),
        )
    except (ValueError, KeyError, TypeError):
        raise _unknown_mark(text) from None
    if mark.kind not in get_args(BarrierKind):
        raise _unknown_mark(text)
    return mark


def _unknown_mark(text: str) -> DataError:
    return DataError(
        "an entry of the offset log carries a barrier mark that is not known here",
        mark=text[:300],
        next_step="Use the release of airflow-streamstate that wrote it.",
    )


def _lines(body: bytes, key: str) -> list[str]:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise _damaged(key, "not UTF-8") from None
    if not text.strip("\x00 \r\n"):
        raise _damaged(key, "empty")
    return text.split("\n")


def _check_version(line: str, key: str, log: str, known: tuple[str, ...]) -> None:
    if line in known:
        return
    if re.fullmatch(r"v[0-9]+", line):
        raise UnsupportedCheckpointError(
            f"this checkpoint's {log} is in a version that is not known here",
            key=key,
            version=line,
            known=known,
            next_step="Only checkpoints whose logs are in a version known here can be run under streamstate.",
        )
    raise _damaged(key, "no version line")


def _json_object(line: str, key: str) -> dict[str, object]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise _damaged(key, "its metadata is not JSON") from None
    if not isinstance(value, dict):
        raise _damaged(key, "its metadata is not a JSON object")
    return value


def _check_offset(line: str, key: str) -> None:
    # Sources may write any text on one line, mostly JSON: only JSON that is cut short is surely damaged.
    if not line:
        raise _damaged(key, "an empty source line")
    if line[0] in "{[":
        try:
            json.loads(line)
        except (ValueError, RecursionError):
            raise _damaged(key, "a source's offset is cut short") from None


def _keyed(lines: list[str], key: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Keys and offsets of the lines of version 2, ``key:offset`` each."""
    found: dict[str, str] = {}
    for line in lines:
        source_key, colon, offset = line.partition(":")
        if not _SOURCE_KEY.fullmatch(source_key) or not colon or not offset or source_key in found:
            raise _damaged(key, "a source's line has no separate key")
        found[source_key] = offset
    keys = sorted(found, key=offset_order)
    return tuple(keys), tuple(found[one] for one in keys)


def _whole_number(metadata: Mapping[str, object], name: str, key: str) -> int:
    value = metadata.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise _damaged(key, f"{name} is not a whole number")
    return value


def _damaged(key: str, reason: str) -> DataError:
    return DataError(
        "an entry of this checkpoint's log is damaged",
        key=key,
        reason=reason,
        next_step="Restore the deployment from its last snapshot, or fix the entry by hand.",
    )


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


_LOG_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")
_READ = Retry(tries=20)
MOST_ENTRY_BYTES = 16 << 20
"""No entry of a log is larger, nor Spark's ``metadata``."""

GAP_WINDOW = 2
"""A gap just below the last commit is refused; an older one is only reported (``batches_passed_over``)."""
MOST_PASSED_OVER = 1_000
"""This many batches of a gap are named."""


@dataclass(frozen=True)
class BarrierEntry:
    """An entry of ours in the offset log that is not committed."""

    batch_id: int
    entry: OffsetEntry


@dataclass(frozen=True)
class Position:
    """Where a checkpoint is (1a.6).

    Attributes:
        batch_id: the last committed batch, None before the first.
        planned: Spark's own entry of the batch after it, if that is planned and not committed.
        barriers: entries of ours above both, ascending; mostly none or one.
    """

    batch_id: int | None
    planned: OffsetEntry | None = None
    barriers: tuple[BarrierEntry, ...] = ()

    @property
    def next_batch_id(self) -> int:
        """The batch after the last committed one."""
        return 0 if self.batch_id is None else self.batch_id + 1

    @property
    def planned_id(self) -> int | None:
        """The id of ``planned``."""
        return self.next_batch_id if self.planned is not None else None

    @property
    def last_batch_id(self) -> int | None:
        """The last batch that Spark planned, committed or not: what a barrier is put above."""
        return self.planned_id if self.planned is not None else self.batch_id

    @property
    def barrier_id(self) -> int:
        """Where a barrier belongs: right above the last planned batch."""
        return 0 if self.last_batch_id is None else self.last_batch_id + 1


class Checkpoint:
    """The checkpoint folder of one query; ``prefix`` is its key, without a trailing slash."""

    def __init__(self, store: Store, prefix: str) -> None:
        self.store = store
        self.prefix = prefix

    def key(self, path: str) -> str:
        """The key of a path of the checkpoint."""
        return f"{self.prefix}/{path}"

    @property
    def metadata_key(self) -> str:
        """The last file of a new checkpoint: without it the checkpoint is half built (1a.10)."""
        return self.key("metadata")

    def offset_key(self, batch_id: int) -> str:
        """The offset log's entry of a batch."""
        return self.key(f"offsets/{batch_id}")

    def committed_at(self, batch_id: int) -> datetime | None:
        """When a batch was committed, by the clock of the store; None if it was not, or the store does not know."""
        found = self.store.head(self.commit_key(batch_id))
        return None if found is None else found.modified_at

    def commit_key(self, batch_id: int) -> str:
        """The commit log's entry of a batch."""
        return self.key(f"commits/{batch_id}")

    def exists(self) -> bool:
        """Whether the checkpoint is there and whole."""
        return self.store.head(self.metadata_key) is not None

    def has_state(self) -> bool:
        """Whether any state operator keeps its state here."""
        return bool(self.store.list_folders(self.key("state")))

    def query_id(self) -> str | None:
        """Spark's id of the query, or None if there is no checkpoint.

        Raises:
            DataError: the object is damaged.
        """
        found = bounded_get(self.store, self.metadata_key, MOST_ENTRY_BYTES)
        if found is None:
            return None
        try:
            query_id = json.loads(found.body)["id"]
        except (ValueError, KeyError, TypeError):
            query_id = None
        if not isinstance(query_id, str):
            raise DataError("a checkpoint's metadata names no query id", key=self.metadata_key)
        return query_id

    def offset_ids(self) -> list[int]:
        """The batches that have an entry in the offset log, ascending."""
        return self._numbers("offsets/")

    def commit_ids(self) -> list[int]:
        """The batches that have an entry in the commit log, ascending."""
        return self._numbers("commits/")

    def _numbers(self, folder: str) -> list[int]:
        # Spark's left-over temp files (.N.<uuid>.tmp), checksums (.N.crc) and anything else are no entries.
        prefix = self.key(folder)
        names = (key[len(prefix) :] for key in keys_below(self.store, prefix))
        return sorted(int(name) for name in names if _LOG_NUMBER.fullmatch(name))

    def read_offset(self, batch_id: int) -> OffsetEntry | None:
        """The offset log's entry of a batch, or None.

        Raises:
            UnsupportedCheckpointError, DataError: as ``parse_offset_entry``.
        """
        key = self.offset_key(batch_id)
        found = bounded_get(self.store, key, MOST_ENTRY_BYTES)
        return None if found is None else parse_offset_entry(found.body, key=key)

    def read_commit(self, batch_id: int) -> CommitEntry | None:
        """The commit log's entry of a batch, or None.

        Raises:
            UnsupportedCheckpointError, DataError: as ``parse_commit_entry``.
        """
        key = self.commit_key(batch_id)
        found = bounded_get(self.store, key, MOST_ENTRY_BYTES)
        return None if found is None else parse_commit_entry(found.body, key=key)

    def is_committed(self, batch_id: int) -> bool:
        """Whether the commit log has the batch."""
        # By GET: an answer to HEAD has no body that would distinguish "no such entry" from other kinds of nothing.
        return bounded_get(self.store, self.commit_key(batch_id), MOST_ENTRY_BYTES) is not None

    def position(self) -> Position:
        """Last committed batch, planned entry, and entries of ours above; consistent also while the query runs.

        Raises:
            DataError: the logs contradict each other, or an entry is damaged.
            UnavailableError: the query moved on during each of many reads.
        """
        for _ in _READ.begin():
            commits = self.commit_ids()
            offsets = self.offset_ids()
            committed = commits[-1] if commits else None
            pending = [(batch_id, self.read_offset(batch_id)) for batch_id in offsets if _above(batch_id, committed)]
            # A commit that came in between moved the line between the two logs: read again.
            if self.commit_ids() == commits and all(entry is not None for _, entry in pending):
                found = [(batch_id, entry) for batch_id, entry in pending if entry is not None]
                self._refuse_gap(commits, offsets)
                return self._judge(committed, offsets, found)
        raise UnavailableError(
            "the query moved on each time its log was read", checkpoint=self.prefix, next_step="Try again."
        )

    def _judge(self, committed: int | None, offsets: list[int], pending: list[tuple[int, OffsetEntry]]) -> Position:
        if committed is not None and committed not in offsets:
            raise self._contradiction("the last committed batch has no entry in the offset log", committed, offsets)
        position = Position(committed)
        own = [(batch_id, entry) for batch_id, entry in pending if not entry.is_ours]
        barriers = tuple(BarrierEntry(batch_id, entry) for batch_id, entry in pending if entry.is_ours)
        if barriers and own and barriers[0].batch_id < own[-1][0]:
            raise self._contradiction("a batch was planned above a barrier", committed, offsets)
        if own:
            if len(own) > 1 or own[0][0] != position.next_batch_id:
                raise self._contradiction("the offset log plans batches beyond one not committed", committed, offsets)
            position = Position(committed, own[0][1])
        return Position(committed, position.planned, barriers)

    def _refuse_gap(self, commits: list[int], offsets: list[int]) -> None:
        # A batch that was passed over leaves just this behind: [.., N-1, N+1] (Law 12). Older ones Spark may purge.
        newest = commits[-GAP_WINDOW:]
        if newest and newest[-1] - newest[0] != len(newest) - 1:
            raise self._contradiction("the commit log passes over a batch", newest[-1], offsets)

    def _contradiction(self, message: str, committed: int | None, offsets: list[int]) -> DataError:
        return DataError(
            message,
            checkpoint=self.prefix,
            last_committed=committed,
            offset_entries=offsets[-5:],
            next_step="A batch may have been lost here: compare the sink with the source before you continue.",
        )

    def watermark_ms(self) -> int:
        """The watermark that the next batch runs with; 0 before the first commit.

        Raises:
            DataError, UnsupportedCheckpointError: the entry cannot be read.
        """
        commits = self.commit_ids()
        entry = self.read_commit(commits[-1]) if commits else None
        return 0 if entry is None else entry.next_batch_watermark_ms


def batches_passed_over(commit_ids: Sequence[int]) -> tuple[int, ...]:
    """The batches that are missing between the first and the last of these commits: they never committed (Law 12).

    Spark commits one batch after the other and removes the oldest; seeds and forks start with two in a row. At most
    ``MOST_PASSED_OVER`` and one more: one file of any name must not take all memory.
    """
    there = sorted(set(commit_ids))
    gaps = (range(one + 1, other) for one, other in pairwise(there))
    return tuple(itertools.islice(itertools.chain.from_iterable(gaps), MOST_PASSED_OVER + 1))


def listed_batches(batch_ids: Iterable[int]) -> str:
    """These batches as a readable list, which ends with ``…`` after ``MOST_PASSED_OVER`` of them."""
    ids = sorted(batch_ids)
    return ", ".join([*map(str, ids[:MOST_PASSED_OVER]), *(["…"] if len(ids) > MOST_PASSED_OVER else [])])


def crc_key_of(key: str) -> str:
    """The checksum that Hadoop's local file system keeps alongside a file."""
    folder, _, name = key.rpartition("/")
    return f"{folder}/.{name}.crc"


def delete_with_crc(store: Store, key: str) -> None:
    """Delete a file, its checksum first: one that outlives its file makes Spark's next read of that name fail."""
    store.delete(crc_key_of(key))
    store.delete(key)


def replace_entry(store: Store, key: str, body: bytes, version: str) -> None:
    """Replace an entry of a log, its checksum removed first; an unclear outcome is read back (Law 8).

    Raises:
        VersionConflictError, OutcomeUnknownError: these bytes are not there.
    """
    store.delete(crc_key_of(key))
    try:
        store.replace(key, body, version)
    except (OutcomeUnknownError, VersionConflictError):
        back = store.get(key)
        if back is None or back.body != body:
            raise


def _above(batch_id: int, committed: int | None) -> bool:
    return committed is None or batch_id > committed
