"""Spark's file source, and its file sink: one folder with a log, ``_spark_metadata``, an entry for each batch.

The log is keyed on the batch id alone: an id up to its newest is skipped, from any query. It has no gap: every tenth
batch merges the entries before it, and a missing one ends the query (``BATCH_METADATA_NOT_FOUND``). So before a query
with higher ids starts to write to a folder, it gets the missing entries, as Spark writes them for empty batches.

An undo removes entries from the newest down, so that at each moment the rest is a log as Spark wrote it. Then it moves
the data files of those batches into ``_undone`` below the folder, where no reader looks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import unquote, urlsplit

from airflow_streamstate.connectors.sink import (
    FoundUndo,
    HeldBatches,
    Sink,
    SinkReach,
    Skips,
    UndoOrder,
    cannot_undo,
    held_up_to,
    held_without_place,
    path_to_undo,
    write_beside,
)
from airflow_streamstate.connectors.source import NO_OFFSET, OffsetOrder, Source, SparkDoor, UnaskedSource
from airflow_streamstate.errors import InvalidRequestError, UnsupportedCheckpointError
from airflow_streamstate.older_python import zipped
from airflow_streamstate.protocol.redaction import redact_uri
from airflow_streamstate.store.options import plain_uri

# The file source. An offset counts listings of a folder; the files that each found are in the source's own log.

_MODIFIED = re.compile(r"; modification_time=([0-9]+); ")
SOURCE_FORMATS = frozenset({"parquet", "json", "csv", "orc", "text", "xml", "avro", "binaryfile"})


_PUT_BACK = "put it back, or a symbolic link or a mount in its place if it was moved, and resume"
_IF_INPUT = (
    "if the stream reads it as its input, `streamstate upgrade` with --move-source OLD=NEW continues at a new place"
)
_MISSING = re.compile(
    r"FAILED_READ_FILE\.FILE_NOT_EXIST\](?: Encountered error while reading file (?P<file>\S+?)\.(?=\s|$))?"
    r"|PATH_NOT_FOUND\b\]?(?: Path does not exist: (?P<path>\S+?)\.?(?=\s|$))?"
)


def missing_path(failure: str) -> str | None:
    """The file or folder that Spark did not find; "" where its text does not name it, None for any other failure."""
    found = _MISSING.search(failure)
    return None if found is None else found["file"] or found["path"] or ""


def _covers(pattern: str, path: str) -> bool:
    """Whether a path is one of a source's pattern, or is below it."""
    wanted, found = (unquote(urlsplit(plain_uri(one)).path).strip("/").split("/") for one in (pattern, path))
    if not pattern.startswith("/") and "://" not in pattern and ":/" not in pattern:
        places = range(len(found) - len(wanted) + 1)  # relative to a folder that is not known here
    else:
        places = range(min(1, len(found) - len(wanted) + 1))
    return any(all(fnmatchcase(there, part) for there, part in zip(found[place:], wanted)) for place in places)


class FileSource:
    """Spark's source of files in a folder. Nothing after its offsets is lost: unread files are found by the next
    listing.
    """

    name = "file"

    def identify(self, source: Source) -> str | None:
        path = source.options.get("path")
        if source.format not in SOURCE_FORMATS or not path:
            return None
        return f"file {redact_uri(plain_uri(path))}"

    def continues(self, source: Source, offset: str) -> bool:
        return False

    def compare(self, first: str, second: str) -> OffsetOrder:
        one, other = _number(first), _number(second)
        if one == other:
            return "same"
        return "ahead" if one > other else "behind"

    def open(self, source: Source, spark: SparkDoor) -> OpenFolder:
        return OpenFolder(source, spark)

    def remarks(self, source: Source) -> tuple[str, ...]:
        if source.options.get("cleansource", "off").strip().lower() == "delete":
            return (
                "cleanSource=delete: files are deleted once they are read, so no older snapshot can read them again",
            )
        return ()

    def explain(self, failure: str) -> str | None:
        gone = missing_path(failure)
        return None if gone is None else f"the script reads {gone or 'a file'}, which is gone: {_PUT_BACK}; {_IF_INPUT}"

    def explain_for(self, source: Source, failure: str) -> str | None:
        gone = missing_path(failure)
        if not gone or not _covers(source.options.get("path", ""), gone):
            return None
        return f"the stream's input {gone} is gone: {_PUT_BACK}, or upgrade with --move-source OLD=NEW"


