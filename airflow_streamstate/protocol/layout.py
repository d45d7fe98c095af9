"""Where everything is stored: every key is built and parsed here, and nowhere else.

Two stores hold these keys, by default the same one: ``home`` (the control objects) and ``checkpoints`` (Spark's
folders, data of snapshots, folders of local launches). Numbers are zero-padded, so that a listing is in their order.
"""

from __future__ import annotations

import hashlib
import re

from airflow_streamstate.protocol.ids import (
    decode_query_name,
    encode_query_name,
    is_scratch_id,
    is_upgrade_id,
)

NUMBER_DIGITS = 8


def home_key() -> str:
    """The record of the home; ``home.json`` is no valid stream id."""
    return "home.json"


FEED_FOLDER = "home.feed"
"""What was written of which stream, in the order of time; no valid stream id, as ``home_key``."""


def feed_folder(period: str) -> str:
    """The entries that were appended to the feed of the home within one period."""
    return f"{FEED_FOLDER}/{period}"


def feed_key(period: str, stream_id: str, mark: str) -> str:
    """One entry, all of which is in its key."""
    return f"{feed_folder(period)}/{stream_id}~{mark}"


def stream_of_feed(key: str) -> str:
    """The stream of an entry of the feed."""
    return key.rpartition("/")[2].partition("~")[0]


def is_told_in_feed(key: str) -> bool:
    """Whether a write of this key may end a wait, or be news of its stream."""
    return _TOLD.fullmatch(key) is not None


def stream_of_key(key: str) -> str:
    """The stream of one of its keys."""
    return key.partition("/")[0]


_TOLD = re.compile(
    r"[^/]+/(stream\.json|alerts\.json|deployments/[^/]+/events/[^/]+|upgrades/[^/]+/steps/[^/]+"
    r"|scratch/[^/]+/(verdict|waiting)\.json)"
)


def register_key(stream_id: str) -> str:
    return f"{stream_id}/stream.json"


def retention_key(stream_id: str) -> str:
    return f"{stream_id}/retention.json"


def alerts_key(stream_id: str) -> str:
    return f"{stream_id}/alerts.json"


def adoption_key(stream_id: str) -> str:
    return f"{stream_id}/adoption.json"


def idempotency_folder(stream_id: str) -> str:
    return f"{stream_id}/idempotency"


def idempotency_key(stream_id: str, request_id: str) -> str:
    """The record of what a request became."""
    return f"{idempotency_folder(stream_id)}/{request_id}.json"


def artifacts_folder(stream_id: str) -> str:
    """The folder whose sub-folders are the digests of what deployments run."""
    return f"{stream_id}/artifacts"


def artifact_key(stream_id: str, sha256: str, name: str) -> str:
    return f"{artifacts_folder(stream_id)}/{sha256}/{name}"


def witness_key(stream_id: str, deployment_id: str) -> str:
    """By this object a driver on another machine knows that it sees the right folder (in the checkpoints store)."""
    return f"{deployment_folder(stream_id, deployment_id)}/witness"


def deployment_folder(stream_id: str, deployment_id: str) -> str:
    """Everything that one deployment writes is below this (Law 4).

    Scratch runs and upgrades have the keys of a deployment in a separate folder, so that no listing of deployments has
    them.
    """
    room = "deployments"
    if is_scratch_id(deployment_id):
        room = "scratch"
    elif is_upgrade_id(deployment_id):
        room = "upgrades"
    return f"{stream_id}/{room}/{deployment_id}"


def deployments_folder(stream_id: str) -> str:
    return f"{stream_id}/deployments"


def spec_key(stream_id: str, deployment_id: str) -> str:
    return f"{deployment_folder(stream_id, deployment_id)}/spec.json"


def found_modules_prefix(stream_id: str, deployment_id: str) -> str:
    """What a script loaded from its own folder, besides the modules of its ``DeploymentSpec``."""
    return f"{deployment_folder(stream_id, deployment_id)}/modules/"


def found_module_key(stream_id: str, deployment_id: str, name: str) -> str:
    """One module, by a digest of its path below the script's folder."""
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    return f"{found_modules_prefix(stream_id, deployment_id)}{digest}.json"


def claim_key(stream_id: str, deployment_id: str, attempt: int) -> str:
    return f"{deployment_folder(stream_id, deployment_id)}/claims/{attempt:0{NUMBER_DIGITS}d}.json"


def command_key(stream_id: str, deployment_id: str, number: int) -> str:
    return f"{deployment_folder(stream_id, deployment_id)}/commands/{number:0{NUMBER_DIGITS}d}.json"


def commands_prefix(stream_id: str, deployment_id: str) -> str:
    return f"{deployment_folder(stream_id, deployment_id)}/commands/"


def event_key(stream_id: str, deployment_id: str, number: int) -> str:
    return f"{deployment_folder(stream_id, deployment_id)}/events/{number:0{NUMBER_DIGITS}d}.json"


def events_prefix(stream_id: str, deployment_id: str) -> str:
    return f"{deployment_folder(stream_id, deployment_id)}/events/"


