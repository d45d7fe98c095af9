"""One message of each kind with every field filled, and the golden file of each."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from airflow_streamstate.plan.model import RecordedPlan
from airflow_streamstate.protocol.codec import NEWEST_PROTOCOL, OLDEST_PROTOCOL, Message, to_json
from airflow_streamstate.protocol.commands import (
    CancelRequest,
    DrainNotification,
    SkipRequest,
    SnapshotRequest,
    StopRequest,
)
from airflow_streamstate.protocol.events import (
    Accepted,
    BatchesSkipped,
    BatchRepeated,
    Claimed,
    Drained,
    DrainFailed,
    Draining,
    Event,
    Expired,
    Failed,
    Fenced,
    Finished,
    FunctionCalled,
    Ignored,
    Noted,
    QueryFailed,
    QueryStarted,
    Rejected,
    Repositioned,
    Skipped,
    SnapshotMirrored,
    SnapshotReady,
    Started,
    Stopped,
    Undoing,
    Undone,
)
from airflow_streamstate.protocol.manifest import FileEntry, QuerySnapshot, SnapshotManifest, SnapshotSeal
from airflow_streamstate.protocol.policies import (
    AbandonedSnapshot,
    Alert,
    AlertRegister,
    AlertRules,
    BatchFailure,
    GrowthSample,
    KnownGood,
    LastPrune,
    LeaseRecord,
    Owed,
    Ownership,
    PendingDeletion,
    Pin,
    RestartPolicy,
    Restarts,
    RetentionPolicy,
    RetentionRegister,
    SettledLineage,
    SnapshotInProgress,
    Told,
)
from airflow_streamstate.protocol.positions import (
    Downtime,
    FirstBatch,
    Heartbeat,
    LagTrend,
    Mark,
    QueryBeat,
    QueryEnd,
    QueryPosition,
    SourceIdentity,
    SourceLag,
    SourceMove,
    StateLeft,
    WatermarkSpec,
)
from airflow_streamstate.protocol.records import (
    Adoption,
    Claim,
    DeploymentSpec,
    FoundModule,
    HomeRecord,
    Intent,
    LaunchRecord,
    RequestRecord,
    Retirement,
    SnapshotPlace,
    SnapshotWish,
    StartPlan,
    StateRewrite,
    StreamRegister,
)
from airflow_streamstate.protocol.scratch import (
    Handover,
    Reading,
    Rehearsal,
    RehearsedQuery,
    Replay,
    ReplayedBatch,
    RowComparison,
    ScratchRun,
    ScratchVerdict,
    StateComparison,
    Waiting,
)
from airflow_streamstate.protocol.script_reads import FileRead, ScriptReads
from airflow_streamstate.protocol.settings import AgentSettings
from airflow_streamstate.protocol.terms.order import RehearsalTerms, UpgradeTerms
from airflow_streamstate.protocol.terms.version import Artifact, HandoverTerms, Version
from airflow_streamstate.protocol.upgrades import (
    Approval,
    Cancellation,
    CancelledByUser,
    Decision,
    DriverLaunchedLater,
    DriverWaits,
    NewDeployed,
    NewGivenUp,
    NewOrdered,
    NewRehearsed,
    NoStandby,
    OldEnded,
    OldOrdered,
    OldRehearsed,
    OldReturned,
    Planned,
    QueriesStarted,
    Ready,
    Returning,
    Standby,
    Stopping,
    Upgrade,
    UpgradeLease,
    UpgradePlan,
    UpgradeResult,
    UpgradeStep,
    WayDecided,
)
from support.example_plan import EXAMPLE_PLAN

AT = datetime(2026, 3, 1, 10, 0, 5, 250_000, tzinfo=timezone.utc)
LATER = datetime(2026, 3, 1, 10, 30, tzinfo=timezone.utc)
COMMAND_ID = "0b8e3c52-5f0e-4b7a-9d3a-1c2d3e4f5a6b"
WRITE_ID = "7d444840-9dc0-41d1-b245-5ffdce74fad2"
LEASE_ID = "1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed"
_HEAD = {"stream_id": "orders", "deployment_id": "d-0003", "attempt": 2, "at": AT, "write_id": WRITE_ID}
_POSITION = QueryPosition(
    batch_id=41,
    end_offsets=('{"logOffset":17}', "-"),
    planned_batch_id=42,
    watermark_at=datetime(2026, 3, 1, 9, 55, tzinfo=timezone.utc),
    state_rows_left=3,
    state_left=(StateLeft("dedupe", 1, 3, "no watermark"),),
    rows_written_early=12,
    open_windows_from_at=datetime(2026, 3, 1, 9, 50, tzinfo=timezone.utc),
    open_windows_until_at=datetime(2026, 3, 1, 10, 5, tzinfo=timezone.utc),
    rows_dropped=1,
)
_POSITIONS = {"counts per minute": _POSITION, "raw": QueryPosition(batch_id=None)}
DRAIN = DrainNotification(
    COMMAND_ID,
    "orders",
    "d-0003",
    AT,
    LATER,
    "airflow:upgrade_stream",
    "new grouping key: café",
    mode="event_time",
    rehearse=True,
    allow_state_loss=True,
    batches_by_at=LATER,
    on_deadline="stop",
    flush_within_seconds=120.0,
    on_flush_deadline="kill",
    leave_queries=("raw",),
)
_DRAIN_JSON = to_json(DRAIN)


def _event(cls: type[Event], **fields: object) -> Event:
    return cls(**_HEAD, **fields)  # type: ignore[arg-type]


_DOWNTIMES = (
    Downtime(
        "counts per minute", "d-0003", "d-0004", AT, LATER, 1794.75,
        (Mark("last_commit", AT, "store"), Mark("deployed", LATER, "controller")), 120, True,
    ),
)  # fmt: skip
_OLD_BEATS = {
    "counts per minute": QueryBeat(
        41, AT, is_active=True, batch_seconds=0.75, lags=(
            SourceLag("file /in", 12, "files", trend=LagTrend(3, None, None, None, None, 9, 12, 12)),
        ),
    )
}  # fmt: skip
_PLAN = UpgradePlan("state-compatible", {"verdict": "state-compatible", "queries": {"raw": {"differences": []}}})
_RESULT = UpgradeResult(
    refused_plan=_PLAN, stream_state="failed", cancelled_by="shell:ada", audit_ok=True, not_running_seconds=1.25,
    downtimes=_DOWNTIMES, bad_batches={"counts per minute": (42, 44)}, warnings=("query raw falls behind",),
)  # fmt: skip
DECISIONS: tuple[Decision, ...] = (
    NewRehearsed("r-0b8e3c525f0e-0001"),
    Planned(_PLAN, "restore"),
    Standby("r-0b8e3c525f0e-0002"),
    NoStandby("the old version does not run"),
    Ready(DriverLaunchedLater("it has not reached its first start in 120 s")),
    Stopping(_OLD_BEATS),
    OldOrdered(COMMAND_ID),
    OldEnded("d-0003-stopped-000002"),
    NewDeployed("d-0004", "d-0003-stopped-000002"),
    QueriesStarted(_OLD_BEATS, 1.25, _DOWNTIMES),
    NewGivenUp("d-0004"),
    CancelledByUser("shell:ada", "d-0004"),
    OldRehearsed("r-0b8e3c525f0e-0003"),
    WayDecided("handover", "r-0b8e3c525f0e-0003"),
    Returning("forward", DriverWaits("r-0b8e3c525f0e-0003")),
    NewOrdered(COMMAND_ID),
    OldReturned("d-0005", {"counts per minute": (42, 44)}, {"counts per minute": 45}),
    _RESULT,
)
"""One of each kind that a step of an upgrade may hold."""
EXAMPLES: tuple[Message, ...] = (
    DRAIN,
    CancelRequest(COMMAND_ID, "orders", "d-0003", AT, None, "shell:ada", "not yet"),
    StopRequest(COMMAND_ID, "orders", "d-0003", AT, LATER, "shell:ada", "maintenance", attempt=2),
    SnapshotRequest(
        COMMAND_ID, "orders", "d-0003", AT, None, "shell:ada", "", attempt=2, request_id="af-9876", ttl_seconds=300.0,
        consistent=True,
    ),
    SkipRequest(
        COMMAND_ID, "orders", "d-0003", AT, None, "shell:ada", "a row that no parser reads", "counts per minute", 42,
        accepts_written=True,
    ),
    _event(
        Claimed, host="worker-1", pid=4711, fencing_token=3, earlier_attempt=1, earlier_beat_at=AT,
        reason="the disk has room again",
    ),
    _event(Started, spark_version="4.2.0", application_id="local-1772359205250"),
    _event(
        QueryStarted, query_name="counts per minute", query_id="859f4a6f-435c-47ba-9a05-e59c7df04d99",
        query_run_id="5c1f6a52-7a65-4c8e-9b7e-0d6f1f2a3b4c", how="restored", batch_id=40, planned_batch_id=41,
        repairs=("removed a stop entry at batch 41",), sink="ForeachBatchSink", trigger="ProcessingTime(500)",
        output_mode="Append", sources=("FileStreamSource[file:/data/in]",),
        watermarks=(WatermarkSpec("event_time", 300_000),), snapshot_id="d-0002-stopped-000001",
        identities=(SourceIdentity("file", "file /data/in"),), remarks=("source file /data/old is not read any more",),
        built_at=AT, prepared_at=LATER,
    ),
    _event(Accepted, command_id=COMMAND_ID, command_number=4, command=_DRAIN_JSON),
    _event(Ignored, command_id=COMMAND_ID, command_number=4, command=_DRAIN_JSON, reason="for deployment d-0002"),
    _event(
        Rejected, command_id="", command_number=5, key="orders/deployments/d-0003/commands/00000005.json",
        reason="not JSON (JSONDecodeError)", object_version="9f86d081884c7d65",
    ),
    _event(Expired, command_id=COMMAND_ID, command_number=4, command=_DRAIN_JSON),
    _event(
        Draining, command_id=COMMAND_ID, snapshot_id="d-0003-pre-drain-000002",
        flush_batch_ids={"counts per minute": 42},
    ),
    _event(
        SnapshotReady, snapshot_id="d-0003-live-000006", snapshot_kind="live", queries=_POSITIONS,
        command_id=COMMAND_ID, command_number=6, request_id="af-9876",
    ),
    _event(
        SnapshotMirrored, snapshot_id="d-0003-live-000006", mirror_uri="gs://b/p", files=12, size_bytes=4096
    ),
    _event(
        Drained, command_id=COMMAND_ID, command_number=4, snapshot_id="d-0003-drained-000002", queries=_POSITIONS,
        also_answers=("1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed",),
        ends={"counts per minute": QueryEnd(AT, AT, LATER)},
    ),
    _event(
        DrainFailed, command_id=COMMAND_ID, command_number=4, query_name="counts per minute",
        error="Py4JJavaError: disk full", withdrawn=True, choices=("resume", "drain again"), cause="cancelled",
        then="runs_on", also_answers=(COMMAND_ID,),
    ),
    _event(
        QueryFailed, query_name="raw", query_id=COMMAND_ID, query_run_id=WRITE_ID, batch_id=6, planned_batch_id=7,
        error="ValueError: boom", traceback="Traceback …\nValueError: boom", explanation="a file is gone", then="fail",
    ),
    _event(
        Stopped, snapshot_id="d-0003-stopped-000002", queries=_POSITIONS, command_id=COMMAND_ID, command_number=7,
        ends={"counts per minute": QueryEnd(AT, LATER)},
    ),
    _event(
        FunctionCalled, name="close_index", occasion="drain", snapshot_id="d-0003-drained-000002",
        error="ValueError: no",
    ),
    _event(
        Finished, snapshot_id="d-0003-stopped-000002", queries=_POSITIONS,
        ends={"counts per minute": QueryEnd(AT, LATER)}, unfinished={"raw": "ran when the script ended"},
    ),
    _event(
        Failed, error="ValueError: boom", traceback="Traceback …\nValueError: boom", query_name="raw",
        explanation="a file that it had listed is gone; bring it back and resume", cause="ValueError: boom",
        is_refusal=True,
    ),
    _event(Fenced, current_deployment_id="d-0004", current_attempt=1),
    _event(BatchesSkipped, query_name="raw", batch_ids=(14, 15), count=2),
    _event(
        Undoing, query_name="raw", sink="/data/out", means="undo", to_batch_id=41, first_batch_id=42, last_batch_id=44,
        target="its log as it was at batch 41", removed=("file:/data/out/part-00000.json",), removed_count=1,
    ),
    _event(
        Undone, query_name="raw", sink="foreachBatch", means="command", to_batch_id=-1, first_batch_id=None,
        last_batch_id=None, target="what the command leaves", rows_again=1200,
    ),
    _event(
        Skipped, command_id=COMMAND_ID, command_number=8, query_name="raw", batch_id=42,
        moves=(SourceMove("file /data/in", '{"logOffset":41}', '{"logOffset":42}', 3, 0, "files"),),
        requested_by="shell:ada", reason="a row that no parser reads",
    ),
    _event(
        Repositioned, query_name="raw", batch_id=42, reason="the offsets that were given",
        moves=(SourceMove("kafka subscribe orders", '{"orders":{"0":7}}', '{"orders":{"0":3}}', 0, 4, "rows"),),
    ),
    _event(
        BatchRepeated, query_name="raw", batch_id=42, sink="kafka copies", means="doubled",
        moves=(SourceMove("kafka subscribe orders", '{"orders":{"0":7}}', '{"orders":{"0":10}}', 3, 0, "rows"),),
    ),
    _event(Noted, text="a query of the snapshot was not started", facts={"query_name": "raw", "since_seconds": 30.5}),
    Heartbeat("orders", "d-0003", 2, AT, {
        "counts per minute": QueryBeat(
            41, AT, is_active=True, idle_triggers=7, state_rows=1200, watermark_at=LATER,
            input_rows_per_second=1000.5, processed_rows_per_second=2500.0, skipped_batches=2,
            rows_behind=44_615,
            lags=(
                SourceLag(
                    "kafka subscribe orders", 44_615, "rows", 17.5, 1200, "rows",
                    trend=LagTrend(11, 55_000, 22.5, 50_000, 22.25, 49_000, 44_500, 44_600),
                ),
                SourceLag("rate rowspersecond=5", untold="it makes up rows as time passes"),
            ),
            lags_at=LATER, is_idle=True, snapshot_id="d-0003-live-000006", batches_since_snapshot=3,
            batch_seconds=2.045, read_batch_id=40, read_rows=512, state_memory_bytes=1_048_576,
        ),
        "raw": QueryBeat(None, None, is_active=False),
    }, {"counts per minute": FirstBatch(17, LATER, AT, AT, {"addBatch": 812, "walCommit": 41}, 120)},
    ("feeds.json changed at 09:58 UTC since attempt 2; the next start reads it",), {"raw": LATER}),
    SnapshotManifest(
        "d-0003-stopped-000002", "stopped", "orders", "d-0003", 2, 3, AT, "agent",
        {
            "counts per minute": QuerySnapshot(
                "859f4a6f-435c-47ba-9a05-e59c7df04d99", _POSITION,
                (
                    FileEntry("metadata", 45, "0a1b2c3d"),
                    FileEntry(
                        "offsets/41", 1031, source_version='"9f86d081884c7d65"', shared_from="d-0002-live-000004/data"
                    ),
                ),
                sources=("FileStreamSource[file:/data/in]",), watermarks=(WatermarkSpec("event_time", 300_000),),
                watermark_ms=1_772_358_900_000, drained=True,
                identities=(SourceIdentity("kafka", "kafka subscribe orders", 1, {"cluster_id": "5L6g3nShT-eMCtK"}),),
            ),
        },
        WRITE_ID, "78" * 32, spark_version="4.2.0", command_id=COMMAND_ID, request_id="af-9876", take=2,
        data_uri="s3://second/streams",
    ),
    SnapshotSeal("d-0003-stopped-000002", AT, {"counts per minute": {"metadata": "ab" * 32}}),
    DeploymentSpec(
        "orders", "d-0003", 3,
        Version(
            Artifact("job.py", "cd" * 32), ("--input", "/data/in"), "local[2]", {"spark.sql.shuffle.partitions": "2"},
            {"DB_PASSWORD": "secret://airflow-connection/orders_db#password", "TZ": "UTC"},
            (Artifact("lib.zip", "ef" * 32),), (Artifact("rules.json", "12" * 32),),
            (Artifact("udfs.jar", "9b" * 32), "s3a://jars/x.jar"), ("org.example:connector:1.0",),
            (Artifact("lib/rules.py", "78" * 32),), "/srv/jobs/job.py", "/srv", "spark_default",
            attaches=True, version_label="v3", on_query_failure="degrade", snapshots="s3://second/streams",
            settings=AgentSettings(
                0.5, 5.0, 30.0, 15.0, 600.0, 20.0, 5.0, 3600.0, 1 << 20, 2.5, commit_offsets_to_group="orders-lag",
            ),
        ),
        StartPlan("restore", "d-0002-stopped-000001", "d-0002", allow_state_loss=True, allow_new_queries=("raw",),
            accept_lost_input=("counts per minute",), undoes="d-0002", undo_command=("/opt/undo.sh", "--table", "a b"),
            accept_duplicates=True, offsets={"raw": ('{"logOffset":17}', "-")}, begins_at=AT,
            accept_repeated_input=("raw",)),
        "/srv/streams", "af-0123456789", "airflow:upgrade_stream", "café upgrade", AT,
    ),
    FoundModule("orders", "d-0003", Artifact("plugins/euro.py", "9a" * 32), AT, WRITE_ID),
    SnapshotPlace("orders", "/srv/streams", AT, WRITE_ID),
    Claim("orders", "d-0003", 2, "d-0003-a0002", "worker-1", 4711, OLDEST_PROTOCOL, NEWEST_PROTOCOL, "0.1.0", WRITE_ID,
        AT,
    ),
    RequestRecord(
        "af-0123456789", "orders", "snapshot", "56" * 32, "d-0003", WRITE_ID, AT, command_id=COMMAND_ID,
        snapshot=SnapshotWish(AT, 300.0, LATER, "airflow nightly.snapshot", "before the load test"),
    ),
    LaunchRecord(
        "orders", "d-0003", 2, "d-0003-a0002", "local", {"pid": 4711, "boot_id": "b", "nested": {"list": [1, None]}},
        "/srv/streams/driver.log", AT, write_id=WRITE_ID, facts={"master": "local[2]"},
        rehearsal_id="r-0b8e3c525f0e-0001",
    ),
    StreamRegister(
        "orders", 3, "d-0003", 2, "drain", Intent("af-987", "d-0004", AT, "shell:ada"), WRITE_ID, AT, "controller",
        upgrade_id="u-0b8e3c525f0e",
        retirement=Retirement(AT, "shell:ada", "the shop has closed", is_deleting=True),
        attempt_reason="the disk has room again",
        restart_policy=RestartPolicy("restart", 5.0, 3.0, 60.0, 3, 600.0, 120.0, restore_lost_checkpoint=True),
        restarts=Restarts(
            "d-0003", 2, False, AT, "worker-1", (0.5, 61.25), 2, 16.5, "attempt 2 failed: ValueError: boom",
            BatchFailure("delays", 4711, "ValueError: boom", 3), "batch 4711 fails", is_told=True,
        ),
        ownership=Ownership("payments team", {"cost-centre": "4711", "tier": "canary"}),
        retention=RetentionPolicy(5, 604_800.0, at_mirrors=True),
    ),
    RetentionRegister(
        "orders", WRITE_ID, AT, "shell:ada", 7, "d-0003-stopped-000002",
        {COMMAND_ID: SnapshotInProgress("d-0003-live-000006", ("d-0003-stopped-000002",), 2, AT, LATER)},
        {LEASE_ID: LeaseRecord("d-0002-stopped-000001", "verify by shell:ada", AT, LATER)},
        {"d-0001-live-000004": Pin(AT, "airflow prune_orders.pin")},
        {"d-0002-stopped-000001": LATER},
        {"d-0001-live-000003": PendingDeletion(AT, take=2, data_uri="s3://second/streams")},
        {"d-0001-live-000005": AT},
        {"cd" * 32: AT},
        KnownGood("d-0002", AT),
        SettledLineage("d-0001", is_whole=True, audited_at=AT),
        ("s3://second/streams",),
        LastPrune(LATER, RetentionPolicy(5, 604_800.0, at_mirrors=True), "d-0003-stopped-000002"),
    ),
    AlertRegister(
        "orders", WRITE_ID, AT, "shell:ada",
        AlertRules(60.0, 300.0, 1_000_000, 900.0, 3_600.0, 5_000_000, 2_147_483_648, 7_200.0, 86_400.0, ("query_died",),
        ),
        {
            "watch": Told(
                "d-0003", 2, "u-0b8e3c525f0e", "u-1c2d3e4f5a6b",
                (Alert(LEASE_ID, "lag", "counts per minute", AT, "query counts per minute is 1,200,000 rows behind"),),
                (
                    Owed(
                        "resolved", Alert(WRITE_ID, "gave_up", "", AT, "it is not restarted any more: 3 failures"),
                        "d-0002", LATER, LEASE_ID, LATER,
                    ),
                ),
                {"counts per minute": (GrowthSample(AT, {"rows": 44_500}, 1200, 1000.5),)},
                {"counts per minute": (GrowthSample(LATER, {"rows": 44_600}, 1300, 990.5),)},
            )
        },
    ),
    AbandonedSnapshot("orders", "d-0003-live-000006", 1, AT, "shell:ada", WRITE_ID),
    ScratchRun(
        "orders", "r-0b8e3c525f0e-0001", "d-0003",
        Rehearsal(
            RehearsalTerms(rehearse_batches=2, rehearse_rows=5_000), allow_new_queries=("raw",), waits_until=LATER,
            refuses=("hazardous", "needs-drain"), seeds="if_needed",
        ),
        AT, LATER, "airflow plan_upgrade.plan", "af-0123456789", "56" * 32, WRITE_ID,
        notes=("the script names settings.json in its own folder",),
    ),
    HomeRecord("9c1185a5-c5e9-4fc5-8ec5-7b8e36a5d0b1", AT, "ada (shell)"),
    Adoption(
        "orders", "0b8e3c52-5f0e-4ffd-9d9a-2f7b6a1c9d10", {"counts": "s3://lake/checkpoints/counts"}, False, "taken", 2,
        "5f0e0b8e-3c52-4ffd-9d9a-2f7b6a1c9d10", LATER, AT, "ada (shell)", WRITE_ID, "d-0001-stopped-000002",
    ),
    ScratchVerdict(
        "orders", "r-0b8e3c525f0e-0001", "failed",
        {
            "counts per minute": RehearsedQuery(
                "failed", "restored", 1.25, "[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] Provided value schema …",
                ("source kafka orders is new: it starts where its options say",),
            ),
            "raw": RehearsedQuery(
                "accepted", "seeded", 0.5, batch_ids=(40, 41), rows_in=1024, rows_out=96, batch_seconds=0.25,
                replayed=(
                    ReplayedBatch(
                        40, 512, 48, 0.125, "/home/ada/replay-orders-41/raw/batch=40", ("part-00000.snappy.parquet",),
                        comparison=RowComparison(
                            46, 2, 1, ('{"n":1}', '{"n":2}'), ('{"n":3}',), 1, ("k",),
                            ('{"key":{"k":"a"},"old":{"n":4},"new":{"n":5}}',),
                        ),
                    ),
                    ReplayedBatch(
                        41, error="ZeroDivisionError: division by zero", traceback="Traceback …",
                        failed_at="job.py, line 3, in speed: minutes=0",
                    ),
                ),
                state=(StateComparison("0-stateStoreSave/rows", RowComparison(7, 0, 1, changed=2, keys=("key",))),),
            ),
        },
        "ModuleNotFoundError: No module named 'rules'", 14.75, "driver", LATER, WRITE_ID,
        traceback="Traceback …\nModuleNotFoundError: No module named 'rules'", log_tail="…", spark_version="4.2.0",
        notes=("the script ran on for 30 s after its last start; it was ended",),
        seeded={"counts per minute": RehearsedQuery("accepted", "seeded", 0.75)},
        seed_error="ValueError: no such table",
    ),
    Waiting("orders", "r-0b8e3c525f0e-0001", AT, WRITE_ID, query_name="counts per minute"),
    Handover("orders", "r-0b8e3c525f0e-0001", "d-0004", 1, "d-0004-a0001", AT, WRITE_ID),
    Upgrade(
        "orders", "u-0b8e3c525f0e", "d-0003", Version(Artifact("job.py", "ab" * 32), ("--v2",)), "af-0123456789",
        "56" * 32, "airflow upgrade.upgrade", "café upgrade", AT, WRITE_ID,
        UpgradeTerms(
            healthy_batches=5, healthy_deadline_seconds=120.0, caught_up=True, roll_back_if_slower=2.5,
            allow_drain=True, rehearse=False, warm=False, needs_approval=True, accept_hazards=True,
            rehearsal_deadline_seconds=90.0, undo_command=("undo.sh", "--batch"), rehearse_batches=2,
            rehearse_rows=5_000, approved_by_another=True,
        ),
        rewrite=StateRewrite(partitions=8),
        handover=HandoverTerms(
            allow_state_loss=True, allow_new_queries=("raw",), accept_lost_input=("counts per minute",)
        ),
        if_abandoned="rollback", ends_untouched=True,
    ),
    UpgradeStep(
        "orders", "u-0b8e3c525f0e", 7, "refused", LATER, "airflow upgrade.upgrade", WRITE_ID, "cancelled by ada",
        _RESULT,
    ),
    Approval("orders", "u-0b8e3c525f0e", True, "shell:ada", LATER, WRITE_ID, "looks well"),
    Cancellation("orders", "u-0b8e3c525f0e", "rollback", "shell:ada", LATER, WRITE_ID, "not tonight"),
    UpgradeLease("orders", "u-0b8e3c525f0e", "airflow upgrade.upgrade", LATER, WRITE_ID, 180.0),
    ScriptReads(
        "orders", "d-0003", 2, "counts per minute",
        (
            FileRead("conf/feeds.json", "script", 1_204, AT, "5d" * 32),
            FileRead("rules.yaml", "working", 2_000_000, AT),
            FileRead("/etc/orders.ini", "argument", 17, AT, "6e" * 32),
        ),
        WRITE_ID, AT, others=3,
        variables={"BUCKET": "=3fa", "DB_PASSWORD": "secret://airflow-connection/orders_db#password",
            "API_TOKEN": "secret", "REGION": "unset"},
    ),
    RecordedPlan("orders", "d-0003", "counts per minute", 2, 2, EXAMPLE_PLAN, WRITE_ID, AT),
)  # fmt: skip

RUNS: tuple[ScratchRun, ...] = (
    ScratchRun(
        "orders", "r-0b8e3c525f0e-0002", "d-0003",
        Replay(
            {"counts per minute": (40, 41)}, "/home/ada/replay/new", "/home/ada/replay/old",
            keeps_state=True, calls_foreach_batch=True, debugger="/tmp/streamstate-pdb-0b8e/pdb",
        ),
        AT, LATER, "ada (shell)", "0b8e3c52-5f0e-4ffd-9d9a-2f7b6a1c9d10", "56" * 32, WRITE_ID,
    ),
    ScratchRun(
        "orders", "r-0b8e3c525f0e-0003", "d-0003", Reading(("d-0003-live-000002", "d-0003-live-000001")),
        AT, LATER, "ada (shell)", "0b8e3c52-5f0e-4ffd-9d9a-2f7b6a1c9d10", "", WRITE_ID,
    ),
)  # fmt: skip
"""A scratch run of each other kind."""


def example(cls: type[Message]) -> Message:
    """The example of this class."""
    return next(value for value in EXAMPLES if type(value) is cls)


GOLDEN_MESSAGES = Path(__file__).parents[1] / "golden" / "messages"
_STEP = example(UpgradeStep)
assert isinstance(_STEP, UpgradeStep)
RECORDED: tuple[Message, ...] = (*EXAMPLES, *(replace(_STEP, decision=decision) for decision in DECISIONS), *RUNS)
"""Every message that has a golden file: of a kind with several forms, each form."""


def golden_of(value: Message) -> Path:
    """The golden file of a message of ``RECORDED``."""
    more = ""
    if isinstance(value, ScratchRun):
        more = f"-{type(value.what).__name__}"
    elif isinstance(value, UpgradeStep) and value is not _STEP:
        more = f"-{type(value.decision).__name__}"
    return GOLDEN_MESSAGES / f"{value.kind}{more}.json"
