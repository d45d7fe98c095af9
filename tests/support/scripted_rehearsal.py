"""A rehearsing driver without Spark, with the verdict that its script names.

The script holds one word per line: ``fits``, ``needs-drain`` (its plan has an aggregate more), ``hazardous`` (it writes
to another folder), ``refused`` (by Spark),
``fails`` (the script), ``dies`` (the driver, without a verdict), ``hangs``. In a replay also ``divides`` (a row fails
its last batch), ``gone`` (the rows are gone at the source) and ``changes`` (its rows are others than the old ones).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.control.artifacts import pin
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.plan.model import Expression, QueryPlan, RecordedPlan
from airflow_streamstate.plan.record import record_plan
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.scratch import (
    RehearsedQuery,
    Replay,
    ReplayedBatch,
    RowComparison,
    ScratchVerdict,
    StateComparison,
)
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.open import open_store
from airflow_streamstate.store.options import S3Options, StoreOptions
from support.built_plans import operator, plan
from support.checkpoints import memory_checkpoint, plan_batch, run_batches

SPARKS_WORDS = "[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] Provided value schema does not match"


def keep_plan(
    control: StreamControl,
    deployment_id: str,
    query_name: str,
    kept: QueryPlan | None = None,
    first_batch_id: int = 0,
) -> None:
    """Record the plan of a query, as its driver does; ``first_batch_id``: from which batch on it made the state."""
    moment = SYSTEM_CLOCK.now()
    named = replace(kept or plan(), query_name=query_name)
    record = RecordedPlan(
        control.stream_id, deployment_id, query_name, 1, 1, named, SYSTEM_CLOCK.new_uuid(), moment, first_batch_id
    )
    record_plan(control, record)


def keep_batches(store: Store, stream_id: str, query_name: str) -> None:
    """The checkpoint of ``d-0001`` with the batches 0 to 3, and batch 4 planned, and the pinned script."""
    checkpoint = Checkpoint(store, layout.checkpoint_folder(stream_id, "d-0001", query_name))
    metadata = memory_checkpoint()
    stored = metadata.store.get(metadata.metadata_key)
    assert stored is not None
    store.put(checkpoint.metadata_key, stored.body)
    plan_batch(run_batches(checkpoint, 3), 4)
    pin(store, stream_id, "job.py", b"")


def with_an_aggregate_more() -> QueryPlan:
    """What needs a drain."""
    aggregates = (Expression("Count(1)", "bigint", "n"), Expression("Sum(v)", "bigint", "s"))
    return plan(operator(aggregates=aggregates))


CHANGED = '{"key":{"k":"d"},"old":{"n":1},"new":{"n":2}}'


def _replayed(terms: Replay, name: str, words: list[str]) -> RehearsedQuery:
    if "gone" in words:
        return RehearsedQuery("refused", error="the source does not have the rows of this batch any more")
    ran = [
        ReplayedBatch(batch_id, 1_200, 34, 0.5, f"{terms.out}/{name}/batch={batch_id}", ("part-0.parquet",))
        for batch_id in terms.batches[name]
    ]
    if terms.compared_with and Path(f"{terms.compared_with}.done").exists():
        compared = RowComparison(32, 2, 1, ('{"k":"a"}', '{"k":"b"}'), ('{"k":"c"}',), 1, ("k",), (CHANGED,))
        ran = [replace(each, comparison=compared if "changes" in words else RowComparison(34, 0, 0)) for each in ran]
    Path(terms.out).parent.mkdir(parents=True, exist_ok=True)
    Path(f"{terms.out}.done").write_text("")
    if "divides" not in words:
        state = RowComparison(6, 0, 1, (), ('{"key":{"k":"e"}}',), 1, ("key",), (CHANGED,))
        is_other = "changes" in words and bool(terms.compared_with) and terms.keeps_state
        left = (StateComparison("0-stateStoreSave/rows", state),) if is_other else ()
        return RehearsedQuery("accepted", replayed=tuple(ran), state=left)
    error = "ZeroDivisionError: division by zero"
    failed = ReplayedBatch(ran[-1].batch_id, error=error, traceback=f"Traceback …\n{error}")
    error = f"batch {failed.batch_id} fails: {error}"
    return RehearsedQuery("failed", error=error, replayed=(*ran[:-1], failed))


def rehearse(config: Mapping[str, Any], words: list[str], query_name: str) -> int:
    """The life of a rehearsing driver; returns its exit status."""
    options = StoreOptions(S3Options(region=config.get("s3_region"), endpoint_url=config.get("s3_endpoint_url")))
    control = StreamControl(open_store(config["home_uri"], options=options), config["stream_id"], SYSTEM_CLOCK)
    rehearsal_id = config["deployment_id"]
    if "hangs" in words:
        time.sleep(120)  # noqa: TID251 - a real process
    if "dies" in words:
        print("no such package", flush=True)
        return 1
    verdict = ScratchVerdict(
        stream_id=control.stream_id, run_id=rehearsal_id, outcome="done", error="", seconds=1.5,
        queries={query_name: RehearsedQuery("accepted", "restored", 0.5)}, given_by="driver",
        given_at=SYSTEM_CLOCK.now(), write_id=SYSTEM_CLOCK.new_uuid(), spark_version="4.2.0",
    )  # fmt: skip
    if "fails" in words:
        error = "ModuleNotFoundError: No module named 'rules'"
        verdict = replace(verdict, outcome="failed", queries={}, error=error, traceback=f"Traceback …\n{error}")
    elif "refused" in words:
        verdict = replace(verdict, queries={query_name: RehearsedQuery("failed", "restored", 0.5, SPARKS_WORDS)})
    run = control.scratch_run(rehearsal_id)
    if run is not None and isinstance(run.what, Replay):
        if verdict.outcome == "done":
            queries = {name: _replayed(run.what, name, words) for name in run.what.batches}
            verdict = replace(verdict, queries=queries)
        control.create_verdict(verdict)
        return 0 if verdict.outcome == "done" else 1
    found = with_an_aggregate_more() if "needs-drain" in words else plan()
    if "hazardous" in words:
        found = replace(found, sink=replace(found.sink, target="/elsewhere"))
    keep_plan(control, rehearsal_id, query_name, found)
    control.create_verdict(verdict)
    return 0 if verdict.outcome == "done" else 1
