"""Base of the operators whose own Spark driver reads the state of a snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import AirflowException

from airflow_streamstate.operators.base import StreamStateOperator
from airflow_streamstate.operators.masking import MasksSecrets
from airflow_streamstate.operators.term_fields import rendered_values
from airflow_streamstate.protocol.terms.declaration import Term
from airflow_streamstate.protocol.terms.reading import ReadingTerms

if TYPE_CHECKING:
    from airflow_streamstate.controller.scratch.reading_request import ReadingRequest


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
        from airflow_streamstate.controller.scratch.reading_request import ReadingRequest

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
