"""``snapshot prune``, ``pin`` and ``unpin``, ``retire``, and what ``snapshot list`` shows."""

from __future__ import annotations

import pytest

from support.shell import Desk, shell

ROW = {
    "snapshot_id", "kind", "deployment_id", "taken_at", "used_at", "files", "bytes", "shared_bytes", "pinned",
    "last_known_good", "leases", "queries", "mirrors", "request_id", "content_digest", "place", "refers_to_checkpoint",
}  # fmt: skip
LIVE = "d-0001-live-000001"


def snapshots() -> dict[str, dict[str, object]]:
    answer = shell("snapshot", "list", "flights", "--json")
    assert set(answer.json) == {"snapshots", "unreadable"}
    return {row["snapshot_id"]: row for row in answer.json["snapshots"]}


def test_what_keeps_a_snapshot_is_shown(desk: Desk) -> None:
    """With its size, what it shares, and where each query is in it."""
    desk.stream().deploy().runs().stopped()
    ((snapshot_id, row),) = snapshots().items()
    assert set(row) == ROW
    assert row["pinned"] is False
    queries = row["queries"]
    assert isinstance(queries, dict)
    assert set(queries["delays"]) == {"batch_id", "planned_batch_id", "end_offsets", "watermark_at", "drained"}
    assert shell("snapshot", "pin", "flights", snapshot_id, "--json").json == {
        "stream_id": "flights",
        "snapshot_id": snapshot_id,
        "pinned": True,
    }
    assert snapshots()[snapshot_id]["pinned"] is True
    assert "pinned" in shell("snapshot", "list", "flights").out
    assert "no longer pinned" in shell("snapshot", "unpin", "flights", snapshot_id).out
    assert snapshots()[snapshot_id]["pinned"] is False


def test_a_prune_says_what_goes_what_stays_and_why(desk: Desk) -> None:
    """One object with --json; a line for each thing without."""
    desk.stream().deploy().runs().stopped()
    dry = shell("snapshot", "prune", "flights", "--keep", "0", "--dry-run", "--json")
    assert set(dry.json) == {
        "stream_id", "dry_run", "policy", "removed", "kept", "leftovers", "abandoned", "files", "temporary_files",
        "notes", "mirrors",
    }  # fmt: skip
    assert dry.json["dry_run"] is True
    assert [set(one) for one in dry.json["kept"]] == [{"snapshot_id", "why"}]
    human = shell("snapshot", "prune", "flights", "--keep", "0")
    assert human.status == 0
    assert "is kept: the last stopped one of the current deployment, d-0001" in human.out
    assert "no version has proven itself yet" in human.out


def test_a_prune_at_mirrors_tells_of_each(desk: Desk) -> None:
    """What went there, what stays, and what is the matter with one."""
    second, third = desk.base / "second", desk.base / "third"
    second.mkdir()
    desk.stream().deploy(mirrors=(str(second), str(third))).runs().stopped()
    assert shell("home", "mirror", "flights", "--to", second).status == 0
    answer = shell("snapshot", "prune", "flights", "--at-mirrors", "--json")
    here, there = answer.json["mirrors"]
    assert set(here) == {"mirror", "removed", "kept", "files", "problem"}
    assert (here["problem"], [one["snapshot_id"] for one in here["kept"]]) == ("", ["d-0001-stopped-000001"])
    assert str(third) in there["problem"]
    human = shell("snapshot", "prune", "flights", "--at-mirrors")
    assert f"at {second}: d-0001-stopped-000001 is kept: the home has it" in human.out
    assert f"at {third}: {there['problem']}" in human.out


def test_the_retention_of_a_stream_is_shown_and_changed(desk: Desk) -> None:
    """The options are all of it; a prune without options goes by it and reports it, one with options does not."""
    desk.stream().deploy().runs().stopped()
    assert "has no retention" in shell("snapshot", "retention", "flights").out
    assert "policy, the default: keeps the newest 10" in shell("snapshot", "prune", "flights", "--dry-run").out
    changed = shell("snapshot", "retention", "flights", "--keep", "0", "--older-than", "60")
    assert changed.out.splitlines() == ["flights keeps what was used in the last 60 s"]
    human = shell("snapshot", "prune", "flights", "--dry-run").out
    assert "policy, recorded with the stream: keeps what was used in the last 60 s" in human
    assert "policy, by the options: keeps the newest 3" in shell("snapshot", "prune", "flights", "--keep", 3).out
    assert "  retention  keeps what was used in the last 60 s" in shell("status", "flights").out
    again = shell("snapshot", "retention", "flights", "--keep", "0", "--json").json["retention"]
    assert again == {"keep": 0, "older_than_seconds": None, "at_mirrors": False}
    assert shell("snapshot", "retention", "flights", "--none", "--json").json["retention"] is None
    assert "retention" not in shell("status", "flights").out


@pytest.mark.parametrize(
    "words",
    [("--keep", "-1"), ("--keep", "x"), ("--older-than", "nan"), ("--at-mirrors",), ("--none", "--keep", "0")],
)
def test_a_retention_that_makes_no_sense_is_refused(desk: Desk, words: tuple[str, ...]) -> None:
    """Exit status 2, and nothing is recorded."""
    desk.stream().deploy()
    assert shell("snapshot", "retention", "flights", *words, "--json").status == 2
    assert shell("snapshot", "retention", "flights", "--json").json["retention"] is None


@pytest.mark.parametrize("words", [("--keep", "-1"), ("--keep", "x"), ("--older-than", "nan"), ("--older-than", "-1")])
def test_numbers_that_are_none_are_usage_errors(desk: Desk, words: tuple[str, str]) -> None:
    """Exit status 2, before anything is looked at."""
    del desk
    assert shell("snapshot", "prune", "flights", *words, "--json").status == 2


def test_a_snapshot_that_is_not_there_cannot_be_pinned(desk: Desk) -> None:
    """Exit status 2 and its name."""
    desk.stream().deploy().runs().stopped()
    answer = shell("snapshot", "pin", "flights", LIVE, "--json")
    assert (answer.status, answer.error["type"]) == (2, "SnapshotNotFoundError")


def test_a_retired_stream_can_be_deleted(desk: Desk) -> None:
    """First marked, then gone."""
    desk.stream().deploy().runs().stopped()
    answer = shell("retire", "flights", "--reason", "closed", "--json")
    assert answer.status == 0, answer.out
    assert set(answer.json) == {"stream_id", "retired_at", "retired_by", "reason", "deleted", "objects"}
    assert "is retired since" in shell("retire", "flights").out
    assert shell("deploy", "flights", "--app", desk.base / "job.py", "--json", "--async").status in (2, 4)
    assert "is gone" in shell("retire", "flights", "--delete").out
    assert not (desk.home / "flights").exists()
