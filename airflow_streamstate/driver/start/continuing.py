"""Holds the plan of a start against the plan that made the state which it would continue (Law 17).

It comes before anything of the query is built, repaired or recorded, so a refused start leaves all as it was, and its
plan is never taken for one that made the state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from airflow_streamstate.checkpoint.repair import DrainCommitted, DrainPending, Foreign, classify
from airflow_streamstate.checkpoint.state_schemas import value_columns
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.ports import StartableQuery
from airflow_streamstate.driver.attempt.reporting import MAX_REASON_CHARACTERS
from airflow_streamstate.driver.attempt.snapshotting import retry_until_fenced
from airflow_streamstate.driver.start.offset_override import begins_elsewhere
from airflow_streamstate.driver.start.plans import plan_of
from airflow_streamstate.driver.start.reads import what_changed
from airflow_streamstate.driver.start.rewriting import migrated_operators, rewrite_of
from airflow_streamstate.errors import DataError, OutcomeUnknownError, StartRefusedError, UnavailableError
from airflow_streamstate.plan.codes import difference
from airflow_streamstate.plan.comparison import compare_deployments
from airflow_streamstate.plan.differences import Comparison, Difference, compared, refusing
from airflow_streamstate.plan.kept_values import kept_differences
from airflow_streamstate.plan.migrating import settled
from airflow_streamstate.plan.model import QueryPlan, RecordedPlan
from airflow_streamstate.plan.moved_sources import moved_plan
from airflow_streamstate.plan.recorded import plans_behind
from airflow_streamstate.plan.remedies import remedies_of
from airflow_streamstate.snapshot.data import data_files

MOST_SHOWN = 3
"""So many differences a refusal names, each with so many characters: ``plan`` shows all of them."""
_MOST_CHARACTERS = 240
NOT_KNOWN = "its plan could not be compared with the one that made its state, which no record has"


@dataclass(frozen=True)
class ReadPlan:
    """The plan of a start, read once.

    Attributes:
        plan: None where it cannot be read.
        problem: why, in a line; else "".
        remarks: for people.
        is_accepted: it would be refused, and the user has accepted that.
    """

    plan: QueryPlan | None
    problem: str = ""
    remarks: tuple[str, ...] = ()
    is_accepted: bool = False


class Continuing:
    """Holds the starts of an attempt against what they continue."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._held: dict[str, tuple[QueryPlan, QueryPlan]] = {}

    def hold(self, name: str, startable: StartableQuery) -> ReadPlan:
        """The plan of a query that is about to start, or to be flushed; its checkpoint may not be built yet.

        Raises:
            StartRefusedError: it does not fit the state that the query would continue.
            FencedError: this attempt was replaced.
            and as ``retry_until_fenced``.
        """
        return retry_until_fenced(self._attempt, "the plans", lambda: self._hold(name, startable))

    def _hold(self, name: str, startable: StartableQuery) -> ReadPlan:
        read = self._read(name, startable)
        batch_id = _continued_batch(self._attempt, name)
        if batch_id is None:
            return read
        behind = plans_behind(self._attempt.control, self._attempt.deployment_id, name, batch_id)
        if not behind:
            return self._unrecorded(name, read)
        found = [(maker, self._compare(name, read, maker)) for maker in behind]
        for maker, comparison in found:
            if not self._refused(maker, comparison):
                return self._fitting(name, read, maker, comparison)
        raise self._refusal(name, *found[0])

    def _unrecorded(self, name: str, read: ReadPlan) -> ReadPlan:
        """State of which no plan is recorded, as after an adoption, is compared as far as its schemas tell.

        Raises:
            StartRefusedError: it keeps other values, and the user did not accept that.
        """
        attempt = self._attempt
        found: tuple[Difference, ...] = ()
        if read.plan is not None and rewrite_of(attempt, name) is None:
            found = tuple(kept_differences(read.plan, partial(_kept_columns, attempt, name)))
        if found and not (attempt.accepts_hazards or attempt.spec.start.accept_hazards):
            raise StartRefusedError(
                f"the state of query {name} was made by another plan than this start has, and no record has that plan",
                query_name=name,
                verdict="hazardous",
                differences=[_short(each.reason) for each in found[:MOST_SHOWN]],
                next_step="Start the script that made the state; or `streamstate resume"
                f" {attempt.stream_id} --accept-hazards` goes on as it is.",
            )
        accepted = tuple(f"an accepted hazard: {each.reason}" for each in found)
        return ReadPlan(read.plan, read.problem, (*accepted, NOT_KNOWN), is_accepted=bool(found))

    def _read(self, name: str, startable: StartableQuery) -> ReadPlan:
        try:
            return ReadPlan(plan_of(self._attempt, name, startable))
        except (UnavailableError, OutcomeUnknownError):
            raise
        except Exception as error:
            words = f"{type(error).__name__}: {error}"
            return ReadPlan(None, self._attempt.reporter.shortened(words, MAX_REASON_CHARACTERS, in_a_line=True))

    def _compare(self, name: str, read: ReadPlan, maker: RecordedPlan) -> Comparison:
        if read.plan is None:
            return compared([difference("not-comparable", "", f"the plan of {name} cannot be read: {read.problem}")])
        is_own = maker.deployment_id == self._attempt.deployment_id
        before = maker.plan if is_own else moved_plan(maker.plan, self._attempt.spec.start.move_sources)
        both = {**self._held, name: (before, read.plan)}
        old: Mapping[str, QueryPlan] = {each: plans[0] for each, plans in both.items()}
        found = compare_deployments(old, {each: plans[1] for each, plans in both.items()}).queries[name]
        if is_own:  # what was written anew is of this plan
            # Its script is pinned: a release that writes plans down otherwise refuses no resume, and records it again.
            return compared(each for each in found.differences if each.code != "not-comparable")
        rewrite = rewrite_of(self._attempt, name)
        return settled(found, read.plan, rewrite, migrated_operators(self._attempt, name, read.plan))

    def _refused(self, maker: RecordedPlan, comparison: Comparison) -> tuple[Difference, ...]:
        """The differences that refuse the start; hazards are accepted for this attempt, or for a deployment that begins
        with the state of another one."""
        begins = maker.deployment_id != self._attempt.deployment_id
        accepts = self._attempt.accepts_hazards or (begins and self._attempt.spec.start.accept_hazards)
        return refusing(comparison, accepts_hazards=accepts)

    def _fitting(self, name: str, read: ReadPlan, maker: RecordedPlan, comparison: Comparison) -> ReadPlan:
        if read.plan is None:
            return read
        self._held[name] = (moved_plan(maker.plan, self._attempt.spec.start.move_sources), read.plan)
        hazards = refusing(comparison, accepts_hazards=False)
        accepted = tuple(f"an accepted hazard: {each.reason}" for each in hazards)
        return ReadPlan(read.plan, remarks=accepted, is_accepted=bool(hazards))

    def _refusal(self, name: str, maker: RecordedPlan, comparison: Comparison) -> StartRefusedError:
        refused = self._refused(maker, comparison)
        changed = what_changed(self._attempt, name)
        return StartRefusedError(
            f"the state of query {name} was made by another plan than this start has",
            query_name=name,
            verdict=comparison.verdict,
            differences=[_short(each.reason) for each in refused[:MOST_SHOWN]],
            made_by=maker.deployment_id,
            made_by_attempt=maker.attempt,
            next_step=_next_step(self._attempt, refused, maker, changed),
        )


