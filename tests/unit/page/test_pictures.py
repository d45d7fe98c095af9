"""What the pictures of a stream are made of: timeline, plan alongside the one before, upgrades, replays."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.controller.request.requests import change_request
from airflow_streamstate.controller.upgrade.upgrades import UpgradeRequest
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.page.content import MAX_NODES, SILENT, Asked, graph, plan_graphs, replay_part, upgrades_part
from airflow_streamstate.plan.model import PlanNode
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.terms.order import UpgradeTerms
from support.airflow_streams import NamedHome
from support.built_plans import plan, without_state
from support.page_site import CONN_ID, PageSite
from support.page_story import deployed, upgraded
from support.plan_golden import golden
from support.scripted_driver import script
from support.scripted_rehearsal import keep_batches, keep_plan
from support.scripted_stream import QUERY
from support.shell import shell


def test_a_timeline_has_each_deployment_with_its_attempts_and_what_happened(site: PageSite, named: NamedHome) -> None:
    """A failure, a restart, a snapshot, a stop; the last attempt of a stream that runs ends now."""
    stream = named.stream()
    first = stream.deploy().runs()
    first.failed("ValueError: boom")
    second = stream.resume().runs()
    second.stopped()
    stream.deploy().runs()
    found = site.read("timeline")
    one, two = found["deployments"]
    assert [(each["attempt"], each["end"], each["is_running"]) for each in one["attempts"]] == [
        (1, "failed", False),
        (2, "stopped", False),
    ]
    assert "boom" in one["attempts"][0]["why"]
    assert (two["predecessor_id"], two["version"]) == ("d-0001", "job.py")
    assert [each["is_running"] for each in two["attempts"]] == [True]
    assert two["attempts"][0]["until_at"] == found["now"]
    assert [mark["word"] for mark in found["marks"]] == ["stopped"]
    assert found["marks"][0]["text"] == "d-0001-stopped-000002"


def test_the_gap_of_a_handover_is_in_the_timeline_and_its_phases_in_the_upgrade(
    site: PageSite, named: NamedHome
) -> None:
    """To scale: from the last commit of one deployment to the first of the next, with the moments between."""
    deployed(named, "flights")
    upgrade_id = upgraded(named, "flights", "v2")
    (down,) = site.read("timeline")["downtimes"]
    assert (down["from_deployment_id"], down["to_deployment_id"]) == ("d-0001", "d-0002")
    (found,) = site.read("upgrades")["upgrades"]
    assert (found["upgrade_id"], found["outcome"], found["seconds"]) == (
        upgrade_id,
        "upgraded",
        down["downtime_seconds"],
    )
    phases = [step["phase"] for step in found["steps"]]
    assert phases[0] == "begun"
    assert phases[-1] == "upgraded"
    assert len(set(phases)) == len(phases)
    assert all(step["seconds"] >= 0 for step in found["steps"])
    assert [mark["phase"] for mark in down["waterfall"]][-1] == "first_commit"
    lineage = site.read("lineage")
    assert (lineage["ok"], lineage["gaps"], lineage["overlaps"]) == (True, [], [])


def test_an_upgrade_that_waits_for_a_person_says_so_until_one_has_answered(site: PageSite, named: NamedHome) -> None:
    """The button to answer is shown by this."""
    stream = named.stream()
    stream.deploy().runs()
    keep_plan(stream.control, "d-0001", QUERY)
    change = change_request("flights", script(named.base, "fits", name="v2.py"))
    upgrades = named.hook().client.upgrades
    begun = upgrades.begin(UpgradeRequest(change, UpgradeTerms(needs_approval=True, healthy_batches=1, warm=False)))
    assert [one["awaits_approval"] for one in site.read("upgrades")["upgrades"]] == [False]  # nothing to answer yet
    while upgrades.advance("flights", begun.upgrade_id).state.phase != "planned":
        SYSTEM_CLOCK.sleep(0.05)
    (waits,) = upgrades_part(named.hook().client, Asked("flights"))["upgrades"]
    assert waits["awaits_approval"]
    planned = site.read("plan", rehearsal_id=waits["rehearsal_id"])
    assert (planned["rehearsal_id"], planned["before"]) == (waits["rehearsal_id"], "d-0001")
    upgrades.approve("flights", begun.upgrade_id, is_approved=False)
    found = upgrades_part(named.hook().client, Asked("flights"))
    assert [one["awaits_approval"] for one in found["upgrades"]] == [False]


def test_a_plan_is_shown_beside_that_of_the_version_before(site: PageSite, named: NamedHome) -> None:
    """With the verdict that a plan of the upgrade would give; of the first version alone."""
    stream = named.stream()
    stream.deploy().runs().stopped()
    stream.deploy().runs()
    keep_plan(stream.control, "d-0001", QUERY, golden("joined_left"))
    keep_plan(stream.control, "d-0002", QUERY, golden("joined_inner"))
    found = site.read("plan")
    assert (found["deployment_id"], found["before"], found["verdict"]) == ("d-0002", "d-0001", "state-compatible")
    (query,) = found["queries"]
    assert [one["code"] for one in query["differences"]] == ["join-type-changed"]
    assert (query["nodes"][0]["kind"], query["nodes"][0]["change"]) == ("Join", "changed")
    first = site.read("plan", deployment_id="d-0001")
    assert (first["before"], first["verdict"]) == (None, None)
    assert {node["change"] for query in first["queries"] for node in query["nodes"]} == {"same"}


def test_each_query_of_either_version_is_shown() -> None:
    """One that is new, one that is gone."""
    found = plan_graphs({"a": plan(), "gone": without_state()}, {"a": plan(), "new": without_state()})
    assert {query["query"]: query["is_gone"] for query in found["queries"]} == {
        "a": False, "gone": True, "new": False
    }  # fmt: skip


def test_a_node_knows_what_it_feeds_and_how_it_differs() -> None:
    """Added, removed and changed ones, each in its place of the tree."""
    before = [PlanNode("Project", "a", 0), PlanNode("Filter", "x > 1", 1), PlanNode("StreamingRelation", "k", 2)]
    now = [PlanNode("Filter", "x > 2", 0), PlanNode("Window", "1 min", 1), PlanNode("StreamingRelation", "k", 2)]
    found = graph(before, now)
    assert [(node["kind"], node["change"], node["was"]) for node in found] == [
        ("Filter", "changed", "x > 1"),
        ("Window", "added", ""),
        ("Project", "removed", ""),
        ("StreamingRelation", "same", ""),
    ]
    assert [node["parent"] for node in found] == [None, 0, None, 1]


def test_who_stopped_a_stream_and_why_is_on_its_page(site: PageSite, named: NamedHome) -> None:
    """Above, in its timeline, among its events and in its journal."""
    deployed(named, "flights")
    client = named.hook().client
    order = client.order("stop", "flights", reason="the broker is moved")
    client.wait(WaitCondition.of(order), timeout_seconds=60)
    why = f"by {named.hook().requested_by}: the broker is moved"
    assert site.read("stream")["stop_reason"] == f"stopped {why}"
    (lane,) = site.read("timeline")["deployments"]
    assert lane["attempts"][0]["why"] == why
    assert site.read("stream_events")["events"][0]["text"].endswith(f"; stopped {why}")
    facts = [one["facts"].get("command", "") for one in site.read("events", deployment_id="d-0001")["events"]]
    assert any(words.endswith("the broker is moved") for words in facts)


def test_an_upgrade_that_a_link_asks_for_is_there_beside_the_last_ones(
    site: PageSite, named: NamedHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However old it is."""
    monkeypatch.setattr("airflow_streamstate.page.content.LAST_UPGRADES", 0)
    deployed(named, "flights")
    upgrade_id = upgraded(named, "flights", "v2")
    assert site.read("upgrades")["upgrades"] == []
    assert [one["upgrade_id"] for one in site.read("upgrades", upgrade_id=upgrade_id)["upgrades"]] == [upgrade_id]


