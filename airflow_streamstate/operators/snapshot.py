"""The operators on snapshots: take, pin, prune, verify, mirror and export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import AirflowException

from airflow_streamstate.errors import DataError, SnapshotCorruptError
from airflow_streamstate.hooks.rendered import yes_or_no
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.base import (
    RETURN_KEY,
    MasksSecrets,
    StreamStateOperator,
    by_default,
    choices_of,
    kept,
    names_of,
    rendered_terms,
    rendered_values,
    renderers_of,
    required,
    taken_terms,
)
from airflow_streamstate.protocol.policies import RetentionPolicy
from airflow_streamstate.protocol.settings import AgentSettings
from airflow_streamstate.protocol.terms.declaration import Term, terms_of
from airflow_streamstate.protocol.terms.order import (
    Expiry,
    ExportTerms,
    MirrorTerms,
    PruneTerms,
    ReadingTerms,
    SnapshotTerms,
    VerifyTerms,
)

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_streamstate.controller.scratch.readings import ReadingRequest


class SnapshotStreamOperator(StreamStateOperator):
    """Take a snapshot of a committed batch of every query of a running stream.

    With ``requested_at="{{ dag_run.run_after }}"`` a run that comes too late takes no snapshot.

    Idempotent: a retry, or a cleared task, finds its snapshot. While the task waits, it repeats the order under the
    same request id if no driver takes it up, or if the driver was restarted or replaced.

    Returns ``{stream_id, deployment_id, command_id, snapshot_id, kind, files, bytes, queries}``; without
    ``wait_for_completion`` ``{stream_id, deployment_id, command_id, key, state, request_id}``.

    :param requested_at: the time of the request, with a time zone: a request that arrives too late takes no snapshot.
        By default now, also when the order is repeated. (templated)
    :param ttl_seconds: the driver ignores a request that is older than this. By default the deployment's setting.
        (templated)
    :param consistent: hold all queries at one barrier while it is taken: they finish their batches, and then continue.
        (templated)
    :param expires_in_seconds: the driver ignores an order that it reads later than this. By default there is no limit.
        (templated)

    :param wait_for_completion: wait until the snapshot is complete, for ``timeout_seconds`` at most.
    """

    taken: ClassVar[tuple[Term, ...]] = taken_terms(terms_of(SnapshotTerms), terms_of(Expiry))
    template_fields: Sequence[str] = (*StreamStateOperator.template_fields, *names_of(taken))

    def __init__(
        self,
        *,
        # terms
        requested_at: datetime | str | None = None,
        ttl_seconds: float | str | None = None,
        consistent: bool | str = False,
        expires_in_seconds: float | str | None = None,
        # end of terms
        wait_for_completion: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # terms
        self.requested_at = requested_at
        self.ttl_seconds = ttl_seconds
        self.consistent = consistent
        self.expires_in_seconds = expires_in_seconds
        # end of terms
        self.wait_for_completion = wait_for_completion

    def act(self, context: Context, hook: StreamStateHook) -> Mapping[str, Any]:
        terms, expiry = rendered_terms(SnapshotTerms, self, self.taken), rendered_terms(Expiry, self, self.taken)
        order = self.give_order(context, hook, "snapshot", terms=terms, **vars(expiry))
        return self.end_of(hook, order, waits=self.wait_for_completion)


# ``PinSnapshotOperator``: keep a snapshot until it is unpinned.


class PinSnapshotOperator(StreamStateOperator):
    """Pin a snapshot, so that no pruning removes it, or unpin it.

    Idempotent. The task does not wait, so ``deferrable`` and ``timeout_seconds`` have no effect.

    Returns ``{stream_id, snapshot_id, pinned}``.

    :param pinned: false removes the pin. (templated)
    """

    template_fields: Sequence[str] = (*StreamStateOperator.template_fields, "snapshot_id", "pinned")

    def __init__(self, *, snapshot_id: str, pinned: bool | str = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.snapshot_id = snapshot_id
        self.pinned = pinned

    def act(self, context: Context, hook: StreamStateHook) -> Mapping[str, Any]:  # noqa: ARG002 - asks for no id
        stream_id, snapshot_id = str(self.stream_id), str(self.snapshot_id)
        pinned = yes_or_no(self.pinned, "pinned")
        if pinned:
            hook.client.retention.pin(stream_id, snapshot_id)
        else:
            hook.client.retention.unpin(stream_id, snapshot_id)
        return {"stream_id": stream_id, "snapshot_id": snapshot_id, "pinned": pinned}


# ``PruneSnapshotsOperator``: remove the snapshots of a stream that are no longer needed.


class PruneSnapshotsOperator(StreamStateOperator):
    """Remove the snapshots of a stream that are no longer needed, and the leftovers of its deployments.

    Pinned and leased snapshots, the last known good one, and each that a start, a rollback or an undo may need always
    stay. Pruning may run at any time, alongside any other command. Idempotent: a retry continues. The task does not
    wait, so ``deferrable`` and ``timeout_seconds`` have no effect.

    Without ``keep`` and ``older_than_seconds`` the retention that is recorded with the stream decides; if there is
    none, the newest 10 stay. With either of them the recorded one does not count. Where it does, it also decides about
    copies, unless ``at_mirrors`` is given.

    Returns ``{stream_id, dry_run, policy, removed, kept, leftovers, abandoned, files, temporary_files, notes,
    mirrors}``.

    :param keep: this many of the newest snapshots stay at any age; 0 if only ``older_than_seconds`` is given.
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