def _continued_batch(attempt: Attempt, name: str) -> int | None:
    """The committed batch whose state a start of this query would continue; None for none: a fresh start, a seed, a
    query that is over, and one that never committed a batch."""
    checkpoint = attempt.checkpoint_of(name)
    if checkpoint.exists():
        try:
            found = classify(checkpoint, attempt.deployment_id)
        except DataError:
            return None  # the start reports the damage
        beneath = found.beneath if isinstance(found, Foreign) else found
        return None if isinstance(beneath, DrainPending | DrainCommitted) else beneath.batch_id
    manifest = attempt.start.manifest()
    known = None if manifest is None else manifest.queries.get(name)
    if known is None or known.drained or begins_elsewhere(attempt.spec.start, name):
        return None
    return known.position.batch_id


def _kept_columns(attempt: Attempt, name: str, operator_id: int) -> tuple[str, ...] | None:
    """The columns of the values of an operator's state that a start would continue; None where unknown."""
    path = f"state/{operator_id}/0/_metadata/schema"
    checkpoint = attempt.checkpoint_of(name)
    key: str | None = checkpoint.key(path)
    if not checkpoint.exists():
        manifest = attempt.start.manifest()
        files = {} if manifest is None or name not in manifest.queries else data_files(manifest, name)
        key = files.get(path)
    stored = None if key is None else attempt.checkpoints.get(key)
    return None if stored is None else value_columns(stored.body)


def _short(reason: str) -> str:
    return reason if len(reason) <= _MOST_CHARACTERS else f"{reason[:_MOST_CHARACTERS]}…"


def _next_step(attempt: Attempt, refused: Sequence[Difference], maker: RecordedPlan, changed: Sequence[str]) -> str:
    stream_id, read = attempt.stream_id, " ".join(f"{_short(each)}." for each in changed[:MOST_SHOWN])
    accept = ""
    if all(each.verdict == "hazardous" for each in refused):
        accept = f" Or `streamstate resume {stream_id} --accept-hazards` goes on as it is."
    if maker.deployment_id == attempt.deployment_id:
        what = read or "Something else that the script reads has changed, such as a file or a variable."
        return (
            f"Script, modules and settings are as in attempt {maker.attempt}. {what} Put it back; then"
            f" `streamstate resume {stream_id}` goes on exactly. To change it, drain first:"
            f" `streamstate drain {stream_id}`, then change it, and deploy.{accept}"
        )
    remedies = remedies_of(refused)
    return (
        f"{read} `streamstate rollback {stream_id}` brings back the version before, which goes on exactly where it"
        f" stopped. For this version: {remedies}{accept}"
    ).strip()
