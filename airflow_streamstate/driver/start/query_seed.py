"""Seeds a query from a drained snapshot, also at other offsets or with moved file sources (1a.10)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from airflow_streamstate.checkpoint.file_source import (
    FileSourceEntry,
    files_taken,
    format_file_source_log,
    is_at,
    logs_of_files,
    moved_entries,
    moved_logs,
    moved_path,
    parse_file_source_offset,
)
from airflow_streamstate.checkpoint.fork import wipe
from airflow_streamstate.checkpoint.log import NO_OFFSET, SOURCES_NAMED, Checkpoint, OffsetEntry, parse_offset_entry
from airflow_streamstate.checkpoint.seed import (
    PINNED_CONF_KEYS,
    SeedPlan,
    finish_seed,
    prepare_seed,
    renumbered_logs,
    source_files_of,
)
from airflow_streamstate.connectors.files import is_by_name, max_age_ms
from airflow_streamstate.connectors.moves import consent_missing, describe, reads_again
from airflow_streamstate.connectors.registry import moves_between
from airflow_streamstate.connectors.source import ListedSource, OpenSource, TimedSource, Untold
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.ports import StartableQuery
from airflow_streamstate.driver.attempt.query_sources import KnownSource
from airflow_streamstate.driver.start.offset_mapping import (
    MappedOffsets,
    are_known,
    has_names,
    log_folders,
    map_offsets,
    map_offsets_by_name,
    source_keys,
    told_apart,
)
from airflow_streamstate.driver.start.start_checks import look_before_start
from airflow_streamstate.errors import DataError, IncompatibleUpgradeError, InvalidRequestError, UnavailableError
from airflow_streamstate.older_python import zipped
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.events import Repositioned
from airflow_streamstate.protocol.manifest import Moves, QuerySnapshot, SnapshotManifest, moved_place, place_of
from airflow_streamstate.protocol.positions import SourceIdentity, SourceMove
from airflow_streamstate.protocol.records import StartPlan
from airflow_streamstate.snapshot.data import data_files
from airflow_streamstate.snapshot.deletion import leased
from airflow_streamstate.store.base import Store

# A seed that starts at other offsets than those of its predecessor, given by the user or found for a time.
#
# What is passed over and what is read again is reported before anything is built, and refused unless the user
# accepted it (Laws 5 and 14). A checkpoint that is built is never moved.

BOOK_OFFSET = '{"logOffset":0}'
"""The offset of a file source whose log is one entry."""
WATERMARK_ANEW = "rows that are read again would be late, so its watermark starts again"


def begins_elsewhere(start: StartPlan, name: str) -> bool:
    """Whether this query starts at offsets that the user gave, or at a time."""
    return name in start.offsets or start.begins_at is not None


@dataclass(frozen=True)
class Beginning:
    """Where the sources of a query start.

    Attributes:
        lines: per source of the new plan.
        moves: from the stored offsets; () where nothing is moved.
        books: folder of a file source -> its log as one entry; empty for no log.
        reason: where the offsets are from.
    """

    lines: tuple[str, ...]
    moves: tuple[SourceMove, ...] = ()
    books: dict[str, bytes] = field(default_factory=dict)
    reason: str = ""

    @property
    def reads_again(self) -> bool:
        """Whether any input is read a second time, as far as the sources report."""
        return reads_again(self.moves)


def as_given(attempt: Attempt, name: str, known: QuerySnapshot) -> QuerySnapshot:
    """The query of a snapshot, at the offsets that the user gave, if any."""
    lines = attempt.spec.start.offsets.get(name)
    return known if lines is None else replace(known, position=replace(known.position, end_offsets=tuple(lines)))


def find_beginning(
    attempt: Attempt,
    name: str,
    manifest: SnapshotManifest,
    known: QuerySnapshot,
    last: OffsetEntry,
    lines: Sequence[str],
    identities: Sequence[SourceIdentity | None],
) -> Beginning:
    """Where each source of the new plan starts.

    Args:
        lines: per source of the new plan, its stored offset or the user's; ``NO_OFFSET`` for a new source.
        identities: the identity that each stored offset was stored with.

    Raises:
        InvalidRequestError: a source cannot map a time to offsets.
        IncompatibleUpgradeError: input is passed over or read again, and the user did not accept that.
    """
    start = attempt.spec.start
    if not begins_elsewhere(start, name):
        return Beginning(tuple(lines))
    reader = f"the start of {attempt.deployment_id}"
    with leased(attempt.control, manifest.snapshot_id, reader, is_kept_anyhow=True) as lease:
        data = lease.logs_of(attempt.checkpoints, manifest, name)
        if start.begins_at is None:
            stood_at, given = known.position.end_offsets, start.offsets[name]
            moves = moves_between(data, known.identities, last.source_names, stood_at, given)
            beginning = Beginning(tuple(lines), moves, reason="the offsets that were given")
        else:
            beginning = _At(attempt, name, data, start.begins_at).find(lines, identities)
    missing = consent_missing(name, beginning.moves, start.accept_lost_input, start.accept_repeated_input)
    for words in describe(beginning.moves):
        attempt.reporter.say(f"query {name}: starts elsewhere, {words}")
    if missing:
        raise IncompatibleUpgradeError(
            "beginning there passes over input, or reads input again, and that was not accepted",
            query_name=name,
            moves=list(describe(beginning.moves)),
            next_step=f"If that is meant, deploy with {missing}.",
        )
    return beginning


def tell(attempt: Attempt, name: str, batch_id: int, beginning: Beginning) -> None:
    """Write ``Repositioned`` before the checkpoint is built, once (Laws 1 and 2)."""
    if not beginning.moves:
        return
    told = [event for event in attempt.reporter.events if isinstance(event, Repositioned) and event.query_name == name]
    if told and told[-1].moves == beginning.moves:
        return
    attempt.reporter.write(
        Repositioned, query_name=name, batch_id=batch_id, moves=beginning.moves, reason=beginning.reason
    )


class _At:
    """The offsets of one time."""

    def __init__(self, attempt: Attempt, name: str, data: Checkpoint, moment: datetime) -> None:
        self._attempt = attempt
        self._name = name
        self._data = data
        self._moment = moment
        self._books: dict[str, bytes] = {}

    def find(self, lines: Sequence[str], identities: Sequence[SourceIdentity | None]) -> Beginning:
        sources = self._attempt.sources.sources(self._name)
        if len(sources) != len(lines):
            raise self._refusal("its sources", "its plan does not show them")
        moves, found = [], []
        for number, (source, line) in enumerate(zipped(sources, lines)):
            if line == NO_OFFSET:
                found.append(line)  # a new source starts where its options ask it to
                continue
            kept = identities[number]
            move = self._of(number, source, line, kept or source.identity)
            found.append(move.to_offset)
            moves.append(move)
        return Beginning(
            tuple(found), tuple(moves), self._books, f"the input since {format_time(self._moment)} was asked for"
        )

    def _of(self, number: int, source: KnownSource, line: str, kept: SourceIdentity) -> SourceMove:
        def ask(opened: OpenSource) -> str | Untold | SourceMove:
            if isinstance(opened, ListedSource):
                return self._of_files(source, line, kept, opened)
            if isinstance(opened, TimedSource):
                return opened.offset_at(self._moment, line)
            return Untold(f"a source of kind {source.identity.adapter} maps no time to offsets")

        what = source.identity.what or f"source {number}"
        if not source.is_known:
            raise self._refusal(what, "no connector knows this kind of source")
        answer = self._attempt.sources.ask(self._name, number, "the offsets of a time", ask)
        if isinstance(answer, SourceMove):
            return answer
        if not isinstance(answer, str):
            raise self._refusal(what, "it did not answer" if answer is None else answer.reason)
        (move,) = moves_between(self._data, (kept,), (), (line,), (answer,))
        return move

    def _of_files(self, source: KnownSource, line: str, kept: SourceIdentity, opened: ListedSource) -> SourceMove:
        """By modification time: older files count as read, in a log of one entry."""
        since_ms = int(self._moment.timestamp() * 1_000)
        last = parse_file_source_offset(line)
        folder = self._data.key(f"sources/{source.source.name or kept.log_folder}")
        taken = set() if last is None else {one.path for one in files_taken(self._data.store, folder, last)}
        there = opened.modified_at_ms()
        older = {path: at for path, at in there.items() if at < since_ms}
        if older:
            self._books[source.source.folder] = format_file_source_log(
                FileSourceEntry(path, at, 0) for path, at in sorted(older.items(), key=lambda one: (one[1], one[0]))
            )
        else:
            self._books[source.source.folder] = b""
        passed_over, again = len(older.keys() - taken), len((there.keys() - older.keys()) & taken)
        return SourceMove(source.identity.what, line, BOOK_OFFSET if older else NO_OFFSET, passed_over, again, "files")

    def _refusal(self, what: str, reason: str) -> InvalidRequestError:
        return InvalidRequestError(
            "this source cannot start at a time",
            query_name=self._name,
            source=what,
            reason=reason,
            begins_at=self._moment,
            next_step="Give its offsets with --offsets.",
        )


# The logs of file sources whose folder was moved, for the checkpoint of a query that starts (``--move-source``).
#
# What was read is not read again, and what was not is read once. Both are checked against the files that are there now;
# what is not proven is refused before the checkpoint is built.

_SHOWN = 3


def moved_source_logs(
    attempt: Attempt, name: str, startable: StartableQuery, files: Mapping[str, str], end_offsets: Sequence[str]
) -> dict[str, bytes]:
    """What the logs among these files become, where this deployment moves their source; others are left out.

    Args:
        files: of the new checkpoint: path -> key.
        end_offsets: of the last committed batch, source by source; () without one.

    Raises:
        IncompatibleUpgradeError: rows would be read again, or not at all.
        UnavailableError: the new folder cannot be listed.
    """
    moves = attempt.spec.start.move_sources
    if not moves:
        return {}
    logs: dict[str, list[FileSourceEntry]] = {}
    for path, entries in logs_of_files(attempt.checkpoints, files).items():
        logs.setdefault(path.split("/")[1], []).extend(entries)
    times: dict[str, int] = {}
    for number, known in enumerate(attempt.sources.look_up(name, startable)):
        entries = logs.get(known.source.folder, [])
        if not any(moved_path(one.path, moves) != one.path for one in entries):
            continue
        offset = parse_file_source_offset(end_offsets[number]) if number < len(end_offsets) else None
        found = _times_at(attempt, name, number, known)
        MovedSource(name, known, entries, moves, -1 if offset is None else offset, found).check(
            _unread_before(attempt, startable, known, moves)
        )
        times |= found
    return moved_logs(attempt.checkpoints, files, moves, times)


def _times_at(attempt: Attempt, name: str, number: int, known: KnownSource) -> Mapping[str, int]:
    found = attempt.sources.ask(name, number, "its files", _times)
    if found is None:
        raise UnavailableError(
            "the new folder of a moved source cannot be listed",
            query_name=name,
            source=known.identity.what,
            next_step="See that the driver reaches it, then start again: nothing was changed.",
        )
    return found


def _times(opened: OpenSource) -> Mapping[str, int] | None:
    return opened.modified_at_ms() if isinstance(opened, ListedSource) else None


def _unread_before(attempt: Attempt, startable: StartableQuery, known: KnownSource, moves: Moves) -> frozenset[str]:
    """The files that are still at the old place, as spelled there; none where it is gone."""
    place = place_of(known.identity)
    if place is None or known.connector is None:
        return frozenset()
    back = {new: old for old, new in moves.items()}
    options = {**known.planned.options, "path": moved_place(place, back)}
    try:
        opened = known.connector.open(replace(known.planned, options=options), startable.door)
        return opened.paths() if isinstance(opened, ListedSource) else frozenset()
    except Exception as error:  # moved: most often it is gone
        attempt.reporter.say(f"the old place of {known.identity.what} is not listed: {type(error).__name__}")
        return frozenset()


@dataclass(frozen=True)
class MovedSource:
    """One source at its new place.

    Attributes:
        entries: of its log, with the old paths.
        offset: up to which its files are read; -1 before the first.
        times: of the files at the new place.
    """

    name: str
    known: KnownSource
    entries: list[FileSourceEntry]
    moves: Moves
    offset: int
    times: Mapping[str, int]

    def check(self, at_old: frozenset[str]) -> None:
        now = moved_entries(self.entries, self.moves, self.times)
        read = {one.path for one in now if one.log_offset <= self.offset}
        taken = {one.path for one in now}
        self._refuse(
            "the new folder of a moved source lists files that are elsewhere",
            [path for path in self.times if not any(is_at(path, new) for new in self.moves.values())],
            "The folder has its own log (_spark_metadata) with the old paths, or the script reads another"
            " folder: put a symbolic link or a mount at the old place instead.",
        )
        self._refuse(
            "files of a batch that was started are not at the new place",
            sorted(taken - read - self.times.keys()),
            "Bring them there, under the same names, and start again.",
        )
        is_cleaned = self.known.planned.options.get("cleansource", "off").strip().lower() != "off"
        if read and not read & self.times.keys() and not is_cleaned:
            self._refuse(
                "none of the files that were read is at the new place, so what is there would be read as new",
                sorted(read),
                "Say where each folder is now (OLD=NEW), so that names below it are the same; bring at least one file"
                " that was read there.",
            )
        left = {moved_path(path, self.moves) for path in at_old} - taken - self.times.keys()
        self._refuse(
            "files that were not read yet are at the old place, and not at the new one",
            sorted(left),
            "Bring them there, and start again.",
        )
        self._check_ages(now, taken)

    def _check_ages(self, now: Sequence[FileSourceEntry], taken: set[str]) -> None:
        """Spark never reads a file that is older than the newest one that it knows by ``maxFileAge``."""
        options = self.known.planned.options
        age_ms = max_age_ms(options)
        if age_ms is None or not now:
            return
        names = {path.rpartition("/")[2] for path in taken} if is_by_name(options) else set()
        before = max(one.timestamp_ms for one in self.entries) - age_ms
        after = max(one.timestamp_ms for one in now) - age_ms
        self._refuse(
            "files that were not read yet are older at the new place than what was read there, and never would be",
            sorted(
                path
                for path, at_ms in self.times.items()
                if path not in taken and path.rpartition("/")[2] not in names and before <= at_ms < after
            ),
            "Copy the files with their times (cp -p, rsync -t); or give the source a longer maxFileAge.",
        )

    def _refuse(self, fact: str, paths: Sequence[str], next_step: str) -> None:
        if paths:
            raise IncompatibleUpgradeError(
                fact,
                query_name=self.name,
                source=self.known.identity.what,
                files=list(paths[:_SHOWN]),
                count=len(paths),
                next_step=next_step,
            )


_JAVA_OBJECT = re.compile(r"([\w.$]+)@[0-9a-f]{1,8}")


def seed_query(
    attempt: Attempt,
    name: str,
    startable: StartableQuery,
    manifest: SnapshotManifest,
    known: QuerySnapshot,
    query_id: Callable[[], str],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Build the checkpoint of a query that was drained; returns its sources, and human-readable remarks.

    ``query_id`` returns the id to continue with; it is called last, when nothing can refuse the seed any more.

    Raises:
        InvalidRequestError: the drain left state, and the user did not ask to discard it (Law 16).
        IncompatibleUpgradeError: the sources are not those of the snapshot.
        InputLostError: input after its offsets is lost, and the user did not accept that.
    """
    remarks = _check_state_left(attempt, name, known)
    watermark_ms, remark = _watermark_to_keep(startable, known)
    book = attempt.sources.look_up(name, startable)
    files = data_files(manifest, name)
    last = stored_entry(attempt.checkpoints, files, known.position.batch_id)
    if last is None:
        raise DataError(
            "the snapshot lacks the entry of its last committed batch",
            query_name=name,
            key=files.get(f"offsets/{known.position.batch_id}", ""),
        )
    stood, known = known, as_given(attempt, name, known)
    folders: dict[str, str] | None = None
    if are_known(known, book):
        apart, told = told_apart(known, last.source_names, book)
        mapped = map_offsets(name, apart, told, accepts=name in attempt.spec.start.accept_lost_input)
        folders = log_folders(mapped.folders, known, last.source_names, book)
    elif last.source_names or has_names(book):
        mapped = map_offsets_by_name(name, known, last.source_names, book)
        folders = {one: one for one in last.source_names}
    else:
        mapped = MappedOffsets(known.position.end_offsets, known.identities)
    lines, identities = mapped.lines, mapped.identities
    beginning = find_beginning(attempt, name, manifest, stood, last, lines, identities)
    if beginning.reads_again:
        watermark_ms, remark = 0, (WATERMARK_ANEW,)
    readable = look_before_start(attempt, name, beginning.lines, identities, known.position.batch_id or 0)
    keys = source_keys(name, startable, len(readable.lines), attempt.spark_version)
    batch_id = max(known.position.batch_id or 0, attempt.least_seed_batch_id)
    plan = SeedPlan(known.query_id, batch_id, readable.lines, watermark_ms, keys)
    sources = _run_empty_batch(attempt, name, startable, last.conf, plan)
    logs = source_files_of(files)
    if folders is not None:
        logs = renumbered_logs(logs, folders)
    else:
        check_same_sources(name, known, sources)
    moved = moved_source_logs(attempt, name, startable, {f"sources/{path}": key for path, key in logs.items()}, lines)
    plan = replace(plan, query_id=query_id())
    tell(attempt, name, plan.batch_id, beginning)
    finish_seed(_building(attempt, name), plan, logs, attempt.checkpoint_of(name), beginning.books, moved)
    said = tuple(f"starts elsewhere, {words}" for words in describe(beginning.moves))
    return sources or known.sources, (*remarks, *remark, *said, *mapped.remarks, *readable.remarks)


