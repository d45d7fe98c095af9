"""``validate``, ``diff``, ``apply`` and ``export``, over drivers that run no Spark."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_streamstate.cli.session import ShellSession
from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.control.registers import AlertBook
from airflow_streamstate.declarations.apply import Applied, Applying, ApplyTerms
from airflow_streamstate.declarations.reader import read_streams
from airflow_streamstate.protocol.policies import AlertRules
from support.scripted_driver import script
from support.scripted_stream import ScriptedAttempt
from support.shell import Answer, Desk, meanwhile, shell

pytestmark = pytest.mark.fast

STREAM = "flights"


def declare(desk: Desk, stream_id: str = STREAM, *words: str, **more: Any) -> Path:
    """The file of a stream whose driver behaves so."""
    folder = desk.base / "streams"
    folder.mkdir(exist_ok=True)
    name = "-".join((stream_id, *words)) + ".py"
    script(desk.base, *(words or ("runs",)), name=name)
    values: dict[str, Any] = {
        "id": stream_id,
        "application": f"../{name}",
        "master": "local[1]",
        "upgrade": {"warm": False, "healthy_batches": 1, "healthy_deadline_seconds": 60},
        **more,
    }
    path = folder / f"{stream_id}.yaml"
    path.write_text(yaml.safe_dump(values))
    return folder


def diffed(folder: Path, *words: object) -> dict[str, dict[str, Any]]:
    """What ``diff`` reports, by stream."""
    answer = shell("diff", folder, "--json", *words)
    return {one["stream_id"]: one for one in answer.json["streams"]}


def applied(folder: Path, *words: object) -> tuple[Answer, dict[str, dict[str, Any]]]:
    """What ``apply`` did, by stream."""
    answer = shell("apply", folder, "--json", *words)
    return answer, {one["stream_id"]: one for one in answer.json["streams"]}


@contextlib.contextmanager
def applying(folder: Path) -> Iterator[tuple[subprocess.Popen[str], Iterator[str]]]:
    """An ``apply`` in a process of its own, and the lines of its progress as they come."""
    words = [sys.executable, "-c", "from airflow_streamstate.cli.main import main; main()", "apply", str(folder)]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    ) as process:
        try:
            assert process.stderr is not None
            yield process, iter(process.stderr.readline, "")
        finally:
            process.kill()  # a test that fails leaves no open pipe to the next one


def state(stream_id: str = STREAM) -> str:
    """The stream's state."""
    return str(shell("status", stream_id, "--json").json["state"])


def test_a_folder_becomes_what_the_home_runs(desk: Desk) -> None:
    """New, unchanged, changed, stopped, running again: each is seen by ``diff`` and made so by ``apply``; a second
    ``apply`` changes nothing (Law 2)."""
    folder = declare(desk, STREAM, "proves")
    assert diffed(folder)[STREAM]["step"] == "deploy"
    answer, found = applied(folder)
    assert (answer.status, found[STREAM]["result"], found[STREAM]["deployment_id"]) == (0, "done", "d-0001")
    assert diffed(folder)[STREAM]["kind"] == "unchanged"
    assert applied(folder)[1][STREAM] == {**found[STREAM], "step": "nothing", "result": "unchanged"}
    declare(desk, STREAM, "proves", conf={"spark.x": "1"}, restart={"on_failure": "restart"})
    difference = diffed(folder)[STREAM]
    names = [one["name"] for one in difference["fields"]]
    assert (difference["step"], names) == ("upgrade", ["conf.spark.x", "restart.on_failure"])
    answer, found = applied(folder)
    assert answer.status == 0, answer
    assert (found[STREAM]["step"], found[STREAM]["deployment_id"]) == ("upgrade", "d-0002")
    assert shell("policy", STREAM, "--json").json["on_failure"] == "restart"
    declare(desk, STREAM, "proves", conf={"spark.x": "1"}, desired_state="stopped")
    assert [one["name"] for one in diffed(folder)[STREAM]["fields"]] == ["restart.on_failure"]
    assert applied(folder)[1][STREAM]["step"] == "stop"
    assert state() == "stopped"
    assert shell("policy", STREAM, "--json").json["on_failure"] == "nothing"
    declare(desk, STREAM, "proves", conf={"spark.x": "1"})
    assert diffed(folder)[STREAM]["step"] == "resume"
    assert applied(folder)[0].status == 0
    assert state() == "running"
    assert diffed(folder)[STREAM]["kind"] == "unchanged"


