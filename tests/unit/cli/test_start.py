"""``deploy`` and ``resume``, over drivers that run no Spark."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import click
import pytest

from airflow_streamstate.cli.start import launcher_of
from airflow_streamstate.protocol.positions import SourceLag
from support.scripted_driver import NOTE, script
from support.shell import Answer, Desk, shell

pytestmark = pytest.mark.fast

START_FIELDS = {"stream_id", "deployment_id", "attempt", "state", "start"}
SECRET = "tr0ub4dor-and-3"


def deploy(desk: Desk, *words: object, job: str = "runs") -> Answer:
    """Deploy a script that makes its driver behave so; with a --timeout it is waited for."""
    waits = () if "--timeout" in words else ("--async",)
    return shell("deploy", "flights", "--app", script(desk.base, job), "--json", *waits, *words)


def test_a_first_deploy_starts_fresh_and_waits_until_it_is_healthy(desk: Desk) -> None:
    """It returns when the query has committed a batch; the fields are those that scripts build on."""
    answer = deploy(desk, "--timeout", 60, "--label", "v1", "--reason", "first", "--setting", "heartbeat_seconds=3")
    assert answer.status == 0
    assert answer.err == ""
    found = answer.json
    assert set(found) >= START_FIELDS
    assert (found["stream_id"], found["deployment_id"], found["attempt"]) == ("flights", "d-0001", 1)
    assert found["state"] == "running"
    assert found["start"]["mode"] == "fresh"
    assert found["start"]["snapshot_id"] is None
    assert found["queries"]["delays"]["batch_id"] == 0
    spec = desk.stream().control.spec("d-0001")
    assert (spec.version.version_label, spec.reason, spec.version.master) == ("v1", "first", "local[*]")
    assert spec.version.settings.heartbeat_seconds == 3

    again = deploy(desk)
    assert again.status == 4
    assert again.error["type"] == "ConflictError"
    assert "stop, drain or upgrade" in again.error["message"]
    assert again.error["context"]["deployment_id"] == "d-0001"

    stopped = shell("stop", "flights", "--timeout", 60, "--json")
    assert stopped.status == 0, stopped
    next_one = deploy(desk, "--timeout", 60)
    assert next_one.status == 0, next_one
    assert next_one.json["deployment_id"] == "d-0002"
    assert next_one.json["start"]["mode"] == "restore"
    assert next_one.json["start"]["snapshot_id"] == stopped.json["snapshot_id"]


def test_what_the_driver_notes_is_shown_by_the_verb_that_waits_for_it(desk: Desk) -> None:
    """Of this attempt alone, with the facts that its text does not have; a person reads it behind the state."""
    job, note = script(desk.base, "runs notes"), f"{NOTE} (asked=local[8])"
    answer = shell("deploy", "flights", "--app", job, "--json", "--timeout", 60)
    assert answer.json["notes"] == [note], answer
    assert shell("stop", "flights", "--timeout", 60).status == 0
    resumed = shell("resume", "flights", "--timeout", 60)
    assert resumed.status == 0, resumed
    assert resumed.out.count(f"\n  {note}\n") == 1, resumed.out


def test_async_returns_when_it_is_recorded_and_says_how_it_starts(desk: Desk) -> None:
    """A person reads the choice on stderr, and the state on stdout."""
    answer = shell("deploy", "flights", "--app", script(desk.base, "hangs"), "--async", "--", "--input", "x")
    assert answer.status == 0
    assert answer.err == "flights d-0001 attempt 1 starts fresh, with nothing\n"
    assert answer.out.startswith("flights d-0001 attempt 1 is launching")
    assert desk.stream().control.spec("d-0001").version.arguments == ("--input", "x")


def test_a_job_that_never_commits_ends_the_wait_and_not_the_work(desk: Desk) -> None:
    """--wait that ends: exit status 3, what was last seen, and that the work continues; it does."""
    answer = deploy(desk, "--timeout", 3, job="hangs")
    assert answer.status == 3
    assert answer.error["type"] == "DeadlineExceededError"
    assert "the work continues" in answer.error["message"]
    assert "running" in answer.error["context"]["last_seen"]
    assert shell("status", "flights", "--json").json["state"] == "running"
    killed = shell("kill", "flights", "--grace", 0, "--json")
    assert killed.status == 0
    assert killed.json["state"] == "failed"


def test_a_job_that_fails_shows_its_traceback_and_the_end_of_its_log(desk: Desk) -> None:
    """Exit status 1; as JSON in fields, for a person in blocks."""
    answer = deploy(desk, "--timeout", 60, job="fails")
    assert answer.status == 1
    assert answer.error["type"] == "DeploymentFailedError"
    context = answer.error["context"]
    assert context["error"] == "ValueError: boom"
    assert context["traceback"].endswith("ValueError: boom")
    assert "scripted driver: fails" in context["log_tail"]
    resumed = shell("resume", "flights", "--timeout", 60)
    assert resumed.status == 1
    assert "attempt 2 continues" in resumed.err
    assert "\ntraceback:\n    Traceback (most recent call last):\n    ValueError: boom\n" in resumed.err


def test_a_deploy_waits_until_nothing_is_left_to_read(desk: Desk) -> None:
    """--max-lag: what is missing is reported at its end."""
    late = deploy(desk, "--max-lag", 0, "--timeout", 3)
    assert late.status == 3
    assert "caught up" in late.error["message"]
    assert "how far it is behind is not known yet" in late.error["context"]["last_seen"]
    control = desk.stream().control
    beat = control.heartbeat("d-0001")
    assert beat is not None
    lags = (SourceLag("file /in", 3, "files", 12.0, 7, "files"),)
    query = replace(beat.queries["delays"], lags=lags, lags_at=beat.at, snapshot_id="s", batches_since_snapshot=2)
    control.put_heartbeat(replace(beat, queries={"delays": query}))
    shown = shell("status", "flights")
    assert "3 files behind, about 12 s, asked " in shown.out
    assert "2 batches, 7 files" in shown.out
    told = shell("status", "flights", "--json").json["queries"]["delays"]
    assert (told["caught_up"], told["caught_up_why"]) == (False, "3 files behind, about 12 s")
    assert (told["behind"], told["seconds_to_zero"]) == ("3 files behind, about 12 s", 12.0)
    assert (told["since_snapshot"], told["batches_since_snapshot"]) == ("2 batches, 7 files", 2)
    assert told["lags"] == [
        {
            "source": "file /in", "behind": 3, "unit": "files", "seconds_to_zero": 12.0, "since_snapshot": 7,
            "since_snapshot_unit": "files", "untold": "", "trend": None,
        }
    ]  # fmt: skip
    control.put_heartbeat(replace(beat, queries={"delays": replace(query, is_idle=True)}))
    assert "s ago; its newest trigger found no input" in shell("status", "flights").out
    for words in (("--timeout", 1, "--async"), ("--max-lag", 1, "--async"), ("--max-lag", -1)):
        assert shell("resume", "flights", *words, "--json").error["type"] == "UsageError"


def test_a_script_that_is_not_there_leaves_nothing_behind(desk: Desk) -> None:
    """Refused before anything is recorded, with the path."""
    for path in (desk.base / "nosuch.py", desk.base, Path("x" * 300)):
        answer = shell("deploy", "flights", "--app", path, "--json", "--async")
        assert answer.status == 2
        assert answer.error["context"]["path"] == str(path)
    assert not desk.home.exists()
    assert shell("list", "--json").error["type"] == "HomeNotFoundError"


def test_a_machine_without_spark_is_told(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """No spark-submit is an error with the remedy, and no stream comes to be."""
    monkeypatch.setenv("SPARK_HOME", str(desk.base / "nosuch"))
    answer = deploy(desk)
    assert answer.status == 2
    assert "spark-submit" in answer.error["message"]
    assert answer.error["next_step"]
    assert shell("list", "--json").error["type"] == "HomeNotFoundError"


def test_what_may_be_lost_is_recorded_by_name(desk: Desk) -> None:
    """--accept-lost-input is in the spec of this deployment, and of no other."""
    attempt = desk.stream().deploy().runs()
    attempt.stopped()
    assert deploy(desk, "--accept-lost-input", "counts", "--accept-lost-input", "raw").status == 0
    control = desk.stream().control
    spec = control.spec(str(control.need_register().value.deployment_id))
    assert spec.start.accept_lost_input == ("counts", "raw")


def test_a_stream_may_be_told_to_wait_for_new_parts(desk: Desk) -> None:
    """Recorded with the deployment, so that every attempt of it and every upgrade keeps to it."""
    asked = ("--keep-running", "--commit-offsets-to-group", "lag", "--setting", "heartbeat_seconds=5")
    assert deploy(desk, *asked).status == 0
    control = desk.stream().control
    settings = control.spec(str(control.need_register().value.deployment_id)).version.settings
    assert (settings.keep_running, settings.heartbeat_seconds) == (True, 5.0)
    assert settings.commit_offsets_to_group == "lag"


@pytest.mark.parametrize(
    ("options", "status", "part"),
    [
        (("--start", "seed"), 4, "restore"),
        (("--snapshot", "d-0001-live-000001"), 4, "batch ids that the sink may hold"),
        (("--snapshot", "d-0009-stopped-000001"), 2, "no complete snapshot"),
        (("--start", "fresh", "--snapshot", "d-0001-stopped-000001"), 2, "fresh"),
        (("--py-files", "nosuch.zip"), 2, "cannot be read"),
        (("--allow-new-query", ""), 2, "query name"),
        (("--accept-lost-input", ""), 2, "query name"),
        (("--setting", "heartbeat_seconds=0"), 2, "Use a number of seconds from 0.01"),
        (("--setting", "snapshot_every_seconds=0.5"), 2, "Use a number of seconds from 1 "),
        (("--setting", "fetch_batch_bytes=1e6"), 2, "number of seconds, or of bytes"),
        (("--setting", f"fetch_batch_bytes={'9' * 400}"), 2, "Use a whole number from 1,024"),
        (("--working-folder", ""), 2, "--working-folder is empty"),
        (("--spark", ""), 2, "--spark is empty"),
        (("--master", "nonsense"), 2, "not a master"),
        (("--conf", "typo=1"), 2, "does not start with"),
        (("--conf", "spark.submit.deployMode=cluster"), 2, "cluster mode"),
        (("--jars", "/nosuch.jar"), 2, "cannot be read"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    desk: Desk, options: tuple[str, ...], status: int, part: str
) -> None:
    """Contradictions and what is not there: reported, and the register stays where it is (Laws 5 and 14)."""
    attempt = desk.stream().deploy().runs()
    attempt.snapshot("live", 1)
    attempt.stopped()
    answer = deploy(desk, *options)
    assert answer.status == status, answer
    assert part in json.dumps(answer.error)
    assert desk.stream().control.need_register().value.deployment_id == "d-0001"


def test_a_master_that_is_down_is_told_before_anything_is_touched(desk: Desk) -> None:
    """In one sentence with the next step, at once; neither home nor stream know of the deploy (Law 1)."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        before = desk.files()
        answer = deploy(desk, "--master", f"spark://127.0.0.1:{held.getsockname()[1]}")
    assert (answer.status, answer.error["type"]) == (1, "UnavailableError")
    assert answer.error["message"] == "the master of the cluster does not answer"
    assert "Start it or correct its address" in answer.error["next_step"]
    assert desk.files() - before - {"allowed.json"} == {"job.py"} - before
    assert shell("status", "flights", "--json").error["type"] == "HomeNotFoundError"


