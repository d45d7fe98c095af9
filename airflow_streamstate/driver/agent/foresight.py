"""Drains that are tried before they are begun: beside the agent's own work, so that every other order is heard."""

from __future__ import annotations

import threading
import traceback

from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.latch import Order
from airflow_streamstate.driver.shutdown.drain_rehearsal import Foreseen, foresee
from airflow_streamstate.errors import FencedError, OutcomeUnknownError, UnavailableError


class Foresight:
    """Tries each drain once, and one at a time: all trials of a query lie in one folder.

    Args:
        attempt: this attempt.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._guard = threading.Lock()
        self._found: dict[str, Foreseen] = {}
        self._under_way: str | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a trial is under way."""
        with self._guard:
            return self._under_way is not None

    def is_trying(self, command_id: str) -> bool:
        """Whether the trial of this drain was begun: it is not too late any more then."""
        with self._guard:
            return command_id == self._under_way or command_id in self._found

    def tried(self, order: Order) -> frozenset[str]:
        """The queries whose flush was tried for this drain."""
        with self._guard:
            return self._found.get(order.command_id, Foreseen()).tried

    def look(self, order: Order) -> Foreseen | None:
        """What the trial of this drain has shown; None while nobody knows: it, or another one, is under way."""
        with self._guard:
            if order.command_id in self._found:
                return self._found[order.command_id]
            if self._under_way is not None:
                return None
            self._under_way = order.command_id
        self._attempt.in_background(lambda: self._try(order), gives_way=False)
        with self._guard:
            return self._found.get(order.command_id)

    def _try(self, order: Order) -> None:
        attempt, found = self._attempt, None
        try:
            found = foresee(attempt, order, list(attempt.queries.values()))
        except FencedError:
            attempt.fence(None)
        except (UnavailableError, OutcomeUnknownError) as error:
            attempt.reporter.outage("the trial of a drain", error)  # the next look begins it anew
        except Exception as error:
            attempt.reporter.say(traceback.format_exc())
            found = Foreseen(problems={"": f"its flush could not be tried: {type(error).__name__}"})
        finally:
            with self._guard:
                self._under_way = None
                if found is not None:
                    self._found[order.command_id] = found