# Base of the operators whose own Spark driver reads the state of a snapshot.


class ReadingOperator(MasksSecrets, StreamStateOperator):
    """Base of ``ExportStateOperator`` and ``VerifySnapshotOperator``, whose ``taken`` has terms of ``ReadingTerms``.

    The driver runs on the worker's machine, on a fork of the snapshot, and leaves its answer there, so the task stays
    in its worker. If the task is ended or dies, its driver ends at ``deadline_seconds`` at the latest.
    """

    taken: ClassVar[tuple[Term, ...]] = ()
    template_fields: Sequence[str] = tuple(
        name for name in StreamStateOperator.template_fields if name != "timeout_seconds"
    )

    def __init__(self, *, deadline_seconds: float | str, **kwargs: Any) -> None:
        super().__init__(timeout_seconds=deadline_seconds, **kwargs)
        self._is_ended = False
        self._told = ""

    def reading(self, **more: Any) -> ReadingRequest:
        """The rendered request, with what an operator adds to it."""
        from airflow_streamstate.controller.scratch.readings import ReadingRequest

        given = rendered_values(self, self.taken, ReadingTerms)
        return ReadingRequest(stream_id=str(self.stream_id), **given, **more)

    def tell(self, line: str) -> None:
        """Log new progress; after ``on_kill`` leave the reading, which then removes its files."""
        if self._is_ended:
            raise AirflowException("the task was ended, and its reading with it")
        if line != self._told:
            self._told = line
            self.log.info("%s", line)

    def on_kill(self) -> None:
        """Airflow ends the task: the reading ends at its next report, within a second."""
        self._is_ended = True


# ``VerifySnapshotOperator``: check that a snapshot is complete.


