"""Spark's own sink of files: one folder with a log, ``_spark_metadata``, an entry for each batch.

It is keyed on the batch id alone: whatever query a batch comes from, an id up to the newest in the log is skipped.
And the log bears no gap: at every tenth batch the entries before it are merged, and one that is missing ends the query
(``BATCH_METADATA_NOT_FOUND``). So a folder that a query with higher ids begins to write to gets the entries that are
missing below, as Spark would have written them for batches without a row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from airflow_streamstate.adapters.sink import HeldBatches, Sink, SinkReach, Skips, held_up_to, held_where_nobody_says
from airflow_streamstate.errors import InvalidRequestError, UnsupportedCheckpointError

FORMATS = frozenset({"parquet", "json", "csv", "orc", "text", "xml", "avro"})
LOG = "_spark_metadata"
INTERVAL_SETTING = "spark.sql.streaming.fileSink.log.compactInterval"
DEFAULT_INTERVAL = 10
VERSION = "v1"
_ENTRY = re.compile(r"(0|[1-9][0-9]{0,17})(\.compact)?")


class FileSink:
    """Folders of files, and tables that are such a folder. Implements ``SinkAdapter``."""

    name = "file"
    skips: Skips = "batch_id"
    undo = (
        "put `_spark_metadata` back as it was at the batch to return to; the data files of later batches stay, and"
        " readers that do not ask that log see them"
    )

    def matches(self, sink: Sink) -> bool:
        return sink.format in FORMATS

    def held_batches(self, sink: Sink, query_id: str | None, from_batch_id: int, reach: SinkReach) -> HeldBatches:
        if sink.path is None:
            return held_where_nobody_says(sink)
        ids = _plain_ids(_log_names(sink.path, reach))
        return held_up_to(max(ids, default=None), from_batch_id)

    def prepare(self, sink: Sink, next_batch_id: int, reach: SinkReach) -> tuple[str, ...]:
        if next_batch_id == 0 or (sink.path is None and sink.table is None):
            return ()
        if sink.path is None:
            if sink.is_there:
                raise InvalidRequestError(
                    "the catalog does not say where a table of files lies, whose log has to be made ready",
                    table=sink.table,
                    next_batch_id=next_batch_id,
                    next_step="See that the script may read its location (DESCRIBE TABLE EXTENDED), and start again.",
                )
            # Where Spark would put it is known once it is there; without its log it dies at the next merge.
            raise InvalidRequestError(
                "a table of files that is not there yet cannot begin with batch ids that go on",
                table=sink.table,
                next_batch_id=next_batch_id,
                next_step="Create the table (CREATE TABLE … USING …), and start again.",
            )
        folder = log_folder(sink.path)
        names = _log_names(sink.path, reach)
        newest = max(_plain_ids(names), default=-1)
        if newest >= next_batch_id - 1:
            return ()
        interval = compact_interval(_compact_ids(names), _wanted_interval(reach))
        lines = _merged_lines(folder, names, reach) if newest >= 0 else ()
        for name, text in missing_entries(newest, next_batch_id, interval, lines):
            reach.create_text(f"{folder}/{name}", text)
        return (
            f"its output folder {sink.path} knew no batch from {newest + 1} to {next_batch_id - 1}: its log was given"
            " empty entries for them, without which it could not be read",
        )


def log_folder(path: str) -> str:
    """Where the log of an output folder lies."""
    return f"{path.rstrip('/') or '/'}/{LOG}" if path != "/" else f"/{LOG}"


def missing_entries(
    newest: int, next_batch_id: int, interval: int, lines: Sequence[str] = ()
) -> Iterable[tuple[str, str]]:
    """Names and bodies of the entries between the newest one and the next batch, in the order to write them.

    Args:
        newest: the newest entry that there is; -1 for none.
        next_batch_id: the batch that will be written next.
        interval: every so many batches the entries are merged.
        lines: what a merged entry has to repeat.
    """
    last = next_batch_id - 1
    merged = (last + 1) // interval * interval - 1
    if merged > newest:
        yield f"{merged}.compact", "\n".join((VERSION, *lines))
        newest = merged
    for batch_id in range(newest + 1, last + 1):
        yield str(batch_id), VERSION


def compact_interval(compact_ids: Sequence[int], wanted: int) -> int:
    """After how many batches Spark merges, in a log with these merged entries (``CompactibleFileStreamLog``)."""
    known = sorted(compact_ids)
    if len(known) > 1:
        return known[-1] - known[-2]
    if not known:
        return wanted
    length = known[0] + 1
    if wanted >= length / 2:
        return length
    return next(number for number in range(wanted, length + 1) if length % number == 0)


def _log_names(path: str, reach: SinkReach) -> tuple[str, ...]:
    return reach.names_in(log_folder(path)) or ()


def _plain_ids(names: Iterable[str]) -> list[int]:
    return [int(found[1]) for found in map(_ENTRY.fullmatch, names) if found]


def _compact_ids(names: Iterable[str]) -> list[int]:
    return [int(found[1]) for found in map(_ENTRY.fullmatch, names) if found and found[2]]


def _merged_lines(folder: str, names: Iterable[str], reach: SinkReach) -> tuple[str, ...]:
    """All that the log says: its last merged entry, and those above it."""
    compacted = max(_compact_ids(names), default=-1)
    above = sorted(batch_id for batch_id in set(_plain_ids(names)) if batch_id > compacted)
    entries = [f"{compacted}.compact"] if compacted >= 0 else []
    lines: list[str] = []
    for name in (*entries, *map(str, above)):
        version, *rest = reach.read_text(f"{folder}/{name}").splitlines()
        if version != VERSION:
            raise UnsupportedCheckpointError(
                "the log of this output folder has a version that is not known here",
                log=f"{folder}/{name}",
                version=version,
                next_step="Write to a new output folder.",
            )
        lines.extend(rest)
    return tuple(lines)


def _wanted_interval(reach: SinkReach) -> int:
    return int(reach.session.conf.get(INTERVAL_SETTING, str(DEFAULT_INTERVAL)))