def plans_prefix(stream_id: str, deployment_id: str, query_name: str | None = None) -> str:
    """All recorded plans of a deployment, or of one query of it."""
    folder = f"{deployment_folder(stream_id, deployment_id)}/plans/"
    return folder if query_name is None else f"{folder}{encode_query_name(query_name)}/"


def plan_key(stream_id: str, deployment_id: str, query_name: str, number: int) -> str:
    """One plan of a query, as it was before a start of it; a start with another plan has the next number."""
    return f"{plans_prefix(stream_id, deployment_id, query_name)}{number:0{NUMBER_DIGITS}d}.json"


def script_reads_prefix(stream_id: str, deployment_id: str, query_name: str | None = None) -> str:
    """What a script had read before its queries started, of a deployment, or of one query of it."""
    folder = f"{deployment_folder(stream_id, deployment_id)}/reads/"
    return folder if query_name is None else f"{folder}{encode_query_name(query_name)}/"


def script_reads_key(stream_id: str, deployment_id: str, query_name: str, attempt: int) -> str:
    return f"{script_reads_prefix(stream_id, deployment_id, query_name)}{attempt:0{NUMBER_DIGITS}d}.json"


def heartbeat_key(stream_id: str, deployment_id: str) -> str:
    return f"{deployment_folder(stream_id, deployment_id)}/heartbeat.json"


def checkpoints_folder(stream_id: str, deployment_id: str) -> str:
    """The folder whose sub-folders are the deployment's checkpoints, one per query (in the checkpoints store)."""
    return f"{deployment_folder(stream_id, deployment_id)}/checkpoints"


def checkpoint_folder(stream_id: str, deployment_id: str, query_name: str) -> str:
    """Spark's checkpoint of one query (in the checkpoints store)."""
    return f"{checkpoints_folder(stream_id, deployment_id)}/{encode_query_name(query_name)}"


def building_folder(stream_id: str, deployment_id: str, query_name: str) -> str:
    """Where a checkpoint is built before it is put in its place (in the checkpoints store; 1a.10)."""
    return f"{deployment_folder(stream_id, deployment_id)}/building/{encode_query_name(query_name)}"


def warming_folder(stream_id: str, deployment_id: str, query_name: str) -> str:
    """Where a driver once writes a row of nulls as it will write to the sink of a query (in the checkpoints store)."""
    return f"{deployment_folder(stream_id, deployment_id)}/warming/{encode_query_name(query_name)}"


def trial_folder(stream_id: str, deployment_id: str, query_name: str) -> str:
    """Where the flush of a running query is tried on a fork of its state (in the checkpoints store)."""
    return f"{deployment_folder(stream_id, deployment_id)}/trials/{encode_query_name(query_name)}"


def gathered_folder(stream_id: str, lease_id: str, query_name: str) -> str:
    """The files of a snapshot in one folder, for a reader, as long as its lease lives (in the checkpoints store)."""
    return f"{gathered_folders(stream_id)}/{lease_id}/{encode_query_name(query_name)}"


def gathered_folders(stream_id: str) -> str:
    """The folder whose sub-folders are the leases of readers that gathered files."""
    return f"{stream_id}/gathered"


def launch_folder(stream_id: str, deployment_id: str, launch_key: str) -> str:
    """Intent, handle, exit status and working files of one launch (in the checkpoints store)."""
    return f"{deployment_folder(stream_id, deployment_id)}/launches/{launch_key}"


def launch_record_key(stream_id: str, deployment_id: str, launch_key: str) -> str:
    """The handle of one launch, as a controller records it (in the home store)."""
    return f"{deployment_folder(stream_id, deployment_id)}/launches/{launch_key}.json"


def driver_log_key(stream_id: str, deployment_id: str, launch_key: str) -> str:
    """The log of one local driver (in the checkpoints store)."""
    return f"{launch_folder(stream_id, deployment_id, launch_key)}/driver.log"


def scratch_folder(stream_id: str) -> str:
    return f"{stream_id}/scratch"


def scratch_run_key(stream_id: str, run_id: str) -> str:
    return f"{deployment_folder(stream_id, run_id)}/run.json"


def verdict_key(stream_id: str, run_id: str) -> str:
    return f"{deployment_folder(stream_id, run_id)}/verdict.json"


def reading_fork_folder(stream_id: str, run_id: str, snapshot_id: str, query_name: str) -> str:
    """The fork of one query's state that a reading reads (in the checkpoints store)."""
    folder = deployment_folder(stream_id, run_id)
    return f"{folder}/forks/{snapshot_id}/{encode_query_name(query_name)}"


def upgrades_folder(stream_id: str) -> str:
    return f"{stream_id}/upgrades"


def upgrade_key(stream_id: str, upgrade_id: str) -> str:
    return f"{deployment_folder(stream_id, upgrade_id)}/upgrade.json"


def upgrade_steps_prefix(stream_id: str, upgrade_id: str) -> str:
    return f"{deployment_folder(stream_id, upgrade_id)}/steps/"


def upgrade_step_key(stream_id: str, upgrade_id: str, number: int) -> str:
    return f"{upgrade_steps_prefix(stream_id, upgrade_id)}{number:0{NUMBER_DIGITS}d}.json"


