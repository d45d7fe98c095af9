"""Well-formed records with odd values, of every kind and at the place of that kind, alongside streams that are well."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import DIGEST, Message, digest_of, to_json
from airflow_streamstate.protocol.events import Event
from airflow_streamstate.protocol.ids import launch_key_for, scratch_id_for, upgrade_id_for
from support.messages import KINDS, messages_of

ODD, DEPLOYMENT = "odd", "d-0001"
REHEARSAL, UPGRADE = scratch_id_for("fuzz", 1), upgrade_id_for("fuzz")
SNAPSHOT = "d-0001-stopped-000001"
QUERY, REQUEST = "delays", "asked"
OWN: Mapping[str, object] = {
    "stream_id": ODD,
    "deployment_id": DEPLOYMENT,
    "attempt": 1,
    "rehearsal_id": REHEARSAL,
    "upgrade_id": UPGRADE,
    "run_id": REHEARSAL,
    "snapshot_id": SNAPSHOT,
    "query_name": QUERY,
    "request_id": REQUEST,
    "launch_key": launch_key_for(DEPLOYMENT, 1),
    "command_id": "0f3c",
}
"""What the place of a record states about it."""

ODD_VALUES: tuple[object, ...] = (
    None, True, -1, 0, 1, 2**31, 2**62, 2**63 - 1, -(2**63) + 1, 0.5, -1e308, 1e308, 1e15,
    "", " ", "x", "\x00", "/tmp/\x00", "..", "../../etc/passwd", "/", "a/b", "é€😀", "\u202egnp", "a" * 300,
    "d-0002", "d-00001", "d-9999", "d-0001-live-000001", "r-000000000000-0001", "u-000000000000", "unknown", "Drained",
    "9999-12-31T23:59:59.999Z", "0001-01-01T00:00:00.000Z", "2026-01-01T00:00:00.000Z", "1970-01-01T00:00:00.000Z",
    "env://HOME", "secret://airflow-connection/pg", "done", "failed", "{}", "null", "-",
    [], {}, [None], [""], [[]], {"": ""}, {"a": {"b": []}}, {"delays": None}, {"delays": {}}, {"kind": "StopRequest"},
)  # fmt: skip


def keys() -> dict[str, str]:
    """By kind, where a record of it is read."""
    steps = layout.upgrade_step_key(ODD, UPGRADE, 2)
    found = {
        "HomeRecord": layout.home_key(),
        "DeploymentSpec": layout.spec_key(ODD, DEPLOYMENT),
        "FoundModule": layout.found_module_key(ODD, DEPLOYMENT, "a.py"),
        "SnapshotPlace": layout.place_record_key(ODD),
        "Claim": layout.claim_key(ODD, DEPLOYMENT, 1),
        "RequestRecord": layout.idempotency_key(ODD, REQUEST),
        "LaunchRecord": layout.launch_record_key(ODD, DEPLOYMENT, launch_key_for(DEPLOYMENT, 1)),
        "StreamRegister": layout.register_key(ODD),
        "RetentionRegister": layout.retention_key(ODD),
        "AlertRegister": layout.alerts_key(ODD),
        "Adoption": layout.adoption_key(ODD),
        "ScratchRun": layout.scratch_run_key(ODD, REHEARSAL),
        "ScratchVerdict": layout.verdict_key(ODD, REHEARSAL),
        "Waiting": layout.waiting_key(ODD, REHEARSAL),
        "Handover": layout.handover_key(ODD, REHEARSAL),
        "Upgrade": layout.upgrade_key(ODD, UPGRADE),
        "UpgradeStep": steps,
        "Approval": layout.approval_key(ODD, UPGRADE),
        "Cancellation": layout.cancellation_key(ODD, UPGRADE),
        "UpgradeLease": layout.upgrade_lease_key(ODD, UPGRADE),
        "SnapshotManifest": layout.manifest_key(ODD, SNAPSHOT),
        "AbandonedSnapshot": layout.manifest_key(ODD, SNAPSHOT),
        "SnapshotSeal": layout.seal_key(ODD, SNAPSHOT),
        "Heartbeat": layout.heartbeat_key(ODD, DEPLOYMENT),
        "ScriptReads": layout.script_reads_key(ODD, DEPLOYMENT, QUERY, 1),
        "RecordedPlan": layout.plan_key(ODD, DEPLOYMENT, QUERY, 1),
    }
    for kind, cls in KINDS.items():
        if issubclass(cls, Event):
            found[kind] = layout.event_key(ODD, DEPLOYMENT, 9)
        elif kind not in found:
            found[kind] = layout.command_key(ODD, DEPLOYMENT, 9)
    return found


KEYS = keys()


def good(kind: str) -> st.SearchStrategy[Message]:
    """Any record of this kind that its place may have."""
    cls: Any = KINDS[kind]
    own = {name: OWN[name] for name in (field.name for field in fields(cls)) if name in OWN}
    return messages_of(cls).map(lambda value: replace(value, **own))


@st.composite
def odd(draw: st.DrawFn, kind: str) -> bytes:
    """A record of this kind in which up to three values, anywhere, are odd."""
    raw: dict[str, Any] = json.loads(json.dumps(to_json(draw(good(kind)))))
    for _ in range(draw(st.integers(0, 3))):
        place: Any = raw
        name: Any = draw(st.sampled_from(sorted(set(raw) - {"kind", "protocol"})))
        while isinstance(place[name], dict | list) and place[name] and draw(st.booleans()):
            place = place[name]
            name = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        place[name] = draw(st.sampled_from(ODD_VALUES))
    if DIGEST in raw:
        raw[DIGEST] = digest_of(raw)
    return json.dumps(raw).encode()


class OddHome:
    """The folder of a home in which one record at a time is odd."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, key: str, body: bytes) -> bytes | None:
        """As a program that shares the folder writes it; what was there before."""
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.read_bytes() if path.exists() else None
        path.write_bytes(body)
        return before

    def put_back(self, key: str, before: bytes | None) -> None:
        """What was there before."""
        if before is None:
            (self.root / key).unlink(missing_ok=True)
        else:
            (self.root / key).write_bytes(before)