def test_a_field_that_a_file_no_longer_has_goes_back_to_its_default(desk: Desk) -> None:
    """A file declares all of a stream, so what it leaves out is not what ran before."""
    folder = declare(desk, STREAM, "proves", conf={"spark.x": "1"}, arguments=["--a"], environment={"A": "1"})
    assert applied(folder)[0].status == 0
    declare(desk, STREAM, "proves")
    fields = {one["name"]: (one["before"], one["after"]) for one in diffed(folder)[STREAM]["fields"]}
    assert fields == {"arguments": ("--a", ""), "conf.spark.x": ("1", ""), "environment.A": ("…", "")}
    assert applied(folder)[0].status == 0
    assert diffed(folder)[STREAM]["kind"] == "unchanged"


def test_what_was_refused_is_not_tried_again_by_itself(desk: Desk) -> None:
    """One stream's refusal stops no other; the same file gets its old refusal until --again (Law 2)."""
    folder = declare(desk, STREAM, "proves")
    declare(desk, "trains", "proves")
    assert applied(folder)[0].status == 0
    declare(desk, STREAM, "needs-drain")
    declare(desk, "trains", "proves", conf={"spark.x": "1"})
    answer, found = applied(folder)
    assert answer.status == 4
    assert (found[STREAM]["result"], found["trains"]["result"]) == ("refused", "done")
    assert found[STREAM]["deployment_id"] == "d-0001"
    answer, again = applied(folder)
    assert again[STREAM]["upgrade_id"] == found[STREAM]["upgrade_id"]
    assert "--again tries it again" in again[STREAM]["reason"]
    assert applied(folder, "--again")[1][STREAM]["upgrade_id"] != found[STREAM]["upgrade_id"]
    declare(desk, STREAM, "proves")
    assert diffed(folder)[STREAM]["kind"] == "unchanged"


def test_a_version_that_never_ran_is_not_tried_again_by_itself(desk: Desk) -> None:
    """Its driver would fail again: the reason is reported, until --again or another file (Law 2)."""
    folder = declare(desk, STREAM, "crashes")
    declare(desk, "trains", "proves")
    answer, found = applied(folder)
    assert (answer.status, found[STREAM]["step"], found[STREAM]["result"]) == (1, "deploy", "failed")
    assert "\n" not in found[STREAM]["reason"]
    assert "boom" in found[STREAM]["reason"]
    assert "log_tail" not in found[STREAM]["reason"]
    difference = diffed(folder)[STREAM]
    assert (difference["kind"], difference["step"]) == ("refused", "refused")
    compared = desk.base / "compared.json"
    compared.write_text(shell("diff", folder, "--json", "--no-rehearsal").out)
    answer, found = applied(folder)
    assert (answer.status, found[STREAM]["result"], found["trains"]["result"]) == (1, "failed", "unchanged")
    assert "--again tries it again: ValueError: boom" in found[STREAM]["reason"]
    assert shell("status", STREAM, "--json").json["attempt"] == 1
    assert applied(folder, "--again", "--compared", compared)[1][STREAM]["step"] == "resume"
    assert shell("status", STREAM, "--json").json["attempt"] == 2
    declare(desk, STREAM, "proves")
    assert applied(folder)[0].status == 0


def test_a_version_that_has_run_is_resumed(desk: Desk) -> None:
    """``running`` reports it, whatever watchers would do."""
    folder = declare(desk, STREAM, "proves")
    assert applied(folder)[0].status == 0
    assert shell("kill", STREAM).status == 0
    assert state() == "failed"
    answer, found = applied(folder)
    assert (answer.status, found[STREAM]["step"], found[STREAM]["result"]) == (0, "resume", "done")


def test_the_same_change_comes_again_after_it_was_taken_back(desk: Desk) -> None:
    """A to B, back to A, to B once more: each is its own change."""
    folder = declare(desk, STREAM, "proves")
    for number, conf in enumerate(({}, {"spark.x": "1"}, {}, {"spark.x": "1"}), 1):
        declare(desk, STREAM, "proves", conf=conf)
        answer, found = applied(folder)
        assert answer.status == 0, answer
        assert found[STREAM]["deployment_id"] == f"d-{number:04d}"


def test_two_applies_at_once_are_one_change(desk: Desk) -> None:
    """Both make the same deployment, then the same upgrade, and both end well (Laws 2, 4)."""
    for number, conf in enumerate(({}, {"spark.x": "1"}), 1):
        folder = declare(desk, STREAM, "proves", conf=conf)
        words = [sys.executable, "-c", "from airflow_streamstate.cli.main import main; main()", "apply", str(folder)]
        shells = [subprocess.Popen([*words, "--json"], stdout=subprocess.PIPE, env=dict(os.environ)) for _ in range(2)]
        said = [json.loads(process.communicate(timeout=240)[0])["streams"] for process in shells]
        assert [process.returncode for process in shells] == [0, 0], said
        assert {one["deployment_id"] for (one,) in said} == {f"d-{number:04d}"}
    assert shell("status", STREAM, "--json").json["deployment_id"] == "d-0002"


