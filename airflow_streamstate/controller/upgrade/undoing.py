"""Where a version that is given up had begun, whether it has run anything since, and whether what it wrote can be
undone: asked of its logs and of the plans that it recorded, before anything is touched."""

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
    """Why the output of the new version cannot be undone exactly; "" where it can, as far as its plans tell.

    What a sink itself has to say, its history above all, is found out by the driver that undoes it, which refuses
    before it changes anything.
    """
    new_id = state.last.new_deployment_id
    if new_id is None:
        return "nothing of it ever ran"
    seen = tools.context.observer.observe(tools.stream_id, new_id)
    if beginning_id(tools, seen) is None:
        return "it began with nothing, so there is no handover to go back to"
    ran = {event.query_name for event in seen.of_kind(QueryStarted, any_attempt=True)}
    ran |= set(built_checkpoints(tools.context.home, seen))
    sinks = {name: plan.sink.format for name, plan in last_recorded_plans(tools.control, new_id, ran).items()}
    connectors = known_sinks().connectors
    means = {name: undo_means(sinks.get(name, ""), connectors) for name in sorted(ran)}
    return refusal_of(tools.upgrade, means, sinks)


def beginning_id(tools: Tools, seen: Observation) -> str | None:
    """The snapshot that the deployment that is given up had begun from; None where it began with nothing.

    A rollback may name another. Of the old version itself, which is given up where its drain left state that nothing
    can be seeded over, it is the one from before that drain: the newest in which no query was flushed yet.
    """
    upgrade = tools.upgrade
    if upgrade.to_snapshot_id is not None:
        return upgrade.to_snapshot_id
    if seen.deployment_id == upgrade.old_deployment_id:
        return next(filter(None, (_unflushed(tools, each) for each in seen.of_kind(Draining, any_attempt=True))), None)
    return seen.spec.start.snapshot_id


def _unflushed(tools: Tools, event: Draining) -> str | None:
    manifest = None if event.snapshot_id is None else tools.control.readable_manifest(event.snapshot_id)
    is_whole = manifest is not None and not any(query.drained for query in manifest.queries.values())
    return event.snapshot_id if is_whole else None


def beginning_of(tools: Tools, seen: Observation) -> SnapshotManifest | None:
    """Where the old version would go on if the new one had never been; None where nothing is kept of that."""
    snapshot_id = beginning_id(tools, seen)
    if snapshot_id is None:  # it began with nothing: the end of the old one stays behind
        old = tools.old()
        snapshot_id = getattr(old.drained or old.terminal, "snapshot_id", None)
    return None if snapshot_id is None else tools.control.readable_manifest(snapshot_id)


def has_run_batches(tools: Tools, seen: Observation, beginning: SnapshotManifest | None) -> bool:
    """Whether a deployment has committed or planned a batch of its own; after its end it is looked at once more."""
    is_fresh = beginning is None or seen.spec.start.mode == "fresh"
    for name, checkpoint in built_checkpoints(tools.context.home, seen).items():
        try:
            position = checkpoint.position()
        except DataError:  # nobody can say what it ran, so it is taken for something
            return True
        before = None if is_fresh or beginning is None else beginning.queries.get(name)
        began = (None, None) if before is None else (before.position.batch_id, before.position.planned_batch_id)
        if (position.batch_id, position.planned_id) != began:
            return True
    return False


def refusal_of(upgrade: Upgrade, means: Mapping[str, UndoMeans], sinks: Mapping[str, str]) -> str:
    """Which query's sink stands in the way, and what would help; "" for none.

    Args:
        upgrade: what was asked for.
        means: what can be done about the output of each query.
        sinks: the format of each query's sink, as recorded.
    """
    for name, how in means.items():
        sink = f"query {name} writes to {sinks.get(name) or 'a sink of which no plan is recorded'}"
        if how == "only doubled" and not upgrade.accepts_duplicates:
            return f"{sink}, which takes nothing back; --accept-duplicates goes back all the same, and rows come twice"
        if how in ("by command", "unknown") and not upgrade.undo_command:
            return f"{sink}, which nobody but you can undo; --undo-command names what does"
    return ""
