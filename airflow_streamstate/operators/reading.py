"""Base of the operators whose own Spark driver reads the state of a snapshot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowException

from airflow_streamstate.hooks.rendered import as_seconds, optional_text, text_mapping, texts
from airflow_streamstate.operators.base import StreamStateOperator
from airflow_streamstate.operators.masking import MasksSecrets
from airflow_streamstate.protocol.readings import LOCAL_MASTER

if TYPE_CHECKING:
    from airflow_streamstate.controller.state_reader.choosing import ReadingRequest


class ReadingOperator(MasksSecrets, StreamStateOperator):
    """Base of ``ExportStateOperator`` and ``VerifySnapshotOperator``, which document its parameters.

    The driver runs on the worker's machine, on a fork of the snapshot, and leaves its answer there, so the task stays
    in its worker. If the task is ended or dies, its driver ends at ``deadline_seconds`` at the latest.
    """

    template_fields: Sequence[str] = (
        *(name for name in StreamStateOperator.template_fields if name != "timeout_seconds"),
        "deadline_seconds",
        "snapshot_id",
        "master",
        "conf",
        "packages",
    )

    def __init__(
        self,
        *,
        snapshot_id: str | None = None,
        master: str = LOCAL_MASTER,
        conf: Mapping[str, str] | str | None = None,
        packages: Sequence[str] | str = (),
        deadline_seconds: float | str = 600.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(timeout_seconds=deadline_seconds, **kwargs)
        self.deadline_seconds = deadline_seconds
        self.snapshot_id = snapshot_id
        self.master = master
        self.conf = conf
        self.packages = packages
        self._is_ended = False
        self._told = ""

    def reading(self, **more: Any) -> ReadingRequest:
        """The rendered request, with what an operator adds to it."""
        from airflow_streamstate.controller.state_reader.choosing import ReadingRequest

        return ReadingRequest(
            stream_id=str(self.stream_id),
            snapshot_id=optional_text(self.snapshot_id),
            master=optional_text(self.master) or LOCAL_MASTER,
            conf=text_mapping(self.conf, "conf"),
            packages=texts(self.packages, "packages"),
            deadline_seconds=as_seconds(self.deadline_seconds, "deadline_seconds"),
            **more,
        )

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
