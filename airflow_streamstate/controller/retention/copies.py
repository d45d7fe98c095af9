"""Pruning at the mirrors: whole copies of snapshots that the home has let go of.

A mirror is what is left where the home is lost, so it is never emptied after the home: only what the home has replaced
by a newer snapshot of its own goes, and the newest copies stay, as many as were asked for and at least one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.context import Means
from airflow_streamstate.controller.mirrors import Mirrors
from airflow_streamstate.controller.retention.deciding import RetentionPolicy, decide_fates
from airflow_streamstate.errors import DataError, DeploymentNotFoundError, StreamStateError
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.records import DeploymentSpec
from airflow_streamstate.protocol.retention import RetentionRegister
from airflow_streamstate.snapshot.mirror_place import refuse_left_behind, refuse_same
from airflow_streamstate.snapshot.partial_copies import clear_halves, close_copies
from airflow_streamstate.snapshot.room import freed_bytes
from airflow_streamstate.store.interface import Store


@dataclass(frozen=True)
class PrunedMirror:
    """What a prune did at one mirror, or would do.

    Attributes:
        uri: of it.
        removed: by snapshot whose copy goes, why.
        freed: by snapshot that goes, how many bytes no other copy there has.
        kept: by snapshot, why its copy stays.
        files: how many went.
        problem: why not everything, or nothing, was done; "" for none.
    """

    uri: str
    removed: Mapping[str, tuple[str, ...]]
    freed: Mapping[str, int]
    kept: Mapping[str, tuple[str, ...]]
    files: int = 0
    problem: str = ""

    def to_json(self) -> dict[str, object]:
        """``mirror removed[] kept[] files problem``."""
        return {
            "mirror": self.uri,
            "removed": [
                {"snapshot_id": one, "why": list(why), "freed_bytes": self.freed.get(one, 0)}
                for one, why in self.removed.items()
            ],
            "kept": [{"snapshot_id": one, "why": list(why)} for one, why in self.kept.items()],
            "files": self.files,
            "problem": self.problem,
        }


@dataclass(frozen=True)
class HomeView:
    """What the home keeps, as the prune left it.

    Attributes:
        spec: of the current deployment.
        ids: every snapshot of which there is anything, but for those that go.
        manifests: the complete ones among them.
        unreadable: those of which the manifest cannot be read.
        needed: by id, what the stream needs it for.
        register: of what is kept.
    """

    spec: DeploymentSpec
    ids: Collection[str]
    manifests: Collection[SnapshotManifest]
    unreadable: Collection[str]
    needed: Mapping[str, str]
    register: RetentionRegister


class Copies:
    """Prunes mirrors of one stream.

    Args:
        means: of the controller.
        control: the stream in its home.
        policy: how much is to be kept, here as in the home.
        is_dry: only say what would go.
    """

    def __init__(self, means: Means, control: StreamControl, policy: RetentionPolicy, *, is_dry: bool) -> None:
        self._means = means
        self._control = control
        self._policy = replace(policy, keep=max(1, policy.kept_count))
        self._is_dry = is_dry

    def prune(self, uri: str, home: HomeView) -> PrunedMirror:
        """Remove the copies that nothing needs from one mirror; again, it goes on where it was cut short."""
        try:
            return self._prune(Mirrors(self._means).open(uri), home)
        except StreamStateError as error:
            return PrunedMirror(uri, {}, {}, {}, problem=f"nothing, or not everything, was removed there: {error}")

    def _prune(self, mirror: Store, home: HomeView) -> PrunedMirror:
        there = StreamControl(mirror, self._control.stream_id, self._control.clock)
        self._refuse_another(there, home.spec)
        if home.unreadable:
            raise DataError(
                "a manifest of the home cannot be read, so nobody knows which copies its snapshot needs",
                stream_id=self._control.stream_id,
                snapshot_ids=list(home.unreadable),
                next_step=f"`streamstate verify {self._control.stream_id}` tells what is wrong with it.",
            )
        if not self._is_dry:
            refuse_same(self._control, mirror, self._means.home.checkpoints)
        found = {one: there.manifest(one) for one in there.snapshot_ids()}
        copies = {one: manifest for one, manifest in found.items() if manifest is not None}
        removed, kept = self._decide(copies, home)
        files = 0
        if not self._is_dry:
            by = self._means.requested_by
            closed = close_copies(self._control, mirror, by, removed)
            files = clear_halves(self._control, mirror, by, of_all=True)
            removed = {one: why for one, why in removed.items() if one in closed}
        stays = [manifest for one, manifest in copies.items() if one not in removed]
        freed = freed_bytes(mirror, [copies[one] for one in removed], stays)
        return PrunedMirror(mirror.uri, removed, freed, kept, files)

    def _decide(
        self, copies: Mapping[str, SnapshotManifest], home: HomeView
    ) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
        """The copies that go, and those that stay; of each, why."""
        removed, kept = {}, {}
        newest = max((manifest.order for manifest in home.manifests), default=None)
        fates = decide_fates(copies, home.needed, home.register, self._policy, self._means.clock.now())
        for one, fate in fates.items():
            stays = fate.why if not fate.goes else ()
            if one in home.ids:
                stays = ("the home has it", *stays)
            elif newest is None or newest <= copies[one].order:
                stays = ("the home has none that is newer", *stays)
            if stays:
                kept[one] = stays
            else:
                removed[one] = fate.why
        return removed, kept

    def _refuse_another(self, there: StreamControl, spec: DeploymentSpec) -> None:
        """See that the mirror is of this very stream, by the record of its current deployment; and that the stream has
        not gone on elsewhere, in a home that was restored from there."""
        try:
            found: DeploymentSpec | None = there.spec(spec.deployment_id)
        except DeploymentNotFoundError:
            found = None
        if found is None or found.identity != spec.identity:
            raise DataError(
                "the mirror does not know the current deployment, so what lies there may be of another stream",
                stream_id=spec.stream_id,
                deployment_id=spec.deployment_id,
                mirror=there.home.uri,
                next_step="`streamstate mirror` brings it there.",
            )
        refuse_left_behind(self._control, there.home)
