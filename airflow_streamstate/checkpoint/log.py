"""One query's checkpoint: reading its logs, and its position (1a.6)."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Sequence
from datetime import datetime

from airflow_streamstate.checkpoint.entries import (
    CommitEntry,
    OffsetEntry,
    parse_commit_entry,
    parse_offset_entry,
)
from airflow_streamstate.errors import DataError, OutcomeUnknownError, UnavailableError, VersionConflictError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.retry import Retry
from airflow_streamstate.store.base import Store, bounded_get
from airflow_streamstate.store.transfer import keys_below

_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")
_READ = Retry(tries=20)
MOST_ENTRY_BYTES = 16 << 20
"""No entry of a log is larger, nor Spark's ``metadata``."""

GAP_WINDOW = 2
"""A gap just below the last commit is refused; an older one is only reported (``batches_passed_over``)."""
MOST_PASSED_OVER = 1_000
"""So many batches of a gap are named."""


@dataclass(frozen=True)
class BarrierEntry:
    """An entry of ours that lies, not committed, in the offset log."""

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
        """When a batch was committed, by the clock of the store; None where it was not, or the store cannot tell."""
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
        """Spark's id of the query, or None where there is no checkpoint.

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
        return sorted(int(name) for name in names if _NUMBER.fullmatch(name))

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
        # By GET: an answer to HEAD has no body that would tell "no such entry" from other kinds of nothing.
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
            next_step="A batch may have been lost here: compare the sink with the source before going on.",
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

    Spark commits one batch after the other and removes the oldest; seeds and forks begin with two in a row. At most
    ``MOST_PASSED_OVER`` and one more: one file of any name must not take all memory.
    """
    there = sorted(set(commit_ids))
    gaps = (range(one + 1, other) for one, other in itertools.pairwise(there))
    return tuple(itertools.islice(itertools.chain.from_iterable(gaps), MOST_PASSED_OVER + 1))


def listed_batches(batch_ids: Iterable[int]) -> str:
    """These batches as a list for people, which ends with ``…`` after ``MOST_PASSED_OVER`` of them."""
    ids = sorted(batch_ids)
    return ", ".join([*map(str, ids[:MOST_PASSED_OVER]), *(["…"] if len(ids) > MOST_PASSED_OVER else [])])


def crc_key_of(key: str) -> str:
    """The checksum that Hadoop's local file system keeps beside a file."""
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
