"""The answers of the upgrade verbs, and the texts for their steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, Literal

from airflow_streamstate.control.upgrade_journal import UpgradeState
from airflow_streamstate.controller.observe.observation import ALIVE
from airflow_streamstate.errors import (
    ConflictError,
    DeploymentFailedError,
    IncompatibleUpgradeError,
    StreamStateError,
)
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.launch.interface import LaunchHandle
from airflow_streamstate.plan.codes import remedy_in
from airflow_streamstate.protocol.forms import View, selected
from airflow_streamstate.protocol.positions import Downtime, downtime_by_query, downtime_seconds
from airflow_streamstate.protocol.upgrades import AfterStop, DriverChoice, DriverLaunchedLater, DriverWaits, Phase

UpgradeOutcome = Literal["upgraded", "given_up", "rolled_back", "refused", "failed"]
"""``given_up``: an upgrade whose old version is back; ``rolled_back``: a rollback that succeeded."""
WAITS_FOR_A_PERSON = "a person has to approve the plan"
WORDS: Mapping[Phase, str] = {
    "begun": "it is recorded",
    "rehearsing": "the new version is rehearsed on a fork of the state",
    "planned": "the plan is known",
    "waiting": "the new driver starts next to the old one",
    "ready": "the handover is prepared",
    "stopping": "the old version ends after its batch in flight",
    "ended": "the old version has ended",
    "started": "the new version runs, and is not healthy yet",
    "unhealthy": "the new version is abandoned",
    "trying": "the old code is rehearsed on the state that the new version left",
    "returning": "the new version ends",
    "returned": "the old version runs again",
    "upgraded": "the new version is healthy",
    "rolled_back": "the old version is back",
    "refused": "nothing was changed",
    "failed": "it could not be completed",
}
_WORDS_OF_A_ROLLBACK: Mapping[Phase, str] = {
    "unhealthy": "the rollback is decided",
    "trying": "the code of the version before is rehearsed on the current state",
    "returning": "the current version ends",
    "returned": "the version before runs again",
    "rolled_back": "the version before is back",
}
_CARRIED: frozenset[Phase] = frozenset({"unhealthy", "returning", "returned"})
"""Phases whose text is repeated in full in the reason at the end."""
MAX_GIST_CHARACTERS = 100


@dataclass(frozen=True)
class UpgradeView(View):
    """The status of an upgrade.

    Attributes:
        state: the sum of its steps.
        waits_for: what it waits for, in one line; "" where it has ended.
        pause_seconds: until the next poll is worthwhile, or the bell of ``driver`` rings.
        driver: the driver that it waits for, or None.
    """

    form: ClassVar[str] = (
        "upgrade_id stream_id phase=state.phase outcome mode=state.mode"
        " old_deployment_id=state.upgrade.old_deployment_id new_deployment_id=state.new_deployment_id"
        " returned_deployment_id=state.returned_deployment_id way=state.way bad_batches=state.bad_batches"
        " begun_batches=state.begun_batches downtime_seconds downtime_by_query downtimes not_running_seconds"
        " verdict=state.verdict differences audit_ok=state.audit_ok cancelled_by=state.cancelled_by reason=state.text"
        " driver=driver_text warnings=state.warnings waits_for"
    )

    state: UpgradeState
    waits_for: str = ""
    pause_seconds: float = 0.5
    driver: LaunchHandle | None = None

    @property
    def stream_id(self) -> str:
        """The stream."""
        return self.state.upgrade.stream_id

    @property
    def upgrade_id(self) -> str:
        """The upgrade."""
        return self.state.upgrade.upgrade_id

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.state.is_over

    @property
    def outcome(self) -> UpgradeOutcome | None:
        """How it ended; None while it is under way."""
        if self.state.phase == "rolled_back" and self.state.upgrade.asked == "upgrade":
            return "given_up"
        return self.state.phase if self.state.is_over else None  # type: ignore[return-value]

    @property
    def is_back(self) -> bool:
        """Whether an older version is back, after a rollback or an upgrade that was abandoned."""
        return self.state.phase == "rolled_back"

    @property
    def downtimes(self) -> tuple[Downtime, ...]:
        """From the last commit of one deployment to the first commit of the next, so far."""
        return self.state.downtimes

    @property
    def downtime_seconds(self) -> float | None:
        """The downtime of the query that was down longest; None where none is known."""
        return downtime_seconds(self.downtimes)

    @property
    def downtime_by_query(self) -> dict[str, float | None]:
        """The downtime of each query; None where its end is unknown."""
        return downtime_by_query(self.downtimes)

    @property
    def differences(self) -> list[dict[str, object]]:
        """The differences of the plans of all queries, each with the name of its query."""
        return differences_of(self.state.report)

    @property
    def driver_text(self) -> str | None:
        """``waits`` for a driver that waits, or why none does; None if that is not decided."""
        driver = self.state.driver
        return "waits" if isinstance(driver, DriverWaits) else None if driver is None else driver.why

    @property
    def not_running_seconds(self) -> float | None:
        """How long no query of the stream ran during the upgrade; None while unknown."""
        return self.state.not_running_seconds

    @property
    def is_what_was_asked(self) -> bool:
        """Whether it ended as requested."""
        return self.outcome == ("upgraded" if self.state.upgrade.asked == "upgrade" else "rolled_back")

    def is_end_of_cancel(self, after_stop: AfterStop) -> bool:
        """Whether it ended as its cancellation asked: refused, or by ``after_stop`` where the stop had started."""
        return self.outcome == "refused" or (self.is_what_was_asked if after_stop == "finish" else self.is_back)

    @property
    def after_refusal(self) -> str:
        """What a refusal leaves, as a clause: it does not run on where it did not run."""
        return left_by_refusal(self.state)

    @property
    def is_cancelled(self) -> bool:
        """Whether it ended, or went back, because it was cancelled."""
        return self.state.is_cancelled

    def as_error(self) -> StreamStateError | None:
        """The error of an upgrade that did not end as requested; None where it did, or is under way."""
        if self.outcome is None or self.is_what_was_asked:
            return None
        state = self.state
        facts = selected(state.upgrade, "stream_id upgrade_id old_deployment_id")
        facts |= selected(state, "new_deployment_id returned_deployment_id verdict reason=text")
        asked = self.state.upgrade.asked
        if self.outcome == "refused" and self.is_cancelled:
            again = "Request it again if it is wanted after all."
            return ConflictError(f"the {asked} was cancelled, and {self.after_refusal}", **facts, next_step=again)
        if self.outcome == "refused":
            is_misfit = state.mode is None and state.verdict not in (None, "same")  # else a person rejected the plan
            kind = IncompatibleUpgradeError if is_misfit else ConflictError
            return kind(f"the {asked} was refused, and {self.after_refusal}", **facts, next_step=_after_refusal(self))
        if self.is_back and self.is_cancelled:
            return DeploymentFailedError(
                f"the {asked} was cancelled, and the old version is back",
                **facts,
                next_step=f"`streamstate status {self.stream_id}` shows it.",
            )
        if self.is_back and state.new_deployment_id is None:
            return DeploymentFailedError(
                "the new version was not started, and the old one is back", **facts, next_step=_after_refusal(self)
            )
        if self.is_back:
            return DeploymentFailedError(
                "the new version did not become healthy, and the old one is back",
                **facts,
                next_step=f"`streamstate logs {self.stream_id} --deployment {state.new_deployment_id}` shows why.",
            )
        return DeploymentFailedError(
            f"the {asked} could not be completed",
            **facts,
            next_step=f"`streamstate status {self.stream_id}` shows the stream's state.",
        )


def end_lines(view: UpgradeView) -> Iterator[str]:
    """How an upgrade ended, for a log: the outcome, and where they are known the plan's verdict, the mode and the
    downtime, one line each."""
    state, text = view.state, view.state.text
    yield f"outcome: {view.outcome}{f': {text}' if text else ''}"
    if state.verdict is not None:
        yield f"plan: {state.verdict}"
    if state.mode is not None:
        yield f"mode: {state.mode}"
    downtime = downtime_words(view.downtimes)
    if downtime is not None:
        yield f"downtime: {downtime}"


def downtime_words(found: Sequence[Downtime]) -> str | None:
    """The downtime of each query, the longest first; None if none is known."""
    seconds = downtime_by_query(found)
    ordered = sorted(seconds.items(), key=lambda item: (item[1] is not None, -(item[1] or 0.0), item[0]))
    lasting = {one.query_name for one in found if one.seconds is None and not one.has_ended}

    def words(name: str, one: float | None) -> str:
        if one is not None:
            return f"{one:g} s ({name})"
        return f"no new batch yet ({name})" if name in lasting else f"not known ({name}: its commit has no time)"

    told = ", ".join(words(name, one) for name, one in ordered)
    idle = max((one.idle_seconds for one in found), default=0.0)
    return f"{told}; {idle:g} s more with nothing to commit" if told and idle else told or None


class Telling:
    """Reports each step once, in one line, also the steps of other workers.

    Args:
        say: called with each line; None: no report.
        told: the number of the last step that was reported before.
        tells_end: report the last step as well; False where the caller shows the end itself.
    """

    def __init__(self, say: Callable[[str], None] | None, told: int = 0, *, tells_end: bool = True) -> None:
        self._say = say
        self._told = told
        self._tells_end = tells_end
        self._line = ""

    def __call__(self, state: UpgradeState) -> None:
        """Report this state, unless it was reported before."""
        if self._say is not None and state.last.number > self._told and (self._tells_end or not state.is_over):
            line = _line_of(state)
            if line != self._line:  # else the step adds a command or a fact to a reported phase
                self._say(line)
            self._line = line
        self._told = max(self._told, state.last.number)


def _line_of(state: UpgradeState) -> str:
    """The step as a line; a reason that the caller shows at the end is shortened or left out."""
    phase, text = state.phase, state.text
    is_rollback = state.upgrade.asked == "rollback"
    words = _WORDS_OF_A_ROLLBACK.get(phase, WORDS[phase]) if is_rollback else WORDS[phase]
    if phase == "trying" and state.is_way_decided:
        words = "the old version's driver starts next to the abandoned version"
    elif phase == "returning":
        words = f"{words}{_with_driver(state.driver)}"
    if phase == "refused":
        words = left_by_refusal(state)
    if phase == "rehearsing" and not state.upgrade.terms.rehearse:
        words = "the plans of the new version are compared, no batch is run"
    if state.is_over:
        text = ""
    elif phase in _CARRIED:
        gist = text.partition(": ")[0]
        text = gist if len(gist) <= MAX_GIST_CHARACTERS else f"{gist[: MAX_GIST_CHARACTERS - 1]}…"
    return f"{state.phase_for_people}: {words}{f': {text}' if text else ''}"


def _with_driver(driver: DriverChoice | None) -> str:
    match driver:
        case DriverWaits():
            return ", and a driver waits"
        case DriverLaunchedLater(why) if why:
            return f", and no driver waits: {why}"
    return ""


def left_by_refusal(state: UpgradeState) -> str:
    """What a refusal leaves, by the state of the stream after it."""
    stream_state = None if state.result is None else state.result.stream_state
    if stream_state is None:
        return "nothing was changed"
    return "the stream runs on as before" if stream_state in ALIVE else f"the stream is {stream_state} as before"


def differences_of(report: Mapping[str, object]) -> list[dict[str, object]]:
    """The differences of all queries in a recorded report, each with the name of its query."""
    queries = report.get("queries")
    found: list[dict[str, object]] = []
    for name, query in queries.items() if isinstance(queries, Mapping) else ():
        differences = query.get("differences", ()) if isinstance(query, Mapping) else ()
        found += [{"query": name, **each} for each in differences]
    return found


def _after_refusal(view: UpgradeView) -> str:
    words = remedy_in(view.state.report)
    if words:
        return words
    if view.state.report.get("outcome") == "failed":
        plan = f"`streamstate plan {view.stream_id}` with the same options shows its traceback and the end of its log."
        return f"Fix it, and upgrade again; {plan}"
    return f"Fix what the reason names, and request the {view.state.upgrade.asked} again."