def applied_after_another(folder: Path) -> Applied:
    """What becomes of an ``apply`` that has compared the stream before another one changes it, and acts after that."""
    session, others = ShellSession.of(os.environ, as_json=True), list[int]()

    def say(_stream_id: str, _line: str) -> None:
        if not others:
            others.append(-1)
            others[0] = applied(folder)[0].status

    (found,) = Applying(session.controller, session.clock, say).apply(
        read_streams([folder], None).need_all(), ApplyTerms()
    )
    assert others == [0]
    return found


def test_an_apply_finds_what_another_has_made_since_it_compared(desk: Desk) -> None:
    """A deploy, an upgrade, a resume: each is one change, and both end well (Laws 2, 4)."""
    folder = declare(desk, STREAM, "proves")
    found = applied_after_another(folder)
    assert (found.step, found.result, found.deployment_id) == ("deploy", "done", "d-0001"), found
    declare(desk, STREAM, "proves", conf={"spark.x": "1"})
    found = applied_after_another(folder)
    assert (found.step, found.result, found.deployment_id) == ("upgrade", "done", "d-0002"), found
    assert shell("stop", STREAM).status == 0
    found = applied_after_another(folder)
    assert (found.step, found.result, found.deployment_id) == ("resume", "done", "d-0002"), found
    status = shell("status", STREAM, "--json").json
    assert (status["deployment_id"], status["attempt"]) == ("d-0002", 2)


def test_a_driver_that_was_launched_is_waited_for(desk: Desk) -> None:
    """An interrupted ``apply`` left it: the next one waits for it as the first would have, and fails with it."""
    folder = declare(desk, STREAM, "hangs")
    first, found = applied(folder, "--timeout", 1)
    assert (first.status, found[STREAM]["result"]) == (1, "failed")
    difference = diffed(folder)[STREAM]
    assert (difference["kind"], difference["step"]) == ("unchanged", "continue")
    answer, found = applied(folder, "--timeout", 1)
    assert (answer.status, found[STREAM]["step"], found[STREAM]["result"]) == (1, "continue", "failed")
    assert "did not happen in time" in found[STREAM]["reason"]
    controller = ShellSession.of(os.environ, as_json=True).controller()
    with meanwhile(lambda: controller.kill(STREAM)):
        answer, found = applied(folder)
    assert (answer.status, found[STREAM]["step"], found[STREAM]["result"]) == (1, "continue", "failed")
    assert "the deployment failed" in found[STREAM]["reason"]


@pytest.mark.timeout(600)
def test_an_interruption_says_what_it_waits_for(desk: Desk) -> None:
    """At once, and it starts nothing more; the second one leaves. What is waited for was shown before."""
    folder = declare(desk, STREAM, "hangs")
    declare(desk, "trains", "proves")
    with applying(folder) as (process, said):
        # A slow machine may see the driver only once it runs.
        assert any(line.startswith(("apply: flights: launching", "apply: flights: running")) for line in said)
        process.send_signal(signal.SIGINT)
        line = next((line for line in said if "interrupted" in line), "")
        assert "nothing more is started, and what is under way is waited for (flights). Ctrl-C again " in line
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=500)
    assert process.returncode == 1
    assert "interrupted; what was done stays" in rest
    assert "Traceback" not in rest
    assert shell("status", "trains").status == 2


def test_a_driver_that_becomes_well_is_the_end_of_an_interrupted_apply(desk: Desk) -> None:
    """With what was left of the file: its rules. Nothing is launched twice (Law 2)."""
    folder = declare(desk, STREAM, "hangs")
    assert applied(folder, "--timeout", 1)[0].status == 1
    declare(desk, STREAM, "hangs", owner="ada")
    driver = ScriptedAttempt(desk.stream().control, "d-0001", 1, SYSTEM_CLOCK)
    with applying(folder) as (process, said):
        # It compared before it said so: a driver that is well earlier would leave only the rules to do.
        assert any(line.startswith("apply: flights: ") for line in said)
        with meanwhile(lambda: not driver.proves(1)):  # the driver that hangs reports less, at any time
            answer, _ = process.communicate(timeout=200)
    assert (process.returncode, answer.split("\n")[1].split()) == (0, ["flights", "continue", "done", "d-0001"])
    status = shell("status", STREAM, "--json").json
    assert (status["deployment_id"], status["attempt"], status["owner"]) == ("d-0001", 1, "ada")
    assert applied(folder)[1][STREAM]["result"] == "unchanged"


