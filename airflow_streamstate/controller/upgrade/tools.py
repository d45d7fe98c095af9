"""What the steps of an upgrade are taken with: the same verbs that anyone has, in the name of the upgrade."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.control.upgrades import UpgradeJournal, UpgradeState
from airflow_streamstate.controller.commands.orders import EndingVerb, Orders
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.deploy.attempts import Attempts
from airflow_streamstate.controller.deploy.deploy import Deployer
from airflow_streamstate.controller.deploy.going_back import UsedError
from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.controller.observe.views import CommandView, DeploymentView
from airflow_streamstate.controller.rehearsal.planning import Planning
from airflow_streamstate.controller.request.changes import pinned
from airflow_streamstate.controller.request.resolved_request import ResolvedRequest, Return
from airflow_streamstate.controller.request.version import Version
from airflow_streamstate.controller.wait.waiting import Waits
from airflow_streamstate.errors import ConflictError, OutcomeUnknownError, StreamStateError, UnavailableError
from airflow_streamstate.protocol.commands import DEFAULT_TERMS, DrainTerms
from airflow_streamstate.protocol.records import DeploymentSpec, StartMode, StartPlan
from airflow_streamstate.protocol.upgrades import Cancellation, Phase, Upgrade, UpgradeMode, UpgradeStep
from airflow_streamstate.retry import Retry

Result = TypeVar("Result")
MIN_PAUSE_SECONDS = 0.1
MAX_PAUSE_SECONDS = 2.0
MIN_HANDOVER_PAUSE_SECONDS = 0.05
HANDOVER_SHARE = 0.05
"""Of what was waited for the end of the old version, so much at the most comes on top between two looks."""
MAX_TEXT_CHARACTERS = 1_000
SILENCE_SECONDS = 900.0
"""So long what a deploy needs may not answer, such as the place of the snapshot that it starts from, while the stream
stands still and no other deployment has it; then the next way is gone, or a person decides what becomes of the stream
(Law 6)."""
_REHEARSING = ("plan", "back-plan", "back-handover", "back-undo")
"""The acts of an upgrade that begin a rehearsal, as ``Tools.request_id`` takes them."""
LATE = Retry(tries=6, pause_seconds=2.0)


@dataclass(frozen=True)
class Wait:
    """Nothing can be done yet; ``text``: what is waited for."""

    text: str
    pause_seconds: float = 0.5


@dataclass(frozen=True)
class Act:
    """Something is to be done; doing it records a step. Doing it twice, or by two at once, is doing it once."""

    do: Callable[[], None]


Next = Wait | Act


@dataclass(frozen=True)
class Verbs:
    """The verbs of the controller that the steps of an upgrade are made of."""

    attempts: Attempts
    deployer: Deployer
    orders: Orders
    waits: Waits
    planning: Planning


class Tools:
    """The verbs in the name of one upgrade, and its records.

    Args:
        means: of the controller.
        verbs: of the controller.
        upgrade: whose steps are taken.
        control: its stream.
    """

    def __init__(self, context: ControllerContext, verbs: Verbs, upgrade: Upgrade, control: StreamControl) -> None:
        self.context = context
        self.upgrade = upgrade
        self.control = control
        self.journal = UpgradeJournal(control)
        self.attempts = verbs.attempts
        self.waits = verbs.waits
        self.planning = verbs.planning
        self._verbs = verbs

    def order(
        self, verb: EndingVerb, deployment_id: str, what: str, reason: str, terms: DrainTerms = DEFAULT_TERMS
    ) -> CommandView:
        """Order the end of a deployment; ``what`` is as in ``request_id``; raises as ``Orders.order``."""
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

    def deploy(self, resolved: ResolvedRequest, request_id: str) -> DeploymentView:
        """Deploy a version; raises as ``Deployer.deploy``."""
        return self._verbs.deployer.deploy(resolved, request_id, lambda _: None, upgrade_id=self.upgrade.upgrade_id)

    def resume(self, what: str) -> DeploymentView:
        """Start the next attempt of the old version; ``what``: as in ``request_id``; raises as ``Attempts.resume``."""
        return self.attempts.resume(
            self.stream_id,
            self.request_id(what),
            assume_dead=False,
            reason=f"the way back of upgrade {self.upgrade.upgrade_id}",
            upgrade_id=self.upgrade.upgrade_id,
        )

    @property
    def stream_id(self) -> str:
        """The stream."""
        return self.upgrade.stream_id

    def request_id(self, what: str) -> str:
        """The request id of one act of this upgrade: the same at every try (Law 2)."""
        return f"{self.upgrade.upgrade_id}-{what}"

    def rehearsal_ids(self) -> list[str]:
        """The rehearsals that its acts have begun, sorted: also one that no step names, since the worker that began it
        died, or was late, before it could record that."""
        steps = self.journal.steps(self.upgrade.upgrade_id)
        named = {step.rehearsal_id for step in steps if step.rehearsal_id is not None}
        begun = self.planning.begun_by(self.stream_id, [self.request_id(what) for what in _REHEARSING])
        return sorted({*named, *begun})

    def why_given_up(self) -> str:
        """Why the version was given up that is, or was, to be brought back from; "" where no step says it."""
        steps = self.journal.steps(self.upgrade.upgrade_id)
        return next((step.text for step in reversed(steps) if step.phase == "unhealthy"), "")

    def old(self) -> Observation:
        """The old version, as it stands."""
        return self.context.observer.observe(self.stream_id, self.upgrade.old_deployment_id)

    def old_version(self) -> Version:
        """What the old version runs."""
        return Version.of(self.control.spec(self.upgrade.old_deployment_id))

    def pinned(
        self,
        version: Version,
        start: StartMode | None = None,
        returns: Return | None = None,
        rehearsal_id: str | None = None,
    ) -> ResolvedRequest:
        """The request for a recorded version, with what was asked for; as ``changes.pinned``."""
        upgrade = self.upgrade
        return pinned(
            self.stream_id,
            version,
            fresh_queries=upgrade.fresh_queries,
            accept_lost_input=upgrade.accept_lost_input,
            discard_state=upgrade.discard_state,
            reason=upgrade.reason,
            start=start,
            returns=returns,
            rehearsal_id=rehearsal_id,
        )

    def target(self, mode: UpgradeMode | None, rehearsal_id: str | None = None) -> ResolvedRequest:
        """What is to be brought, in this way; with nothing only where that was asked for by name (Law 5).

        ``rehearsal_id``: of a driver that waits to be it.
        """
        target = target_of(self.control, self.upgrade)
        return self.pinned(target, "fresh" if mode == "fresh" else None, rehearsal_id=rehearsal_id)

    def deployed_id(self) -> str | None:
        """The deployment of what is to be brought, where the stream has moved to it, even if that step was not
        recorded; None where it has not."""
        current = self.control.need_register().value.deployment_id
        is_new = current is not None and self.control.spec(current).request_id == self.request_id("new")
        return current if is_new else None

    def cancellation(self) -> Cancellation | None:
        """Whether it is not wanted any more."""
        return self.journal.cancellation(self.upgrade.upgrade_id)

    def take(self, state: UpgradeState, phase: Phase, text: str = "", **facts: Any) -> None:
        """Record the next step, unless another worker has taken one of its number."""
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
                **facts,
            )
        )

    def waited_seconds(self, state: UpgradeState) -> float:
        """Since its phase was entered."""
        return (self.context.clock.now() - state.phase_since).total_seconds()

    def patiently(self, state: UpgradeState, patience_seconds: float, act: Callable[[], Result]) -> Result:
        """Do an act that another controller, or a store that does not answer, may stand in the way of for a moment.

        What stands in the way goes up at once while the phase is younger than ``patience_seconds``: the next look tries
        again. A worker that comes later has not seen the earlier tries, so one such error is no answer for it either.
        """

        def may_pass(error: Exception) -> bool:
            is_in_the_way = isinstance(error, ConflictError | UnavailableError | OutcomeUnknownError)
            is_late = self.waited_seconds(state) >= patience_seconds
            return is_in_the_way and not isinstance(error, UsedError) and is_late

        return LATE.call(self.context.clock, act, may_pass)

    def pause_seconds(self, spec: DeploymentSpec) -> float:
        """Between two looks at a deployment."""
        return min(max(spec.settings.command_poll_seconds, MIN_PAUSE_SECONDS), MAX_PAUSE_SECONDS)

    def handover_pause_seconds(self, state: UpgradeState, spec: DeploymentSpec) -> float:
        """Between two looks at a deployment whose end was ordered: from then on the stream may stand still."""
        share_seconds = HANDOVER_SHARE * self.waited_seconds(state)
        return min(max(share_seconds, MIN_HANDOVER_PAUSE_SECONDS), self.pause_seconds(spec))


def target_record(upgrade: Upgrade, target: Version, old: DeploymentSpec) -> DeploymentSpec:
    """How a home keeps what an upgrade is to bring: as a deployment that never is one.

    Args:
        upgrade: under whose id it is kept.
        target: what is to be brought.
        old: the version that it takes the place of.
    """
    return target.as_spec(
        stream_id=upgrade.stream_id,
        deployment_id=upgrade.upgrade_id,
        fencing_token=0,
        start=StartPlan("fresh"),
        checkpoints_uri=old.checkpoints_uri,
        default=old.settings,
        request_id=upgrade.request_id,
        requested_by=upgrade.requested_by,
        reason=upgrade.reason,
        created_at=upgrade.created_at,
    )


def target_of(control: StreamControl, upgrade: Upgrade) -> Version:
    """What an upgrade is to bring, as ``target_record`` keeps it."""
    return Version.of(control.spec(upgrade.upgrade_id))


def is_passing(error: StreamStateError) -> bool:
    """Whether the same call may go well in a moment: it says nothing about what was asked for."""
    return isinstance(error, UnavailableError | OutcomeUnknownError)


def describe_error(error: StreamStateError) -> str:
    """An error as the reason of a step, one line."""
    return " ".join(str(error).split())[:MAX_TEXT_CHARACTERS]
