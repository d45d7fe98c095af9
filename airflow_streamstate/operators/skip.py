"""``SkipBatchOperator``: a batch that always fails, passed over by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_streamstate.connectors.moving import describe
from airflow_streamstate.controller.deploy.skips import SkipOrder, SkipView
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.hooks.rendered import optional_text, whole_number, yes_or_no
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.base import StreamStateOperator, ordered, request_id_of

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class SkipBatchOperator(StreamStateOperator):
    """Commit a batch that is planned and always fails, without reading its rows, and go on behind it.

    For a stream that has ended: the next attempt is started, and does it before the query starts. The state stays as it
    was; the offsets that are passed over are a gap with a name. Idempotent: a retry, or a task that was cleared,
    finds its order, or what became of it; with another batch it asks for something else.

    Returns ``{stream_id, command_id, deployment_id, query, batch_id, moves}``; without ``wait_for_completion``
    ``{stream_id, deployment_id, command_id, key, state}``.

    :param batch_id: the batch that the next start would run first. (templated)
    :param reason: why; kept with the gap, and needed. (templated)
    :param query_name: whose batch, where several queries have that one planned. (templated)
    :param accept_written_rows: the sink may hold some of its output, and that stays there; without it refused.
        (templated)
    :param assume_dead: go on although the launcher cannot say whether the old driver is dead. (templated)
    :param wait_for_completion: wait until the batch is skipped, for ``timeout_seconds`` at most.
    """

    template_fields: Sequence[str] = (
        *StreamStateOperator.template_fields,
        "batch_id",
        "query_name",
        "accept_written_rows",
        "assume_dead",
    )

    def __init__(
        self,
        *,
        batch_id: int | str,
        query_name: str | None = None,
        accept_written_rows: bool | str = False,
        assume_dead: bool | str = False,
        wait_for_completion: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.batch_id = batch_id
        self.query_name = query_name
        self.accept_written_rows = accept_written_rows
        self.assume_dead = assume_dead
        self.wait_for_completion = wait_for_completion

    def act(self, context: Context, hook: StreamStateHook) -> Mapping[str, Any]:
        request = SkipOrder(
            stream_id=str(self.stream_id),
            batch_id=whole_number(self.batch_id, "batch_id"),
            reason=str(self.reason),
            query_name=optional_text(self.query_name),
            accepts_written=yes_or_no(self.accept_written_rows, "accept_written_rows"),
            assume_dead=yes_or_no(self.assume_dead, "assume_dead"),
        )
        purpose = f"{request.batch_id} {request.query_name} {request.accepts_written}"
        order = hook.client.starts.skip(request, request_id_of(context, purpose), self._say_what_is_passed_over)
        if not self.wait_for_completion:
            return ordered(order)
        return self.wait_until_done(hook, WaitCondition.of(order))

    def _say_what_is_passed_over(self, view: SkipView) -> None:
        for move in describe(view.moves):
            self.log.warning("Batch %s of query %s is passed over: %s", view.batch_id, view.query_name, move)
