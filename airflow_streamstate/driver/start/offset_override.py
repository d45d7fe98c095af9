"""A seed that begins at other offsets than those of its predecessor, given by the user or found for a time.

What is passed over and what is read again is reported before anything is built, and refused unless the user accepted it
(Laws 5 and 14). A checkpoint that is built is never moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from airflow_streamstate.checkpoint.entries import OffsetEntry
from airflow_streamstate.checkpoint.file_source import (
    FileSourceEntry,
    files_taken,
    format_file_source_log,
    parse_file_source_offset,
)
from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.connectors.measuring import moves_between
from airflow_streamstate.connectors.moving import consent_missing, describe, reads_again
from airflow_streamstate.connectors.source import NO_OFFSET, ListedSource, OpenSource, TimedSource, Untold
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.source_book import KnownSource
from airflow_streamstate.errors import IncompatibleUpgradeError, InvalidRequestError
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.data_events import Repositioned
from airflow_streamstate.protocol.manifest import QuerySnapshot, SnapshotManifest
from airflow_streamstate.protocol.positions import SourceIdentity, SourceMove
from airflow_streamstate.protocol.records import StartPlan
from airflow_streamstate.snapshot.leases import leased

BOOK_OFFSET = '{"logOffset":0}'
"""The offset of a file source whose log is one entry."""
WATERMARK_ANEW = "rows that are read again would be late, so its watermark begins anew"


def begins_elsewhere(start: StartPlan, name: str) -> bool:
    """Whether this query begins at offsets that the user gave, or at a time."""
    return name in start.offsets or start.begins_at is not None


@dataclass(frozen=True)
class Beginning:
    """Where the sources of a query begin.

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
        """Whether any input is read a second time, as far as the sources tell."""
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
    """Where each source of the new plan begins.

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
        attempt.reporter.say(f"query {name}: begins elsewhere, {words}")
    if missing:
        raise IncompatibleUpgradeError(
            "beginning there passes over input, or reads input again, and that was not accepted",
            query_name=name,
            moves=list(describe(beginning.moves)),
            next_step=f"Where that is meant, deploy with {missing}.",
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
        for number, (source, line) in enumerate(zip(sources, lines, strict=True)):
            if line == NO_OFFSET:
                found.append(line)  # a new source begins where its options say
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
            "this source cannot begin at a time",
            query_name=self._name,
            source=what,
            reason=reason,
            begins_at=self._moment,
            next_step="Give its offsets with --offsets.",
        )
