"""``PruneSnapshotsOperator``: remove the snapshots of a stream that are no longer needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_streamstate.hooks.rendered import (
    optional_factor,
    optional_text,
    optional_whole_number,
    yes_or_no,
)
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.base import StreamStateOperator

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class PruneSnapshotsOperator(StreamStateOperator):
    """Remove the snapshots of a stream that are no longer needed, and the leftovers of its deployments.

    Pinned and leased snapshots, the last known good one, and each that a start, a rollback or an undo may need always
    stay. Pruning may run at any time, beside any other command. Idempotent: a retry continues. The task does not wait,
    so ``deferrable`` and ``timeout_seconds`` have no effect.

    Without ``keep`` and ``older_than_seconds`` the retention that is recorded with the stream decides; where there is
    none, the newest 10 stay. With either of them the recorded one does not count.

    Returns ``{stream_id, dry_run, policy, removed, kept, leftovers, abandoned, files, temporary_files, notes,
    mirrors}``.

    :param keep: how many of the newest to keep at any age; None: 10 without ``older_than_seconds``, else 0. (templated)
    :param older_than_seconds: remove only snapshots taken, and last read, longer ago than this; None: any age.
        (templated)
    :param at_mirrors: also remove copies at the mirrors that newer snapshots of the home have replaced; None: as the
        recorded retention says, where that decides. (templated)
    :param report_only: only report what would be removed, and why. (templated)
    """

    template_fields: Sequence[str] = (
        *StreamStateOperator.template_fields,
        "keep",
        "older_than_seconds",
        "at_mirrors",
        "report_only",
    )

    def __init__(
        self,
        *,
        keep: int | str | None = None,
        older_than_seconds: float | str | None = None,
        at_mirrors: bool | str | None = None,
        report_only: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.keep = keep
        self.older_than_seconds = older_than_seconds
        self.at_mirrors = at_mirrors
        self.report_only = report_only

    def act(self, context: Context, hook: StreamStateHook) -> Mapping[str, Any]:  # noqa: ARG002 - asks for no id
        from airflow_streamstate.protocol.retention import RetentionPolicy

        keep = optional_whole_number(self.keep, "keep")
        older_than_seconds = optional_factor(self.older_than_seconds, "older_than_seconds")
        is_given = keep is not None or older_than_seconds is not None
        pruned = hook.client.retention.prune(
            str(self.stream_id),
            RetentionPolicy(keep, older_than_seconds) if is_given else None,
            is_dry=yes_or_no(self.report_only, "report_only"),
            at_mirrors=None if optional_text(self.at_mirrors) is None else yes_or_no(self.at_mirrors, "at_mirrors"),
        )
        self.log.info("%s: by its policy (%s) it %s", self.stream_id, pruned.policy_source, pruned.policy.words)
        result: dict[str, Any] = pruned.to_json()
        for one in result["removed"]:
            self.log.info("%s: %s", one["snapshot_id"], "; ".join(one["why"]))
        for mirror in result["mirrors"]:
            for one in mirror["removed"]:
                self.log.info("%s at %s: %s", one["snapshot_id"], mirror["mirror"], "; ".join(one["why"]))
            if mirror["problem"]:
                self.log.warning("%s: %s", mirror["mirror"], mirror["problem"])
        return result
