"""``DeployStreamOperator``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, redact

from airflow_streamstate.control.registers import AlertBook
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.operators.base import names_of
from airflow_streamstate.operators.deploy import DeployStreamOperator
from airflow_streamstate.operators.stop import RetireStreamOperator
from airflow_streamstate.protocol.policies import AlertRules, Ownership, RestartPolicy, RetentionPolicy
from airflow_streamstate.protocol.settings import AgentSettings
from support import scripted_driver
from support.airflow_fixtures import MakeContext
from support.airflow_streams import NamedHome


def deploy(script: Path, **more: Any) -> DeployStreamOperator:
    values = {
        "stream_id": "flights",
        "application": script,
        "timeout_seconds": 30,
        "poll_interval_seconds": 0.1,
        **more,
    }
    return DeployStreamOperator(task_id="deploy", **values)


def test_what_was_asked_for_is_what_is_recorded(named: NamedHome, context: MakeContext, tmp_path: Path) -> None:
    """Arguments, configuration, reason and label, in native rendering or as text."""
    script = scripted_driver.script(tmp_path, "runs")
    operator = deploy(
        script, arguments='["--input", "/in"]', conf={"spark.sql.shuffle.partitions": 2}, master="local[2]",
        reason="try it", version_label="v1", allow_state_loss="False",
    )  # fmt: skip
    result = operator.execute(context())
    assert result["start"] == {"mode": "fresh", "snapshot_id": None, "predecessor_id": None}
    spec = named.stream().control.spec("d-0001")
    assert spec.version.arguments == ("--input", "/in")
    assert spec.version.conf == {"spark.sql.shuffle.partitions": "2"}
    assert (spec.reason, spec.version.version_label, spec.version.master) == ("try it", "v1", "local[2]")
    assert spec.requested_by == "airflow dag.task manual__1"


def test_mirrors_and_settings_are_those_of_the_version(named: NamedHome, context: MakeContext, tmp_path: Path) -> None:
    """Settings as an object, or by name as rendered text: what is not given has the default of the home."""
    script, mirror = scripted_driver.script(tmp_path, "finishes"), f"file://{tmp_path}/mirror"
    found = []
    for number, given in enumerate(
        (AgentSettings(heartbeat_seconds=7), '{"exit_grace_seconds": "9", "keep_running": "true"}', "None", {})
    ):
        operator = deploy(script, wait_until="finished", arguments=[str(number)], settings=given, mirrors=[mirror])
        result = operator.execute(context())
        found.append(named.stream().control.spec(result["deployment_id"]).version)
    by_name = AgentSettings(exit_grace_seconds=9, keep_running=True)
    assert [one.settings for one in found] == [
        AgentSettings(heartbeat_seconds=7), by_name, AgentSettings(), AgentSettings()
    ]  # fmt: skip
    assert {one.mirrors for one in found} == {(f"{tmp_path}/mirror",)}
    for wrong, said in (({"exit_grace": 9}, "no such setting"), ({"exit_grace_seconds": -1}, "exit_grace_seconds")):
        with pytest.raises(AirflowFailException, match=said):
            deploy(script, settings=wrong).execute(context())


def test_a_retired_stream_is_revived_where_that_is_said(named: NamedHome, context: MakeContext, tmp_path: Path) -> None:
    """And only there."""
    script = scripted_driver.script(tmp_path, "runs")
    named.stream().deploy().runs().stopped()
    RetireStreamOperator(task_id="retire", stream_id="flights").execute(context())
    with pytest.raises(AirflowFailException, match="retired"):
        deploy(script).execute(context())
    assert deploy(script, revive="true", start="fresh").execute(context())["deployment_id"] == "d-0002"


def test_an_empty_field_is_not_given(tmp_path: Path) -> None:
    """However it was rendered: the default of its term holds, also of one that is on by default."""
    operator = deploy(scripted_driver.script(tmp_path, "runs"), stream_owner=None)
    request = operator._upgrade_request(operator.hook())
    names = [name for name in names_of(operator.taken) if name not in ("application", "stream_owner")]
    for empty in ("", "None", None):
        for name in names:
            setattr(operator, name, empty)
        assert operator._upgrade_request(operator.hook()).digest == request.digest
    operator.application = ""
    with pytest.raises(InvalidRequestError, match=r"field=application"):
        operator._request(operator.hook())


@pytest.mark.parametrize(
    "given",
    [
        {"on_failure": "restart", "max_restarts": 3, "restore_lost_checkpoint": True},
        '{"on_failure": "restart", "max_restarts": "3", "restore_lost_checkpoint": "true"}',
    ],
)
def test_the_restart_policy_is_the_streams(
    named: NamedHome, context: MakeContext, tmp_path: Path, given: dict[str, Any] | str
) -> None:
    """As a mapping or as rendered text; what is not given stays as by default, and nonsense is refused."""
    script = scripted_driver.script(tmp_path, "runs")
    deploy(script, restart=given).execute(context())
    policy = named.stream().control.need_register().value.restart_policy
    assert policy == RestartPolicy("restart", max_restarts=3, restore_lost_checkpoint=True)
    with pytest.raises(AirflowFailException, match="no such value"):
        deploy(script, restart={"colour": "red"}).execute(context())


def test_alert_rules_owner_and_labels_are_the_streams(named: NamedHome, context: MakeContext, tmp_path: Path) -> None:
    """As values or as rendered text; what is not given stays, and a wrong name is refused with the nearest one."""
    script = scripted_driver.script(tmp_path, "finishes")
    deploy(
        script, wait_until="finished", alerts='{"no_commit_seconds": "300", "off": ["lag"]}', stream_owner="ada",
        labels={"tier": "canary"},
    ).execute(context())  # fmt: skip
    control = named.stream().control
    assert AlertBook(control).rules() == AlertRules(no_commit_seconds=300.0, off=("lag",))
    assert control.need_register().value.ownership == Ownership("ada", {"tier": "canary"})
    deploy(script, wait_until="finished", arguments=["b"], alerts={"lag_over": 9}, labels="None").execute(context())
    assert AlertBook(control).rules() == AlertRules(no_commit_seconds=300.0, lag_over=9, off=("lag",))
    assert control.need_register().value.ownership == Ownership("ada", {"tier": "canary"})
    deploy(script, wait_until="finished", arguments=["c"], stream_owner="", labels='{"eu": ""}').execute(context())
    assert control.need_register().value.ownership == Ownership("", {"eu": ""})
    for wrong, said in (
        ({"alerts": {"lag_ovr": 9}}, "Did you mean lag_over"),
        ({"alerts": [9]}, "no mapping"),
        ({"labels": {"te am": "x"}}, "cannot be the name of a label"),
    ):
        with pytest.raises(AirflowFailException, match=said):
            deploy(script, **wrong).execute(context())


def test_the_retention_is_the_streams(named: NamedHome, context: MakeContext, tmp_path: Path) -> None:
    """As values or as rendered text; not given it stays, an empty mapping removes it."""
    script = scripted_driver.script(tmp_path, "finishes")
    found = []
    for number, given in enumerate(('{"keep": "5", "at_mirrors": "false"}', "None", {"older_than_seconds": "60"}, {})):
        operator = deploy(script, wait_until="finished", arguments=[str(number)], retention=given)
        operator.execute(context())
        found.append(named.stream().control.need_register().value.retention)
    assert found == [RetentionPolicy(5), RetentionPolicy(5), RetentionPolicy(None, 60.0), None]
    for wrong, said in (
        ({"kep": 5}, "Did you mean keep"),
        ({"keep": "few"}, "retention.keep"),
        ({"keep": -1}, "keep cannot have this value"),
        ({"at_mirrors": True}, "does not say which snapshots stay"),
        ([5], "no mapping"),
    ):
        with pytest.raises(AirflowFailException, match=said):
            deploy(script, retention=wrong).execute(context())


def test_a_retry_finds_the_deployment_that_it_began(named: NamedHome, context: MakeContext, tmp_path: Path) -> None:
    """The worker died while it waited; the driver did not (Law 2)."""
    script = scripted_driver.script(tmp_path, "runs")
    first = deploy(script).execute(context(try_number=1))
    again = deploy(script).execute(context(try_number=2))
    assert (again["deployment_id"], again["attempt"]) == (first["deployment_id"], 1)
    assert named.stream().control.deployment_ids() == ["d-0001"]


def test_a_retry_after_a_failure_before_the_first_commit_is_the_next_attempt(
    named: NamedHome, context: MakeContext, tmp_path: Path
) -> None:
    """Nothing was written, so the same deployment may try once more."""
    script = scripted_driver.script(tmp_path, "fails")
    with pytest.raises(AirflowException, match=r"(?s)boom.*Traceback") as raised:
        deploy(script).execute(context(try_number=1))
    assert not isinstance(raised.value, AirflowFailException)
    with pytest.raises(AirflowException, match="attempt=2"):
        deploy(script).execute(context(try_number=2))
    assert named.hook().client.status("flights").deployment_id == "d-0001"


def test_a_clear_after_a_newer_deployment_is_a_conflict_that_names_it(
    named: NamedHome, context: MakeContext, tmp_path: Path
) -> None:
    """Clearing last week's task does not bring last week's version back."""
    old = scripted_driver.script(tmp_path, "runs", name="old.py")
    deploy(old).execute(context(run_id="last_week"))
    stopped = named.hook().client.order("stop", "flights")
    for _ in range(200):
        if named.hook().client.status("flights").state == "stopped":
            break
        named.hook().clock.sleep(0.05)
    assert stopped.deployment_id == "d-0001"
    deploy(old, arguments=["new"]).execute(context(run_id="this_week"))
    with pytest.raises(AirflowFailException, match="current_deployment_id=d-0002"):
        deploy(old).execute(context(run_id="last_week"))


def test_a_task_that_is_cleared_with_the_script_mended_begins_anew(
    named: NamedHome, context: MakeContext, tmp_path: Path
) -> None:
    """The natural thing to do after a failure: fix the script, clear the task."""
    script = scripted_driver.script(tmp_path, "fails")
    with pytest.raises(AirflowException, match="boom"):
        deploy(script).execute(context())
    scripted_driver.script(tmp_path, "runs")
    result = deploy(script).execute(context())
    assert (result["deployment_id"], result["state"]) == ("d-0002", "running")


def test_a_running_stream_is_not_replaced(named: NamedHome, context: MakeContext, tmp_path: Path) -> None:
    """Stop, drain or upgrade first; and no retry changes that."""
    named.stream().deploy().runs()
    with pytest.raises(AirflowFailException, match="stop, drain or upgrade it first"):
        deploy(scripted_driver.script(tmp_path, "runs")).execute(context())


def test_a_script_that_is_not_there_fails_before_anything_is_touched(
    named: NamedHome, context: MakeContext, tmp_path: Path
) -> None:
    """The error has the path."""
    with pytest.raises(AirflowFailException, match=r"nowhere\.py"):
        deploy(tmp_path / "nowhere.py").execute(context())
    assert [info.key for info in named.home.home.list_objects("")] == ["home.json"]


@pytest.mark.parametrize("stream_id", ["../x", "a" * 64, "Flights"])
def test_a_hostile_id_is_refused(named: NamedHome, context: MakeContext, tmp_path: Path, stream_id: str) -> None:
    """An id becomes a path. Here a template gave it; ``test_literals.py`` has those that a DAG names."""
    task = deploy(scripted_driver.script(tmp_path, "runs"), stream_id="{{ params.stream }}")
    task.stream_id = stream_id
    with pytest.raises(AirflowFailException, match="not a valid stream id"):
        task.execute(context())


def test_secrets_are_hidden_wherever_airflow_shows_them(tmp_path: Path) -> None:
    """Rendered fields and logs: by value, whatever the key."""
    operator = deploy(
        tmp_path / "job.py",
        arguments=["--password", "{{ params.secret }}", "--token={{ params.token }}"],
        conf={"spark.hadoop.fs.s3a.access.key": "{{ params.key }}", "spark.app.name": "{{ params.name }}"},
    )
    operator.application = "https://ada:{{ params.pass }}@h/job.py"
    operator.jars = ["https://ada:{{ params.pass }}@h/x.jar"]
    params = {"secret": "arg-hunter2", "token": "arg-hunter3", "key": "conf-hunter4", "name": "flights-job"}
    params["pass"] = "app-hunter5"
    operator.render_template_fields({"params": params})  # type: ignore[typeddict-item]
    assert operator.arguments == ["--password", "arg-hunter2", "--token=arg-hunter3"]
    shown = str(redact({name: getattr(operator, name) for name in ("arguments", "conf", "application", "jars")}))
    for secret in ("arg-hunter2", "arg-hunter3", "conf-hunter4", "app-hunter5"):
        assert secret not in shown
    assert "flights-job" in shown


def test_secrets_in_a_field_of_json_are_hidden_too(tmp_path: Path) -> None:
    """Plain rendering leaves text: what is in it is shown as text."""
    operator = deploy(
        tmp_path / "job.py",
        arguments='["--password", "{{ params.a }}"]',
        conf='{"spark.a.secret": "{{ params.b }}"}',
        environment='{"DB_PASSWORD": "{{ params.c }}"}',
    )
    params = {"a": "json-hunter5", "b": "json-hunter6", "c": "json-hunter7"}
    operator.render_template_fields({"params": params})  # type: ignore[typeddict-item]
    shown = str(redact([operator.arguments, operator.conf, operator.environment]))
    assert "json-hunter" not in shown
    assert "--password" in shown


def test_references_are_shown_and_recorded_as_they_are(
    named: NamedHome, context: MakeContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reference is no secret: rendered fields and the record have it, the driver alone has what it resolves to."""
    monkeypatch.setenv("AIRFLOW_CONN_ORDERS_DB", '{"conn_type": "generic", "password": "hunter-of-db"}')
    monkeypatch.setenv("AIRFLOW_VAR_TOKEN", "hunter-of-token")
    operator = deploy(
        scripted_driver.script(tmp_path, "runs"),
        arguments=["--password", "secret://airflow-connection/orders_db"],
        conf={"spark.orders.token": "secret://airflow-variable/token"},
        environment='{"PIN": "secret://airflow-connection/{{ params.conn_id }}#password"}',
    )
    operator.render_template_fields({"params": {"conn_id": "orders_db"}})  # type: ignore[typeddict-item]
    shown = [str(redact(str(value))) for value in (operator.arguments, operator.conf, operator.environment)]
    assert "secret://airflow-connection/orders_db" in shown[0]
    assert "secret://airflow-variable/token" in shown[1]
    assert "secret://airflow-connection/orders_db#password" in shown[2]
    result = operator.execute(context())
    spec = named.stream().control.spec("d-0001")
    assert spec.version.arguments == ("--password", "secret://airflow-connection/orders_db")
    assert spec.version.environment == {"PIN": "secret://airflow-connection/orders_db#password"}
    assert "hunter" not in str(result) + str(named.hook().client.status("flights").to_json())


def test_a_secret_is_in_no_result_error_event_or_status(named: NamedHome, context: MakeContext, tmp_path: Path) -> None:
    """Whatever leaves the driver or the controller passes the same filter."""
    script = scripted_driver.script(tmp_path, "fails")
    secret = "hunter-five-5"
    with pytest.raises(AirflowException) as raised:
        deploy(
            script, arguments=["--password", secret], conf={"spark.my.secret": secret}, allow_literal_secrets=True
        ).execute(context())
    assert secret not in str(raised.value)
    assert secret not in str(named.hook().client.status("flights").to_json())


def test_what_should_be_known_of_a_start_is_in_the_log_of_the_task(
    named: NamedHome,
    context: MakeContext,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before anything runs, each in one line: such as checkpoints on a disk that executors do not have."""
    script = scripted_driver.script(tmp_path, "runs")
    away = {"spark.streamstate.master.check": "none"}
    deploy(script, master="spark://head.example:7077", conf=away, wait_until="none").execute(context())
    printed = capsys.readouterr()
    said = caplog.text + printed.out + printed.err
    assert "flights d-0001: checkpoints are on a disk of this machine" in said
    named.hook().client.kill("flights", grace_seconds=0)
