"""Runs a rehearsal: each ``start()`` of the script is tried at once, and returns a query that has ended."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from airflow_streamstate.checkpoint.fork import plan_empty_batch
from airflow_streamstate.checkpoint.guards import STATE_FORMAT, guard_state_format
from airflow_streamstate.checkpoint.log import Checkpoint, Position
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.logical_query import LogicalQuery
from airflow_streamstate.driver.attempt.ports import StartableQuery
from airflow_streamstate.driver.rehearsal.committed_batches import (
    BatchFailedError,
    RanAgain,
    RehearsedAttempt,
    has_other_state,
    make_ready,
    run_batches_again,
    run_planned_batch,
)
from airflow_streamstate.driver.rehearsal.warming import WARM_SECONDS, warm
from airflow_streamstate.driver.shutdown.script_end import ScriptFailure
from airflow_streamstate.driver.start.checkpoints import Builder, Built, has_positions
from airflow_streamstate.driver.start.claim import check_spark
from airflow_streamstate.driver.start.query_names import NameBook, ThisStart, describe_changing, find_changing
from airflow_streamstate.driver.start.query_seed import describe_sources
from airflow_streamstate.driver.start.recorded_plans import (
    plan_of,
    record_after_start,
    record_before_start,
    what_changed,
)
from airflow_streamstate.driver.start.start_checks import listed
from airflow_streamstate.driver.start.state_rewrite import migrated_operators, unused_migrations
from airflow_streamstate.errors import (
    InvalidRequestError,
    ObjectExistsError,
    OutcomeUnknownError,
    StartRefusedError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.plan.comparison import compare
from airflow_streamstate.plan.record import moved_plan, plan_behind, settled
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import QueryStart
from airflow_streamstate.protocol.scratch import (
    QueryOutcome,
    Rehearsal,
    RehearsedQuery,
    ScratchOutcome,
    ScratchRun,
    ScratchVerdict,
)

# Asks the sink in a rehearsal what a start will ask it, without a change in it (Law 14).
#
# The old version may still write: the batches in its own log are its own, and only others are another writer's.


def rehearse_sink(attempt: Attempt, name: str, startable: StartableQuery, deployment_id: str) -> tuple[str, ...]:
    """Check that a start on the built checkpoint will find its sink usable; returns human-readable remarks.

    Args:
        deployment_id: the current deployment, which may write on.

    Raises:
        InvalidRequestError: a start would be refused.
        and what Spark raises: it does not know the format, or cannot write such rows in it.
    """
    checkpoint = attempt.checkpoint_of(name)
    position = checkpoint.position() if checkpoint.exists() else Position(None)
    if position.barrier_id:
        _check_goes_on(startable)
        _check_held(attempt, name, startable, checkpoint, position.barrier_id, deployment_id)
    scratch = layout.warming_folder(attempt.stream_id, attempt.deployment_id, name)
    return startable.try_sink(position.next_batch_id, attempt.uri_of_key(scratch))


def _check_goes_on(startable: StartableQuery) -> None:
    if startable.facts.sink == "memory" and startable.facts.output_mode != "complete":
        raise InvalidRequestError(
            "Spark starts a memory sink from no checkpoint, except in output mode complete",
            output_mode=startable.facts.output_mode,
            next_step="Write into another sink.",
        )


def _check_held(
    attempt: Attempt, name: str, startable: StartableQuery, built: Checkpoint, next_planned: int, deployment_id: str
) -> None:
    """Refuse where the sink holds ids that are not in the log of the old version."""
    held = startable.held_batches(built.query_id(), next_planned)
    if not held.batch_ids:
        return
    # After the question, so that what the old version has written since is in its log.
    old = Checkpoint(attempt.checkpoints, layout.checkpoint_folder(attempt.stream_id, deployment_id, name))
    first_unknown = max(old.position().barrier_id if old.exists() else 0, next_planned)
    others = [batch_id for batch_id in held.batch_ids if batch_id >= first_unknown]
    if others:
        raise StartRefusedError(
            "the sink holds batch ids that this start would use again, and would skip them with all their new rows",
            query_name=name,
            sink=startable.sink_place(),
            held_batches=listed(others),
            next_batch_id=first_unknown,
            next_step="Write to a new output, or take those batches out of the output first (docs/how-to/sinks.md shows"
            " how for each sink).",
        )


DONE_STATUS = 0
FAILED_STATUS = 1
MAX_LINE_CHARACTERS = 1_000
MAX_TRACEBACK_CHARACTERS = 8_000
RETRY_SECONDS = 1.0
END_SECONDS = 70.0
"""How long a script is asked to end: many a thread sleeps for a minute."""
ASK_AGAIN_SECONDS = 10.0
"""Pause between two such questions, in which its ``finally`` blocks run."""
_NO_REFUSALS = (UnavailableError, OutcomeUnknownError)
_FAIL_ANYWHERE = frozenset(
    {"ImportError", "IndentationError", "ModuleNotFoundError", "NameError", "SyntaxError", "UnboundLocalError"}
)
FAILED_AFTERWARDS = (
    "the script failed after all its queries had been rehearsed, where a query has ended when start() returns and"
    " nothing is written; look whether it would fail while they run"
)
Words = Callable[[BaseException], str]
WITHOUT_ROWS = "`streamstate replay` runs that batch into files; `--rehearse-batches 0` rehearses without rows"
OF_PLANNED = (
    "`streamstate replay` runs that batch into files; `streamstate skip` passes it over where its rows are at fault"
)
SOURCES_UNKNOWN = "how many sources it has is not known, so no batch was run"


def build(attempt: Attempt, builder: Builder, name: str, startable: StartableQuery) -> Built:
    """Build the checkpoint that a start of this query would use, under the keys of the rehearsal.

    Raises:
        StreamStateError: a start would be refused with this.
        and what Spark raises: a seed cannot be made of this plan.
    """
    checkpoint = attempt.checkpoint_of(name)
    check_spark(attempt, name, checkpoint)
    built = builder.ensure(name, startable)
    if checkpoint.exists():
        guard_state_format(checkpoint, startable.session_conf((STATE_FORMAT,)).get(STATE_FORMAT, "1"))
    elif built.how == "fresh":
        _refuse_held_batches(startable)
    return built


def expected_start(attempt: Attempt, name: str) -> QueryStart | None:
    """How a query would start, by its snapshot; None where a start would be refused."""
    manifest = attempt.start.need()
    if manifest is None:
        return "fresh"
    known = manifest.queries.get(name)
    if known is None:
        return "fresh" if name in attempt.spec.start.allow_new_queries else None
    if not has_positions(known):
        return "fresh"
    return "seeded" if known.drained else "restored"


def run_empty_batch(
    attempt: Attempt, name: str, startable: StartableQuery, built: Built
) -> tuple[QueryOutcome, tuple[str, ...]]:
    """Run an empty batch on the built checkpoint; returns its outcome and human-readable notes.

    Raises what Spark raises: the plan cannot run on this state.
    """
    checkpoint = attempt.checkpoint_of(name)
    if built.how == "seeded":  # an empty batch has made the seed
        return "accepted", built.remarks
    if checkpoint.exists() and checkpoint.position().batch_id is not None:
        make_ready(attempt, checkpoint, startable)
        plan_empty_batch(checkpoint)
        startable.run_trial_batch(attempt.uri_of(checkpoint))
        return "accepted", built.remarks
    count = startable.facts.sources_count
    if count is None:
        return "not_run", (*built.remarks, SOURCES_UNKNOWN)
    describe_sources(attempt, name, startable, {}, count)
    return "accepted", built.remarks


def _refuse_held_batches(startable: StartableQuery) -> None:
    """As ``start.start_checks`` before a fresh start."""
    held = startable.held_batches(None, 0)
    if held.batch_ids:
        raise InvalidRequestError(
            "the sink holds batch ids that a fresh start would use again, and would skip them with all their new rows",
            sink=startable.sink_place(),
            held_batches=listed(held.batch_ids),
            next_step="Write to a new output, or keep the query's name, so that its batch ids continue.",
        )


class Rehearsing:
    """A rehearsal of a script, in one run or, where the state does not fit, two.

    Args:
        words: Spark's own message in an error, in one line.
        end_script: asks the running script to end, as by ``sys.exit()``; called again until it has ended.
        rehearsal: what is rehearsed; None: what the record of the run names.
    """

    def __init__(
        self,
        attempt: RehearsedAttempt,
        run: ScratchRun,
        words: Words,
        end_script: Callable[[], None] = lambda: None,
        rehearsal: Rehearsal | None = None,
    ) -> None:
        self.attempt = attempt
        self._scratch = run
        self._rehearsal = rehearsal or run.rehearsal
        self._words = words
        self._end_script = end_script
        self._builder = Builder(attempt)
        self._names = NameBook(attempt.spec.start.rename_queries)
        self._application_id = ""
        self._queries: dict[str, RehearsedQuery] = {}
        self._before: dict[str, RehearsedQuery] | None = None
        self._plan_refuses = False
        self._needs_drain = False
        self._refused: dict[int, StreamStateError] = {}
        self._doing = "the script before its first query"
        self._begun_at_seconds = attempt.clock.monotonic_seconds()
        self._quiet_since_seconds: float | None = None
        self._asked_at_seconds: float | None = None
        self._ask_at_seconds = 0.0
        self._guard = threading.RLock()
        self._verdict: ScratchVerdict | None = None
        self._is_own_verdict = False
        self._is_ending = False
        self._is_over = False

    @property
    def _is_seeding(self) -> bool:
        """Whether this is the run that tries queries as after a drain."""
        return self._before is not None

    # what the script does

    def session_started(
        self,
        spark_version: str,
        application_id: str,
        notes: Sequence[str] = (),
    ) -> None:
        """The Spark session is there."""
        self._application_id = application_id
        self.attempt.note_spark(spark_version)
        for note in notes:
            self.attempt.reporter.note(note)

    def refuse(self, startable: StartableQuery, error: StreamStateError) -> None:
        """Note that this writer's start will be refused with an error."""
        self._refused[id(startable)] = error

    def start_query(
        self, requested_name: str | None, own_checkpoint_location: str | None, startable: StartableQuery
    ) -> LogicalQuery:
        """The intercepted ``start()``: try it, and return a query that has ended.

        Raises:
            InvalidRequestError: its name is not certain.
            SystemExit: the script was asked to end.
        """
        attempt = self.attempt
        with attempt.latch.held():
            if self._asked_at_seconds is not None:
                raise SystemExit(0)
            name = self._names.name_of(requested_name, own_checkpoint_location, startable.facts.plan_fingerprint)
            is_again = name in self._queries
            if is_again:
                # A loop around start() is as quiet as one around a wait.
                self._note(f"query {name} was started again; its first start alone was rehearsed")
            else:
                self._quiet_since_seconds = None
                self._doing = f"query {name}"
                attempt.reporter.say(f"query {name} is rehearsed")
                changing = self._changing(name, requested_name, own_checkpoint_location)
                self._queries[name] = changing or self._tried(name, startable)
                attempt.reporter.say(
                    f"query {name}: {self._queries[name].outcome} {self._queries[name].error}".rstrip()
                )
                self._doing = f"the script after query {name}"
            logical = LogicalQuery(attempt, name, startable, attempt.checkpoint_of(name))
            logical.end()
            attempt.queries.add(logical)
            if not is_again:
                if self._queries[name].outcome == "accepted" and not self._is_seeding:
                    # Again: after the batch the state shows the variables of the script's processors.
                    record_before_start(attempt, name, startable)
                self._quiet_since_seconds = attempt.clock.monotonic_seconds()
            return logical

    def _changing(self, name: str, requested_name: str | None, location: str | None) -> RehearsedQuery | None:
        """The refusal of a query whose name is surely another one at each start; None for any other."""
        manifest = self.attempt.start.manifest()
        known = set() if manifest is None else set(manifest.queries)
        is_own = bool(requested_name)
        this = ThisStart(self.attempt.clock.now(), self._application_id)
        changing = find_changing(name, this, is_own=is_own)
        if changing is None or not changing.is_certain or name in known:
            return None
        left = sorted(known - set(self._queries))
        known_as = left[0] if len(left) == 1 else "OLD"
        text = describe_changing(self.attempt.stream_id, name, changing, location, is_own=is_own, known_as=known_as)
        return RehearsedQuery("refused", error=self._line(text))

    def _tried(self, name: str, startable: StartableQuery) -> RehearsedQuery:
        attempt, begun = self.attempt, self.attempt.clock.monotonic_seconds()
        outcome: QueryOutcome = "not_run"
        start, error, notes, built = "", "", tuple[str, ...](), None
        try:
            refusal = self._refused.pop(id(startable), None)
            if refusal is not None:
                raise refusal
            start = expected_start(attempt, name) or ""
            if start == "restored":
                self._hold_against_old(name, startable)
            if self._rehearsal.terms.rehearse and not self._plan_refuses:
                built = build(attempt, self._builder, name, startable)
                start = built.how
        except Exception as problem:
            outcome, error = self._judged(problem)
        # After the build: a plan has the settings that its checkpoint pins.
        for word in () if self._is_seeding else record_before_start(attempt, name, startable):
            self._note(f"query {name}: {word}")
        self._tell_reads(name)
        ran = RanAgain()
        if built is not None:
            outcome, error, notes = self._run_batches(name, startable, built, ran)
        seconds = round(attempt.clock.monotonic_seconds() - begun, 3)
        may_wait = self._rehearsal.waits_until is not None and not self._plan_refuses
        if may_wait and outcome in ("accepted", "not_run"):
            warm(attempt, name, startable, min(WARM_SECONDS, self._left_seconds() / 4))
        attempt.sources.close(name)
        return RehearsedQuery(
            outcome,
            start,
            seconds,
            self._line(error),
            tuple(map(self._line, (*notes, *ran.notes))),
            batch_ids=tuple(ran.batch_ids),
            rows_in=ran.rows_in if ran.batch_ids else None,
            rows_out=ran.rows_out if ran.batch_ids else None,
            batch_seconds=round(ran.seconds, 3),
            fails_with_rows=ran.has_failed,
            rewritten=self._builder.rewritten.pop(name, ()),
        )

    def _run_batches(
        self, name: str, startable: StartableQuery, built: Built, ran: RanAgain
    ) -> tuple[QueryOutcome, str, tuple[str, ...]]:
        """Try the sink, and run the planned batch, an empty one and the newest ones on the built checkpoint.

        Returns outcome, error and notes.

        Where the planned batch fails, the empty one in its place shows whether its rows or the state are the cause.
        """
        attempt, failed = self.attempt, None
        try:
            remarks = rehearse_sink(attempt, name, startable, self._scratch.deployment_id)
            try:
                within_seconds = self._left_seconds() / 2
                run_planned_batch(attempt, name, startable, built, self._rehearsal, within_seconds, ran)
            except BatchFailedError as problem:
                failed = problem
            outcome, notes = run_empty_batch(attempt, name, startable, built)
            notes = (*notes, *remarks)
        except Exception as problem:
            return (*self._judged(problem), ())
        if failed is not None:
            ran.has_failed = True
            ran.notes.append(OF_PLANNED)
            return (*self._judged(failed), notes)
        error = ""
        if outcome == "accepted":
            outcome, error = self._with_rows(name, startable, built, ran)
        return outcome, error, notes

    def _with_rows(self, name: str, startable: StartableQuery, built: Built, ran: RanAgain) -> tuple[QueryOutcome, str]:
        """The outcome of an accepted query when committed batches run again with their rows, and the error."""
        if self._rehearsal.batches and built.how != "fresh":
            try:
                run_batches_again(
                    self.attempt,
                    name,
                    startable,
                    self._scratch,
                    self._left_seconds() / 2,
                    ran,
                    is_drained=has_other_state(self.attempt, name, self._scratch.deployment_id),
                )
            except Exception as problem:
                if isinstance(problem, BatchFailedError):
                    ran.has_failed = True
                    ran.notes.append(WITHOUT_ROWS)
                return self._judged(problem)
        return "accepted", ""

    def _left_seconds(self) -> float:
        return (self._scratch.deadline_at - self.attempt.clock.now()).total_seconds()

    def _hold_against_old(self, name: str, startable: StartableQuery) -> None:
        """Note whether the old and the new plan alone refuse the query, or need a drain; not where one is unknown."""
        if not self._rehearsal.refuses and self._rehearsal.seeds == "never":
            return
        try:
            old = plan_behind(self.attempt.control, self._scratch.deployment_id, name)
            new = plan_of(self.attempt, name, startable)
            rewrite = self.attempt.spec.start.rewrite
            migrated = migrated_operators(self.attempt, name, new)
            moves = self.attempt.spec.start.move_sources
            found = (
                () if old is None else settled(compare(moved_plan(old, moves), new), new, rewrite, migrated).differences
            )
        except Exception as error:
            self.attempt.reporter.say(f"query {name}: its plan could not be compared: {type(error).__name__}: {error}")
            return
        verdicts = {str(each.verdict) for each in found}
        self._needs_drain = self._needs_drain or "needs-drain" in verdicts
        self._plan_refuses = self._plan_refuses or bool(verdicts & set(self._rehearsal.refuses))

    def _judged(self, problem: Exception) -> tuple[QueryOutcome, str]:
        if isinstance(problem, BatchFailedError):
            return "failed", str(problem)
        if not isinstance(problem, StreamStateError):
            return "failed", self._words(problem)
        return "failed" if isinstance(problem, _NO_REFUSALS) else "refused", str(problem)

    def _tell_reads(self, name: str) -> None:
        """Note what the script read otherwise than at the last start of this query in the deployment, and record it."""
        if not self._is_seeding:
            for word in (*what_changed(self.attempt, name), *record_after_start(self.attempt, name)):
                self._note(word)

    def _note(self, text: str) -> None:
        self.attempt.reporter.note(self._line(text))

    def _line(self, text: str) -> str:
        return self.attempt.reporter.shortened(text, MAX_LINE_CHARACTERS, in_a_line=True)

    # its end

    def script_ended(self, failure: ScriptFailure | None) -> int:
        """A run of the script has ended: give the verdict, unless ``begins_seeds``; the exit status of the process.

        A script that fails when all its queries have been tried shows nothing about them: each has ended when its
        ``start()`` returns, and nothing was written for the script to read, which it may not expect.
        """
        if failure is not None and self._verdict is None:
            if self._asked_at_seconds is not None:
                self._note(f"the script failed when it was ended: {failure.error}")
                failure = None
            elif self._has_tried_all() and not _fails_anywhere(failure):
                self._note(f"{FAILED_AFTERWARDS}: {failure.error}")
                self.attempt.reporter.say(failure.traceback)
                failure = None
        if self._is_seeding:
            self._give("done", "", seed_error="" if failure is None else failure.error)
        elif failure is None and self._wants_seeds():
            return DONE_STATUS
        elif failure is None:
            self._give("done", "")
        else:
            self._give("failed", failure.error, failure.traceback)
        return DONE_STATUS if self._verdict is not None and self._verdict.outcome == "done" else FAILED_STATUS

    def _has_tried_all(self) -> bool:
        """Whether the script has started each query that it would continue with, and at least one."""
        try:
            manifest = self.attempt.start.need()
        except StreamStateError:
            return False
        known = () if manifest is None else manifest.queries.items()
        return bool(self._queries) and all(name in self._queries for name, query in known if has_positions(query))

    def _wants_seeds(self) -> bool:
        """Whether to try the queries as after a drain, too, which needs one that would be restored."""
        wanted = self._rehearsal.seeds
        if (
            wanted == "never"
            or self._plan_refuses
            or not any(each.start == "restored" for each in self._queries.values())
        ):
            return False
        return (
            wanted == "always"
            or self._needs_drain
            or any(each.outcome in ("refused", "failed") for each in self._queries.values())
        )

    def begins_seeds(self) -> bool:
        """Whether the script runs again, to try its queries as after a drain; switches to that run. Called once."""
        with self._guard:
            if self._verdict is not None or self._is_ending or self._is_seeding or not self._wants_seeds():
                return False
            self._before, self._queries = self._queries, {}
            self._names = NameBook(self.attempt.spec.start.rename_queries)
            self._quiet_since_seconds = self._asked_at_seconds = None
            self._doing = "the script, tried as after a drain, before its first query"
            first = self.attempt
            self.attempt = first.after_a_drain()
            self.attempt.notes.extend(first.notes)
            self._builder = Builder(self.attempt)
        self.attempt.reporter.say("each query is tried once more, as it would be started after a drain")
        return True

    def goes_on(self) -> bool:
        """Whether a pass that waits for a handover follows; ends this one, and its deadline. Called once."""
        until = self._rehearsal.waits_until
        with self._guard:
            self._is_over = not self._is_ending
            is_accepted = self._verdict is not None and self._is_own_verdict and self._verdict.can_take_over
            return self._is_over and is_accepted and until is not None and self.attempt.clock.now() < until

    @property
    def is_over(self) -> bool:
        """Whether its deadline is not watched any more."""
        return self._is_over

    def end_if_overdue(self) -> int | None:
        """The exit status, once the deadline has passed, or the script does not end when it is asked to, a grace after
        its last start; None before."""
        status = self._overdue()
        with self._guard:
            if status is None or self._is_over:
                return None
            self._is_ending = True
            return status

    def _overdue(self) -> int | None:
        clock, asked_at = self.attempt.clock, self._asked_at_seconds
        is_late = clock.now() >= self._scratch.deadline_at
        if is_late and asked_at is None:
            late = f"it was not over at its deadline; it was busy with {self._doing}"
            if self._is_seeding:
                self._give("done", "", seed_error=late)
            else:
                self._give("deadline", late)
            return FAILED_STATUS
        since, grace = self._quiet_since_seconds, self.attempt.spec.version.settings.exit_grace_seconds
        if since is None or clock.monotonic_seconds() - since < grace:
            return None
        now = clock.monotonic_seconds()
        if asked_at is None:
            self._note(f"the script did not end in {grace:g} s after its last start; it was asked to")
            self._asked_at_seconds = self._ask_at_seconds = asked_at = now
        if now - asked_at < END_SECONDS and not is_late:
            if now >= self._ask_at_seconds:
                self._ask_at_seconds += ASK_AGAIN_SECONDS
                self._ask_to_end()
            return None
        self._note(f"the script ran on for {now - asked_at:.0f} s after it was asked to end")
        self._give("done", "")
        return DONE_STATUS

    def _ask_to_end(self) -> None:
        with self._guard:
            # Not where the run that it is asked for has just ended.
            if self._asked_at_seconds is not None and not self._is_over:
                self._end_script()

    def _give(self, outcome: ScratchOutcome, error: str, traceback: str = "", *, seed_error: str = "") -> None:
        with self._guard:
            if self._verdict is None:
                if outcome == "done":
                    self._refuse_unused()
                verdict = self._made(outcome, error, traceback)
                if self._before is not None:
                    seeded, seed_error = verdict.queries, self._line(seed_error)
                    verdict = replace(verdict, queries=self._before, seeded=seeded, seed_error=seed_error)
                self._verdict = verdict
                self._is_own_verdict = self._write(self._verdict)

    def _refuse_unused(self) -> None:
        """Refuse the queries of migrations that found no state: another name than the script's, or nothing to
        migrate."""
        rewrite = self.attempt.spec.start.rewrite
        if rewrite is None or rewrite.migration is None or not self._rehearsal.terms.rehearse or self._is_seeding:
            return
        for name in sorted(unused_migrations(self.attempt, rewrite, self._queries)):
            known = self._queries.get(name)
            if known is not None and known.outcome in ("refused", "failed"):
                continue
            words = (
                f"{rewrite.migration.name} has a migration for query {name}, and the script starts no such query:"
                f" {', '.join(sorted(self._queries)) or 'none'}"
                if known is None
                else f"{rewrite.migration.name} has a migration for it, and it has no state to migrate"
            )
            self._queries[name] = replace(
                known or RehearsedQuery("refused"), outcome="refused", error=self._line(words)
            )

    def _made(self, outcome: ScratchOutcome, error: str, traceback: str) -> ScratchVerdict:
        attempt = self.attempt
        reporter, clock = attempt.reporter, attempt.clock
        return ScratchVerdict(
            stream_id=attempt.stream_id,
            run_id=self._scratch.run_id,
            outcome=outcome,
            queries=dict(self._queries),
            error=self._line(error),
            seconds=round(clock.monotonic_seconds() - self._begun_at_seconds, 3),
            given_by="driver",
            given_at=clock.now(),
            write_id=clock.new_uuid(),
            traceback=reporter.shortened(traceback, MAX_TRACEBACK_CHARACTERS, from_end=True),
            spark_version=attempt.spark_version,
            notes=tuple(attempt.notes),
        )

    def _write(self, verdict: ScratchVerdict) -> bool:
        while True:
            try:
                self.attempt.control.create_verdict(verdict)
                return True
            except ObjectExistsError:
                return False  # a controller has given one
            except (UnavailableError, OutcomeUnknownError) as error:
                self.attempt.reporter.outage("the verdict", error)
                if self.attempt.clock.now() >= self._scratch.deadline_at:
                    return False
            self.attempt.clock.sleep(RETRY_SECONDS)


def _fails_anywhere(failure: ScriptFailure) -> bool:
    """Whether a script fails by this outside of a rehearsal, too."""
    return failure.is_refusal or failure.error.partition(":")[0] in _FAIL_ANYWHERE


class HasTime(Protocol):
    """A pass of a script with a deadline."""

    @property
    def attempt(self) -> Attempt:
        """Has the clock."""

    @property
    def is_over(self) -> bool:
        """Whether its deadline is not watched any more."""

    def end_if_overdue(self) -> int | None:
        """The exit status; None while there is time."""


def oversee(watched: HasTime, end_process: Callable[[int], None], pause_seconds: float = 0.5) -> None:
    """End the process when a pass is overdue; returns when the pass has ended, or when ``end_process`` returns."""
    while not watched.is_over:
        watched.attempt.clock.sleep(pause_seconds)
        status = watched.end_if_overdue()
        if status is not None:
            end_process(status)
            return
