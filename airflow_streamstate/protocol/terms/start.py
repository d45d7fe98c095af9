"""How a version starts, and what the user consents to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from typing import Literal, get_args

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.fields import QueryName, Seconds, SnapshotId
from airflow_streamstate.protocol.ids import check_id, encode_query_name
from airflow_streamstate.protocol.terms.declaration import check_terms, term

StartMode = Literal["restore", "seed", "fresh"]
START_MODES: tuple[StartMode, ...] = get_args(StartMode)
MOST_SNAPSHOT_AGE_SECONDS = 10 * 365 * 86_400.0


_ONCE = "it is of one start, and a file is applied again and again: give it to the verb that needs it"
_START, _CONSENT = "Start", "Consent"


@dataclass(frozen=True)
class LostInputTerms:
    """A consent of every verb that continues a query at its offsets."""

    accept_lost_input: tuple[QueryName, ...] = term(
        (),
        help="queries that may continue although input after their offsets is lost at the source",
        heading=_CONSENT,
        verbs=("change",),
        in_files=_ONCE,
        retried="in any order",
    )


@dataclass(frozen=True)
class HazardTerms:
    """A consent of every verb that may continue a state by another plan (Law 17)."""

    accept_hazards: bool = term(
        False,
        help="accept a `hazardous` plan; a difference that needs a drain still needs it",
        heading=_CONSENT,
        verbs=("restart", "deploy", "resume"),
        names={"files": "upgrade.accept_hazards"},
    )


@dataclass(frozen=True)
class HandoverTerms(LostInputTerms):
    """What a version does with the state of the version before: of a deploy and of a change.

    Raises:
        InvalidRequestError: a value is malformed.
    """

    allow_state_loss: bool = term(
        False, help="drop state that the drain could not flush", heading=_CONSENT, verbs=("change",), in_files=_ONCE
    )
    allow_new_queries: tuple[QueryName, ...] = term(
        (),
        help="queries that may start empty although the snapshot does not contain them",
        flag="--allow-new-query",
        heading=_CONSENT,
        verbs=("change", "adopt"),
        retried="in any order",
    )
    rename_queries: Mapping[QueryName, QueryName] = term(
        {},
        help="queries that the script has renamed: by their names in the snapshot, their names now; their state is"
        " kept",
        flag="--rename-query",
        metavar="OLD=NEW",
        heading=_START,
        verbs=("change",),
    )
    move_sources: Mapping[str, str] = term(
        {},
        help="folders of file sources that have moved: by the folder at the snapshot, the folder below which the same"
        " files are now, under the same names. The script reads the new folder; what was read is not read again",
        flag="--move-source",
        metavar="OLD=NEW",
        heading=_START,
        verbs=("change",),
    )

    def __post_init__(self) -> None:
        named = (*self.rename_queries, *self.rename_queries.values(), *self.allow_new_queries, *self.accept_lost_input)
        for query_name in named:
            encode_query_name(query_name)
        check_terms(self)


@dataclass(frozen=True)
class StartTerms(HazardTerms, HandoverTerms):
    """How a deployment starts.

    Raises:
        InvalidRequestError: a value is malformed, or two of them contradict each other.
    """

    start: StartMode | None = term(
        None,
        help="start with the state of the last snapshot (restore), with its offsets alone (seed), or empty (fresh). By"
        " default the last snapshot decides between the first two",
    )
    snapshot_id: SnapshotId | None = term(
        None,
        help="check that it starts from this snapshot",
        metavar="ID",
        heading=_START,
        in_files=_ONCE,
    )
    max_snapshot_age_seconds: Seconds | None = term(
        None, help="refuse to start from an older snapshot", heading=_START, least=0.1, most=MOST_SNAPSHOT_AGE_SECONDS,
        in_files=_ONCE,
    )  # fmt: skip
    offsets: Mapping[QueryName, tuple[str, ...]] = term(
        {},
        help="with the start mode seed: start at these offsets, by query, one text per source as Spark writes it, in"
        " the order that `snapshot list --json` shows",
        heading=_START,
        in_files=_ONCE,
    )
    begins_at: datetime | None = term(
        None,
        help="with the start mode seed: start with the input of this time",
        flag="--at",
        heading=_START,
        in_files=_ONCE,
    )
    accept_repeated_input: tuple[QueryName, ...] = term(
        (),
        help="queries that may read input a second time",
        heading=_CONSENT,
        in_files=_ONCE,
        retried="in any order",
    )
    assume_dead: bool = term(
        False,
        help="continue although the launcher cannot tell whether the old driver is dead",
        heading=_CONSENT,
        verbs=("resume", "skip"),
        in_files=_ONCE,
        retried="freely",
    )
    revive: bool = term(
        False,
        help="deploy although the stream was retired",
        heading=_CONSENT,
        in_files=_ONCE,
        retried="freely",
    )

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