def test_an_attempt_that_was_recorded_and_not_launched_is_launched(desk: Desk) -> None:
    """Its caller ended between the two: ``apply`` starts the driver, once (Law 2)."""
    folder = declare(desk, STREAM, "proves")
    assert applied(folder)[0].status == 0
    assert shell("stop", STREAM).status == 0
    desk.stream().resume()
    assert diffed(folder)[STREAM]["step"] == "resume"
    answer, found = applied(folder)
    assert (answer.status, found[STREAM]["step"], found[STREAM]["result"]) == (0, "resume", "done")
    status = shell("status", STREAM, "--json").json
    assert (status["state"], status["attempt"]) == ("running", 2)


def test_an_upgrade_under_way_is_completed_first(desk: Desk) -> None:
    """Then the stream is compared again, and made as its file declares."""
    folder = declare(desk, STREAM, "proves")
    assert applied(folder)[0].status == 0
    other = script(desk.base, "proves", name="other.py")
    begun = shell("upgrade", STREAM, "--app", other, "--no-warm", "--needs-approval", "--timeout", 5, "--json")
    assert begun.status == 3, begun
    assert shell("approve", STREAM, "--async", "--json").status == 0
    declare(desk, STREAM, "proves", conf={"spark.x": "1"})
    assert diffed(folder)[STREAM]["step"] == "continue"
    answer, found = applied(folder)
    assert answer.status == 0, answer
    assert (found[STREAM]["step"], found[STREAM]["deployment_id"]) == ("upgrade", "d-0003")
    assert diffed(folder)[STREAM]["kind"] == "unchanged"


def test_a_change_that_was_not_compared_is_refused(desk: Desk) -> None:
    """Of a file that was edited since, and of a stream that was upgraded by hand; what was compared is made so."""
    folder = declare(desk, STREAM, "proves")
    declare(desk, "trains", "proves")
    assert applied(folder)[0].status == 0
    for name in (STREAM, "trains"):
        declare(desk, name, "proves", conf={"spark.x": "1"})
    compared = desk.base / "compared.json"
    compared.write_text(shell("diff", folder, "--json", "--no-rehearsal").out)
    declare(desk, STREAM, "proves", conf={"spark.x": "2"})
    answer, found = applied(folder, "--compared", compared)
    assert (answer.status, found[STREAM]["result"], found["trains"]["result"]) == (4, "refused", "done")
    assert "compare it again" in found[STREAM]["reason"]
    assert shell("status", STREAM, "--json").json["deployment_id"] == "d-0001"
    declare(desk, "trains", "proves", conf={"spark.x": "3"})
    compared.write_text(shell("diff", folder, "--json", "--no-rehearsal").out)
    by_hand = ("upgrade", "trains", "--conf", "spark.x=2", "--no-warm", "--json", "--healthy-batches", 1)
    assert shell(*by_hand).status == 0
    found = applied(folder, "--compared", compared)[1]
    assert (found[STREAM]["result"], found["trains"]["result"]) == ("done", "refused")
    compared.write_text("{}")
    wrong = shell("apply", folder, "--compared", compared, "--json")
    assert (wrong.status, wrong.error["message"]) == (2, "this is not what `diff` printed")


def test_a_canary_that_fails_keeps_all_others_as_they_are(desk: Desk) -> None:
    """Ten streams in waves with one bad version: nothing else is touched."""
    folder = declare(desk, STREAM, "proves", labels={"tier": "canary"})
    for name in ("a", "b"):
        declare(desk, name, "proves")
    assert applied(folder, "--wave", 3)[0].status == 0
    declare(desk, STREAM, "refused", labels={"tier": "canary"})
    for name in ("a", "b"):
        declare(desk, name, "proves", conf={"spark.x": "1"})
    answer, found = applied(folder, "--canary", "tier=canary", "--wave", 2)
    assert answer.status == 1
    assert {name: one["result"] for name, one in found.items()} == {
        STREAM: "refused",
        "a": "not begun",
        "b": "not begun",
    }
    assert shell("status", "a", "--json").json["deployment_id"] == "d-0001"
    refused = shell("apply", folder, "--canary", "tier=none", "--json")
    assert (refused.status, refused.error["message"]) == (2, "no stream has the label of the canary")


def test_a_failure_that_is_no_canarys_holds_no_other_back(desk: Desk) -> None:
    """Once the canary is well, each stream counts by itself."""
    folder = declare(desk, "a", "proves", labels={"tier": "canary"})
    declare(desk, "b", "fails")
    declare(desk, "c", "proves")
    answer, found = applied(folder, "--canary", "tier=canary", "--timeout", 60)
    assert answer.status == 1
    assert {name: one["result"] for name, one in found.items()} == {"a": "done", "b": "failed", "c": "done"}


