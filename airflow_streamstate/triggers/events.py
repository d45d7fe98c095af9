"""The trigger's events, as plain JSON: ``{"outcome", "watch", "result", "error"}``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.errors import DataError, StreamStateError
from airflow_streamstate.hooks.refusals import error_from_json
from airflow_streamstate.protocol.views import View

EventOutcome = Literal["done", "over", "deadline"]
_OUTCOMES: tuple[EventOutcome, ...] = ("done", "over", "deadline")


@dataclass(frozen=True)
class EventContent(View):
    """A valid event.

    Attributes:
        outcome: ``done``: the condition was met; ``over``: it can no longer be met; ``deadline``: no time was left.
        result: of ``done``; else None.
        error: the reason of ``over`` and ``deadline``; else None.
    """

    outcome: EventOutcome
    watch: WaitCondition
    result: dict[str, Any] | None = None
    error: StreamStateError | None = None

    def need_result(self) -> dict[str, Any]:
        """The result; raises the error if there is none."""
        if self.error is not None:
            raise self.error
        return dict(self.result or {})


def read_event(event: Any) -> EventContent:
    """The content of an event, checked: it came through a database.

    Raises:
        DataError: it is no event of this trigger.
    """
    try:
        if not isinstance(event, dict) or event.get("outcome") not in _OUTCOMES:
            raise ValueError("no known outcome")
        watch = WaitCondition.from_json(event.get("watch"))
        if event["outcome"] != "done":
            return EventContent(event["outcome"], watch, error=error_from_json(event.get("error")))
        return EventContent("done", watch, result=dict(event["result"]))
    except (ValueError, TypeError, KeyError) as problem:
        raise DataError(
            "this is no event of StreamStateTrigger",
            reason=str(problem),
            next_step="Clear the task; if it comes again, restart the triggerer: it may run another release.",
        ) from None
