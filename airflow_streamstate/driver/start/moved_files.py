"""The logs of file sources whose folder was moved, for the checkpoint of a query that starts (``--move-source``).

What was read is not read again, and what was not is read once. That is held against the files that are there now; what
is not proven is refused before the checkpoint is built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_streamstate.checkpoint.file_source import FileSourceEntry, parse_file_source_offset
from airflow_streamstate.checkpoint.moved_sources import is_at, logs_of_files, moved_entries, moved_logs, moved_path
from airflow_streamstate.connectors.files import is_by_name, max_age_ms
from airflow_streamstate.connectors.source import ListedSource, OpenSource
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.ports import StartableQuery
from airflow_streamstate.driver.attempt.source_book import KnownSource
from airflow_streamstate.errors import IncompatibleUpgradeError, UnavailableError
from airflow_streamstate.protocol.moved_sources import Moves, moved_place, place_of

_SHOWN = 3


def moved_source_logs(
    attempt: Attempt, name: str, startable: StartableQuery, files: Mapping[str, str], end_offsets: Sequence[str]
) -> dict[str, bytes]:
    """What the logs among these files become, where this deployment moves their source; others are left out.

    Args:
        files: of the new checkpoint: path -> key.
        end_offsets: of the last committed batch, source by source; () for none.

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
        offset: up to which its files are read; -1 for none.
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
            "The folder has a log of its own (_spark_metadata) with the old paths, or the script reads another"
            " folder: put a symbolic link or a mount at the old place instead.",
        )
        self._refuse(
            "files of a batch that was begun are not at the new place",
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