def test_failures_and_dependencies_hold_streams_back(desk: Desk) -> None:
    """What depends on a stream that failed is not started; after --stop-after-failures nothing is."""
    folder = declare(desk, "a", "fails")
    declare(desk, "b", "proves", depends_on=["a"])
    declare(desk, "c", "proves")
    _, found = applied(folder, "--timeout", 60)
    assert (found["a"]["result"], found["b"]["result"], found["c"]["result"]) == ("failed", "not begun", "done")
    assert found["b"]["reason"] == "it depends on a, which is failed"
    declare(desk, "c", "proves", conf={"spark.x": "1"})
    _, found = applied(folder, "--timeout", 60, "--stop-after-failures", 1)
    assert found["c"]["result"] == "not begun"


def test_streams_that_no_file_declares_are_stopped_only_if_asked(desk: Desk) -> None:
    """By --prune, with their state; once."""
    folder = declare(desk, STREAM, "proves")
    declare(desk, "gone", "proves")
    assert applied(folder)[0].status == 0
    (folder / "gone.yaml").unlink()
    assert diffed(folder)["gone"]["kind"] == "not declared"
    assert "gone" not in applied(folder)[1]
    assert state("gone") == "running"
    assert applied(folder, "--prune")[1]["gone"]["result"] == "done"
    assert state("gone") == "stopped"
    assert "gone" not in applied(folder, "--prune")[1]


def test_a_single_file_says_nothing_of_other_streams(desk: Desk) -> None:
    """Other files may declare them: --prune with it is refused and touches nothing, and ``diff`` names it alone."""
    folder = declare(desk, STREAM, "proves")
    declare(desk, "trains", "proves")
    assert applied(folder)[0].status == 0
    single = folder / f"{STREAM}.yaml"
    assert set(diffed(single)) == {STREAM}
    declare(desk, STREAM, "proves", owner="ada")
    for words in ((single,), (folder, single)):
        refused = shell("apply", *words, "--prune", "--json")
        assert (refused.status, refused.error["context"]["path"]) == (2, str(single))
        assert "folders alone" in refused.error["message"]
    assert shell("status", STREAM, "--json").json["owner"] == ""
    assert state("trains") == "running"


def test_diff_says_that_only_prune_stops_what_is_not_declared(desk: Desk) -> None:
    """People read it; programs find the step and the kind."""
    folder = declare(desk, STREAM, "proves")
    declare(desk, "gone", "proves")
    assert applied(folder)[0].status == 0
    (folder / "gone.yaml").unlink()
    assert "stop, with --prune" in shell("diff", folder).out
    assert (diffed(folder)["gone"]["kind"], diffed(folder)["gone"]["step"]) == ("not declared", "stop")


def test_an_exported_stream_differs_in_nothing(desk: Desk) -> None:
    """Its file, with its code alongside it; a secret in the home is left out, and named."""
    (desk.base / "library.py").write_text("x = 1\n")
    (desk.base / "classes.jar").write_bytes(b"classes")
    folder = declare(
        desk, STREAM, "proves", conf={"spark.x": "010"}, py_files=["../library.py"], files=["../library.py"],
        settings={"heartbeat_seconds": 5}, snapshots={"every_seconds": 60}, restart={"on_failure": "restart"},
        version_label="v1", alerts={"lag_over": 9, "off": "query_died", "lag_growing_seconds": None},
        owner="ada", labels={"tier": "canary", "eu": ""}, retention={"keep": 0},
        arguments=["--a", "~"], jars=["../classes.jar", "s3a://bucket/other.jar"],
    )  # fmt: skip
    assert applied(folder)[0].status == 0
    answer = shell("export", STREAM, desk.base / "exported", "--json")
    assert answer.status == 0, answer
    found = diffed(desk.base / "exported")[STREAM]
    assert (found["kind"], found["fields"]) == ("unchanged", [])
    again = shell("export", STREAM, desk.base / "exported", "--json")
    assert (again.status, again.error["message"]) == (4, "this is there already, and an export writes over nothing")


def test_what_is_secret_in_the_home_is_in_no_difference_and_no_file(desk: Desk) -> None:
    """A secret that was deployed as plain text: neither ``diff`` nor ``export`` reports it."""
    job = script(desk.base, "proves", name="plain.py")
    secrets = ("--conf", "spark.db.password=hunter2", "--env", "API_TOKEN=hunter3", "--allow-literal-secrets")
    words = (*secrets, "--timeout", 60, "--", "--password", "hunter4", "--token=hunter5", "http://u:hunter6@host/x")
    assert shell("deploy", STREAM, "--app", job, "--master", "local[1]", *words).status == 0
    differing = shell("diff", declare(desk, STREAM, "proves"), "--no-rehearsal")
    assert "conf.spark.db.password" in differing.out
    exported = shell("export", STREAM, desk.base / "exported")
    assert exported.status == 0
    text = (desk.base / "exported" / "flights.yaml").read_text()
    assert "env://PASSWORD" in text
    assert "--token=env://TOKEN" in text
    assert "hunter" not in differing.out + differing.err + exported.out + exported.err + text


