"""``VerifySnapshotOperator``: check that a snapshot is whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_streamstate.errors import SnapshotCorruptError
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.base import RETURN_KEY
from airflow_streamstate.operators.reading import ReadingOperator
from airflow_streamstate.operators.term_fields import names_of, rendered_terms, renderers_of, required, taken_terms
from airflow_streamstate.protocol.terms.declaration import Term, terms_of
from airflow_streamstate.protocol.terms.reading import ReadingTerms, VerifyTerms

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


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