def test_a_drained_stream_is_seeded(desk: Desk) -> None:
    """What the last snapshot is decides the start, and the answer reports it."""
    snapshot_id = desk.stream().deploy().runs().drained()
    answer = deploy(desk, job="hangs")
    assert answer.json["start"] == {"mode": "seed", "snapshot_id": snapshot_id, "predecessor_id": "d-0001"}
    human = shell("status", "flights")
    assert f"seed {snapshot_id}" in human.out


def test_a_drained_stream_is_not_resumed(desk: Desk) -> None:
    """Exit status 4, and what to do instead (Law 11)."""
    desk.stream().deploy().runs().drained()
    answer = shell("resume", "flights", "--json", "--async")
    assert answer.status == 4
    assert "Deploy" in answer.error["next_step"]


def test_resume_goes_on_with_the_same_deployment(desk: Desk) -> None:
    """The next attempt of the recorded code, whatever is at the old path in the meantime (Law 15)."""
    assert deploy(desk, "--timeout", 60).status == 0
    running = shell("resume", "flights", "--json", "--async")
    assert running.status == 4
    assert shell("stop", "flights", "--timeout", 60).status == 0
    script(desk.base, "fails")
    answer = shell("resume", "flights", "--timeout", 60, "--json")
    assert answer.status == 0, answer
    assert (answer.json["deployment_id"], answer.json["attempt"]) == ("d-0001", 2)
    assert set(answer.json) >= START_FIELDS