class VerifySnapshotOperator(ReadingOperator):
    """Read every byte of a snapshot, and fail if a part of it is missing or altered.

    With ``deep`` a Spark driver on the worker's machine then loads every row of the state from a fork. The stream is
    not touched. The task waits in its worker, and fails at ``deadline_seconds``; ``deferrable`` has
    no effect.

    Returns ``{stream_id, snapshot_id, ok, problems, loaded}``; a failed task has the same XCom.

    :param snapshot_id: the snapshot; by default the newest one with state. (templated)
    :param master: Spark's master for the driver that reads. (templated)
    :param conf: Spark configuration that overrides the deployment's; a value may be a reference to a secret.
        (templated)
    :param spark: the Spark that reads, instead of the deployment's: an installation, or a virtual environment that has
        pyspark. The deployment's packages and jars, which are for its own Spark, are then left out. Spark 3.5 cannot
        read state: without this, the pyspark of the caller reads what it wrote. (templated)
    :param packages: Maven packages in addition to the deployment's. (templated)
    :param deadline_seconds: seconds until the driver is ended. (templated)
    :param deep: also load every row of its state with Spark. (templated)
    """

    taken: ClassVar[tuple[Term, ...]] = taken_terms(
        required(terms_of(ReadingTerms, "verify"), "snapshot_id"), terms_of(VerifyTerms)
    )
    template_fields: Sequence[str] = (*ReadingOperator.template_fields, *names_of(taken))
    template_fields_renderers: ClassVar[dict[str, str]] = renderers_of(taken)

    def __init__(
        self,
        *,
        # terms
        snapshot_id: str,
        master: str = "local[*]",
        conf: Mapping[str, str] | str | None = None,
        spark: str | None = "",
        packages: Sequence[str] | str | None = (),
        deadline_seconds: float | str = 600.0,
        deep: bool | str = False,
        # end of terms
        **kwargs: Any,
    ) -> None:
        super().__init__(deadline_seconds=deadline_seconds, **kwargs)
        # terms
        self.snapshot_id = snapshot_id
        self.master = master
        self.conf = conf
        self.spark = spark
        self.packages = packages
        self.deadline_seconds = deadline_seconds
        self.deep = deep
        # end of terms
        self._built = True

    def act(self, context: Context, hook: StreamStateHook) -> Mapping[str, Any]:
        deep = rendered_terms(VerifyTerms, self, self.taken).deep
        found = hook.client.readings.verify(self.reading(), deep=deep, on_progress=self.tell)
        result = {"stream_id": str(self.stream_id), **found}
        if not found["ok"]:
            context["ti"].xcom_push(key=RETURN_KEY, value=result)
            raise SnapshotCorruptError(
                "this snapshot is not whole",
                stream_id=str(self.stream_id),
                snapshot_id=found["snapshot_id"],
                problems=[f"{one['query']} {one['path']}: {one['detail']}" for one in found["problems"]],
                next_step="Nothing restores from it; take another one, or fetch it from a mirror.",
            )
        return result


# ``MirrorSnapshotsOperator``: copy the snapshots of a stream to its mirrors.