def describe_sources(
    attempt: Attempt, name: str, startable: StartableQuery, conf: Mapping[str, str], sources_count: int
) -> tuple[str, ...]:
    """Spark's descriptions of the sources of a plan, from an empty batch in a scratch checkpoint, into no sink."""
    keys = source_keys(name, startable, sources_count, attempt.spark_version)
    plan = SeedPlan(attempt.clock.new_uuid(), 1, (NO_OFFSET,) * sources_count, source_keys=keys)
    sources = _run_empty_batch(attempt, name, startable, conf, plan)
    wipe(_building(attempt, name))
    return sources


def check_same_sources(name: str, known: QuerySnapshot, sources: tuple[str, ...]) -> None:
    """Check that the sources are those of the snapshot, in their order.

    Raises:
        IncompatibleUpgradeError: they are not.
    """
    if not sources or not known.sources or _lasting(sources) == _lasting(known.sources):
        return
    raise IncompatibleUpgradeError(
        "this version reads other sources than the snapshot has offsets of, or in another order",
        query_name=name,
        sources=list(sources),
        snapshot_sources=list(known.sources),
        next_step="Keep the sources and their order as they were, or deploy with --start fresh.",
    )


def _lasting(descriptions: Sequence[str]) -> list[str]:
    """The descriptions without the numbers of objects: Spark calls a source in Python by its class and such a number,
    which differs at each start."""
    return [found[1] if (found := _JAVA_OBJECT.fullmatch(text)) else text for text in descriptions]


