"""``ExportStateOperator``: write the state of a stream as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_streamstate.errors import DataError
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.base import RETURN_KEY
from airflow_streamstate.operators.reading import ReadingOperator
from airflow_streamstate.operators.term_fields import (
    by_default,
    choices_of,
    names_of,
    rendered_terms,
    renderers_of,
    taken_terms,
)
from airflow_streamstate.protocol.terms.declaration import Term, terms_of
from airflow_streamstate.protocol.terms.reading import ExportTerms, ReadingTerms

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

_TOLD = ("stream_id", "snapshot_id", "deployment_id", "kind", "taken_at", "since_snapshot_id", "export")


class ExportStateOperator(ReadingOperator):
    """Write the state in a snapshot, or its changes since an older snapshot, as tables.

    A Spark driver on the worker's machine reads a fork of the snapshot; the stream may run meanwhile. Idempotent: a
    retry replaces the export of the try before. The task waits in its worker, and fails at
    ``deadline_seconds``; ``deferrable`` has no effect.

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
