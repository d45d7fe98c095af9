"""How a version starts, and what the user consents to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Literal, get_args

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.fields import QueryName
from airflow_streamstate.protocol.ids import check_id, encode_query_name

StartMode = Literal["restore", "seed", "fresh"]
START_MODES: tuple[StartMode, ...] = get_args(StartMode)


@dataclass(frozen=True)
class HandoverTerms:
    """What a version does with the state of the version before: of a deploy, an upgrade and a rollback.

    Attributes:
        allow_state_loss: drop state that the drain could not flush (Law 16).
        allow_new_queries: queries that may start empty although the snapshot does not have them.
        rename_queries: by the name that the snapshot has, the name that the script gives the query now.
        move_sources: where folders of file sources were at the snapshot, and where the same files are now.
        accept_lost_input: queries that may continue although input after their offsets cannot be read any more.
        accept_hazards: continue the state by a hazardous plan; a difference that needs a drain still needs it (Law 17).
    """

    allow_state_loss: bool = False
    allow_new_queries: tuple[QueryName, ...] = ()
    rename_queries: Mapping[QueryName, QueryName] = field(default_factory=dict)
    move_sources: Mapping[str, str] = field(default_factory=dict)
    accept_lost_input: tuple[QueryName, ...] = ()
    accept_hazards: bool = False

    def __post_init__(self) -> None:
        named = (*self.rename_queries, *self.rename_queries.values(), *self.allow_new_queries, *self.accept_lost_input)
        for query_name in named:
            encode_query_name(query_name)


@dataclass(frozen=True)
class StartTerms(HandoverTerms):
    """How a deployment starts.

    Attributes:
        start: None: the snapshot at the predecessor's end decides; a stream's first deployment starts fresh.
        snapshot_id: the expected start snapshot: a check, not a choice (1a.9).
        max_snapshot_age_seconds: refuse to start from an older snapshot; None for no bound.
        offsets: of a seed: the start offset of each source by query, in Spark's format and the snapshot's order.
        begins_at: of a seed: every query starts with the input of this time instead.
        accept_repeated_input: queries that may read input again.
        assume_dead: take over from a driver of unknown state.
        revive: deploy although the stream was retired.

    Raises:
        InvalidRequestError: a value is malformed, or two of them contradict each other.
    """

    start: StartMode | None = None
    snapshot_id: str | None = None
    max_snapshot_age_seconds: float | None = None
    offsets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    begins_at: datetime | None = None
    accept_repeated_input: tuple[str, ...] = ()
    assume_dead: bool = False
    revive: bool = False

    @property
    def handover(self) -> HandoverTerms:
        """The terms that an upgrade has, too."""
        return HandoverTerms(**{each.name: getattr(self, each.name) for each in fields(HandoverTerms)})

    @property
    def begins_elsewhere(self) -> bool:
        """Whether it starts at other offsets than its predecessor's end."""
        return bool(self.offsets) or self.begins_at is not None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.snapshot_id is not None:
            check_id(self.snapshot_id, "snapshot id")
        if self.start is not None and self.start not in START_MODES:
            raise InvalidRequestError(
                "unknown start mode", start=str(self.start)[:60], next_step="Use restore, seed or fresh."
            )
        if self.start == "fresh" and self.snapshot_id is not None:
            raise InvalidRequestError(
                "a fresh start takes nothing from a snapshot",
                snapshot_id=self.snapshot_id,
                next_step="Leave out the snapshot, or the fresh start.",
            )
        for query_name in (*self.accept_repeated_input, *self.offsets):
            encode_query_name(query_name)
        self._check_elsewhere()

    def _check_elsewhere(self) -> None:
        if not self.begins_elsewhere:
            return
        if self.start != "seed":
            raise InvalidRequestError(
                "only a seed can begin elsewhere: state belongs to the offsets that it was built from",
                start=self.start,
                next_step="Say --start seed, or leave out the offsets and the time.",
            )
        if self.offsets and self.begins_at is not None:
            raise InvalidRequestError(
                "offsets and a time exclude each other", next_step="Give the offsets, or the time."
            )
        if self.begins_at is not None and self.begins_at.utcoffset() is None:
            raise InvalidRequestError(
                "this time has no time zone", begins_at=str(self.begins_at), next_step="End it with Z, or +01:00."
            )