def test_events_have_the_facts_that_the_shell_prints(site: PageSite, named: NamedHome) -> None:
    """The newest first; of any deployment."""
    named.stream().deploy().runs().stopped()
    found = site.read("events", deployment_id="d-0001")["events"]
    assert [one["kind"] for one in found] == ["Stopped", "QueryStarted", "Started", "Claimed"]
    assert found[0]["facts"]["queries"] == f"{QUERY}:0"
    answer = site.get("api/events", conn_id=CONN_ID, stream_id="flights", deployment_id="d-0009")
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "DeploymentNotFoundError")


def test_stream_events_are_of_all_deployments(site: PageSite, named: NamedHome) -> None:
    """The newest first; what no journal reports is seen now, and so has no time."""
    stream = named.stream()
    stream.deploy().runs().failed("ValueError: boom")
    stream.resume().runs().stopped()
    stream.deploy().runs().beat()
    found = site.read("stream_events")["events"]
    assert [(one["kind"], one["deployment_id"], one["at"] is None) for one in found] == [
        ("healthy", "d-0002", True),
        ("stopped", "d-0001", False),
        ("restarted", "d-0001", False),
        ("failed", "d-0001", False),
    ]
    assert "boom" in found[-1]["text"]


def test_an_end_without_a_last_word_is_where_the_last_sign_of_life_was(site: PageSite, named: NamedHome) -> None:
    """On the timeline and among the events, though the next attempt has replaced its heartbeat."""
    stream = named.stream()
    died = stream.deploy().runs()
    died.beat(died.clock.now() + timedelta(milliseconds=1))
    beat = stream.control.heartbeat("d-0001")
    assert beat is not None
    last_at = format_time(beat.at)
    stream.resume().runs()
    (lane,) = site.read("timeline")["deployments"]
    first, second = lane["attempts"]
    assert (first["until_at"], first["end"], first["why"]) == (last_at, "failed", SILENT)
    assert second["end"] is None
    (mark,) = [one for one in site.read("timeline")["marks"] if one["word"] == "failed"]
    assert (mark["at"], mark["text"]) == (last_at, f"attempt 1: {SILENT}")
    told = {one["kind"]: one["at"] for one in site.read("stream_events")["events"]}
    assert told["failed"] == last_at
    assert list(told) == ["healthy", "restarted", "failed"]


