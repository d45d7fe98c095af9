"""The journals of a deployment: numbered commands and events, and what the events prove."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress

from airflow_streamstate.control.objects import Cells, check_owner
from airflow_streamstate.errors import ConflictError, DataError, ObjectExistsError, VersionConflictError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.older_python import zipped
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import from_bytes
from airflow_streamstate.protocol.commands import ALL_COMMANDS, Command
from airflow_streamstate.protocol.events import ALL_EVENTS, Event, QueryStarted, Started
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.retry import Retry
from airflow_streamstate.store.transfer import keys_below

CREATE = Retry(tries=50)


@dataclass(frozen=True)
class CommandSlot:
    """One command object: either its ``command``, or the ``problem`` of reading it (Law 7).

    Attributes:
        number: None where the key has none.
        key, version: of the object, and of the bytes that were read.
    """

    number: int | None
    key: str
    version: str
    command: Command | None
    problem: DataError | None


@dataclass(frozen=True)
class NumberedEvent:
    """One event; ``event`` is None where it could not be read, and ``problem`` states why."""

    number: int
    event: Event | None
    problem: DataError | None = None


class Journal:
    """The commands and events of one deployment."""

    def __init__(self, cells: Cells, stream_id: str, deployment_id: str) -> None:
        self.cells = cells
        self.stream_id = stream_id
        self.deployment_id = deployment_id

    def commands(self) -> list[CommandSlot]:
        """Every command object, in key order; one listing, one read each."""
        slots = []
        for info in self.cells.polled.list_objects(layout.commands_prefix(self.stream_id, self.deployment_id)):
            number, version = layout.number_of(info.key), info.version or f"{info.size_bytes} bytes"
            try:
                stored = self.cells.stored(info.key)
                if stored is None:
                    continue
                version = stored.version
                command = from_bytes(stored.body, key=info.key, expected=ALL_COMMANDS)
            except DataError as problem:
                slots.append(CommandSlot(number, info.key, version, None, problem))
            else:
                slots.append(CommandSlot(number, info.key, version, command, None))
        return slots

    def write_command(self, command: Command, protocol: int) -> tuple[int, str]:
        """Create the command under the next free number, unless it was written before. Returns number and key.

        The number is above every command and every number that an event names, so that it is not that of a removed
        command
        (1a.13). A command that an event names was written before, even if its object is gone: a retry finds its number
        (Law 2).

        Raises:
            ConflictError: other writers kept taking the next number.
        """
        for _ in CREATE.begin():
            known, highest = self._numbers_in_use(command.command_id)
            if known is not None:
                return known, layout.command_key(self.stream_id, self.deployment_id, known)
            key = layout.command_key(self.stream_id, self.deployment_id, highest + 1)
            try:
                self.cells.create(key, command, protocol)
            except ObjectExistsError:
                continue
            return highest + 1, key
        raise ConflictError("other writers kept taking the next command number", tries=CREATE.tries)

    def renew_command(self, slot: CommandSlot, command: Command, protocol: int) -> None:
        """Replace a command that no driver has accepted by the same one with a later date.

        Raises:
            VersionConflictError: it changed in the meantime, or was answered and is gone.
        """
        self.cells.replace(slot.key, command, slot.version, protocol)

    def delete_command(self, slot: CommandSlot) -> None:
        """Delete an ended command; one that changed in the meantime stays (VersionConflictError)."""
        self.cells.store.delete(slot.key, slot.version)

    def withdraw_command(self, command_id: str) -> None:
        """Delete a command that no driver has accepted, if it is still unchanged."""
        for slot in self.commands():
            if slot.command is not None and slot.command.command_id == command_id:
                with suppress(VersionConflictError):
                    self.delete_command(slot)

    def events(self, after: int = 0) -> Iterator[NumberedEvent]:
        """Events with a number above ``after``, in order. Unreadable ones come with their problem (Law 7)."""
        return self._read(self._event_keys(after))

    def some_events(self, after: int, most: int) -> tuple[list[NumberedEvent], int]:
        """At most this many of the first ``events``, and how many are left: no state follows from a part of them."""
        keys = self._event_keys(after)
        return list(self._read(keys[:most])), len(keys[most:])

    def _event_keys(self, after: int = 0) -> list[tuple[int, str]]:
        """By number. What has a key that no event of ours has is no event."""
        prefix = layout.events_prefix(self.stream_id, self.deployment_id)
        last = layout.event_key(self.stream_id, self.deployment_id, after)
        keys = keys_below(self.cells.store, prefix)
        found = ((layout.number_of(key), key) for key in keys if key > last or len(key) != len(last))
        return sorted(
            (number, key)
            for number, key in found
            if number is not None
            and number > after
            and key == layout.event_key(self.stream_id, self.deployment_id, number)
        )

    def _read(self, keys: list[tuple[int, str]]) -> Iterator[NumberedEvent]:
        for number, key in keys:
            try:
                stored = self.cells.stored(key)
                if stored is None:
                    continue
                event = from_bytes(stored.body, key=key, expected=ALL_EVENTS)
                check_owner(event, key, stream_id=self.stream_id, deployment_id=self.deployment_id)
            except DataError as problem:
                yield NumberedEvent(number, None, problem)
            else:
                yield NumberedEvent(number, event)

    def append(self, event: Event, after: int = 0) -> int:
        """Create the event under the next number above ``after``. Returns its number."""
        number = max(after, 0) + 1
        for _ in CREATE.begin():
            try:
                self.cells.create(layout.event_key(self.stream_id, self.deployment_id, number), event)
            except ObjectExistsError:
                number = max((taken for taken, _ in self._event_keys()), default=0) + 1
                continue
            return number
        raise ConflictError("other writers kept taking the next event number", tries=CREATE.tries)

    def _numbers_in_use(self, command_id: str) -> tuple[int | None, int]:
        """The number that this command has already (None if it has none), and the highest number of any."""
        known: int | None = None
        highest = 0
        for slot in self.commands():
            highest = max(highest, slot.number or 0)
            if slot.command is not None and slot.command.command_id == command_id and slot.number is not None:
                known = slot.number
        for entry in self.events():
            number = command_number_of(entry.event)
            highest = max(highest, number)
            if known is None and number and getattr(entry.event, "command_id", None) == command_id:
                known = number
        return known, highest


def command_number_of(event: Event | None) -> int:
    """The number of the command that this event is about; 0 without one."""
    number = getattr(event, "command_number", 0)
    return number if isinstance(number, int) else 0


# Whether a query ever had a checkpoint in its deployment, by the deployment's events (Laws 5 and 14).
#
# A folder that is gone (another disk, a wrong setting, a clean-up by hand) looks like one that never existed. The
# events prove that it existed, and no query starts empty, or from an older position, against them.


def had_checkpoint(events: Iterable[Event | None], query_name: str) -> bool:
    """Whether the query was ever started in this deployment, by the events of all its attempts.

    Spark writes the checkpoint's ``metadata`` before ``start()`` returns, and the event comes after that.
    """
    return any(isinstance(event, QueryStarted) and event.query_name == query_name for event in events)


def missing_checkpoint(query_name: str, prefix: str) -> DataError:
    """The error for a checkpoint that should exist and does not."""
    return DataError(
        "the checkpoint of this query is gone, and continuing without it would start empty or from an older position",
        query_name=query_name,
        checkpoint=prefix,
        next_step="Bring the folder back (is another disk mounted, another checkpoints_uri set?), "
        "or start from nothing, explicitly, with `deploy --start fresh`.",
    )


# Which Spark wrote what a deployment holds, by its events.
#
# A Spark that was started and neither committed a batch nor left state of one wrote nothing that an older one could
# not read, so a failed upgrade goes back to what the old one left. The state of an uncommitted batch counts, since
# the query continues from it where the sink holds that batch. If the snapshot that they started from cannot be read,
# every Spark that continued from it counts.


def spark_that_wrote(
    events: Iterable[Event | None],
    positions: Mapping[str, int | None],
    start: SnapshotManifest | None,
    begun: Collection[str] = (),
    *,
    is_start_lost: bool = False,
) -> str:
    """The newest Spark that wrote a batch of this deployment, or of the state that a query still has; "" if unknown.

    Args:
        events: of the deployment, all attempts, in order; None for unreadable ones.
        positions: last committed batch of each of its queries; None without one, or if it was never started here.
        start: the snapshot that it started from; None without one.
        begun: the queries whose next batch was written, and not committed (``has_begun_planned``).
        is_start_lost: it started from a snapshot that is gone or damaged; ``start`` is None.
    """
    known = [event for event in events if event is not None]
    versions = {event.attempt: event.spark_version for event in known if isinstance(event, Started)}
    wrote = set()
    for name, batch_id in positions.items():
        starts = [event for event in known if isinstance(event, QueryStarted) and event.query_name == name]
        ends = [event.batch_id for event in starts[1:]] + [batch_id] * bool(starts)
        by = {versions.get(event.attempt, "") for event, end in zipped(starts, ends) if event.batch_id != end}
        if is_start_lost:
            by = by or {versions.get(event.attempt, "") for event in starts}
        wrote |= by or ({start.spark_version} if start is not None and name in start.queries else set())
        if name in begun:  # any of those that found or reached this position may have written it
            wrote |= {versions.get(event.attempt, "") for event in starts if event.batch_id == batch_id}
    return newest_spark(wrote)


def newest_spark(versions: Iterable[str]) -> str:
    """The newest of these versions of Spark; "" if none is known."""
    return max(versions, key=_order, default="")


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"[0-9]+", version)[:3])
