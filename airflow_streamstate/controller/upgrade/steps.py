"""The verbs of the controller as steps of an upgrade, and what undoes their output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from airflow_streamstate.checkpoint.file_source import plain_moves
from airflow_streamstate.connectors.sink import UndoMeans, known_sinks, undo_means
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.control.upgrade_journal import UpgradeJournal, UpgradeState, rehearsal_ids_in
from airflow_streamstate.controller.commands.recorded_orders import EndingVerb, Orders
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.deploy.attempts import Attempts
from airflow_streamstate.controller.deploy.deployment import Deployer
from airflow_streamstate.controller.deploy.start_plan import UsedError
from airflow_streamstate.controller.deploy.takeover import built_checkpoints
from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.controller.observe.views import CommandView, DeploymentView
from airflow_streamstate.controller.request.patch import rewriter_back
from airflow_streamstate.controller.request.requests import DeployRequest, Return
from airflow_streamstate.controller.scratch.partitions import partitions_of
from airflow_streamstate.controller.scratch.rehearsal import Rehearsals
from airflow_streamstate.controller.wait.waiting import Waits
from airflow_streamstate.errors import ConflictError, DataError, OutcomeUnknownError, StreamStateError, UnavailableError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.launch.interface import LaunchHandle
from airflow_streamstate.plan.record import last_recorded_plans, places_of, recorded_plans
from airflow_streamstate.protocol.events import Draining, QueryStarted
from airflow_streamstate.protocol.manifest import SnapshotManifest, is_within
from airflow_streamstate.protocol.records import DeploymentSpec, StateRewrite
from airflow_streamstate.protocol.terms.order import DEFAULT_DRAIN, DrainTerms, UpgradeMode
from airflow_streamstate.protocol.terms.version import StartMode, StartTerms, Version
from airflow_streamstate.protocol.upgrades import Cancellation, Decision, Phase, Upgrade, UpgradeStep
from airflow_streamstate.retry import Retry

Result = TypeVar("Result")
MIN_PAUSE_SECONDS = 0.1
MAX_PAUSE_SECONDS = 2.0
MIN_HANDOVER_PAUSE_SECONDS = 0.05
HANDOVER_SHARE = 0.05
"""The pause between two polls of an ending old version, as a share of the time waited so far."""
MAX_TEXT_CHARACTERS = 1_000
SILENCE_SECONDS = 900.0
"""How long a deploy retries while a store that it needs does not answer and the stream is stopped (Law 6)."""
_REHEARSING = ("plan", "back-standby", "back-plan", "back-handover", "back-undo")
"""The acts of an upgrade that start a rehearsal, as ``Tools.request_id`` takes them."""
LATE = Retry(tries=6, pause_seconds=2.0)


@dataclass(frozen=True)
class Wait:
    """Nothing can be done yet.

    Attributes:
        text: what the upgrade waits for.
        driver: the driver that it waits for, whose bell ends the wait early, or None.
    """

    text: str
    pause_seconds: float = 0.5
    driver: LaunchHandle | None = None


@dataclass(frozen=True)
class Act:
    """An act that records a step. It is idempotent, also when two workers do it at once (Law 2)."""

    do: Callable[[], None]


Next = Wait | Act


@dataclass(frozen=True)
class UpgradeVerbs:
    """The verbs of the controller that the steps of an upgrade call."""

    attempts: Attempts
    deployer: Deployer
    orders: Orders
    waits: Waits
    rehearsals: Rehearsals


class Tools:
    """The verbs in the name of one upgrade, and its records."""

    def __init__(
        self, context: ControllerContext, verbs: UpgradeVerbs, upgrade: Upgrade, control: StreamControl
    ) -> None:
        self.context = context
        self.upgrade = upgrade
        self.control = control
        self.journal = UpgradeJournal(control)
        self.attempts = verbs.attempts
        self.waits = verbs.waits
        self.rehearsals = verbs.rehearsals
        self._verbs = verbs

    def order(
        self, verb: EndingVerb, deployment_id: str, what: str, reason: str, terms: DrainTerms = DEFAULT_DRAIN
    ) -> CommandView:
        """Order the end of a deployment; ``what`` as in ``request_id``. Raises as ``Orders.order``."""
        return self._verbs.orders.order(
            self.stream_id,
            verb,
            deployment_id=deployment_id,
            request_id=self.request_id(what),
            reason=reason,
            expires_in_seconds=None,
            terms=terms,
            upgrade_id=self.upgrade.upgrade_id,
        )

    def deploy(self, request: DeployRequest, request_id: str) -> DeploymentView:
        """Deploy a version. Raises as ``Deployer.deploy``."""
        return self._verbs.deployer.deploy(request, request_id, lambda _: None, upgrade_id=self.upgrade.upgrade_id)

    def resume(self, what: str) -> DeploymentView:
        """Start the next attempt of the old version; ``what`` as in ``request_id``. Raises as ``Attempts.resume``."""
        return self.attempts.resume(
            self.stream_id,
            self.request_id(what),
            assume_dead=False,
            reason=f"the rollback of upgrade {self.upgrade.upgrade_id}",
            upgrade_id=self.upgrade.upgrade_id,
        )

    @property
    def stream_id(self) -> str:
        """The stream."""
        return self.upgrade.stream_id

    def request_id(self, what: str) -> str:
        """The request id of one act of this upgrade, the same at every retry (Law 2)."""
        return f"{self.upgrade.upgrade_id}-{what}"

    def rehearsal_ids(self) -> list[str]:
        """The rehearsals of this upgrade, sorted; also one that no step names, because its worker died before it
        recorded the step."""
        steps = self.journal.steps(self.upgrade.upgrade_id)
        named = rehearsal_ids_in(steps)
        begun = self.rehearsals.begun_by(self.stream_id, [self.request_id(what) for what in _REHEARSING])
        return sorted({*named, *begun})

    def why_given_up(self) -> str:
        """Why the new version was abandoned; "" if no step states it."""
        steps = self.journal.steps(self.upgrade.upgrade_id)
        return next((step.text for step in reversed(steps) if step.phase == "unhealthy"), "")

    def old(self) -> Observation:
        """The old version as it is now."""
        return self.context.observer.observe(self.stream_id, self.upgrade.old_deployment_id)

    def old_version(self) -> Version:
        """The code and settings of the old version."""
        return self.control.with_found_modules(self.control.spec(self.upgrade.old_deployment_id)).version

    def request_for(
        self,
        version: Version,
        start: StartMode | None = None,
        returns: Return | None = None,
        rehearsal_id: str | None = None,
        rewrite: StateRewrite | None = None,
        *,
        accept_hazards: bool = False,
        is_way_back: bool = True,
    ) -> DeployRequest:
        """The request to run a recorded version, whose files are in the home (Law 15), with the terms of this upgrade.

        Args:
            start: "fresh" to start with nothing; None for what the end of the current deployment decides.
            returns, rehearsal_id, rewrite: as in ``DeployRequest``.
            is_way_back: the version reads its files where they were before this upgrade.
        """
        upgrade = self.upgrade
        terms = StartTerms(**vars(upgrade.handover), start=start)
        accept_lost_input = upgrade.handover.accept_lost_input or upgrade.terms_of_return.accept_lost_input
        terms = replace(terms, accept_hazards=accept_hazards, accept_lost_input=accept_lost_input)
        if is_way_back:
            terms = replace(terms, move_sources=self._moves_back())
        return DeployRequest(
            self.stream_id,
            version,
            terms,
            rewrite=rewrite,
            reason=upgrade.reason,
            returns=returns,
            rehearsal_id=rehearsal_id,
        )

    def _moves_back(self) -> dict[str, str]:
        """The moves by which the old version finds its files where it reads them: those of this upgrade, and of the
        version that it takes over from."""
        made = plain_moves(self.upgrade.handover.move_sources)
        current = self.control.need_register().value.deployment_id
        if current is not None:
            made |= self.control.spec(current).start.move_sources
        if not made:
            return {}
        plans = recorded_plans(self.control, self.upgrade.old_deployment_id).values()
        read = {place for plan in plans for place in places_of(plan)}
        both = (*made.items(), *((new, old) for old, new in made.items()))
        return {old: new for old, new in both if any(is_within(place, new) for place in read)}

    def rewrite_back(self, seen: Observation) -> StateRewrite | None:
        """How the state that a version left is rewritten for the old version; None where it was not rewritten for
        that version, or is drained.

        State that was moved to another store stays there: the old code continues with it. So does state of several
        queries that had different numbers of partitions.
        """
        given = seen.spec.start.rewrite
        if given is None or seen.drained is not None:
            return None
        old = self.control.spec(self.upgrade.old_deployment_id)
        plans = recorded_plans(self.control, self.upgrade.old_deployment_id).values()
        stateful = [plan for plan in plans if plan.is_stateful]
        partitions = {partitions_of(plan) for plan in stateful}
        formats = {plan.state.checkpoint_format for plan in stateful}
        back = StateRewrite(
            partitions=partitions.pop() if given.partitions is not None and len(partitions) == 1 else None,
            checkpoint_format=formats.pop() if given.checkpoint_format is not None and len(formats) == 1 else None,
            migration=given.migration,
            is_inverse=given.migration is not None and not given.is_inverse,
            auto_migrate=given.auto_migrate,
            rewriter_spark=rewriter_back(given, old.start.rewrite, old.version, seen.spec.version),
        )
        return None if back.is_of_nothing else replace(back, undoes=seen.deployment_id)

    def target(self, mode: UpgradeMode | None, rehearsal_id: str | None = None) -> DeployRequest:
        """The request for the new version, with a fresh start only in mode ``fresh`` (Law 5).

        ``rehearsal_id``: the rehearsal whose driver waits to run it.
        """
        start: StartMode | None = "fresh" if mode == "fresh" else None
        # Of an old version that has drained itself no state is left to rewrite; the settings state the new form.
        rewrite = None if self.old().has_drained_itself else self.upgrade.rewrite
        return self.request_for(
            self.upgrade.target,
            start,
            rehearsal_id=rehearsal_id,
            rewrite=rewrite,
            accept_hazards=self.upgrade.terms.accept_hazards,
            is_way_back=False,
        )

    def deployed_id(self) -> str | None:
        """The deployment of the new version once the register has moved to it, with or without a recorded step."""
        current = self.control.need_register().value.deployment_id
        is_new = current is not None and self.control.spec(current).request_id == self.request_id("new")
        return current if is_new else None

    def cancellation(self) -> Cancellation | None:
        """The cancellation of this upgrade, or None."""
        return self.journal.cancellation(self.upgrade.upgrade_id)

    def take(self, state: UpgradeState, phase: Phase, text: str = "", decision: Decision | None = None) -> None:
        """Record the next step, unless another worker has recorded a step of the same number."""
        clock = self.context.clock
        self.journal.take(
            UpgradeStep(
                stream_id=self.stream_id,
                upgrade_id=self.upgrade.upgrade_id,
                number=state.last.number + 1,
                phase=phase,
                taken_at=clock.now(),
                taken_by=self.context.requested_by,
                write_id=clock.new_uuid(),
                text=" ".join(text.split())[:MAX_TEXT_CHARACTERS],
                decision=decision,
            )
        )

    def waited_seconds(self, state: UpgradeState) -> float:
        """Seconds since the upgrade entered its phase."""
        return (self.context.clock.now() - state.phase_since).total_seconds()

    def patiently(self, state: UpgradeState, patience_seconds: float, act: Callable[[], Result]) -> Result:
        """Do an act that another controller or a silent store may block for a moment.

        While the phase is younger than ``patience_seconds``, such an error is raised at once and the next poll retries.
        After that this call itself retries: a worker that comes late has not seen the earlier tries.
        """

        def may_pass(error: Exception) -> bool:
            is_blocked = isinstance(error, ConflictError | UnavailableError | OutcomeUnknownError)
            is_late = self.waited_seconds(state) >= patience_seconds
            return is_blocked and not isinstance(error, UsedError) and is_late

        return LATE.call(self.context.clock, act, may_pass)

    def pause_seconds(self, spec: DeploymentSpec) -> float:
        """Seconds between two polls of a deployment."""
        return min(max(spec.version.settings.command_poll_seconds, MIN_PAUSE_SECONDS), MAX_PAUSE_SECONDS)

    def handover_pause_seconds(self, state: UpgradeState, spec: DeploymentSpec) -> float:
        """Seconds between two polls of a deployment that must end; shorter, since the stream may be stopped."""
        share_seconds = HANDOVER_SHARE * self.waited_seconds(state)
        return min(max(share_seconds, MIN_HANDOVER_PAUSE_SECONDS), self.pause_seconds(spec))


def is_passing(error: StreamStateError) -> bool:
    """Whether the same call may succeed in a moment."""
    return isinstance(error, UnavailableError | OutcomeUnknownError)


def describe_error(error: StreamStateError) -> str:
    """An error as the reason of a step, in one line."""
    return " ".join(str(error).split())[:MAX_TEXT_CHARACTERS]


# Where an abandoned version started, whether it has run batches since, and whether its output can be undone: from its
# logs and its recorded plans, before anything is changed.


def why_not_undone(tools: Tools, state: UpgradeState) -> str:
    """Why the new version's output cannot be undone exactly; "" where it can, by the recorded plans.

    The driver that undoes a sink checks the sink's history itself, and refuses before it changes anything.
    """
    new_id = state.new_deployment_id
    if new_id is None:
        return "it never ran"
    seen = tools.context.observer.observe(tools.stream_id, new_id)
    if beginning_id(tools, seen) is None:
        return "it started with empty state, so there is no handover to go back to"
    ran = {event.query_name for event in seen.of_kind(QueryStarted, any_attempt=True)}
    ran |= set(built_checkpoints(tools.context.home, seen))
    sinks = {name: plan.sink.format for name, plan in last_recorded_plans(tools.control, new_id, ran).items()}
    connectors = known_sinks().connectors
    means = {name: undo_means(sinks.get(name, ""), connectors) for name in sorted(ran)}
    return refusal_of(tools.upgrade, means, sinks)


def beginning_id(tools: Tools, seen: Observation) -> str | None:
    """The snapshot that the abandoned deployment started from, or that the rollback names; None for a fresh start.

    The old version itself is abandoned where its drain left state that a seed would drop. It goes back to the newest
    snapshot from before the drain in which no query was flushed.
    """
    upgrade = tools.upgrade
    if upgrade.terms_of_return.snapshot_id is not None:
        return upgrade.terms_of_return.snapshot_id
    if seen.deployment_id == upgrade.old_deployment_id:
        return next(filter(None, (_unflushed(tools, each) for each in seen.of_kind(Draining, any_attempt=True))), None)
    return seen.spec.start.snapshot_id


def _unflushed(tools: Tools, event: Draining) -> str | None:
    manifest = None if event.snapshot_id is None else tools.control.readable_manifest(event.snapshot_id)
    is_whole = manifest is not None and not any(query.drained for query in manifest.queries.values())
    return event.snapshot_id if is_whole else None


def beginning_of(tools: Tools, seen: Observation) -> SnapshotManifest | None:
    """The snapshot where the old version would continue if the new one had never run, or None."""
    snapshot_id = beginning_id(tools, seen)
    if snapshot_id is None:  # a fresh start: the old version would continue from its own end
        old = tools.old()
        snapshot_id = getattr(old.drained or old.terminal, "snapshot_id", None)
    return None if snapshot_id is None else tools.control.readable_manifest(snapshot_id)


def has_run_batches(tools: Tools, seen: Observation, beginning: SnapshotManifest | None) -> bool:
    """Whether a deployment has committed or planned a batch itself."""
    is_fresh = beginning is None or seen.spec.start.mode == "fresh"
    for name, checkpoint in built_checkpoints(tools.context.home, seen).items():
        try:
            position = checkpoint.position()
        except DataError:  # unknown counts as run
            return True
        before = None if is_fresh or beginning is None else beginning.queries.get(name)
        began = (None, None) if before is None else (before.position.batch_id, before.position.planned_batch_id)
        if (position.batch_id, position.planned_id) != began:
            return True
    return False


def has_only_planned(tools: Tools, seen: Observation, beginning: SnapshotManifest) -> bool:
    """Whether an ended deployment left the state that it started with, and at most one planned batch of each query,
    from the sources that the version before reads. Unknown counts as no."""
    started = {event.query_name: event for event in seen.of_kind(QueryStarted, any_attempt=True)}
    for name, checkpoint in built_checkpoints(tools.context.home, seen).items():
        before, event = beginning.queries.get(name), started.get(name)
        if before is None:
            return False
        try:
            position = checkpoint.position()
        except DataError:
            return False
        if position.batch_id != before.position.batch_id:
            return False
        is_planned = position.planned_id != before.position.planned_batch_id
        if is_planned and (event is None or not event.identities or event.identities != before.identities):
            return False
    return True


def refusal_of(upgrade: Upgrade, means: Mapping[str, UndoMeans], sinks: Mapping[str, str]) -> str:
    """Which query's sink prevents an undo, and what would help, or "".

    Args:
        means: how the output of each query can be undone.
        sinks: the recorded format of each query's sink.
    """
    for name, how in means.items():
        sink = f"query {name} writes to {sinks.get(name) or 'a sink without a recorded plan'}"
        if how == "only doubled" and not upgrade.terms_of_return.accept_duplicates:
            return f"{sink}, which cannot be undone; --accept-duplicates goes back all the same, and doubles rows"
        if how in ("by command", "unknown") and not upgrade.terms.undo_command:
            return f"{sink}, which only your own command can undo; --undo-command names it"
    return ""