def test_a_new_stream_over_a_used_checkpoint_is_refused_before_a_driver_starts(desk: Desk) -> None:
    """With the adoption that continues with it; ``start: fresh`` starts at the beginning."""
    commits = desk.base / "old" / "rows" / "commits"
    commits.mkdir(parents=True)
    (commits / "7").write_text("v1\n{}")
    conf = {"spark.sql.streaming.checkpointLocation": str(desk.base / "old" / "rows")}
    folder = declare(desk, STREAM, "proves", conf=conf)
    found = diffed(folder)[STREAM]
    assert (found["kind"], "streamstate adopt flights --checkpoint" in found["reason"]) == ("refused", True)
    assert applied(folder)[0].status != 0
    assert "there is no home here" in shell("status", STREAM).err
    declare(desk, STREAM, "proves", conf=conf, start="fresh")
    assert diffed(folder)[STREAM]["step"] == "deploy"


def test_a_label_alone_restarts_nothing(desk: Desk) -> None:
    """It is the name of a version, and the next one has it."""
    folder = declare(desk, STREAM, "proves")
    assert applied(folder)[0].status == 0
    declare(desk, STREAM, "proves", version_label="v1")
    assert diffed(folder)[STREAM]["step"] == "nothing"
    assert applied(folder)[1][STREAM]["deployment_id"] == "d-0001"


def test_alert_rules_restart_nothing(desk: Desk) -> None:
    """They are recorded in the home, where watches find them; what a file leaves out has its usual value again."""
    folder = declare(desk, STREAM, "proves", alerts={"lag_over": 1000, "off": ["lag_growing"]})
    assert applied(folder)[0].status == 0
    book = AlertBook(desk.stream().control)
    assert book.rules() == AlertRules(lag_over=1000, off=("lag_growing",))
    declare(desk, STREAM, "proves", alerts={"no_commit_seconds": 60})
    difference = diffed(folder)[STREAM]
    fields = {one["name"]: (one["before"], one["after"]) for one in difference["fields"]}
    assert (difference["kind"], difference["step"]) == ("changed", "policy")
    assert fields == {
        "alerts.lag_over": ("1000", ""), "alerts.no_commit_seconds": ("900.0", "60.0"),
        "alerts.off": ("lag_growing", ""),
    }  # fmt: skip
    answer, found = applied(folder)
    assert (answer.status, found[STREAM]["deployment_id"]) == (0, "d-0001")
    assert book.rules() == AlertRules(no_commit_seconds=60.0)
    assert diffed(folder)[STREAM]["kind"] == "unchanged"


def test_owner_and_labels_restart_nothing(desk: Desk) -> None:
    """They are recorded in the home, by ``apply`` and by ``deploy --spec``; a change by hand is seen and undone."""
    folder = declare(desk, STREAM, "proves", owner="ada", labels={"tier": "canary"})
    answer = shell("deploy", STREAM, "--spec", folder / "flights.yaml", "--timeout", 60, "--json")
    assert answer.status == 0, answer
    recorded = {"stream_id": STREAM, "owner": "ada", "labels": {"tier": "canary"}}
    assert shell("label", STREAM, "--json").json == recorded
    assert shell("label", STREAM, "tier=late", "eu=", "--owner", "", "--json").status == 0
    difference = diffed(folder)[STREAM]
    fields = {one["name"]: (one["before"], one["after"]) for one in difference["fields"]}
    assert (difference["kind"], difference["step"]) == ("changed", "policy")
    assert fields == {"owner": ("", "ada"), "labels.eu": ('""', ""), "labels.tier": ("late", "canary")}
    answer, found = applied(folder)
    assert (answer.status, found[STREAM]["deployment_id"]) == (0, "d-0001")
    assert shell("label", STREAM, "--json").json == recorded
    assert diffed(folder)[STREAM]["kind"] == "unchanged"
    declare(desk, STREAM, "proves", owner="ada", desired_state="stopped")
    assert applied(folder)[1][STREAM]["step"] == "stop"
    assert shell("label", STREAM, "--json").json["labels"] == {}
    declare(desk, STREAM, "proves", owner="bob", desired_state="stopped")
    assert applied(folder)[1][STREAM]["step"] == "policy"
    assert diffed(folder)[STREAM]["kind"] == "unchanged"