class MirrorSnapshotsOperator(MasksSecrets, StreamStateOperator):
    """Copy every complete snapshot of a stream to its mirrors, with the files that a deploy from there needs.

    The driver of a stream with mirrors copies its snapshots itself while it runs. Idempotent: a retry copies only what
    is missing. The worker copies the bytes, so ``deferrable`` and ``timeout_seconds`` have no effect; use
    ``execution_timeout``. How it fetches is as in the deployment's settings, unless given.

    Returns ``{stream_id, snapshots: [{snapshot_id, mirror, files, bytes}]}``.

    :param mirrors: URIs to use instead of the mirrors of the current deployment. (templated)
    :param fetch_batch_bytes: how many bytes of a snapshot are fetched at a time. (templated)
    :param fetch_timeout_seconds: a fetch that a store does not answer for this long is abandoned. (templated)
    """

    taken: ClassVar[tuple[Term, ...]] = taken_terms(terms_of(MirrorTerms), kept(terms_of(AgentSettings, "mirror")))
    template_fields: Sequence[str] = (*StreamStateOperator.template_fields, *names_of(taken))
    template_fields_renderers: ClassVar[dict[str, str]] = renderers_of(taken)

    def __init__(
        self,
        *,
        # terms
        mirrors: Sequence[str] | str | None = (),
        fetch_batch_bytes: int | str | None = None,
        fetch_timeout_seconds: float | str | None = None,
        # end of terms
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # terms
        self.mirrors = mirrors
        self.fetch_batch_bytes = fetch_batch_bytes
        self.fetch_timeout_seconds = fetch_timeout_seconds
        # end of terms
        self._built = True

    def act(self, context: Context, hook: StreamStateHook) -> Mapping[str, Any]:  # noqa: ARG002 - asks for no id
        fetching = rendered_values(self, self.taken, AgentSettings)
        stream_id, mirrors = str(self.stream_id), hook.client.mirrors
        copied = mirrors.copy(
            stream_id,
            mirrors.chosen(stream_id, rendered_terms(MirrorTerms, self, self.taken).mirrors),
            batch_bytes=fetching.get("fetch_batch_bytes"),
            timeout_seconds=fetching.get("fetch_timeout_seconds"),
        )
        rows = [done.to_json() for done in copied]
        for row in rows:
            self.log.info("%s at %s: %s files copied, %s bytes", *row.values())
        return {"stream_id": stream_id, "snapshots": rows}


# ``ExportStateOperator``: write the state of a stream as tables.

_TOLD = ("stream_id", "snapshot_id", "deployment_id", "kind", "taken_at", "since_snapshot_id", "export")


class ExportStateOperator(ReadingOperator):
    """Write the state in a snapshot, or its changes since an older snapshot, as tables.

    A Spark driver on the worker's machine reads a fork of the snapshot; the stream may run in the meantime. Idempotent:
    a retry replaces the export of the try before. The task waits in its worker, and fails at ``deadline_seconds``;
    ``deferrable`` has no effect.

    Returns ``{stream_id, snapshot_id, deployment_id, kind, taken_at, since_snapshot_id, export: {uri, format, complete,
    tables, problems}}``. If some of the state could not be read, the task fails, with the same XCom.

    :param out: a folder, or a URI that Spark can write to; not in the home. (templated)
    :param format: parquet, or delta, which needs its packages and conf unless the deployment has them. (templated)
    :param overwrite: replace an earlier export there; other files are never replaced. (templated)
    :param changes_since: write the upserts and deletes that lead from this older snapshot to the newer one. (templated)
    :param snapshot_id: the snapshot; by default the newest one with state. (templated)
    :param query_name: only this query. (templated)
    :param master: Spark's master for the driver that reads. (templated)
    :param conf: Spark configuration that overrides the deployment's; a value may be a reference to a secret.
        (templated)
    :param spark: the Spark that reads, instead of the deployment's: an installation, or a virtual environment that has
        pyspark. The deployment's packages and jars, which are for its own Spark, are then left out. Spark 3.5 cannot
        read state: without this, the pyspark of the caller reads what it wrote. (templated)
    :param packages: Maven packages in addition to the deployment's. (templated)
    :param deadline_seconds: seconds until the driver is ended. (templated)
    """

    taken: ClassVar[tuple[Term, ...]] = taken_terms(
        by_default(terms_of(ExportTerms), overwrite=True), terms_of(ReadingTerms)
    )
    template_fields: Sequence[str] = (*ReadingOperator.template_fields, *names_of(taken))
    template_fields_renderers: ClassVar[dict[str, str]] = renderers_of(taken)
    literal_choices: ClassVar[Mapping[str, Sequence[str]]] = choices_of(taken)

    def __init__(
        self,
        *,
        # terms
        out: str,
        format: str = "parquet",
        overwrite: bool | str = True,
        changes_since: str | None = None,
        snapshot_id: str | None = None,
        query_name: str | None = None,
        master: str = "local[*]",
        conf: Mapping[str, str] | str | None = None,
        spark: str | None = "",
        packages: Sequence[str] | str | None = (),
        deadline_seconds: float | str = 600.0,
        # end of terms
        **kwargs: Any,
    ) -> None:
        super().__init__(deadline_seconds=deadline_seconds, **kwargs)
        # terms
        self.out = out
        self.format = format
        self.overwrite = overwrite
        self.changes_since = changes_since
        self.snapshot_id = snapshot_id
        self.query_name = query_name
        self.master = master
        self.conf = conf
        self.spark = spark
        self.packages = packages
        self.deadline_seconds = deadline_seconds
        # end of terms
        self._built = True

    def act(self, context: Context, hook: StreamStateHook) -> Mapping[str, Any]:
        request = self.reading(**vars(rendered_terms(ExportTerms, self, self.taken)))
        found = hook.client.readings.look(request, self.tell)
        result = {name: found[name] for name in _TOLD}
        unread = [one for query in found["queries"].values() for one in query["problems"]]
        problems = [*found["export"]["problems"], *unread]
        if problems:
            context["ti"].xcom_push(key=RETURN_KEY, value=result)
            raise DataError(
                "some of the state could not be read, and is not in the export",
                stream_id=found["stream_id"],
                snapshot_id=found["snapshot_id"],
                out=found["export"]["uri"],
                problems=problems,
                next_step="VerifySnapshotOperator with deep=True names what is wrong with the snapshot.",
            )
        return result
