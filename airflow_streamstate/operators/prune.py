"""``PruneSnapshotsOperator``: remove the snapshots of a stream that are no longer needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.base import StreamStateOperator
from airflow_streamstate.operators.term_fields import kept, names_of, rendered_terms, rendered_values, taken_terms
from airflow_streamstate.protocol.retention import RetentionPolicy
from airflow_streamstate.protocol.terms.declaration import Term, terms_of
from airflow_streamstate.protocol.terms.order import PruneTerms

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class PruneSnapshotsOperator(StreamStateOperator):
    """Remove the snapshots of a stream that are no longer needed, and the leftovers of its deployments.

    Pinned and leased snapshots, the last known good one, and each that a start, a rollback or an undo may need always
    stay. Pruning may run at any time, beside any other command. Idempotent: a retry continues. The task does not wait,
    so ``deferrable`` and ``timeout_seconds`` have no effect.

    Without ``keep`` and ``older_than_seconds`` the retention that is recorded with the stream decides; where there is
    none, the newest 10 stay. With either of them the recorded one does not count. Where it does, it also decides about
    copies, unless ``at_mirrors`` is given.

    Returns ``{stream_id, dry_run, policy, removed, kept, leftovers, abandoned, files, temporary_files, notes,
    mirrors}``.

    :param keep: so many of the newest snapshots stay at any age; 0 if left out beside ``older_than_seconds``.
        (templated)
    :param older_than_seconds: only snapshots that were taken, and last read, longer ago than this are removed.
        (templated)
    :param at_mirrors: copies at its mirrors that newer snapshots have replaced are removed, too. (templated)
    :param report_only: only report what would be removed, and why. (templated)
    """

    taken: ClassVar[tuple[Term, ...]] = taken_terms(kept(terms_of(RetentionPolicy)), terms_of(PruneTerms))
    template_fields: Sequence[str] = (*StreamStateOperator.template_fields, *names_of(taken))

    def __init__(
        self,
        *,
        # terms
        keep: int | str | None = None,
        older_than_seconds: float | str | None = None,
        at_mirrors: bool | str | None = None,
        report_only: bool | str = False,
        # end of terms
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # terms
        self.keep = keep
        self.older_than_seconds = older_than_seconds
        self.at_mirrors = at_mirrors
        self.report_only = report_only
        # end of terms

    def act(self, context: Context, hook: StreamStateHook) -> Mapping[str, Any]:  # noqa: ARG002 - asks for no id
        given = rendered_values(self, self.taken, RetentionPolicy)
        at_mirrors = given.pop("at_mirrors", None)
        pruned = hook.client.retention.prune(
            str(self.stream_id),
            RetentionPolicy(**given) if given else None,
            is_dry=rendered_terms(PruneTerms, self, self.taken).dry_run,
            at_mirrors=at_mirrors,
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
