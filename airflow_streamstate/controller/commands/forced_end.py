"""The end of an attempt that would not end: its driver is ended, its end proven and kept, as a deploy would (1a.8).

All of it may be done twice, or by two at once: the intent and the kill have one id per attempt, and one snapshot is the
end of one attempt.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.context import Means
from airflow_streamstate.controller.decide import INTENT_SECONDS, refuse_other_intent
from airflow_streamstate.controller.deploy.attempts import Attempts, someone_was_first
from airflow_streamstate.controller.deploy.takeover import ResumedError, take_over
from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.controller.observe.outcomes import decide_end
from airflow_streamstate.controller.observe.state import decide_state
from airflow_streamstate.controller.observe.views import Outcome, SnapshotFacts
from airflow_streamstate.controller.request.resolved_request import digest_of
from airflow_streamstate.controller.wait.watching import Watching, redacted
from airflow_streamstate.errors import ConflictError, StreamStateError, VersionConflictError
from airflow_streamstate.protocol.commands import StopRequest
from airflow_streamstate.protocol.ids import launch_key_for, snapshot_id_for
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.register import Intent, StreamRegister

log = logging.getLogger(__name__)
KILL_GRACE_SECONDS = 10.0
"""How long the processes of a driver that is ended at the deadline may take to end by themselves."""
TRIES = 5


@dataclass(frozen=True)
class ForcedStop:
    """How a stop with a deadline ended.

    Attributes:
        outcome: ``stopped``, ``finished`` or ``drained`` of a clean end; ``killed`` where its driver was ended at the
            deadline, ``failed`` where it had died by itself: then its end was taken over.
        cut_batches: per query, the batch that was planned and not committed; it runs again at the next start.
    """

    outcome: Outcome
    cut_batches: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """As ``Outcome.to_json``, and ``cut_batches{NAME:batch_id}``."""
        return {**self.outcome.to_json(), "cut_batches": dict(self.cut_batches)}


class ForcedEnd:
    """Ends one attempt, and no other, whatever it is doing.

    Args:
        means: of the controller.
        attempts: ends its driver.
        watching: turns what was seen into outcomes.
        control: the stream.
        deployment_id, attempt: which.
        command_id: the stop that was ordered; "" for none.
    """

    def __init__(
        self,
        means: Means,
        attempts: Attempts,
        watching: Watching,
        control: StreamControl,
        deployment_id: str,
        attempt: int,
        command_id: str,
    ) -> None:
        self._means = means
        self._attempts = attempts
        self._watching = watching
        self._control = control
        self._deployment_id = deployment_id
        self._attempt = attempt
        self._command_id = command_id
        self._launch_key = launch_key_for(deployment_id, attempt)
        self._intent_id = f"taking-{self._launch_key}"
        self._kill_id = f"killing-{self._launch_key}"

    def come_to(self) -> ForcedStop:
        """End the driver, prove its end, and keep it; what it came to by itself, where it did.

        Raises:
            ConflictError: it cannot be ended from here; its end cannot be taken over; somebody else moved the stream.
            DataError: a checkpoint is damaged.
        """
        try:
            for _try in range(TRIES):
                try:
                    return self._try()
                except VersionConflictError:
                    continue  # somebody moved the register: look again who, and decide again
            raise someone_was_first(self._control)
        finally:
            self._release()

    def _try(self) -> ForcedStop:
        seen = self._look()
        clean = self._clean_end(seen)
        if clean is not None:
            return clean
        self._hold()
        if not _is_proven_dead(seen):
            self._end_driver(seen)
            seen = self._look()  # its last word may have come in the end
            clean = self._clean_end(seen)
            if clean is not None:
                return clean
        self._means.endings.prove(self._control, seen)
        self._hold()  # that may have taken longer than an intent is good for
        manifest = take_over(
            self._means.home,
            self._control,
            seen,
            snapshot_id_for(self._deployment_id, "stopped", self._attempt),
            self._intent_id,
            may_discard=False,
            still_ours=self._check_still_ours,
        )
        return self._taken_over(self._look(), manifest)

    def _release(self) -> None:
        try:
            stored = self._control.need_register()
            if self._is_held(stored.value):
                self._means.replace_register(self._control, stored, intent=None)
        except StreamStateError as error:
            log.info("the intent of a forced stop stays in the register until it is old: %s", error)

    def _look(self) -> Observation:
        return self._means.observer.observe(self._control.stream_id, self._deployment_id)

    def _clean_end(self, seen: Observation) -> ForcedStop | None:
        """What became of it where it ended by itself after all.

        Raises:
            ConflictError: another deployment or attempt is current.
        """
        end = decide_end(seen, StopRequest.kind)
        if end is not None and end.is_what_was_ordered:
            return ForcedStop(self._watching.outcome(seen, end, self._command_id))
        self._refuse_moved(seen.register)
        return None

    def _refuse_moved(self, register: StreamRegister) -> None:
        if (register.deployment_id, register.attempt) != (self._deployment_id, self._attempt):
            raise ConflictError(
                "the stream was moved since this stop was ordered, so nothing is ended for it",
                stream_id=register.stream_id,
                deployment_id=self._deployment_id,
                attempt=self._attempt,
                current_deployment_id=register.deployment_id,
                current_attempt=register.attempt,
                moved_by=register.updated_by,
                next_step=f"`streamstate status {register.stream_id}` shows where it stands; then decide again.",
            )

    def _hold(self) -> None:
        """Say in the register what is about to happen, so that nobody resumes or deploys meanwhile (1a.8)."""
        stored, now = self._control.need_register(), self._means.clock.now()
        self._refuse_moved(stored.value)
        refused = refuse_other_intent(stored.value, self._intent_id, now)
        if refused is not None:
            raise refused.error
        intent = stored.value.intent
        if intent is not None and intent.request_id == self._intent_id:
            age_seconds = (now - intent.requested_at).total_seconds()
            if age_seconds < INTENT_SECONDS / 2:
                return  # of another, perhaps, who stops it just so: it is the same intent
        mine = Intent(self._intent_id, self._deployment_id, now, self._means.requested_by)
        self._means.replace_register(self._control, stored, intent=mine)

    def _is_held(self, register: StreamRegister) -> bool:
        return register.intent is not None and register.intent.request_id == self._intent_id

    def _check_still_ours(self) -> None:
        register = self._control.need_register().value
        is_same = (register.deployment_id, register.attempt) == (self._deployment_id, self._attempt)
        if is_same and self._is_held(register):
            return
        is_resumed = register.deployment_id == self._deployment_id and register.attempt > self._attempt
        raise (ResumedError if is_resumed else VersionConflictError)(
            "the stream was moved by somebody else", stream_id=register.stream_id
        )

    def _end_driver(self, seen: Observation) -> None:
        if seen.terminal is None:
            # Before the act: whoever comes later knows that it did not die by itself (Law 1).
            wish = digest_of({"verb": "kill"})
            self._attempts.record_request(self._control, self._kill_id, "kill", wish, seen, self._launch_key)
        try:
            self._attempts.end_driver(seen, KILL_GRACE_SECONDS)
        except ConflictError as error:
            raise ConflictError(
                f"it has not stopped by its deadline, and {error.message}",
                **error.context,
                command_id=self._command_id,
                order="stands",
                next_step="End it where it runs, then give the same verb again: it keeps its end.",
            ) from None

    def _taken_over(self, seen: Observation, manifest: SnapshotManifest) -> ForcedStop:
        positions = {name: query.position for name, query in sorted(manifest.queries.items())}
        cut = {
            name: position.planned_batch_id
            for name, position in positions.items()
            if position.planned_batch_id is not None
        }
        is_killed = self._control.request(self._kill_id) is not None
        outcome = Outcome(
            stream_id=seen.stream_id,
            deployment_id=seen.deployment_id,
            outcome="killed" if is_killed else "failed",
            state=decide_state(seen, seen.observed_at),
            snapshot=SnapshotFacts(
                manifest.snapshot_id, manifest.snapshot_kind, manifest.files_count, manifest.size_bytes
            ),
            queries=positions,
            reason="; ".join([_how_it_ended(seen, is_killed=is_killed), *_cut_in_words(cut)]),
            command_id=self._command_id,
        )
        return ForcedStop(outcome, cut)


def _is_proven_dead(seen: Observation) -> bool:
    if seen.launch_status is not None:
        return seen.launch_status.has_ended
    return seen.is_closed or seen.terminal is not None


def _how_it_ended(seen: Observation, *, is_killed: bool) -> str:
    if is_killed:
        return "it had not stopped by its deadline, so its driver was ended"
    end = decide_end(seen)
    why = "" if end is None else redacted(seen, end.reason)
    return f"it had ended before it could be stopped: {why}"


def _cut_in_words(cut: Mapping[str, int]) -> list[str]:
    return [
        f"batch {batch_id} of query {name} was planned and not committed: the next start runs it again, over the same"
        " bounds"
        for name, batch_id in cut.items()
    ]
