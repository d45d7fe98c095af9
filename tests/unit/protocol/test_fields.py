"""What no code behind a record could work with is refused where the record is read, with its key (Law 7)."""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.errors import InvalidRequestError, MalformedMessageError
from airflow_streamstate.plan.replay_report import replay_report
from airflow_streamstate.protocol.codec import DIGEST, Checked, Message, digest_of, from_json, refuse_unreadable
from airflow_streamstate.protocol.commands import SkipRequest
from airflow_streamstate.protocol.scratch import ScratchRun, ScratchVerdict
from support.messages import KINDS

GOLDEN = Path(__file__).parents[2] / "golden" / "messages"
ODD: list[tuple[str, str, object]] = [
    ("DeploymentSpec", "start.snapshot_id", "../../etc"),
    ("DeploymentSpec", "start.predecessor_id", "d-00001"),
    ("DeploymentSpec", "version.working_folder", "/tmp/\x00"),
    ("DeploymentSpec", "created_at", "9999-12-31T23:59:59.999Z"),
    ("LaunchRecord", "data", {"launch_dir": "/tmp/\x00"}),
    ("LaunchRecord", "attempt", 2**62),
    ("StreamRegister", "deployment_id", "D-1"),
    ("StreamRegister", "upgrade_id", "latest"),
    ("UpgradeLease", "until_at", "9999-12-31T23:59:59.999Z"),
    ("UpgradeLease", "seconds", 1e300),
    ("UpgradeStep", "decision", {"kind": "Splendid"}),
    ("SkipRequest", "query_name", ""),
    ("QueryStarted", "query_name", "x" * 300),
    ("SnapshotManifest", "queries", {"": {}}),
    ("Handover", "rehearsal_id", "r-1"),
]


def raw_of(kind: str) -> dict[str, Any]:
    """A record of this kind."""
    found: dict[str, Any] = json.loads((GOLDEN / f"{kind}.json").read_text())
    return found


@pytest.mark.parametrize(("kind", "field", "value"), ODD, ids=lambda value: str(value)[:20])
def test_an_odd_value_is_malformed(kind: str, field: str, value: object) -> None:
    """Ids, names, paths, times, numbers and words, each of which once ended a poll of all streams."""
    raw = raw_of(kind)
    place, name = raw, field
    if "." in field:
        outer, name = field.split(".")
        place = raw[outer] = dict(raw[outer])
    place[name] = value
    if DIGEST in raw:
        raw[DIGEST] = digest_of(raw)
    with pytest.raises(MalformedMessageError) as refused:
        from_json(raw, key="orders/x.json", expected=Message)
    assert refused.value.context["key"] == "orders/x.json"
    assert name in str(refused.value.context["reason"])


def test_what_nobody_could_read_is_not_written() -> None:
    """A caller's own empty name of a query, for one."""
    raw = {**raw_of("SkipRequest"), "query_name": ""}
    with pytest.raises(InvalidRequestError, match="query_name"):
        refuse_unreadable(SkipRequest, raw, "orders/x.json")


def test_a_verdict_of_a_replay_without_any_outcome_is_done() -> None:
    """It once ended the report by StopIteration."""
    verdict = replace(from_json(raw_of("ScratchVerdict"), key="v", expected=ScratchVerdict), outcome="done")
    run = from_json(raw_of("ScratchRun-Replay"), key="r", expected=ScratchRun)
    report = replay_report(replace(run, what=replace(run.replay, batches={})), verdict)
    assert report.outcome == "done"


CHECKED = (
    "stream_id",
    "snapshot_id",
    "rehearsal_id",
    "upgrade_id",
    "run_id",
    "query_name",
    "launch_key",
    "attempt",
)


def _classes(cls: type) -> Iterator[type]:
    """A message's class and those inside it."""
    yield cls
    for hint in typing.get_type_hints(cls).values():
        for inner in (hint, *typing.get_args(hint)):
            if dataclasses.is_dataclass(inner) and isinstance(inner, type):
                yield from _classes(inner)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_fields_that_become_parts_of_keys_have_types_that_say_so(kind: str) -> None:
    """And durations: a new field of these names is checked, too."""
    for cls in _classes(KINDS[kind]):
        for name, hint in typing.get_type_hints(cls, include_extras=True).items():
            if name in CHECKED or (name.endswith("_seconds") and "float" in str(hint)):
                found = [hint, *typing.get_args(hint)]
                assert any(isinstance(meta, Checked) for one in found for meta in getattr(one, "__metadata__", ())) or (
                    datetime in found
                ), f"{cls.__name__}.{name}"
