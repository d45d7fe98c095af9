"""What happens when a driver fails: the policy of a stream, and what watchers have recorded; both in its register."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.fields import Attempt, DeploymentId, QueryName, Seconds
from airflow_streamstate.protocol.terms.declaration import check_names, check_terms, term

OnFailure = Literal["restart", "alert", "nothing"]
ON_FAILURE: tuple[OnFailure, ...] = ("restart", "alert", "nothing")
_DAY_SECONDS = 86_400.0
_HEADING = "Restart"


@dataclass(frozen=True)
class RestartPolicy:
    """What watchers do when a driver of the stream fails."""

    on_failure: OnFailure = term(
        "nothing",
        help="what `streamstate watch` does when a driver fails: start it again, say it once, or only show it",
        heading=_HEADING,
        verbs=("upgrade",),
    )
    initial_backoff_seconds: Seconds = term(
        10.0, help="seconds from the first failure to the restart", heading=_HEADING, least=0, most=_DAY_SECONDS
    )
    backoff_factor: float = term(
        2.0, help="how much longer each further backoff is, until a driver was healthy", heading=_HEADING, least=1,
        most=100,
    )  # fmt: skip
    max_backoff_seconds: Seconds = term(
        300.0,
        help="the longest backoff; up to a fifth is added at random",
        heading=_HEADING,
        least=0,
        most=_DAY_SECONDS,
    )
    max_restarts: int = term(
        5,
        help="after so many restarts within {restart_window_seconds} the stream stays failed",
        heading=_HEADING,
        least=1,
        most=1_000_000,
    )
    restart_window_seconds: Seconds = term(
        3600.0, help="see {max_restarts}", heading=_HEADING, least=1, most=31 * _DAY_SECONDS
    )
    healthy_for_seconds: Seconds = term(
        600.0,
        help="a driver that committed batches and lived for so long makes all counts begin again",
        heading=_HEADING,
        least=1,
        most=31 * _DAY_SECONDS,
    )
    restore_lost_checkpoint: bool = term(
        False,
        help="if a checkpoint is lost or damaged, go back to the newest good snapshot, and undo the sinks to it; else"
        " the stream stays failed",
        flag="--restore-lost-checkpoint/--no-restore-lost-checkpoint",
        heading=_HEADING,
    )
    hung_after_seconds: Seconds = term(
        600.0,
        help="a driver that lives and gives no sign of life for so long is ended, then restarted; 0: never",
        heading=_HEADING,
        least=0,
        most=31 * _DAY_SECONDS,
    )

    def changed(self, given: Mapping[str, Any]) -> RestartPolicy:
        """The policy with these values in place of its own.

        Raises:
            InvalidRequestError: there is no such value, or one is out of its range.
        """
        check_names(RestartPolicy, given, "the restart policy has no such value")
        found = replace(self, **given)
        found._check()
        return found

    def _check(self) -> None:
        check_terms(self)
        if self.max_backoff_seconds < self.initial_backoff_seconds:
            raise InvalidRequestError(
                "the longest backoff of the restart policy is shorter than the first one",
                initial_backoff_seconds=self.initial_backoff_seconds,
                max_backoff_seconds=self.max_backoff_seconds,
                next_step="Raise max_backoff_seconds, or lower initial_backoff_seconds.",
            )


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