def test_a_retention_restarts_nothing(desk: Desk) -> None:
    """It is recorded in the home, where a prune finds it; a change by hand is seen and undone, and without a
    retention in the file the home has none."""
    folder = declare(desk, STREAM, "proves", retention={"keep": 0, "older_than_seconds": 3600})
    answer = shell("deploy", STREAM, "--spec", folder / "flights.yaml", "--timeout", 60, "--json")
    assert answer.status == 0, answer
    declared = {"keep": 0, "older_than_seconds": 3600.0, "at_mirrors": False}
    assert shell("status", STREAM, "--json").json["retention"] == declared
    pruned = shell("snapshot", "prune", STREAM, "--dry-run", "--json").json
    assert pruned["policy"] == {**declared, "source": "recorded"}
    assert shell("snapshot", "retention", STREAM, "--keep", 7, "--json").json["retention"]["keep"] == 7
    difference = diffed(folder)[STREAM]
    fields = {one["name"]: (one["before"], one["after"]) for one in difference["fields"]}
    assert (difference["kind"], difference["step"]) == ("changed", "policy")
    assert fields == {"retention.keep": ("7", "0"), "retention.older_than_seconds": ("", "3600.0")}
    answer, found = applied(folder)
    assert (answer.status, found[STREAM]["step"], found[STREAM]["deployment_id"]) == (0, "policy", "d-0001")
    assert shell("snapshot", "retention", STREAM, "--json").json == {"stream_id": STREAM, "retention": declared}
    assert shell("export", STREAM, desk.base / "exported").status == 0
    exported = yaml.safe_load((desk.base / "exported" / "flights.yaml").read_text())
    assert exported["retention"] == {"keep": 0, "older_than_seconds": 3600.0}
    assert diffed(desk.base / "exported")[STREAM]["kind"] == "unchanged"
    assert shell("snapshot", "retention", STREAM, "--keep", 1, "--at-mirrors").status == 0
    notes = shell("export", STREAM, desk.base / "again", "--json").json["notes"]
    assert notes == ["retention.at_mirrors is left out, since the stream has no mirrors"]
    assert yaml.safe_load((desk.base / "again" / "flights.yaml").read_text())["retention"] == {"keep": 1}
    declare(desk, STREAM, "proves")
    difference = diffed(folder)[STREAM]
    assert {one["name"] for one in difference["fields"]} == {
        "retention.keep", "retention.at_mirrors",
    }  # fmt: skip
    assert applied(folder)[1][STREAM]["deployment_id"] == "d-0001"
    assert shell("snapshot", "retention", STREAM, "--json").json["retention"] is None
    assert diffed(folder)[STREAM]["kind"] == "unchanged"


def test_an_upgrade_records_the_owner_when_it_is_done(desk: Desk) -> None:
    """What a refused version would have had is not recorded."""
    folder = declare(desk, STREAM, "proves", owner="ada")
    assert applied(folder)[0].status == 0
    declare(desk, STREAM, "needs-drain", owner="bob")
    assert applied(folder)[1][STREAM]["result"] == "refused"
    assert shell("label", STREAM, "--json").json["owner"] == "ada"
    declare(desk, STREAM, "proves", owner="bob", conf={"spark.x": "1"})
    assert applied(folder)[1][STREAM]["step"] == "upgrade"
    assert shell("label", STREAM, "--json").json["owner"] == "bob"


def test_state_is_written_anew_only_while_a_stream_runs(desk: Desk) -> None:
    """Spark ignores another number of partitions in a checkpoint, so a stopped stream is not deployed with it."""
    folder = declare(desk, STREAM, "proves", state={"partitions": 4})
    assert applied(folder)[0].status == 0
    assert shell("stop", STREAM, "--json").status == 0
    declare(desk, STREAM, "proves", state={"partitions": 8})
    answer, found = applied(folder)
    assert (answer.status, found[STREAM]["result"]) == (4, "refused")
    assert "only while it runs" in found[STREAM]["reason"]
    assert state() == "stopped"


def test_deploy_takes_the_file_of_a_stream(desk: Desk) -> None:
    """With its restart policy; what the file sets is reported nowhere else, and what is wrong is reported by line."""
    folder = declare(desk, STREAM, "proves", conf={"spark.x": "1"}, restart={"on_failure": "restart"}, depends_on=["z"])
    path = folder / "flights.yaml"
    answer = shell("deploy", STREAM, "--spec", path, "--timeout", 60, "--reason", "first", "--json")
    assert (answer.status, answer.json["deployment_id"]) == (0, "d-0001"), answer
    assert shell("policy", STREAM, "--json").json["on_failure"] == "restart"
    (folder / "z.yaml").write_text("id: z\napplication: none.py\ndesired_state: stopped\n")
    assert diffed(folder)[STREAM]["kind"] == "unchanged"
    for words, said in (
        (("--conf", "spark.y=1"), "leave out --conf"),
        (("--app", "x.py"), "leave out --app"),
        (("--no-restore-lost-checkpoint",), "leave out --restore-lost-checkpoint"),
        (("--", "--input"), "leave out the words after --"),
    ):
        refused = shell("deploy", STREAM, "--spec", path, "--json", *words)
        assert (refused.status, said in refused.error["message"]) == (2, True), refused
    assert "is the file of flights" in shell("deploy", "trains", "--spec", path, "--json").error["message"]
    assert "--spec" in shell("deploy", STREAM, "--json").error["message"]
    path.write_text("id: flights\napplication: x.py\nmastr: x\n")
    wrong = shell("deploy", STREAM, "--spec", path, "--json")
    assert (wrong.status, "did you mean master?" in json.dumps(wrong.error)) == (2, True)
    gone = shell("deploy", STREAM, "--spec", folder / "none.yaml", "--json")
    assert (gone.status, "none.yaml" in json.dumps(gone.error)) == (2, True)


