"""What happens when a driver fails: the policy of a stream, and what watchers have recorded; both in its register."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Literal

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.fields import Attempt, DeploymentId, QueryName, Seconds

OnFailure = Literal["restart", "alert", "nothing"]
ON_FAILURE: tuple[OnFailure, ...] = ("restart", "alert", "nothing")
_DAY_SECONDS = 86_400.0
_RANGES: Mapping[str, tuple[float, float]] = {
    "initial_backoff_seconds": (0, _DAY_SECONDS),
    "backoff_factor": (1, 100),
    "max_backoff_seconds": (0, _DAY_SECONDS),
    "max_restarts": (1, 1_000_000),
    "restart_window_seconds": (1, 31 * _DAY_SECONDS),
    "healthy_for_seconds": (1, 31 * _DAY_SECONDS),
    "hung_after_seconds": (0, 31 * _DAY_SECONDS),
}


@dataclass(frozen=True)
class RestartPolicy:
    """What watchers do when a driver of the stream fails.

    Attributes:
        on_failure: ``restart``: start its next attempt; ``alert``: say it once; ``nothing``: only show it.
        initial_backoff_seconds: between the first failure and the restart.
        backoff_factor: each further backoff is longer by this factor, until an attempt was healthy.
        max_backoff_seconds: the longest backoff. Up to a fifth of each backoff is added at random.
        max_restarts, restart_window_seconds: after so many restarts within so many seconds the stream stays failed.
        healthy_for_seconds: an attempt that committed batches and lived for so long makes all counts begin again.
        restore_lost_checkpoint: where a checkpoint is lost or damaged, go back to the newest good snapshot, and undo
            the sinks to it; False: the stream stays failed.
        hung_after_seconds: with ``restart``: a driver that its launcher says to live, and that has given no sign of
            life for so long, is ended, and the next attempt follows its proven end; 0: it is only shown as ``silent``.
    """

    on_failure: OnFailure = "nothing"
    initial_backoff_seconds: Seconds = 10.0
    backoff_factor: float = 2.0
    max_backoff_seconds: Seconds = 300.0
    max_restarts: int = 5
    restart_window_seconds: Seconds = 3600.0
    healthy_for_seconds: Seconds = 600.0
    restore_lost_checkpoint: bool = False
    hung_after_seconds: Seconds = 600.0

    def changed(self, given: Mapping[str, Any]) -> RestartPolicy:
        """The policy with these values in place of its own.

        Raises:
            InvalidRequestError: there is no such value, or one is out of its range.
        """
        unknown = sorted(set(given) - set(asdict(self)))
        if unknown:
            raise InvalidRequestError(
                "the restart policy has no such value",
                name=str(unknown[0])[:60],
                next_step=f"There are {', '.join(asdict(self))}.",
            )
        found = replace(self, **given)
        found._check()
        return found

    def _check(self) -> None:
        if self.on_failure not in ON_FAILURE:
            raise InvalidRequestError(
                "unknown value of on_failure",
                on_failure=str(self.on_failure)[:60],
                next_step="Use restart, alert or nothing (the default).",
            )
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if not _is_number(value, whole=name == "max_restarts") or not least <= value <= most:
                raise InvalidRequestError(
                    "this value of the restart policy is out of its range",
                    name=name,
                    value=str(value)[:60],
                    next_step=f"Use a {'whole ' if name == 'max_restarts' else ''}number from {least:g} to {most:.0f}.",
                )
        if self.max_backoff_seconds < self.initial_backoff_seconds:
            raise InvalidRequestError(
                "the longest backoff of the restart policy is shorter than the first one",
                initial_backoff_seconds=self.initial_backoff_seconds,
                max_backoff_seconds=self.max_backoff_seconds,
                next_step="Raise max_backoff_seconds, or lower initial_backoff_seconds.",
            )
        if not isinstance(self.restore_lost_checkpoint, bool):
            raise InvalidRequestError(
                "restore_lost_checkpoint of the restart policy is true or false",
                value=str(self.restore_lost_checkpoint)[:60],
            )


def _is_number(value: object, *, whole: bool) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and (isinstance(value, int) or not whole)


@dataclass(frozen=True)
class BatchFailure:
    """A batch that fails: what is compared with the next failure.

    Attributes:
        error: the cause in one line.
        times: how often in a row.
    """

    query_name: QueryName
    batch_id: int
    error: str
    times: int


@dataclass(frozen=True)
class Restarts:
    """What watchers have recorded of a stream's failures. A deploy or resume by anybody else removes it.

    Attributes:
        deployment_id, attempt: the attempt whose failure is recorded, or that a watcher has started.
        is_started: that attempt was started by a watcher, and no failure of it is recorded yet.
        recorded_at: by the clock of the watcher that wrote it.
        recorded_on: the host of that watcher; "" where no watcher did, but a stop or a kill by somebody.
        ages_seconds: of each restart that counts, how many seconds are known to have passed since it. Sums of what
            single clocks measured, so clocks that differ do not matter.
        failures: in a row, without a healthy attempt between them.
        backoff_seconds: from ``recorded_at`` to the next attempt; None where there will be none.
        reason: of the last failure, for people.
        batch: the batch that failed last; None where no batch did.
        gave_up: why no attempt follows; "" where one does.
        is_told: that failure was told by ``alert``.
        is_hung: the attempt was silent for too long, so its driver is ended before the next attempt; a driver that
            wakes before its end makes this record void.
    """

    deployment_id: DeploymentId
    attempt: Attempt
    is_started: bool
    recorded_at: datetime
    recorded_on: str
    ages_seconds: tuple[Seconds, ...] = ()
    failures: int = 0
    backoff_seconds: Seconds | None = None
    reason: str = ""
    batch: BatchFailure | None = None
    gave_up: str = ""
    is_told: bool = False
    is_hung: bool = False

    @property
    def is_of_somebody(self) -> bool:
        """Whether somebody ended that attempt by a stop or a kill, and ``reason`` says who."""
        return not self.recorded_on and bool(self.gave_up)
