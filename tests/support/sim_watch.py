"""A store that judges each write as it is made, for what must never happen.

The end of a life shows rows and events; that a rule was broken on the way, to no harm this time, shows only here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from airflow_streamstate.checkpoint.log import BarrierMark, Checkpoint, parse_offset_entry
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import from_bytes
from airflow_streamstate.protocol.commands import (
    CancelRequest,
    DrainNotification,
    SkipRequest,
    SnapshotRequest,
    StopRequest,
)
from airflow_streamstate.protocol.events import Event, Fenced
from airflow_streamstate.protocol.manifest import SnapshotManifest, SnapshotSlot
from airflow_streamstate.protocol.records import StreamRegister
from airflow_streamstate.snapshot.data import key_of
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.memory import MemoryStore
from support.simulated_query import SimulatedRun

COMMANDS = (DrainNotification, CancelRequest, StopRequest, SnapshotRequest, SkipRequest)
_KEYS = {
    "snapshot": re.compile(r"(?P<stream>[^/]+)/snapshots/(?P<id>[^/]+)/(?P<path>.+)"),
    "checkpoint": re.compile(r"(?P<prefix>[^/]+/deployments/(?P<deployment>[^/]+)/checkpoints/[^/]+)/(?P<path>.+)"),
    "command": re.compile(r"[^/]+/deployments/(?P<deployment>[^/]+)/commands/\d+\.json"),
    "event": re.compile(r"[^/]+/deployments/(?P<deployment>[^/]+)/events/\d+\.json"),
    "register": re.compile(r"[^/]+/stream\.json"),
}
_OFFSET = re.compile(r"offsets/(?P<batch>\d+)")


@dataclass(frozen=True)
class _Write:
    """One write; ``body`` None: the object goes. ``at`` is what its key states."""

    method: str
    key: str
    body: bytes | None
    at: re.Match[str]


class WatchedStore(MemoryStore):
    """Objects in memory, each write judged.

    Args:
        live_run: the run of a live driver that uses a checkpoint folder just now, if there is one.

    Attributes:
        violations: which rule was broken, and by what.
        commands: (deployment id, command id) of every order that was ever written.
        zombies_live: a driver that was taken for dead may wake up: what it had started, it may finish.
        fences_may_stray: a writer of a fence may pause before and after it, while others continue.
        may_prune: what deployments left that are not current any more may be removed.
    """

    def __init__(self, live_run: Callable[[str], SimulatedRun | None]) -> None:
        super().__init__("watched")
        self.violations: list[str] = []
        self.changes = 0
        self.commands: list[tuple[str, str]] = []
        self.zombies_live = False
        self.fences_may_stray = False
        self.may_prune = False
        self.place: Store = self
        self._stray: str | None = None
        self._live_run = live_run
        self._register: StreamRegister | None = None
        self._is_inside = False
        self._read: dict[str, frozenset[str]] = {}

    # what every write goes through

    def create(self, key: str, body: bytes) -> str:
        if self.head(key) is None:
            self._judge("create", key, body)
        with self._inside():
            return super().create(key, body)

    def replace(self, key: str, body: bytes, version: str) -> str:
        found = self.get(key)
        if found is not None and found.version == version:
            self._judge("replace", key, body)
        with self._inside():
            return super().replace(key, body, version)

    def put(self, key: str, body: bytes) -> str:
        self._judge("put", key, body)
        return super().put(key, body)

    def copy(self, source_key: str, target_key: str) -> None:
        found = self.get(source_key)
        if found is not None:
            self._judge("link", target_key, found.body)
        with self._inside():
            super().copy(source_key, target_key)

    def delete(self, key: str, version: str | None = None) -> None:
        if self.head(key) is not None:
            self._judge("delete", key, None)
        super().delete(key, version)

    @contextmanager
    def _inside(self) -> Iterator[None]:
        # The store below turns one kind of write into a second one.
        before, self._is_inside = self._is_inside, True
        try:
            yield
        finally:
            self._is_inside = before

    def _judge(self, method: str, key: str, body: bytes | None) -> None:
        if self._is_inside:
            return
        self.changes += 1
        if self._stray is not None and (method, key) != ("delete", self._stray):
            if not self.fences_may_stray:
                self.violations.append(
                    f"1a.8: a fence stays in the log of an attempt that was resumed in the meantime: {self._stray}"
                )
            self._stray = None
        if key == self._stray:
            self._stray = None
        for kind, pattern in _KEYS.items():
            match = pattern.fullmatch(key)
            if match is not None and not (kind != "snapshot" and self._is_pruned(body, match)):
                getattr(self, f"_judge_{kind}")(_Write(method, key, body, match))

    def _is_pruned(self, body: bytes | None, at: re.Match[str]) -> bool:
        if body is not None or not self.may_prune or self._register is None:
            return False
        return at.groupdict().get("deployment") != self._register.deployment_id

    def _broken(self, rule: str, what: str, write: _Write) -> None:
        self.violations.append(f"{rule}: {what} ({write.method} {write.key})")

    # control objects

    def _judge_register(self, write: _Write) -> None:
        """Its token never goes back, and it goes only where it has named no deployment yet (Law 4)."""
        if write.body is None:
            if self._register is not None and self._register.deployment_id is not None:
                self._broken("Law 4", "the register of a deployment is deleted", write)
            self._register = None
            return
        before, now = self._register, from_bytes(write.body, key=write.key, expected=StreamRegister)
        if before is not None and (now.fencing_token, now.attempt) < (before.fencing_token, before.attempt):
            self._broken("Law 4", "the register goes back", write)
        self._register = now

    def _judge_command(self, write: _Write) -> None:
        if write.body is not None:
            command = from_bytes(write.body, key=write.key, expected=COMMANDS)
            self.commands.append((write.at["deployment"], command.command_id))

    def _judge_event(self, write: _Write) -> None:
        """Once replaced, an attempt reports nothing more but that it was (Law 4)."""
        if write.body is None or write.method != "create":
            self._broken("Law 4", "an event is created once, and stays", write)
            return
        event = from_bytes(write.body, key=write.key, expected=Event)
        if isinstance(event, Fenced) or self._register is None or self.zombies_live:
            return
        if (write.at["deployment"], event.attempt) != (self._register.deployment_id, self._register.attempt):
            self._broken("Law 4", f"{event.kind} of an attempt that is not current", write)

    # snapshots

    def _judge_snapshot(self, write: _Write) -> None:
        """The manifest comes last, and holds; what it names is never touched again (Law 3), until it is removed: its
        manifest first, and of the files those alone to which no other one refers."""
        stream, snapshot_id, path = write.at["stream"], write.at["id"], write.at["path"]
        if write.body is None:
            self._judge_removal(write, stream)
        elif isinstance(self._slot(stream, snapshot_id), SnapshotManifest):
            found = self.get(write.key)
            is_same = found is not None and found.body == write.body
            # A lost race to take it may leave files that no manifest has; a prune removes them.
            is_of_it = path == "manifest.json" or write.key in self._keys_in(stream, snapshot_id)
            if is_of_it and not is_same:
                self._broken("Law 3", "a snapshot that has its manifest is touched", write)
        elif path == "manifest.json":
            slot = from_bytes(write.body, key=write.key, expected=SnapshotSlot)
            if isinstance(slot, SnapshotManifest):
                store = self.place if slot.data_uri else self
                there = {key: (size, store.head(key)) for key, size in _keys_of(slot).items()}
                missing = [key for key, (size, info) in there.items() if info is None or info.size_bytes != size]
                if missing:
                    self._broken("Law 3", f"the manifest names {missing} before they are there", write)

    def _judge_removal(self, write: _Write, stream: str) -> None:
        if write.at["path"] == "manifest.json":
            return
        for snapshot_id in self.list_folders(layout.snapshots_folder(stream)):
            if write.key in self._keys_in(stream, snapshot_id):
                self._broken("Law 3", f"a file is deleted that {snapshot_id} has", write)

    def _keys_in(self, stream: str, snapshot_id: str) -> frozenset[str]:
        """The files of a complete snapshot; a manifest does not change, so it is read once."""
        key = layout.manifest_key(stream, snapshot_id)
        found = self.head(key)
        if found is None:
            return frozenset()
        if found.version not in self._read:
            slot = self._slot(stream, snapshot_id)
            keys = _keys_of(slot) if isinstance(slot, SnapshotManifest) and not slot.data_uri else ()
            self._read[found.version] = frozenset(keys)
        return self._read[found.version]

    def _slot(self, stream: str, snapshot_id: str) -> SnapshotSlot | None:
        key = layout.manifest_key(stream, snapshot_id)
        found = self.get(key)
        return None if found is None else from_bytes(found.body, key=key, expected=SnapshotSlot)

    # checkpoints

    def _judge_checkpoint(self, write: _Write) -> None:
        """A predecessor's takes nothing but a fence (Law 11); an entry of Spark's own is never removed (1a.7)."""
        offset = _OFFSET.fullmatch(write.at["path"])
        mark = self._mark_in(write) if offset is not None else None
        current = self._register.deployment_id if self._register is not None else None
        is_fence = mark is not None and mark.kind == "fence"
        if write.at["deployment"] != current and not is_fence and not self.zombies_live:
            self._broken("Law 11", "the checkpoint of a deployment that is not current is written", write)
        if offset is None:
            return
        checkpoint = Checkpoint(self, write.at["prefix"])
        if mark is not None:
            self._judge_barrier(write, mark, checkpoint, int(offset["batch"]))
        elif write.body is None and checkpoint.exists():
            entry = checkpoint.read_offset(int(offset["batch"]))
            if entry is not None and not entry.is_ours:
                self._broken("1a.7", "an entry of Spark's own is removed", write)

    def _mark_in(self, write: _Write) -> BarrierMark | None:
        return None if write.body is None else parse_offset_entry(write.body, key=write.key).mark

    def _judge_barrier(self, write: _Write, mark: BarrierMark, checkpoint: Checkpoint, batch_id: int) -> None:
        """An entry of ours is put where nothing is (1a.1), never before Spark has read the log (1a.2); a drain only
        for a stop, a fence only into an unused log (1a.5, 1a.8), over a committed batch (Law 12)."""
        if write.method != ("replace" if mark.kind == "drain" else "create"):
            self._broken("1a.1", f"a {mark.kind} entry is to be created, a drain to be exchanged for it", write)
        run = self._live_run(checkpoint.prefix)
        if mark.kind == "fence" and self._register is not None and self._register.deployment_id == mark.deployment_id:
            if self._register.attempt > mark.attempt:
                self._stray = write.key  # resumed in this very moment: to be withdrawn before all else
                return
            if self._register.intent is None and not self.fences_may_stray:
                self._broken("1a.8", "a fence without an intent in the register", write)
        if run is not None and mark.kind in ("drain", "fence"):
            self._broken("1a.5, 1a.8", f"a {mark.kind} entry in a log that a query uses", write)
        if run is not None and not run.has_initialised():
            self._broken("1a.2", "a barrier before the query has read its log", write)
        is_over_committed = batch_id == 0 or checkpoint.is_committed(batch_id - 1)
        if run is None and mark.kind != "fence" and not is_over_committed:
            self._broken("Law 12", f"a {mark.kind} entry over a batch that is not committed and does not run", write)


def _keys_of(manifest: SnapshotManifest) -> dict[str, int]:
    return {
        key_of(manifest, name, entry): entry.size_bytes
        for name, query in manifest.queries.items()
        for entry in query.files
    }