def test_the_same_request_twice_is_one_deployment(desk: Desk) -> None:
    """A retry with its request id finds what it started; another request under it is refused (Law 2)."""
    first = deploy(desk, "--request-id", "release-7", "--timeout", 60)
    assert deploy(desk, "--request-id", "release-7").json["deployment_id"] == first.json["deployment_id"]
    other = deploy(desk, "--request-id", "release-7", "--label", "v2")
    assert other.status == 4
    assert "request id" in other.error["message"]


def test_two_deploys_at_once_are_one_deployment_and_one_refusal(desk: Desk) -> None:
    """Two shells race: one wins, the other ends with 4 and names what was first (Law 4)."""
    job = script(desk.base, "hangs")
    code = "from airflow_streamstate.cli.main import main; main()"
    words = [sys.executable, "-c", code, "deploy", "flights", "--app", str(job), "--async", "--json"]
    shells = [subprocess.Popen(words, stdout=subprocess.PIPE, env=dict(os.environ)) for _ in range(2)]
    said = [json.loads(process.communicate(timeout=50)[0]) for process in shells]
    assert sorted(process.returncode for process in shells) == [0, 4]
    (refused,) = [answer["error"] for answer in said if "error" in answer]
    assert refused["type"] == "ConflictError"
    assert "d-0001" in json.dumps(refused)
    assert shell("list", "--json").json["streams"][0]["deployment_id"] == "d-0001"


