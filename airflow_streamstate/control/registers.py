"""The registers of alerts and of retention of a stream; every change is a compare-and-swap."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from airflow_streamstate.control.objects import Register, Stored
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import ConflictError, SnapshotNotFoundError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.ids import order_of
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.policies import (
    AbandonedSnapshot,
    AlertRegister,
    AlertRules,
    KnownGood,
    LeaseRecord,
    Pin,
    RetentionRegister,
    SnapshotInProgress,
    Told,
)


class AlertBook:
    """The alerts of one stream; ``by`` is the writer, for the record."""

    def __init__(self, control: StreamControl, by: str = "") -> None:
        self._control = control
        self._by = by
        self._register = Register(
            control.cells,
            layout.alerts_key(control.stream_id),
            AlertRegister,
            self._empty,
            by,
            stream_id=control.stream_id,
        )

    def read(self) -> Stored[AlertRegister] | None:
        """The register as it is; None where nothing was recorded. Raises DataError where it is damaged."""
        return self._register.read()

    def rules(self) -> AlertRules:
        """The rules, by default the usual ones. Raises as ``read``."""
        stored = self.read()
        return AlertRules() if stored is None else stored.value.rules

    def change_rules(self, given: Mapping[str, Any]) -> AlertRules:
        """Change these values of the rules.

        Raises:
            InvalidRequestError: a value is unknown or out of its range.
            UnavailableError: other writers kept changing the register.
        """
        return self._register.update(lambda one: replace(one, rules=one.rules.changed(given))).value.rules

    def record(self, stored: Stored[AlertRegister] | None, audience: str, told: Told) -> Stored[AlertRegister]:
        """Record the alerts that an audience is notified of, and those owed to it; the caller sends them afterwards.

        Args:
            stored: the register that this was decided on; None if there was none.

        Returns:
            The register with it.

        Raises:
            ConflictError: another writer was first: read again, and decide again.
            OutcomeUnknownError: it stayed unknown whether this landed.
        """

        def edit(one: AlertRegister) -> AlertRegister:
            return replace(one, audiences={**one.audiences, audience: told})

        if stored is None:
            return self._register.create(edit(replace(self._empty(), write_id=self._control.clock.new_uuid())))
        return self._register.update(edit, since=stored)

    def _empty(self) -> AlertRegister:
        now = self._control.clock.now()
        return AlertRegister(self._control.stream_id, write_id="", updated_at=now, updated_by=self._by)


# The register of what is kept of a stream: every change of it, each by compare-and-swap.
#
# A writer of a snapshot names the older ones whose files it may refer to, before it refers to any; a prune names what
# it removes before anything goes. Both change this one register, so the second one sees the first.

MAKING_SECONDS = 3_600.0
"""A snapshot in progress counts as abandoned when its writer has not renewed it for this long."""
CLOCKS_DIFFER_SECONDS = 600.0
"""A lease that ended less than this ago, by the pruning controller's clock, may still hold by its reader's clock."""
Value = TypeVar("Value")
Edit = Callable[[RetentionRegister], RetentionRegister]


@dataclass(frozen=True)
class Begun:
    """A snapshot that this process is taking.

    Attributes:
        making_id: its key in the register.
        take: of its own data folder.
        base_ids: the snapshots that are kept while it is in progress.
        abandoned_version: of the tombstone in the place of its manifest; None if not set.
    """

    making_id: str
    take: int
    base_ids: tuple[str, ...]
    abandoned_version: str | None


def last_use(manifest: SnapshotManifest, register: RetentionRegister) -> datetime:
    """When a snapshot was taken or last read."""
    return max(manifest.taken_at, register.used.get(manifest.snapshot_id, manifest.taken_at))


def known_good_of(register: RetentionRegister) -> str | None:
    """The last deployment that has proven itself; None before the first."""
    return None if register.known_good is None else register.known_good.deployment_id


class Retention:
    """What is kept of one stream; ``by`` is the writer, for the record."""

    def __init__(self, control: StreamControl, by: str = "") -> None:
        self._control = control
        self._clock = control.clock
        self._by = by
        self._register = Register(
            control.cells,
            layout.retention_key(control.stream_id),
            RetentionRegister,
            self._empty,
            by,
            stream_id=control.stream_id,
        )

    def read(self) -> RetentionRegister:
        """The register as it is, by default an empty one; raises DataError where it is damaged."""
        stored = self._register.read()
        return self._empty() if stored is None else stored.value

    def change(self, edit: Edit) -> RetentionRegister:
        """Change the register, as ``Register.update``.

        Raises:
            UnavailableError: other writers kept changing it.
            DataError: it is damaged.
        """
        return self._register.update(edit).value

    def _empty(self) -> RetentionRegister:
        now = self._clock.now()
        return RetentionRegister(self._control.stream_id, write_id="", updated_at=now, updated_by="")

    # taking a snapshot

    def begin(self, snapshot_id: str, needs: Collection[str] = (), place_uri: str = "") -> Begun:
        """Record that a snapshot is being taken, before any of its files is written (Law 1).

        Args:
            needs: snapshots that it also refers to, besides the newest one.
            place_uri: where its data will be; "" for the store of the checkpoints.

        Raises:
            ConflictError: it existed, and was removed a short while ago.
            DataError: the register is damaged, or the object in the place of the manifest.
            UnavailableError: other writers keep changing the register.
        """
        making_id = self._clock.new_uuid()
        slot = self._control.snapshot_slot(snapshot_id)
        abandoned = slot.value if slot is not None and isinstance(slot.value, AbandonedSnapshot) else None
        behind = 0 if abandoned is None else abandoned.take

        def edit(register: RetentionRegister) -> RetentionRegister:
            if making_id in register.makings:
                return register
            if snapshot_id in register.condemned:
                raise ConflictError(
                    "this snapshot was removed, and is not taken again",
                    stream_id=self._control.stream_id,
                    snapshot_id=snapshot_id,
                    next_step="Request a new one.",
                )
            wanted = dict.fromkeys((*needs, *((register.newest_snapshot_id,) if register.newest_snapshot_id else ())))
            bases = tuple(base for base in wanted if base not in register.condemned and base != snapshot_id)
            now = self._clock.now()
            making = SnapshotInProgress(snapshot_id, bases, behind + 1, now, now + timedelta(seconds=MAKING_SECONDS))
            places = tuple(dict.fromkeys((*register.places, *((place_uri,) if place_uri else ()))))
            return _moved(register, makings={**register.makings, making_id: making}, places=places)

        making = self.change(edit).makings[making_id]
        version = slot.version if slot is not None and abandoned is not None else None
        return Begun(making_id, making.take, making.base_ids, version)

    def keep_on(self, begun: Begun, expires_at: datetime) -> None:
        """Record that a snapshot is still being taken; one that counts as abandoned stays abandoned."""

        def edit(register: RetentionRegister) -> RetentionRegister:
            making = register.makings.get(begun.making_id)
            if making is None:
                return register
            making = replace(making, expires_at=expires_at)
            return replace(register, makings={**register.makings, begun.making_id: making})

        self.change(edit)

    def finish(self, begun: Begun, *, completed: SnapshotManifest | None = None) -> None:
        """Record that a snapshot is complete, or abandoned; may be repeated."""

        def edit(register: RetentionRegister) -> RetentionRegister:
            if begun.making_id not in register.makings:
                return register
            newest = register.newest_snapshot_id if completed is None else completed.snapshot_id
            makings = without(register.makings, (begun.making_id,))
            return _moved(register, makings=makings, newest_snapshot_id=newest)

        self.change(edit)

    # reading a snapshot

    def lease(self, lease_id: str, snapshot_id: str, reader: str, expires_at: datetime) -> None:
        """Take or renew a lease on a snapshot, which also counts as a use of it.

        Raises:
            SnapshotNotFoundError: it is being removed.
            UnavailableError: other writers keep changing the register.
            DataError: the register is damaged.
        """

        def edit(register: RetentionRegister) -> RetentionRegister:
            if snapshot_id in register.condemned:
                raise SnapshotNotFoundError(
                    "this snapshot is being removed",
                    stream_id=self._control.stream_id,
                    snapshot_id=snapshot_id,
                    next_step="`streamstate snapshot list` lists those that are kept.",
                )
            now = self._clock.now()
            before = register.leases.get(lease_id)
            taken_at = now if before is None else before.taken_at
            lease = LeaseRecord(snapshot_id, reader, taken_at, expires_at)
            return replace(
                register,
                leases={**register.leases, lease_id: lease},
                used={**register.used, snapshot_id: now},
            )

        self.change(edit)

    def release(self, lease_id: str) -> None:
        """Give a lease back; the snapshot was used until now."""

        def edit(register: RetentionRegister) -> RetentionRegister:
            lease = register.leases.get(lease_id)
            if lease is None:
                return register
            used = {**register.used, lease.snapshot_id: self._clock.now()}
            return replace(register, leases=without(register.leases, (lease_id,)), used=used)

        self.change(edit)

    # keeping a snapshot

    def pin(self, snapshot_id: str) -> RetentionRegister:
        """Keep a snapshot, even one that is still to be taken, until ``unpin``.

        Raises:
            SnapshotNotFoundError: it is being removed.
        """

        def edit(register: RetentionRegister) -> RetentionRegister:
            if snapshot_id in register.pins:
                return register
            if snapshot_id in register.condemned:
                raise SnapshotNotFoundError(
                    "this snapshot is being removed, and cannot be pinned any more",
                    stream_id=self._control.stream_id,
                    snapshot_id=snapshot_id,
                    next_step="`streamstate snapshot list` lists those that are kept.",
                )
            return replace(register, pins={**register.pins, snapshot_id: Pin(self._clock.now(), self._by)})

        return self.change(edit)

    def unpin(self, snapshot_id: str) -> RetentionRegister:
        """Remove a pin, if there is one."""
        return self.change(lambda register: replace(register, pins=without(register.pins, (snapshot_id,))))

    def spare(self, snapshot_id: str) -> None:
        """Cancel the removal of a snapshot that comes again from elsewhere; files already removed stay removed.

        Raises:
            DataError: the register is damaged.
            UnavailableError: other writers keep changing it.
        """

        def edit(register: RetentionRegister) -> RetentionRegister:
            if snapshot_id not in register.condemned:
                return register
            return _moved(register, condemned=without(register.condemned, (snapshot_id,)))

        self.change(edit)

    def mark_good(self, deployment_id: str) -> RetentionRegister:
        """Record that a version was healthy; an older version than the recorded one changes nothing."""

        def edit(register: RetentionRegister) -> RetentionRegister:
            known = register.known_good
            if known is not None and order_of(known.deployment_id) >= order_of(deployment_id):
                return register
            return replace(register, known_good=KnownGood(deployment_id, self._clock.now()))

        return self.change(edit)


def _moved(register: RetentionRegister, **changes: object) -> RetentionRegister:
    """The register with a change of what may refer to a file."""
    return replace(register, generation=register.generation + 1, **changes)  # type: ignore[arg-type]


def is_held(lease: LeaseRecord, now: datetime) -> bool:
    """Whether its reader may still read, by a clock that may not be the reader's."""
    return lease.expires_at + timedelta(seconds=CLOCKS_DIFFER_SECONDS) > now


def without(mapping: Mapping[str, Value], keys: Collection[str]) -> dict[str, Value]:
    """A mapping without some of its keys."""
    return {key: value for key, value in mapping.items() if key not in keys}
