"""The verbs of a start beside deploy and resume: a batch is skipped."""

from __future__ import annotations

from collections.abc import Callable

from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.deploy.attempts import Attempts
from airflow_streamstate.controller.deploy.skips import SkipOrder, Skips, SkipView
from airflow_streamstate.controller.observe.views import CommandView
from airflow_streamstate.controller.wait.watching import Watching
from airflow_streamstate.protocol.ids import check_id


class Starts:
    """The verbs beside deploy and resume.

    Args:
        means: of the controller.
        attempts: starts the attempt that skips a batch.
        watching: says what became of an order.
    """

    def __init__(self, means: ControllerContext, attempts: Attempts, watching: Watching) -> None:
        self._clock = means.clock
        self._skips = Skips(means, attempts, watching)

    def what_skip_passes_over(self, wish: SkipOrder) -> SkipView:
        """The input that a skip would pass over; changes nothing. Raises as ``skips.Skips.look``."""
        return self._skips.look(wish)

    def skip(
        self, wish: SkipOrder, request_id: str | None = None, on_view: Callable[[SkipView], None] = lambda _: None
    ) -> CommandView:
        """Have a batch that always fails committed without its rows by the next attempt, and start that.

        Args:
            wish: which batch, and why.
            request_id: names the request over all its tries; None for a new one.
            on_view: told what is passed over, before anything is recorded.

        Raises:
            StreamNotFoundError, InvalidRequestError, ConflictError: as ``skips.Skips.skip``.
        """
        name = self._clock.new_uuid() if request_id is None else check_id(request_id, "request id")
        return self._skips.skip(wish, name, on_view)