def _run_empty_batch(
    attempt: Attempt,
    name: str,
    startable: StartableQuery,
    pinned_before: Mapping[str, str],
    plan: SeedPlan,
) -> tuple[str, ...]:
    count = startable.facts.sources_count
    if count is not None and count != len(plan.source_lines):
        raise IncompatibleUpgradeError(
            "this version has another number of sources than the snapshot has offsets of",
            query_name=name,
            sources=count,
            snapshot_sources=len(plan.source_lines),
            next_step="Keep the sources as they were, or deploy with --start fresh.",
        )
    building = _building(attempt, name)
    # Settings that the new session does not have stay as the old checkpoint pinned them.
    pinned = {name: pinned_before[name] for name in PINNED_CONF_KEYS if name in pinned_before}
    if SOURCES_NAMED in pinned:
        pinned[SOURCES_NAMED] = "false"  # a Spark without named sources does not have the setting
    conf = {**pinned, **startable.session_conf(PINNED_CONF_KEYS)}
    now_ms = int(attempt.clock.now().timestamp() * 1000)
    prepare_seed(building, plan, conf=conf, batch_timestamp_ms=now_ms)
    attempt.reporter.say(f"query {name}: building fresh state at the offsets of batch {plan.batch_id}")
    progress = startable.run_seed_batch(attempt.uri_of(building))
    return startable.facts.in_line_order(progress.source_descriptions) if progress is not None else ()


