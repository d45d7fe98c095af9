"""``PruneSnapshotsOperator``: remove the snapshots of a stream that are no longer needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_streamstate.hooks.rendered import optional_seconds, optional_text, whole_number, yes_or_no
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.base import StreamStateOperator

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class PruneSnapshotsOperator(StreamStateOperator):
    """Remove the snapshots of a stream that are no longer needed, and the leftovers of its deployments.

    Pinned and leased snapshots, the last known good one, and each that a start, a rollback or an undo may need always
    stay. Pruning may run at any time, beside any other command. Idempotent: a retry continues. The task does not wait,
    so ``deferrable`` and ``timeout_seconds`` have no effect.

    Returns ``{stream_id, dry_run, removed, kept, leftovers, abandoned, files, temporary_files, notes, mirrors}``.

    :param keep: how many of the newest to keep at any age; None: 10 without ``older_than_seconds``, else 0. (templated)
    :param older_than_seconds: remove only snapshots taken, and last read, longer ago than this; None: any age.
        (templated)
    :param at_mirrors: also remove copies at the mirrors that newer snapshots of the home have replaced. (templated)
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
        at_mirrors: bool | str = False,
        report_only: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.keep = keep
        self.older_than_seconds = older_than_seconds
        self.at_mirrors = at_mirrors
        self.report_only = report_only

    def act(self, context: Context, hook: StreamStateHook) -> Mapping[str, Any]:  # noqa: ARG002 - asks for no id
        from airflow_streamstate.controller.retention.deciding import RetentionPolicy

        keep = optional_text(self.keep)
        policy = RetentionPolicy(
            None if keep is None else whole_number(keep, "keep"),
            optional_seconds(self.older_than_seconds, "older_than_seconds"),
        )
        pruned = hook.client.retention.prune(
            str(self.stream_id),
            policy,
            is_dry=yes_or_no(self.report_only, "report_only"),
            at_mirrors=yes_or_no(self.at_mirrors, "at_mirrors"),
        )
        result: dict[str, Any] = pruned.to_json()
        for one in result["removed"]:
            self.log.info("%s: %s", one["snapshot_id"], "; ".join(one["why"]))
        for mirror in result["mirrors"]:
            for one in mirror["removed"]:
                self.log.info("%s at %s: %s", one["snapshot_id"], mirror["mirror"], "; ".join(one["why"]))
            if mirror["problem"]:
                self.log.warning("%s: %s", mirror["mirror"], mirror["problem"])
        return result
