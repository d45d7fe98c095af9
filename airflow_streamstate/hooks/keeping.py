"""What the hook does with what is kept of a stream: read it, copy it elsewhere, hold it, let go of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.retention.deciding import RetentionPolicy
from airflow_streamstate.controller.state_reader.choosing import ReadingRequest
from airflow_streamstate.controller.state_reader.verifying import verify_snapshot

Say = Callable[[str], None]


class KeepingVerbs(ABC):
    """A part of ``StreamStateHook``, which has the controller; not for use by itself."""

    @abstractmethod
    def get_conn(self) -> Controller:
        """The controller."""

    def prune(
        self,
        stream_id: str,
        *,
        keep: int | None = None,
        older_than_seconds: float | None = None,
        dry_run: bool = False,
        at_mirrors: bool = False,
    ) -> dict[str, Any]:
        """Remove the snapshots that nothing needs, and what deployments left; what went, what stays, and why.

        :param at_mirrors: at the stream's mirrors, too.
        """
        policy = RetentionPolicy(keep, older_than_seconds)
        pruned = self.get_conn().retention.prune(stream_id, policy, is_dry=dry_run, at_mirrors=at_mirrors)
        return pruned.to_json()

    def pin(self, stream_id: str, snapshot_id: str) -> None:
        """Keep a snapshot whatever is pruned; twice is once."""
        self.get_conn().retention.pin(stream_id, snapshot_id)

    def unpin(self, stream_id: str, snapshot_id: str) -> None:
        """Let go of a snapshot; where it is not pinned nothing is changed."""
        self.get_conn().retention.unpin(stream_id, snapshot_id)

    def retire(self, stream_id: str, *, reason: str = "", deletes: bool = False) -> dict[str, object]:
        """Mark a stream that has ended as one that is not to run any more; twice is once.

        :param deletes: remove everything of it, too. There is no way back.
        """
        return self.get_conn().retention.retire(stream_id, reason=reason, deletes=deletes).to_json()

    def mirror(
        self,
        stream_id: str,
        *,
        mirrors: Sequence[str] = (),
        batch_bytes: int | None = None,
        timeout_seconds: float | None = None,
        on_progress: Say = lambda _line: None,
    ) -> list[dict[str, Any]]:
        """Copy every complete snapshot to these mirrors, or to those of the deployment; what was copied where.

        :param batch_bytes: how much is fetched at a time; None: as the deployment is set.
        :param timeout_seconds: a store that does not answer for so long is left; None: as the deployment is set.
        """
        verbs = self.get_conn().mirrors
        copied = verbs.copy(
            stream_id,
            verbs.chosen(stream_id, mirrors),
            batch_bytes=batch_bytes,
            timeout_seconds=timeout_seconds,
            on_progress=lambda uri, snapshot_id, progress: on_progress(f"{snapshot_id} to {uri}: {progress.in_words}"),
        )
        return [
            {"snapshot_id": done.snapshot_id, "mirror": uri, "files": done.files, "bytes": done.size_bytes}
            for uri, done in copied
        ]

    def verify(
        self, request: ReadingRequest, *, deep: bool = False, on_progress: Say = lambda _line: None
    ) -> dict[str, Any]:
        """Read every byte of a snapshot: ``{snapshot_id, ok, problems, loaded}``.

        :param deep: have a Spark driver on this machine load its state, too.
        """
        controller = self.get_conn()
        return verify_snapshot(controller.snapshots, controller.readings, request, deep=deep, on_progress=on_progress)

    def read_state(self, request: ReadingRequest, *, on_progress: Say = lambda _line: None) -> dict[str, Any]:
        """What the state of a snapshot holds, read by a Spark driver on this machine; ``out`` gets it as tables."""
        return self.get_conn().readings.look(request, on_progress)
