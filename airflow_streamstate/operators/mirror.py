"""``MirrorSnapshotsOperator``: copy the snapshots of a stream to its mirrors."""

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
    """Copy every complete snapshot of a stream to its mirrors, with the files that a deploy from there needs.

    The driver of a stream with mirrors copies its snapshots itself while it runs. Idempotent: a retry copies only what
    is missing. The worker copies the bytes, so ``deferrable`` and ``timeout_seconds`` have no effect; use
    ``execution_timeout``.

    Returns ``{stream_id, snapshots: [{snapshot_id, mirror, files, bytes}]}``.

    :param mirrors: URIs to use instead of the current deployment's mirrors. (templated)
    :param fetch_batch_bytes: bytes to fetch at a time; None: the deployment's setting. (templated)
    :param fetch_timeout_seconds: give up a store that does not answer for so long; None: the deployment's setting.
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
