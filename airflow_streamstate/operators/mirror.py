"""``MirrorSnapshotsOperator``: copy the snapshots of a stream to its mirrors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.base import StreamStateOperator
from airflow_streamstate.operators.masking import MasksSecrets
from airflow_streamstate.operators.term_fields import (
    kept,
    names_of,
    rendered_terms,
    rendered_values,
    renderers_of,
    taken_terms,
)
from airflow_streamstate.protocol.settings import AgentSettings
from airflow_streamstate.protocol.terms.declaration import Term, terms_of
from airflow_streamstate.protocol.terms.order import MirrorTerms

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


_SAID = ("snapshot_id", "mirror", "files", "bytes")


class MirrorSnapshotsOperator(MasksSecrets, StreamStateOperator):
    """Copy every complete snapshot of a stream to its mirrors, with the files that a deploy from there needs.

    The driver of a stream with mirrors copies its snapshots itself while it runs. Idempotent: a retry copies only what
    is missing. The worker copies the bytes, so ``deferrable`` and ``timeout_seconds`` have no effect; use
    ``execution_timeout``. How it fetches is as in the deployment's settings, unless given.

    Returns ``{stream_id, snapshots: [{snapshot_id, mirror, files, bytes}]}``.

    :param mirrors: URIs to use instead of the mirrors of the current deployment. (templated)
    :param fetch_batch_bytes: how many bytes of a snapshot are fetched at a time. (templated)
    :param fetch_timeout_seconds: a fetch that a store does not answer for so long is given up. (templated)
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
        rows = [
            {"snapshot_id": done.snapshot_id, "mirror": uri, "files": done.files, "bytes": done.size_bytes}
            for uri, done in copied
        ]
        for row in rows:
            self.log.info("%s at %s: %s files copied, %s bytes", *(row[name] for name in _SAID))
        return {"stream_id": stream_id, "snapshots": rows}