class OpenFolder(UnaskedSource):
    """The files of a folder, listed by Spark with the source's options. No file is opened."""

    def __init__(self, source: Source, spark: SparkDoor) -> None:
        super().__init__("what it has read is in Spark's own log of it")
        self._source = source
        self._spark = spark

    def paths(self) -> frozenset[str]:
        return frozenset(self._in_order(self._index()))

    def unread(self, taken: Collection[str], newest_taken_ms: int) -> int:
        """Spark never reads a file whose age, counted from the newest file that it took, is above ``maxFileAge``."""
        index = self._index()
        by_name = is_by_name(self._source.options)
        known = {path.rpartition("/")[2] for path in taken} if by_name else set(taken)
        paths = self._in_order(index)
        left = {path for path in paths if (path.rpartition("/")[2] if by_name else path) not in known}
        age_ms = max_age_ms(self._source.options)
        if left and taken and age_ms is not None:
            times = self._times(index, paths)
            left = {path for path in left if times[path] >= newest_taken_ms - age_ms}
        return len({path.rpartition("/")[2] for path in left} if by_name else left)

    def modified_at_ms(self) -> Mapping[str, int]:
        index = self._index()
        return self._times(index, self._in_order(index))

    def _times(self, index: Any, paths: Sequence[str]) -> Mapping[str, int]:
        statuses = index.allFiles()
        times = [int(found) for found in _MODIFIED.findall(str(statuses.mkString("\n")))]
        if len(times) != len(paths):  # a file name contains what Hadoop prints next to it
            times = [int(statuses.apply(number).getModificationTime()) for number in range(statuses.size())]
        return dict(zipped(paths, times))

    def _index(self) -> Any:
        # As text, files of any format need no look into them.
        reader = self._spark.session._jsparkSession.read().format("text")
        for name, value in self._source.options.items():
            if name != "path":
                reader = reader.option(name, value)
        return reader.load(self._source.options["path"]).queryExecution().analyzed().relation().location()

    def _in_order(self, index: Any) -> list[str]:
        # From the index, not from the data frame, which puts them into a set.
        mapper = self._spark.jvm.com.fasterxml.jackson.databind.ObjectMapper()
        return [str(path) for path in json.loads(mapper.writeValueAsString(index.inputFiles()))]