def approval_key(stream_id: str, upgrade_id: str) -> str:
    return f"{deployment_folder(stream_id, upgrade_id)}/approval.json"


def upgrade_lease_key(stream_id: str, upgrade_id: str) -> str:
    return f"{deployment_folder(stream_id, upgrade_id)}/lease.json"


def cancellation_key(stream_id: str, upgrade_id: str) -> str:
    return f"{deployment_folder(stream_id, upgrade_id)}/cancellation.json"


def waiting_key(stream_id: str, rehearsal_id: str) -> str:
    return f"{deployment_folder(stream_id, rehearsal_id)}/waiting.json"


def handover_key(stream_id: str, rehearsal_id: str) -> str:
    return f"{deployment_folder(stream_id, rehearsal_id)}/handover.json"


def snapshots_folder(stream_id: str) -> str:
    return f"{stream_id}/snapshots"


def manifest_key(stream_id: str, snapshot_id: str) -> str:
    """The list that makes a snapshot exist (Law 3)."""
    return f"{snapshot_folder(stream_id, snapshot_id)}/manifest.json"


def seal_key(stream_id: str, snapshot_id: str) -> str:
    return f"{snapshot_folder(stream_id, snapshot_id)}/seal.json"


def data_note_key(stream_id: str, snapshot_id: str) -> str:
    """A copy of the manifest next to the data, where these are in another store than the home."""
    return f"{snapshot_folder(stream_id, snapshot_id)}/data.json"


def snapshot_data_folder(stream_id: str, snapshot_id: str, query_name: str, take: int = 1) -> str:
    """The files of one query in a snapshot (in the checkpoints store), without those in an older one."""
    return f"{snapshot_folder(stream_id, snapshot_id)}/{data_folder_name(take)}/{encode_query_name(query_name)}"


def shared_data_folder(stream_id: str, place: str, query_name: str) -> str:
    """The files of one query in a ``data_place``, ``checkpoint_place`` or ``gathered_place``."""
    if is_checkpoint_place(place) or is_gathered_place(place):
        return f"{stream_id}/{place}/{encode_query_name(query_name)}"
    return f"{snapshots_folder(stream_id)}/{place}/{encode_query_name(query_name)}"


def data_place(snapshot_id: str, take: int = 1) -> str:
    """The data of a snapshot, as manifests of younger ones refer to it."""
    return f"{snapshot_id}/{data_folder_name(take)}"


def checkpoint_place(deployment_id: str) -> str:
    """The checkpoints of a deployment, as a manifest refers to them."""
    return f"deployments/{deployment_id}/checkpoints"


def gathered_place(lease_id: str) -> str:
    """A reader's copies of a snapshot, as a manifest refers to them."""
    return f"gathered/{lease_id}"


def is_gathered_place(place: str) -> bool:
    return place.startswith("gathered/")


def is_checkpoint_place(place: str) -> bool:
    return place.startswith("deployments/")


def deployment_of_place(place: str) -> str | None:
    """The deployment of a ``checkpoint_place``; None for another place."""
    return place.split("/")[1] if is_checkpoint_place(place) else None


def place_record_key(stream_id: str) -> str:
    """Whose snapshots a place holds (in the store of that place)."""
    return f"{stream_id}/place.json"


def mirror_trial_key(stream_id: str) -> str:
    """An object that is put at a mirror for a moment, to check that no other place shows it."""
    return f"{stream_id}/trial.json"


def claimed_place_key(stream_id: str, uri: str) -> str:
    """What the home wrote as the record of a place, by its URI: another home may use that URI for another place."""
    return f"{claimed_places_folder(stream_id)}/{hashlib.sha256(uri.encode()).hexdigest()}.json"


def claimed_places_folder(stream_id: str) -> str:
    """The notes of a stream's places."""
    return f"{stream_id}/places"


def data_folder_name(take: int) -> str:
    """The folder of a snapshot's data; a new take after an abandoned one has its own folder."""
    return "data" if take == 1 else f"data-{take}"


def take_of(folder_name: str) -> int | None:
    """The take whose data folder this is; None for another name."""
    match = re.fullmatch(r"data(?:-([1-9][0-9]{0,8}))?", folder_name)
    return None if match is None else int(match.group(1) or 1)


def snapshot_folder(stream_id: str, snapshot_id: str) -> str:
    """Everything of one snapshot but what it shares; a rehearsal's fork of a running stream is with the rehearsal."""
    if is_scratch_id(snapshot_id):
        return deployment_folder(stream_id, snapshot_id)
    return f"{snapshots_folder(stream_id)}/{snapshot_id}"


def number_of(key: str) -> int | None:
    """The number of a numbered key (command, event, claim); None for another key."""
    match = re.fullmatch(r"(?:.*/)?([0-9]{1,18})\.json", key)
    return int(match.group(1)) if match else None


def query_name_of(folder_name: str) -> str:
    """The query of a checkpoint folder.

    Raises:
        InvalidRequestError: no query name encodes to it.
    """
    return decode_query_name(folder_name)
