"""Rehearsals: a version that is tried on a fork of the state before anything is stopped, and what became of that.

Its driver may then wait, warm, to become the first attempt of the deployment that takes over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from airflow_streamstate.protocol.codec import Message, message

RehearsalOutcome = Literal["done", "failed", "deadline"]
QueryOutcome = Literal["accepted", "refused", "failed", "not_run"]
SeedTrial = Literal["never", "if_needed", "always"]


@message
@dataclass(frozen=True)
class Rehearsal(Message):
    """A version that is tried; written before anything else of it, so that whoever comes later can remove the rest.

    What runs is its ``DeploymentSpec``, under the same keys as that of a deployment.

    Attributes:
        deployment_id: the current deployment, which it would follow.
        runs_batches: an empty batch is run on a fork of the state of each query; else plans are read alone.
        deadline_at: whatever is not over by then is ended.
        request_id: of whoever asked; the same one finds it again.
        request_digest: sha256 over what was asked.
        fresh_queries: queries that may start with nothing although the snapshot does not know them.
        waits_until: its driver, where it is accepted, begins another pass of the script and waits at its first
            ``start()`` until then; None: it ends with its verdict.
        refuses: verdicts of a plan by which the change is refused whatever Spark says: the driver runs no batch then.
        seeds: whether the driver begins one more pass of the script in which its queries are tried as they would be
            seeded after a drain: never; if the state does not fit; always.
    """

    stream_id: str
    rehearsal_id: str
    deployment_id: str
    runs_batches: bool
    created_at: datetime
    deadline_at: datetime
    requested_by: str
    request_id: str
    request_digest: str
    write_id: str
    fresh_queries: tuple[str, ...] = ()
    waits_until: datetime | None = None
    refuses: tuple[str, ...] = ()
    seeds: SeedTrial = "never"


@dataclass(frozen=True)
class RehearsedQuery:
    """What became of one query of the new version.

    Attributes:
        outcome: ``accepted``: it would start, and an empty batch ran on its state; ``refused``: by a rule of ours, in
            its words; ``failed``: by Spark, in Spark's; ``not_run``: no batch was asked for, or none could be.
        start: how it would start: ``restored``, ``seeded``, ``fresh``; "" where the snapshot does not know it.
        seconds: that it took.
        error: why not; one line, no secrets.
        notes: what a person should know of its start.
    """

    outcome: QueryOutcome
    start: str = ""
    seconds: float = 0.0
    error: str = ""
    notes: tuple[str, ...] = ()


@message
@dataclass(frozen=True)
class RehearsalVerdict(Message):
    """What became of a rehearsal: by its driver, or by a controller where that died or hung. There is one.

    Attributes:
        outcome: ``done``: the script came to its end; ``failed``: it did not, or its driver died; ``deadline``.
        queries: those that it started, by name.
        error: why it is not done; one line, no secrets.
        traceback, log_tail: of a script that failed, of a driver that died.
        seconds: from the driver's first line to the end.
        spark_version: "" where no session came to be.
        notes: what a person should know.
        given_by: ``driver`` or ``controller``.
        seeded: what became of the queries where they were tried as after a drain; {} where they were not.
        seed_error: why that pass of the script did not come to its end; "" where it did, and where there was none.
    """

    stream_id: str
    rehearsal_id: str
    outcome: RehearsalOutcome
    queries: Mapping[str, RehearsedQuery]
    error: str
    seconds: float
    given_by: str
    given_at: datetime
    write_id: str
    traceback: str = ""
    log_tail: str = ""
    spark_version: str = ""
    notes: tuple[str, ...] = ()
    seeded: Mapping[str, RehearsedQuery] = field(default_factory=dict)
    seed_error: str = ""

    @property
    def is_accepted(self) -> bool:
        """Whether the script came to its end, and no query of it would be refused or failed."""
        return self.outcome == "done" and not _refused(self.queries)

    @property
    def is_accepted_as_seed(self) -> bool:
        """Whether the same is so of a start after a drain; False where that was not tried."""
        return self.outcome == "done" and bool(self.seeded) and not self.seed_error and not _refused(self.seeded)

    @property
    def can_take_over(self) -> bool:
        """Whether its driver is good for a handover, after a stop or after a drain."""
        return self.is_accepted or self.is_accepted_as_seed

    @property
    def why_not(self) -> str:
        """What was in the way first, one line; "" where nothing was."""
        refused = (query.error for query in self.queries.values() if query.outcome in ("refused", "failed"))
        return self.error or next(refused, "")


def _refused(queries: Mapping[str, RehearsedQuery]) -> bool:
    return any(query.outcome in ("refused", "failed") for query in queries.values())


@message
@dataclass(frozen=True)
class Waiting(Message):
    """The driver of a rehearsal waits at the first ``start()`` of its second pass; nothing is claimed.

    Attributes:
        query_name: as the script named that query; "" where it did not.
    """

    stream_id: str
    rehearsal_id: str
    at: datetime
    write_id: str
    query_name: str = ""


@message
@dataclass(frozen=True)
class Handover(Message):
    """The driver that waits is from now on this attempt, and claims it; written after its ``LaunchRecord``.

    Attributes:
        launch_key: of the attempt; the driver's own launch has the key of its rehearsal.
    """

    stream_id: str
    rehearsal_id: str
    deployment_id: str
    attempt: int
    launch_key: str
    handed_over_at: datetime
    write_id: str