def test_snapshots_are_listed_newest_first_with_what_keeps_them(site: PageSite, named: NamedHome) -> None:
    """As ``snapshot list`` does."""
    attempt = named.stream().deploy().runs()
    attempt.snapshot("live", 1)
    attempt.stopped()
    named.hook().client.retention.pin("flights", "d-0001-live-000001")
    found = site.read("snapshots")["snapshots"]
    assert [(one["snapshot_id"], one["is_pinned"]) for one in found] == [
        ("d-0001-stopped-000001", False),
        ("d-0001-live-000001", True),
    ]
    assert found[0]["batches"] == {QUERY: 0}


def test_the_log_is_that_of_the_attempt_that_is_asked_for(site: PageSite, named: NamedHome) -> None:
    """An attempt without a log has an empty one; an attempt that is no number is refused."""
    deployed(named, "flights")
    assert site.read("log")["log"].startswith("scripted driver: proves")
    assert site.read("log", attempt="7")["log"] == ""
    for attempt in ("0", "x", "-1"):
        answer = site.get("api/log", conn_id=CONN_ID, stream_id="flights", attempt=attempt)
        assert (answer.status_code, "attempt" in answer.text) == (400, True)


def test_a_replay_is_shown_with_both_versions_beside_each_other(
    site: PageSite, named: NamedHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table of the shell, and the rows that differ; none before there was one."""
    stream = named.stream()
    stream.deploy().runs()
    keep_batches(named.home.home, "flights", QUERY)
    assert site.read("replay") == {"replay": None}
    monkeypatch.setenv("STREAMSTATE_HOME", named.config.home_uri)
    new = script(named.base, "changes", name="changes.py")
    shell("replay", "flights", "--app", new, "--last", 2, "--out", named.base / "out")
    found = replay_part(named.hook().client, Asked("flights"))
    assert (found["replay"]["outcome"], found["replay"]["deployment_id"]) == ("done", "d-0001")
    assert found["columns"][:3] == ["query", "batch", "rows in"]
    assert [row[:3] for row in found["rows"]] == [(QUERY, "3", "1,200"), (QUERY, "4", "1,200")]
    (changed,) = [table for title, table in found["samples"].items() if "changed" in title][:1]
    assert changed["columns"] == ["key", "old", "new"]


def test_plans_of_any_size_are_compared_as_far_as_they_are_shown() -> None:
    """A driver writes its plan, of up to some megabytes; what is shown of it is what may cost time."""
    before, now = ([PlanNode("P", "x" if n % 2 else f"{side}{n}", 1) for n in range(20_000)] for side in "ab")
    found = graph(before, now)
    assert len(found) == MAX_NODES
    assert {node["change"] for node in found} == {"same", "changed"}
    old, new = (replace(plan(), nodes=tuple(nodes)) for nodes in (before, now))
    assert plan_graphs({"counts": old}, {"counts": new})["verdict"] is None