def _building(attempt: Attempt, name: str) -> Checkpoint:
    folder = layout.building_folder(attempt.stream_id, attempt.deployment_id, name)
    return Checkpoint(attempt.checkpoints, folder)


def stored_entry(store: Store, files: Mapping[str, str], batch_id: int | None) -> OffsetEntry | None:
    """The entry of a batch among the files of a snapshot's query; None where it is not there."""
    key = files.get(f"offsets/{batch_id}", "")
    stored = store.get(key) if key else None
    return None if stored is None else parse_offset_entry(stored.body, key=key)


def _check_state_left(attempt: Attempt, name: str, known: QuerySnapshot) -> tuple[str, ...]:
    rows = known.position.state_rows_left
    if rows == 0 or not (known.drained or any(entry.path.startswith("state/") for entry in known.files)):
        return ()
    if attempt.spec.start.allow_state_loss:
        what = "state" if rows is None else f"{rows} rows of state"
        left = "that the drain left" if known.drained else "of the snapshot"
        return (f"{what} {left} is discarded, as asked for",)
    raise InvalidRequestError(
        "the drain left state that it could not flush, and seeding this query would drop it"
        if rows is not None
        else "the state that the drain left was not counted, and seeding this query would drop it",
        query_name=name,
        state_rows_left=rows,
        operators=[f"{left.operator}: {left.rows} rows, {left.reason}" for left in known.position.state_left],
        next_step="Deploy with --allow-state-loss to drop it; `streamstate rollback` with --snapshot goes back to the"
        " one from before the drain, which has it.",
    )


def _watermark_to_keep(startable: StartableQuery, known: QuerySnapshot) -> tuple[int, tuple[str, ...]]:
    """The watermark from before the flush, where column and delay are unchanged (1a.10); else 0 and a remark."""
    if not known.watermark_ms:
        return 0, ()
    if startable.facts.watermarks == known.watermarks:
        return known.watermark_ms, ()
    return 0, ("its watermark is defined in another way than before, so it starts again: late rows may count again",)
