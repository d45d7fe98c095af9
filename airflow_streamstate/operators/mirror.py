"""``MirrorSnapshotsOperator``: the snapshots of a stream also at another place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_streamstate.hooks.rendered import optional_seconds, optional_text, texts, whole_number
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.base import StreamStateOperator
from airflow_streamstate.operators.masking import MasksSecrets

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


_SAID = ("snapshot_id", "mirror", "files", "bytes")


class MirrorSnapshotsOperator(MasksSecrets, StreamStateOperator):
    """Copy every complete snapshot of a stream to its mirrors, with what a deploy from there needs.

    The driver of a stream that was deployed with mirrors does so by itself while it runs. Idempotent: what is there
    already is not copied again, so a retry goes on where the first try was cut short. The bytes go through the worker,
    which stays with them: ``deferrable`` and ``timeout_seconds`` change nothing; ``execution_timeout`` bounds it.

    Returns ``{stream_id, snapshots: [{snapshot_id, mirror, files, bytes}]}``.

    :param mirrors: there instead of the mirrors of the current deployment. (templated)
    :param fetch_batch_bytes: how much is fetched at a time; None: as the deployment is set. (templated)
    :param fetch_timeout_seconds: a store that does not answer for so long is left; None: as the deployment is set.
        (templated)
    """

    template_fields: Sequence[str] = (
        *StreamStateOperator.template_fields,
        "mirrors",
        "fetch_batch_bytes",
        "fetch_timeout_seconds",
    )

    def __init__(
        self,
        *,
        mirrors: Sequence[str] | str = (),
        fetch_batch_bytes: int | str | None = None,
        fetch_timeout_seconds: float | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.mirrors = mirrors
        self.fetch_batch_bytes = fetch_batch_bytes
        self.fetch_timeout_seconds = fetch_timeout_seconds
        self._built = True

    def act(self, context: Context, hook: StreamStateHook) -> Mapping[str, Any]:  # noqa: ARG002 - asks for no id
        batch_bytes = optional_text(self.fetch_batch_bytes)
        stream_id, mirrors = str(self.stream_id), hook.client.mirrors
        copied = mirrors.copy(
            stream_id,
            mirrors.chosen(stream_id, texts(self.mirrors, "mirrors")),
            batch_bytes=None if batch_bytes is None else whole_number(batch_bytes, "fetch_batch_bytes"),
            timeout_seconds=optional_seconds(self.fetch_timeout_seconds, "fetch_timeout_seconds"),
        )
        rows = [
            {"snapshot_id": done.snapshot_id, "mirror": uri, "files": done.files, "bytes": done.size_bytes}
            for uri, done in copied
        ]
        for row in rows:
            self.log.info("%s at %s: %s files copied, %s bytes", *(row[name] for name in _SAID))
        return {"stream_id": stream_id, "snapshots": rows}
