"""A stream that was deleted, and another one of its name: who looked at the one deletes nothing of the other."""

from __future__ import annotations

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import ConflictError, DeploymentNotFoundError
from airflow_streamstate.protocol.records import DeploymentSpec


class SameStream:
    """Whether a stream is still the one that was looked at.

    That is told by the record of the deployment which was current then: no prune removes that within ten deployments.

    Args:
        control: the stream.
        spec: of its current deployment, as it was read when the look began.
    """

    def __init__(self, control: StreamControl, spec: DeploymentSpec) -> None:
        self._control = control
        self._spec = spec

    def check(self) -> None:
        """See that it is, right before something is deleted.

        Raises:
            ConflictError: it is not.
        """
        looked = self._spec
        try:
            now = self._control.spec(looked.deployment_id)
        except DeploymentNotFoundError:
            now = None
        if now is None or now.identity != looked.identity:
            raise ConflictError(
                "the stream was deleted while it was pruned",
                stream_id=looked.stream_id,
                deployment_id=looked.deployment_id,
                created_at=looked.created_at,
                next_step="Nothing is left to prune of it; prune again where another stream has its name now.",
            )