def test_diff_says_the_verdict_of_the_plan(running: Desk) -> None:
    """A version that would be refused is refused before anything is stopped: exit status 1."""
    folder = declare(running, STREAM, "needs-drain")
    answer = shell("diff", folder, "--json")
    (found,) = answer.json["streams"]
    assert (answer.status, found["kind"], found["verdict"]) == (1, "refused", "needs-drain")
    assert diffed(folder, "--no-rehearsal")[STREAM]["step"] == "upgrade"
    assert state() == "running"


def test_files_that_are_wrong_touch_nothing(desk: Desk) -> None:
    """Exit status 2, and not even a home comes to be."""
    folder = declare(desk, STREAM, "proves", upgade={})
    answer = shell("validate", folder)
    assert answer.status == 1
    assert "upgade: there is no such field; did you mean upgrade?" in answer.out
    assert "0 streams without a problem, 1 problem\n" in answer.out
    for verb in ("diff", "apply"):
        refused = shell(verb, folder, "--json")
        assert (refused.status, refused.error["message"]) == (2, "files of streams are wrong")
    assert not desk.home.exists()


def test_what_a_deploy_would_refuse_is_told_before_any_driver(desk: Desk) -> None:
    """By ``validate``, and by ``diff`` and ``apply`` of that stream alone; the hint is one for an author of files."""
    folder = declare(desk, STREAM, "proves")
    declare(desk, "secret", "proves", environment={"DB_PASSWORD": "hunter2"})
    declare(desk, "broken", "proves")
    (desk.base / "broken-proves.py").write_text("x = = 2\n")
    answer = shell("validate", folder)
    assert (answer.status, "broken-proves.py:1 invalid syntax" in answer.out) == (1, True)
    assert "env://NAME" in answer.out
    assert "hunter2" not in answer.out
    found = diffed(folder)
    assert {name: one["step"] for name, one in found.items()} == {
        STREAM: "deploy", "secret": "refused", "broken": "refused"
    }  # fmt: skip
    assert "allow" not in answer.out + found["secret"]["reason"]
    answer, made = applied(folder)
    assert {name: one["result"] for name, one in made.items()} == {
        STREAM: "done", "secret": "refused", "broken": "refused"
    }  # fmt: skip
    (desk.base / "flights-proves.py").write_text("x = = 2\n")
    assert "syntax error" in diffed(folder)[STREAM]["reason"]


def test_the_schema_is_json_with_every_field_described() -> None:
    """For editors; unknown fields are wrong in it, too."""
    schema = json.loads(shell("validate", "--schema").out)
    assert schema["additionalProperties"] is False
    assert {"id", "application"} == set(schema["required"])


def test_validate_wants_a_path() -> None:
    """Without one, and without --schema, the command line is wrong."""
    assert shell("validate").status == 2


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_people_and_programs_read_what_is_different(desk: Desk, words: tuple[str, ...]) -> None:
    """As a table and as JSON."""
    folder = declare(desk, STREAM, "proves")
    answer = shell("diff", folder, *words)
    assert answer.status == 0
    assert "deploy" in answer.out


def test_who_applies_a_file_says_what_it_may_not_leave(desk: Desk) -> None:
    """Each verb that takes files refuses one whose paths leave the folder; nothing is deployed."""
    folder = declare(desk)
    refusal = "this path leaves the root of these files"
    assert refusal in shell("validate", folder, "--root", folder, "--json").json["problems"][0]["reason"]
    assert refusal in diffed(folder, "--root", folder)[STREAM]["reason"]
    answer, found = applied(folder, "--root", folder)
    assert (answer.status, found[STREAM]["result"]) == (4, "refused")
    assert refusal in found[STREAM]["reason"]
    file = folder / f"{STREAM}.yaml"
    assert refusal in shell("deploy", STREAM, "--spec", file, "--root", folder, "--json").error["message"]
    assert "--spec" in shell("deploy", STREAM, "--app", "x.py", "--root", folder, "--json").error["message"]
    assert shell("validate", folder, "--root", desk.base, "--json").status == 0
    assert not (Path(desk.home) / STREAM).exists()
