"""The driver of the version that comes back, before the one that is given up is stopped: rehearsed, and waiting.

Nothing depends on it: where there is no room for two, where its rehearsal fails, or where it is late, the way back is
taken without it, and a driver is launched after the stop. Why is recorded with the step.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from airflow_streamstate.control.upgrades import UpgradeState
from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.controller.observe.state import ALIVE, decide_state
from airflow_streamstate.controller.upgrade.forward import STAY_SECONDS, WARM_SECONDS
from airflow_streamstate.controller.upgrade.tools import Act, Next, Tools, Wait, in_words, is_passing
from airflow_streamstate.controller.upgrade.undoing import beginning_of, has_run_batches
from airflow_streamstate.errors import InvalidRequestError, StreamStateError, UnavailableError
from airflow_streamstate.protocol.upgrades import WAITS, ReturnWay

NOTHING_RUNS = "what is given up does not run, so that no time is to be lost"
PATIENCE_SECONDS = 60.0
"""So long a store may not answer before the way back is taken without a driver that waits."""


def stay_seconds(tools: Tools) -> float | None:
    """For how long a driver that is rehearsed is to wait; None where none is wanted."""
    upgrade = tools.upgrade
    return upgrade.rehearsal_within_seconds + STAY_SECONDS if upgrade.warm else None


def take_way(
    tools: Tools, state: UpgradeState, way: ReturnWay, reason: str = "", *, rehearsal_id: str | None = None
) -> None:
    """Record the way back that was decided on; before it is gone, a driver for it comes up, where that can be.

    Args:
        tools, state: of the upgrade.
        way: ``handover``, ``forward`` or ``undo``.
        reason: why not in an earlier way; "" for nothing to say.
        rehearsal_id: of the old code on what the new version left, where its driver may wait by now.

    Raises:
        UnavailableError, OutcomeUnknownError: a rehearsal could not be begun, and may be in a moment.
    """
    if not tools.upgrade.warm:
        go_back(tools, state, way, reason, "as was asked for")
        return
    end = "" if rehearsal_id is None else tools.planning.waiting_end(tools.stream_id, rehearsal_id)
    if rehearsal_id is not None and not end:
        tools.take(state, "trying", reason, way=way, rehearsal_id=rehearsal_id, is_decided=True)
        return
    if way == "forward":
        go_back(tools, state, way, reason, end)
        return
    seen = tools.means.observer.observe(tools.stream_id, state.last.new_deployment_id)
    beginning = beginning_of(tools, seen)
    if not _is_alive(seen) or beginning is None:
        go_back(tools, state, way, reason, NOTHING_RUNS)
        return
    try:
        view = tools.planning.begin(
            tools.version(tools.old_spec()),
            request_id=tools.request_id(f"back-{way}"),
            deadline_seconds=tools.upgrade.rehearsal_within_seconds,
            waits_seconds=stay_seconds(tools),
            snapshot_id=beginning.snapshot_id,
        )
    except StreamStateError as error:
        if is_passing(error) and tools.waited_seconds(state) < PATIENCE_SECONDS:
            raise
        go_back(tools, state, way, reason, in_words(error))
        return
    tools.take(state, "trying", reason, way=way, rehearsal_id=view.rehearsal_id, is_decided=True)


def go_back(tools: Tools, state: UpgradeState, way: ReturnWay, reason: str, driver: str) -> None:
    """Record that the version that is given up is ended now; ``driver``: as in ``UpgradeStep``."""
    tools.take(state, "returning", reason, way=way, driver=driver)


def warming(tools: Tools, state: UpgradeState) -> Next:
    """The way is decided on, and the driver for it comes up beside the version that is given up."""
    way: ReturnWay = state.last.way or "forward"
    go = partial(go_back, tools, state, way, state.last.text)
    rehearsal_id = str(state.last.rehearsal_id)
    if way == "handover" and _has_run(tools, state):
        words = "it has run a batch while the old driver came up, so its beginning is not its end"
        return Act(partial(tools.take, state, "unhealthy", "; ".join(filter(None, (tools.why_given_up(), words)))))
    try:
        if tools.planning.is_waiting(tools.stream_id, rehearsal_id):
            return Act(partial(go, WAITS))
        end = tools.planning.waiting_end(tools.stream_id, rehearsal_id)
        is_over = tools.planning.is_over(tools.stream_id, rehearsal_id)
    except InvalidRequestError as error:
        return Act(partial(go, in_words(error)))
    if (
        not end
        and not is_over
        and not _is_alive(tools.means.observer.observe(tools.stream_id, state.last.new_deployment_id))
    ):
        end = NOTHING_RUNS
    within_seconds = WARM_SECONDS + (0.0 if way == "forward" else tools.upgrade.rehearsal_within_seconds)
    waited_seconds = (tools.means.clock.now() - state.last.taken_at).total_seconds()
    if not end and waited_seconds >= within_seconds:
        end = f"it has not come to its first start in {within_seconds:g} s"
    if end:
        return Act(partial(go, end))
    return Wait("the driver of the version before comes up beside the one that is given up")


def _has_run(tools: Tools, state: UpgradeState) -> bool:
    """Whether the version that is given up is past its beginning by now: it runs on while the driver comes up. Where
    the store of its log does not answer, its end will tell."""
    with suppress(UnavailableError):
        seen = tools.means.observer.observe(tools.stream_id, state.last.new_deployment_id)
        return has_run_batches(tools, seen, beginning_of(tools, seen))
    return False


def give_up_waiting(tools: Tools, state: UpgradeState) -> None:
    """End a driver that waits for a way that is not taken: there may not be room for one more."""
    if state.last.is_decided and state.last.rehearsal_id is not None:
        with suppress(StreamStateError):
            tools.planning.give_up(tools.stream_id, state.last.rehearsal_id)


def _is_alive(seen: Observation) -> bool:
    return seen.is_current and decide_state(seen, seen.observed_at) in ALIVE
