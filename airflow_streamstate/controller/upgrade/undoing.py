"""Where a version that is given up began, whether it has run batches since, and whether its output can be undone: from
its logs and its recorded plans, before anything is changed."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_streamstate.connectors.sink import known_sinks
from airflow_streamstate.connectors.undoing import UndoMeans, undo_means
from airflow_streamstate.control.upgrades import UpgradeState
from airflow_streamstate.controller.deploy.takeover import built_checkpoints
from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.controller.upgrade.tools import Tools
from airflow_streamstate.errors import DataError
from airflow_streamstate.plan.recorded import last_recorded_plans
from airflow_streamstate.protocol.events import Draining, QueryStarted
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.upgrades import Upgrade


def why_not_undone(tools: Tools, state: UpgradeState) -> str:
    """Why the new version's output cannot be undone exactly; "" where it can, by the recorded plans.

    The driver that undoes a sink checks the sink's history itself, and refuses before it changes anything.
    """
    new_id = state.new_deployment_id
    if new_id is None:
        return "it never ran"
    seen = tools.context.observer.observe(tools.stream_id, new_id)
    if beginning_id(tools, seen) is None:
        return "it began with empty state, so there is no handover to go back to"
    ran = {event.query_name for event in seen.of_kind(QueryStarted, any_attempt=True)}
    ran |= set(built_checkpoints(tools.context.home, seen))
    sinks = {name: plan.sink.format for name, plan in last_recorded_plans(tools.control, new_id, ran).items()}
    connectors = known_sinks().connectors
    means = {name: undo_means(sinks.get(name, ""), connectors) for name in sorted(ran)}
    return refusal_of(tools.upgrade, means, sinks)


def beginning_id(tools: Tools, seen: Observation) -> str | None:
    """The snapshot that the given-up deployment began from, or that the rollback names; None for a fresh start.

    The old version itself is given up where its drain left state that a seed would drop. It goes back to the newest
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
    """The snapshot where the old version would go on if the new one had never run, or None."""
    snapshot_id = beginning_id(tools, seen)
    if snapshot_id is None:  # a fresh start: the old version would go on from its own end
        old = tools.old()
        snapshot_id = getattr(old.drained or old.terminal, "snapshot_id", None)
    return None if snapshot_id is None else tools.control.readable_manifest(snapshot_id)


def has_run_batches(tools: Tools, seen: Observation, beginning: SnapshotManifest | None) -> bool:
    """Whether a deployment has committed or planned a batch of its own."""
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
    """Whether an ended deployment left the state that it began with, and at most one planned batch of each query, from
    the sources that the version before reads. Unknown counts as no."""
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
    """Which query's sink prevents an undo, and what would help; "" for none.

    Args:
        means: how the output of each query can be undone.
        sinks: the recorded format of each query's sink.
    """
    for name, how in means.items():
        sink = f"query {name} writes to {sinks.get(name) or 'a sink without a recorded plan'}"
        if how == "only doubled" and not upgrade.terms_of_return.accept_duplicates:
            return f"{sink}, which cannot be undone; --accept-duplicates goes back all the same, and rows come twice"
        if how in ("by command", "unknown") and not upgrade.terms.undo_command:
            return f"{sink}, which only your own command can undo; --undo-command names it"
    return ""
