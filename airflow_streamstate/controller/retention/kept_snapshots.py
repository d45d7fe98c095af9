"""The snapshots of a stream as they are listed: what keeps each of them, and which mirrors have it.

Apart from ``pruning``: a list imports nothing that removes.
"""

from __future__ import annotations

from typing import ClassVar

from airflow_streamstate.control.retention import Retention, is_held, known_good_of, last_use
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.retention.needs import needs_of
from airflow_streamstate.controller.snapshots import Snapshots
from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.events import SnapshotMirrored
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.retention import RetentionRegister
from airflow_streamstate.protocol.views import View, selected
from airflow_streamstate.snapshot.sharing import shared_bytes

_POSITION = " ".join(
    [
        *(f"{name}=position.{name}" for name in ("batch_id", "planned_batch_id", "end_offsets", "watermark_at")),
        "drained",
    ]
)


@dataclass(frozen=True)
class KeptSnapshot(View):
    """A complete snapshot, and why it is kept.

    Attributes:
        shared_bytes: bytes that another snapshot, or on a disk the checkpoint, has as well.
        leases: its current readers.
        used_at: when it was taken or last read.
    """

    form: ClassVar[str] = (
        "snapshot_id=manifest.snapshot_id kind=manifest.snapshot_kind deployment_id=manifest.deployment_id"
        " taken_at=manifest.taken_at used_at files=manifest.files_count bytes=manifest.size_bytes shared_bytes place"
        " refers_to_checkpoint=manifest.refers_to_checkpoints pinned=is_pinned last_known_good=is_known_good leases"
        " request_id content_digest=manifest.content_digest queries"
    )

    manifest: SnapshotManifest
    shared_bytes: int
    is_pinned: bool
    is_known_good: bool
    leases: tuple[str, ...]
    used_at: str

    @property
    def place(self) -> str | None:
        """The place of its files, if that is not the store of checkpoints."""
        return self.manifest.data_uri or None

    @property
    def request_id(self) -> str | None:
        """The request that it answers; None: it was not requested."""
        return self.manifest.request_id or None

    @property
    def queries(self) -> dict[str, dict[str, object]]:
        """The position of each query."""
        return {name: selected(query, _POSITION) for name, query in self.manifest.queries.items()}


def kept_snapshots(context: ControllerContext, stream_id: str) -> list[KeptSnapshot]:
    """The complete snapshots of a stream, oldest first, with what keeps them. Raises StreamNotFoundError."""
    control = context.home.need_stream(stream_id)
    manifests = Snapshots(context).all(stream_id)
    shared = shared_bytes(context.home.checkpoints, manifests)
    kept, good = _looked(context, control, {one.snapshot_id: one for one in manifests})
    now = context.clock.now()
    leases = [lease for lease in kept.leases.values() if is_held(lease, now)]
    return [
        KeptSnapshot(
            manifest,
            shared[manifest.snapshot_id],
            manifest.snapshot_id in kept.pins,
            manifest.snapshot_id in good,
            tuple(sorted(lease.reader for lease in leases if lease.snapshot_id == manifest.snapshot_id)),
            format_time(last_use(manifest, kept)),
        )
        for manifest in manifests
        if manifest.snapshot_id not in kept.condemned
    ]


def mirrors_of(context: ControllerContext, stream_id: str) -> dict[str, list[str]]:
    """By snapshot, the mirrors that have it according to the drivers' events."""
    control = context.home.need_stream(stream_id)
    found: dict[str, list[str]] = {}
    for deployment_id in control.deployment_ids():
        for entry in context.observer.events(control, deployment_id):
            event = entry.event
            if isinstance(event, SnapshotMirrored) and event.mirror_uri not in found.get(event.snapshot_id, ()):
                found.setdefault(event.snapshot_id, []).append(event.mirror_uri)
    return found


def _looked(
    context: ControllerContext, control: StreamControl, manifests: dict[str, SnapshotManifest]
) -> tuple[RetentionRegister, set[str]]:
    """The retention register, and the snapshots kept for the last known good version; empty where it is damaged."""
    empty = RetentionRegister(control.stream_id, "", context.clock.now(), "")
    try:
        kept = Retention(control).read()
        needs = needs_of(control, control.need_register().value, manifests, known_good_of(kept))
    except StreamStateError:
        return empty, set()
    return kept, {one for one, why in needs.snapshots.items() if why.startswith("last known good")}
