"""The last known good version: marked by the first controller that sees it healthy."""

from __future__ import annotations

import logging

from airflow_streamstate.control.retention import Retention
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.observe.caught_up import has_some_left
from airflow_streamstate.controller.observe.health import QUIET_SECONDS, Healthy, beats_of, decide_health
from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.controller.observe.pace import keeps_level
from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.protocol.terms.upgrade import UpgradeTerms

log = logging.getLogger(__name__)


def mark_known_good(context: ControllerContext, stream_id: str, deployment_id: str) -> None:
    """Record that a version has been healthy. A failed write is only logged: the next prune marks it."""
    try:
        Retention(context.home.control(stream_id), context.requested_by).mark_good(deployment_id)
    except StreamStateError as error:
        log.info("%s %s is healthy, and is not marked as known good: %s", stream_id, deployment_id, error)


def has_proven_itself(context: ControllerContext, seen: Observation) -> bool:
    """Whether a deployment is healthy by an upgrade's defaults, without waiting for anything."""
    # A deployment that still catches up is not known good yet. One whose input never pauses always has some left: it is
    # known good where that is no more than a batch or two. A source that cannot tell its lag does not count against it:
    # otherwise a stream of such sources would keep everything.
    is_over = seen.has_come_to_its_end
    if not is_over and any(has_some_left(query) and not keeps_level(query) for query in beats_of(seen).values()):
        return False
    snapshot_id = seen.spec.start.snapshot_id
    control = context.home.control(seen.stream_id)
    handover = None if snapshot_id is None else control.readable_manifest(snapshot_id)
    return isinstance(decide_health(seen, handover, UpgradeTerms(), None, QUIET_SECONDS), Healthy)
