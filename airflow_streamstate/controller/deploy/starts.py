"""The client's verb ``skip``."""

from __future__ import annotations

from collections.abc import Callable

from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.deploy.attempts import Attempts
from airflow_streamstate.controller.deploy.skips import SkipOrder, Skips, SkipView
from airflow_streamstate.controller.idempotency import request_id_or_new
from airflow_streamstate.controller.observe.views import CommandView
from airflow_streamstate.controller.wait.watching import Watching


class Starts:
    """The verbs of a start beside deploy and resume."""

    def __init__(self, context: ControllerContext, attempts: Attempts, watching: Watching) -> None:
        self._clock = context.clock
        self._skips = Skips(context, attempts, watching)

    def what_skip_passes_over(self, order: SkipOrder) -> SkipView:
        """The input that a skip would pass over; changes nothing. Raises as ``Skips.look``."""
        return self._skips.look(order)

    def skip(
        self, order: SkipOrder, request_id: str | None = None, on_view: Callable[[SkipView], None] = lambda _: None
    ) -> CommandView:
        """Start an attempt that commits a batch without its rows, for a batch that always fails.

        Args:
            request_id: the same for all tries of one request; None for a new one.
            on_view: gets the skipped input before anything is recorded.

        Raises:
            StreamNotFoundError, InvalidRequestError, ConflictError: as ``Skips.skip``.
        """
        return self._skips.skip(order, request_id_or_new(request_id, self._clock), on_view)