_AGE = re.compile(r"\s*([0-9]+)\s*([a-z]*)\s*", re.IGNORECASE)
_AGE_MS = {"us": 0.001, "ms": 1, "": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DEFAULT_AGE = "7d"


def max_age_ms(options: Mapping[str, str]) -> float | None:
    """The age above which Spark never reads a file; None without a limit, and for one that is not understood."""
    is_limited = any(options.get(name) for name in ("maxfilespertrigger", "maxbytespertrigger"))
    if _is_true(options.get("latestfirst", "")) and is_limited:
        return None
    found = _AGE.fullmatch(options.get("maxfileage", _DEFAULT_AGE))
    unit = None if found is None else _AGE_MS.get(found[2].lower())
    return None if found is None or unit is None else int(found[1]) * unit


def is_by_name(options: Mapping[str, str]) -> bool:
    """Whether Spark recognises files by their names alone, whatever their folder."""
    return _is_true(options.get("filenameonly", ""))


def _is_true(text: str) -> bool:
    return text.strip().lower() == "true"


def _number(offset: str) -> int:
    if offset == NO_OFFSET:
        return -1
    value = json.loads(offset)
    number = value.get("logOffset") if isinstance(value, dict) else None
    if isinstance(number, int):
        return number
    raise ValueError(f"no offset of a file source: {offset[:100]}")


FORMATS = frozenset({"parquet", "json", "csv", "orc", "text", "xml", "avro"})
LOG = "_spark_metadata"
UNDONE = "_undone"
"""Below the output folder: a list of what each undo removes, and the removed data files."""
INTERVAL_SETTING = "spark.sql.streaming.fileSink.log.compactInterval"
DEFAULT_INTERVAL = 10
VERSION = "v1"
_ENTRY = re.compile(r"(0|[1-9][0-9]{0,17})(\.compact)?")


class FileSink:
    """Folders of files, and tables of such a folder. Implements ``UndoingSink`` and ``WarmingSink``."""

    name = "file"
    skips: Skips = "batch_id"
    undo = (
        "put `_spark_metadata` back as it was at the batch to return to, and move the data files of later batches away"
        " from readers that do not ask that log"
    )
    undo_needs_query_id = False

    def matches(self, sink: Sink) -> bool:
        return sink.format in FORMATS

    def held_batches(self, sink: Sink, query_id: str | None, from_batch_id: int, reach: SinkReach) -> HeldBatches:
        if sink.path is None:
            return held_without_place(sink)
        ids = _plain_ids(_log_names(sink.path, reach))
        return held_up_to(max(ids, default=None), from_batch_id)

    def prepare(self, sink: Sink, next_batch_id: int, reach: SinkReach) -> tuple[str, ...]:
        if next_batch_id == 0 or (sink.path is None and sink.table is None):
            return ()
        if sink.path is None:
            if sink.is_there:
                raise InvalidRequestError(
                    "the catalog does not state where a table of files is stored, and its log has to be prepared",
                    table=sink.table,
                    next_batch_id=next_batch_id,
                    next_step="Let the script read its location (DESCRIBE TABLE EXTENDED), and start again.",
                )
            # Its location is known once it exists; without its log the query dies at the next merge.
            raise InvalidRequestError(
                "a table of files that does not exist yet cannot start with continuing batch ids",
                table=sink.table,
                next_batch_id=next_batch_id,
                next_step="Let the script create it before the query starts (CREATE TABLE IF NOT EXISTS … USING …"
                ' LOCATION …), or name its place by .option("path", …).',
            )
        folder = log_folder(sink.path)
        names = _log_names(sink.path, reach)
        newest = max(_plain_ids(names), default=-1)
        if newest >= next_batch_id - 1:
            return ()
        wanted = int(reach.session.conf.get(INTERVAL_SETTING, str(DEFAULT_INTERVAL)))
        interval = compact_interval(_compact_ids(names), wanted)
        lines = _merged_lines(folder, names, reach) if newest >= 0 else ()
        for name, text in missing_entries(newest, next_batch_id, interval, lines):
            reach.create_text(f"{folder}/{name}", text)
        return (
            f"its output folder {sink.path} knew no batch from {newest + 1} to {next_batch_id - 1}: its log was given"
            " empty entries for them, without which it could not be read",
        )

    def warm(self, sink: Sink, row: Any, scratch_uri: str, reach: SinkReach) -> None:
        write_beside(sink, row, scratch_uri)

    def find_undo(self, sink: Sink, request: UndoOrder, reach: SinkReach) -> FoundUndo:
        path = path_to_undo(sink, request)
        if path is None:
            return FoundUndo()
        names = _log_names(path, reach)
        above = [batch_id for batch_id in _plain_ids(names) if batch_id > request.to_batch_id]
        newest = max(above, default=request.to_batch_id)
        begun = _begun_undo(path, request, reach)
        if begun is None and not above:
            return FoundUndo()
        last = request.last_batch_id if begun is None else begun.batch_ids[-1]
        kept = set(_paths(_lines_at(sink, request, names, reach)))
        held = _paths(_merged_lines(log_folder(path), names, reach)) if above else ()
        strays = () if begun is None else set(held) - kept - set(begun.removed)
        if (last is not None and newest > last) or strays:
            raise cannot_undo(
                "it holds batches that no deployment to undo has planned, so another writer writes to it",
                sink,
                request,
                newest_held_batch_id=newest,
                newest_batch_id_to_undo=last,
            )
        if begun is not None:
            return begun
        removed = tuple(path for path in held if path not in kept)
        return FoundUndo(tuple(range(request.to_batch_id + 1, newest + 1)), removed, _target(request))

    def undo_batches(self, sink: Sink, request: UndoOrder, found: FoundUndo, reach: SinkReach) -> None:
        if sink.path is None or not found.batch_ids:
            return
        folder = log_folder(sink.path)
        content = {"to_batch_id": request.to_batch_id, "newest_batch_id": found.batch_ids[-1], "files": found.removed}
        reach.create_text(_record_of(sink.path, request), json.dumps(content, indent=1))  # the log will lose it
        there = set(_log_names(sink.path, reach))
        for batch_id in reversed(found.batch_ids):
            for name in (f"{batch_id}", f"{batch_id}.compact"):
                if name in there:
                    reach.delete(f"{folder}/{name}")
        for uri in found.removed:
            below = _below(sink.path, uri)
            if below is not None:
                reach.move(f"{_folder(sink.path)}/{below}", f"{_folder(sink.path)}/{UNDONE}/{request.undo_id}/{below}")


def log_folder(path: str) -> str:
    return f"{_folder(path)}/{LOG}"


def missing_entries(
    newest: int, next_batch_id: int, interval: int, lines: Sequence[str] = ()
) -> Iterable[tuple[str, str]]:
    """Names and bodies of the entries between the newest one and the next batch, in the order to write them.

    Args:
        newest: the newest entry; -1 without one.
        next_batch_id: the batch that will be written next.
        interval: the number of batches after which the entries are merged.
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


def _folder(path: str) -> str:
    return path.rstrip("/")


def _target(request: UndoOrder) -> str:
    return f"its log as it was at batch {request.to_batch_id}" if request.to_batch_id >= 0 else "a log without an entry"


def _record_of(path: str, request: UndoOrder) -> str:
    return f"{_folder(path)}/{UNDONE}/{request.undo_id}.json"


def _begun_undo(path: str, request: UndoOrder, reach: SinkReach) -> FoundUndo | None:
    """What an earlier try of this undo found when the log was complete."""
    folder, _, name = _record_of(path, request).rpartition("/")
    if name not in (reach.names_in(folder) or ()):
        return None
    content = json.loads(reach.read_text(f"{folder}/{name}"))
    batch_ids = tuple(range(request.to_batch_id + 1, int(content["newest_batch_id"]) + 1))
    return FoundUndo(batch_ids, tuple(content["files"]), _target(request))


def _lines_at(sink: Sink, request: UndoOrder, names: Sequence[str], reach: SinkReach) -> tuple[str, ...]:
    """The content of the log when the batch to go back to was its newest."""
    at = [
        name for name in names for found in [_ENTRY.fullmatch(name)] if found and int(found[1]) <= request.to_batch_id
    ]
    merged = max(_compact_ids(at), default=-1)
    missing = sorted(set(range(merged + 1, request.to_batch_id + 1)) - set(_plain_ids(at)))
    if missing:
        raise cannot_undo(
            "its log was merged since, and the entries that it had at that batch are gone",
            sink,
            request,
            missing_entries=f"{missing[0]} to {missing[-1]}" if len(missing) > 1 else missing[0],
        )
    return _merged_lines(log_folder(str(sink.path)), at, reach)


def _paths(lines: Iterable[str]) -> tuple[str, ...]:
    """The data files that entries name, as spelled there."""
    return tuple(dict.fromkeys(str(json.loads(line)["path"]) for line in lines))


def _below(path: str, uri: str) -> str | None:
    """A data file's path below the output folder; None outside of it."""
    root, place = urlsplit(path).path.rstrip("/") + "/", unquote(urlsplit(uri).path)
    return place[len(root) :] if place.startswith(root) else None


def _log_names(path: str, reach: SinkReach) -> tuple[str, ...]:
    return reach.names_in(log_folder(path)) or ()


def _plain_ids(names: Iterable[str]) -> list[int]:
    return [int(found[1]) for found in map(_ENTRY.fullmatch, names) if found]


def _compact_ids(names: Iterable[str]) -> list[int]:
    return [int(found[1]) for found in map(_ENTRY.fullmatch, names) if found and found[2]]


def _merged_lines(folder: str, names: Iterable[str], reach: SinkReach) -> tuple[str, ...]:
    """The whole content of the log: its last merged entry, and those after it."""
    compacted = max(_compact_ids(names), default=-1)
    above = sorted(batch_id for batch_id in set(_plain_ids(names)) if batch_id > compacted)
    entries = [f"{compacted}.compact"] if compacted >= 0 else []
    lines: list[str] = []
    for name in (*entries, *map(str, above)):
        version, *rest = reach.read_text(f"{folder}/{name}").splitlines()
        if version != VERSION:
            raise UnsupportedCheckpointError(
                "the log of this output folder has an unknown version",
                log=f"{folder}/{name}",
                version=version,
                next_step="Write to a new output folder.",
            )
        lines.extend(rest)
    return tuple(lines)
