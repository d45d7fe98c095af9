"""What the steps of an upgrade are taken with: the same verbs that anyone has, in the name of the upgrade."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.control.upgrades import UpgradeJournal, UpgradeState
from airflow_streamstate.controller.commands.orders import Orders
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.deploy.attempts import Attempts
from airflow_streamstate.controller.deploy.deploy import Deployer
from airflow_streamstate.controller.deploy.going_back import UsedError
from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.controller.rehearsal.planning import Planning
from airflow_streamstate.controller.request.changes import PinnedVersion
from airflow_streamstate.controller.wait.waiting import Waits
from airflow_streamstate.controller.wait.watching import Watching
from airflow_streamstate.errors import ConflictError, OutcomeUnknownError, StreamStateError, UnavailableError
from airflow_streamstate.protocol.records import DeploymentSpec
from airflow_streamstate.protocol.upgrades import Cancellation, Phase, Upgrade, UpgradeMode, UpgradeStep
from airflow_streamstate.retry import Retry

Result = TypeVar("Result")
MIN_PAUSE_SECONDS = 0.1
MAX_PAUSE_SECONDS = 2.0
MIN_HANDOVER_PAUSE_SECONDS = 0.05
HANDOVER_SHARE = 0.05
"""Of what was waited for the end of the old version, so much at the most comes on top because nobody looked."""
MAX_TEXT_CHARACTERS = 1_000
SILENCE_SECONDS = 900.0
"""So long what a deploy needs may not answer, such as the place of the snapshot that it starts from, while the stream
stands still and is nobody else's; then the next way is gone, or the stream is left to what a person decides (Law 6)."""
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


class Tools:
    """The verbs, and the records of one upgrade.

    Args:
        means: of the controller.
        upgrade: whose steps are taken.
        control: its stream.
    """

    def __init__(self, means: ControllerContext, upgrade: Upgrade, control: StreamControl) -> None:
        self.means = replace(means, upgrade_id=upgrade.upgrade_id)
        self.upgrade = upgrade
        self.control = control
        self.journal = UpgradeJournal(control)
        self.attempts = Attempts(self.means)
        self.deployer = Deployer(self.means, self.attempts)
        self.watching = Watching(self.means)
        self.orders = Orders(self.means, self.attempts, self.watching)
        self.waits = Waits(self.means, self.watching)
        self.planning = Planning(self.means)

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

    @property
    def reason_of_attempt(self) -> str:
        """Why an attempt is asked for that brings the old version back."""
        return f"the way back of upgrade {self.upgrade.upgrade_id}"

    def old(self) -> Observation:
        """The old version, as it stands."""
        return self.means.observer.observe(self.stream_id, self.upgrade.old_deployment_id)

    def old_spec(self) -> DeploymentSpec:
        """What the old version runs."""
        return self.control.spec(self.upgrade.old_deployment_id)

    def version(self, spec: DeploymentSpec) -> PinnedVersion:
        """A recorded version, with what was asked for."""
        upgrade = self.upgrade
        return PinnedVersion(
            spec,
            fresh_queries=upgrade.fresh_queries,
            accept_lost_input=upgrade.accept_lost_input,
            discard_state=upgrade.discard_state,
            reason=upgrade.reason,
        )

    def target(self, mode: UpgradeMode | None) -> PinnedVersion:
        """What is to be brought, in this way; with nothing only where that was asked for by name (Law 5)."""
        version = self.version(self.control.spec(self.upgrade.upgrade_id))
        return replace(version, start="fresh") if mode == "fresh" else version

    def deployed_id(self) -> str | None:
        """The deployment of what is to be brought, where the stream has moved to it, whoever died or sleeps before
        recording that; None where it has not."""
        current = self.control.need_register().value.deployment_id
        is_new = current is not None and self.control.spec(current).request_id == self.request_id("new")
        return current if is_new else None

    def cancellation(self) -> Cancellation | None:
        """Whether it is not wanted any more."""
        return self.journal.cancellation(self.upgrade.upgrade_id)

    def take(self, state: UpgradeState, phase: Phase, text: str = "", **facts: Any) -> None:
        """Record the next step, unless somebody else has taken one of its number."""
        clock = self.means.clock
        self.journal.take(
            UpgradeStep(
                stream_id=self.stream_id,
                upgrade_id=self.upgrade.upgrade_id,
                number=state.last.number + 1,
                phase=phase,
                taken_at=clock.now(),
                taken_by=self.means.requested_by,
                write_id=clock.new_uuid(),
                text=" ".join(text.split())[:MAX_TEXT_CHARACTERS],
                **facts,
            )
        )

    def waited_seconds(self, state: UpgradeState) -> float:
        """Since its phase was entered."""
        return (self.means.clock.now() - state.phase_since).total_seconds()

    def patiently(self, state: UpgradeState, patience_seconds: float, act: Callable[[], Result]) -> Result:
        """Do an act that somebody else, or a store that does not answer, may stand in the way of for a moment.

        What stands in the way goes up at once while the phase is younger than ``patience_seconds``: the next look tries
        again. Who comes later has not seen what was before, so that for him one such error is no answer either.
        """

        def may_pass(error: Exception) -> bool:
            is_in_the_way = isinstance(error, ConflictError | UnavailableError | OutcomeUnknownError)
            is_late = self.waited_seconds(state) >= patience_seconds
            return is_in_the_way and not isinstance(error, UsedError) and is_late

        return LATE.call(self.means.clock, act, may_pass)

    def pause_seconds(self, spec: DeploymentSpec) -> float:
        """Between two looks at a deployment."""
        return min(max(spec.settings.command_poll_seconds, MIN_PAUSE_SECONDS), MAX_PAUSE_SECONDS)

    def handover_pause_seconds(self, state: UpgradeState, spec: DeploymentSpec) -> float:
        """Between two looks at a deployment whose end was ordered: from then on the stream may stand still."""
        share_seconds = HANDOVER_SHARE * self.waited_seconds(state)
        return min(max(share_seconds, MIN_HANDOVER_PAUSE_SECONDS), self.pause_seconds(spec))


def is_passing(error: StreamStateError) -> bool:
    """Whether the same call may go well in a moment: it says nothing about what was asked for."""
    return isinstance(error, UnavailableError | OutcomeUnknownError)


def in_words(error: StreamStateError) -> str:
    """An error as the reason of a step, one line."""
    return " ".join(str(error).split())[:MAX_TEXT_CHARACTERS]
