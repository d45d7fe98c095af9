"""Drains that are tried before they are begun: beside the agent's own work, so that every other order is heard."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_streamstate.errors import FencedError, OutcomeUnknownError, UnavailableError
from airflow_streamstate.runtime.attempt.attempt import Attempt
from airflow_streamstate.runtime.attempt.latch import Order
from airflow_streamstate.runtime.ending.foreseeing import foresee


@dataclass
class _Trial:
    """Attributes:
    problems: by query; None while it is under way.
    """

    problems: dict[str, str] | None = None
    is_under_way: bool = False


class Foresight:
    """Tries each drain once.

    Args:
        attempt: this attempt.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._trials: dict[str, _Trial] = {}

    def knows(self, order: Order) -> bool:
        """Whether the trial of this drain was begun."""
        return order.command_id in self._trials

    def problems(self, order: Order) -> dict[str, str] | None:
        """Why the drain must not be done, by query; None while nobody knows, as its trial is under way."""
        trial = self._trials.setdefault(order.command_id, _Trial())
        if trial.problems is None and not trial.is_under_way:
            trial.is_under_way = True
            self._attempt.in_background(lambda: self._try(order, trial), gives_way=False)
        return trial.problems

    def _try(self, order: Order, trial: _Trial) -> None:
        attempt = self._attempt
        try:
            trial.problems = foresee(attempt, order, list(attempt.queries.values()))
        except FencedError:
            attempt.fence(None)
        except (UnavailableError, OutcomeUnknownError) as error:
            attempt.reporter.outage("the trial of a drain", error)  # the next look begins it anew
        finally:
            trial.is_under_way = False