def test_a_secret_is_in_the_spec_and_nowhere_else(desk: Desk) -> None:
    """Secrets in arguments and configuration: not on stdout or stderr, in no event, command or other object."""
    words = ("--conf", f"spark.hadoop.fs.s3a.secret.key={SECRET}", "--label", "v1", "--allow-literal-secrets")
    answer = deploy(desk, *words, "--timeout", 60, "--", "--password", SECRET, f"--url=https://x:{SECRET}@host/")
    shown = [answer, shell("status", "flights"), shell("events", "flights", "--json"), shell("logs", "flights")]
    shown += [deploy(desk, *words, "--", "--password", SECRET), shell("stop", "flights", "--timeout", 60, "--json")]
    assert answer.status == 0
    assert [found for found in shown if SECRET in found.out + found.err] == []
    holders = {path for path, text in desk.texts().items() if SECRET in text}
    assert holders
    assert {path for path in holders if not (path.endswith("spec.json") or "/launches/" in path)} == set()
    files = [desk.home / path for path in holders if "/launches/" in path]
    assert [str(path) for path in files if path.stat().st_mode & 0o077] == []


def test_a_label_is_text_and_no_markup(desk: Desk) -> None:
    """A label is shown as it is, on a terminal too."""
    desk.stream().deploy().runs().stopped()
    label = "[/red] \x1b[2J [bold]"
    assert deploy(desk, "--label", label, job="hangs").status == 0
    for verb in ("status", "list"):
        text = shell(verb, *(["flights"] if verb == "status" else []), terminal=True).out
        assert "[/red]" in text
        assert "\x1b[2J" not in text
    assert desk.stream().control.spec("d-0002").version.version_label == label


def test_the_reason_of_a_resume_is_kept_and_shown(desk: Desk) -> None:
    """With the attempt, from the moment in which it is decided; the next attempt has its own."""
    assert deploy(desk, "--timeout", 60, "--reason", "the first version", job="fails").status == 1
    assert shell("status", "flights", "--json").json["attempt_reason"] == "the first version"
    assert shell("resume", "flights", "--timeout", 60, "--reason", "the disk has room again").status == 1
    assert desk.stream().control.need_register().value.attempt_reason == "the disk has room again"
    assert shell("status", "flights", "--json").json["attempt_reason"] == "the disk has room again"
    assert "  reason     the disk has room again" in shell("status", "flights", "--verbose").out
    assert shell("resume", "flights", "--timeout", 60).status == 1
    assert shell("status", "flights", "--json").json["attempt_reason"] == ""


def test_after_a_stop_its_reason_is_shown_and_not_that_of_the_attempt(desk: Desk) -> None:
    """Why it was started does not explain why it does not run."""
    assert deploy(desk, "--timeout", 300, "--reason", "the first version").status == 0
    assert shell("stop", "flights", "--timeout", 300, "--reason", "the disk is full").status == 0
    said = shell("status", "flights")
    assert "  reason     the disk is full" in said.out
    assert "the first version" not in said.out


def test_an_option_of_a_launcher_is_a_text_json_or_a_file(tmp_path: Path) -> None:
    """What is no JSON stays a text: an address in brackets, YAML of one line."""
    (tmp_path / "pod.yaml").write_text("spec: {}\n")
    given = {
        "namespace": "streams",
        "tolerations": '[{"key": "x"}]',
        "host": "[::1]",
        "pod_template": f"@{tmp_path / 'pod.yaml'}",
    }
    found = launcher_of({"launcher": "kubernetes", "launcher_options": given})
    assert found is not None
    assert found.options == {**given, "tolerations": [{"key": "x"}], "pod_template": "spec: {}\n"}
    with pytest.raises(click.UsageError, match="cannot be read"):
        launcher_of({"launcher_options": {"pod_template": "@/nowhere/pod.yaml"}})
    assert launcher_of({}) is None
