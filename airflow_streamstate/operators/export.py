"""``ExportStateOperator``: write the state of a stream as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_streamstate.errors import DataError
from airflow_streamstate.hooks.rendered import one_of, optional_text, yes_or_no
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.base import RETURN_KEY
from airflow_streamstate.operators.reading import ReadingOperator

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

_TOLD = ("stream_id", "snapshot_id", "deployment_id", "kind", "taken_at", "since_snapshot_id", "export")


class ExportStateOperator(ReadingOperator):
    """Write the state in a snapshot, or its changes since an older snapshot, as tables.

    A Spark driver on the worker's machine reads a fork of the snapshot; the stream may run meanwhile. Idempotent: a
    retry replaces the export of the try before. The task waits in its worker; ``deferrable`` has no effect.

    Returns ``{stream_id, snapshot_id, deployment_id, kind, taken_at, since_snapshot_id, export: {uri, format, complete,
    tables, problems}}``. If some of the state could not be read, the task fails, with the same XCom.

    :param out: a folder of the worker, or a URI that Spark can write to; not in the home. (templated)
    :param snapshot_id: None: the newest snapshot with state. (templated)
    :param changes_since: write the upserts and deletes that lead from this older snapshot to the newer one. (templated)
    :param query_name: only this query. (templated)
    :param format: ``parquet`` or ``delta``, which needs its ``packages`` and ``conf``. (templated)
    :param overwrite: replace an earlier export in ``out``; other files are never replaced. (templated)
    :param master: Spark's master for the driver that reads. (templated)
    :param conf: Spark configuration that overrides the deployment's; a value may be a reference to a secret.
        (templated)
    :param packages: Maven coordinates in addition to the deployment's. (templated)
    :param deadline_seconds: when the driver is ended, and the task fails. (templated)
    """

    template_fields: Sequence[str] = (
        *ReadingOperator.template_fields,
        "out",
        "changes_since",
        "query_name",
        "format",
        "overwrite",
    )

    def __init__(
        self,
        *,
        out: str,
        changes_since: str | None = None,
        query_name: str | None = None,
        format: str = "parquet",
        overwrite: bool | str = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.out = out
        self.changes_since = changes_since
        self.query_name = query_name
        self.format = format
        self.overwrite = overwrite
        self._built = True

    def act(self, context: Context, hook: StreamStateHook) -> Mapping[str, Any]:
        from airflow_streamstate.snapshot.state_order import EXPORT_FORMATS

        request = self.reading(
            query_name=optional_text(self.query_name),
            since_snapshot_id=optional_text(self.changes_since),
            out=str(self.out),
            format=one_of(self.format, EXPORT_FORMATS, "format"),
            overwrite=yes_or_no(self.overwrite, "overwrite"),
        )
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
