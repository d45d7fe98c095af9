"""What is asked of a start, and of what comes after it: that it catches up, and that it begins where one says."""

from __future__ import annotations

from collections.abc import Callable

from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.deploy.attempts import Attempts
from airflow_streamstate.controller.deploy.skips import SkipOrder, Skips, SkipView
from airflow_streamstate.controller.idempotency import request_id_or_new
from airflow_streamstate.controller.observe.caught_up import decide_caught_up
from airflow_streamstate.controller.observe.views import CommandView, StreamStatus
from airflow_streamstate.controller.wait.waiting import Report, Waits
from airflow_streamstate.controller.wait.watching import Watching


class Starts:
    """The verbs beside deploy and resume.

    Args:
        means: of the controller.
        attempts: starts the attempt that skips a batch.
        watching: says what became of an order.
        waits: waits.
    """

    def __init__(self, means: ControllerContext, attempts: Attempts, watching: Watching, waits: Waits) -> None:
        self._clock = means.clock
        self._observer = means.observer
        self._waits = waits
        self._skips = Skips(means, attempts, watching)

    def what_skip_passes_over(self, order: SkipOrder) -> SkipView:
        """The input that a skip would pass over; changes nothing. Raises as ``skips.Skips.look``."""
        return self._skips.look(order)

    def skip(
        self, order: SkipOrder, request_id: str | None = None, on_view: Callable[[SkipView], None] = lambda _: None
    ) -> CommandView:
        """Have a batch that always fails committed without its rows by the next attempt, and start that.

        Args:
            order: which batch, and why.
            request_id: names the request over all its tries; None for a new one.
            on_view: told what is passed over, before anything is recorded.

        Raises:
            StreamNotFoundError, InvalidRequestError, ConflictError: as ``skips.Skips.skip``.
        """
        return self._skips.skip(order, request_id_or_new(request_id, self._clock), on_view)

    def wait_caught_up(
        self,
        stream_id: str,
        deployment_id: str,
        timeout_seconds: float,
        on_progress: Report | None = None,
        *,
        at_most: int = 0,
    ) -> StreamStatus:
        """Wait until a deployment is healthy, and has read what there is (``caught_up.decide_caught_up``).

        Args:
            stream_id, deployment_id: which.
            timeout_seconds: how long.
            on_progress: told what was seen, each time.
            at_most: so much may be left of each source, in its own unit.

        Raises:
            DeploymentFailedError, ConflictError: it cannot come any more.
            DeadlineExceededError: not within the timeout; says what is missing, and the work goes on.
        """
        return self._waits.caught_up(stream_id, deployment_id, timeout_seconds, on_progress, at_most)

    def is_caught_up(self, stream_id: str, deployment_id: str, *, at_most: int = 0) -> StreamStatus | None:
        """One look of ``wait_caught_up``; None while it may still come. Raises as that, but for a deadline."""
        return self._waits.status_if_caught_up(self._observer.observe(stream_id, deployment_id), at_most)

    def left_in_words(self, stream_id: str, deployment_id: str, *, at_most: int = 0) -> str:
        """Whether it has caught up, and by what that is known, in one clause."""
        return decide_caught_up(self._observer.observe(stream_id, deployment_id), at_most).why
