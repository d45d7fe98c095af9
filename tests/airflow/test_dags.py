"""The example DAGs parse, serialize, validate their parameters, and are safe to load."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG, ParamValidationError

from airflow_streamstate.page.app import ACTS
from support.airflow_home import DAGS_FOLDER
from support.airflow_names import DagBag, DagSerialization

pytestmark = pytest.mark.fast

ACT_DAG_IDS = sorted(ACTS.values())
"""One file: the acts of the page of streams, each a DAG, so that each has rights of its own."""
DAG_IDS = [
    "alerts",
    "approved_upgrade",
    "complete_hours",
    "declared_streams",
    "deploy_with_secrets",
    "drain_gate",
    "hourly_report",
    "kept_snapshots",
    "nightly_upgrades",
    "on_stream_event",
    "planned_upgrade",
    "retire_stream",
    "scheduled_job",
    "scheduled_snapshots",
    "scheduled_upgrade",
    *ACT_DAG_IDS,
    "upgrade_in_one_task",
    "upgrade_on_kubernetes",
    "upgrade_stream",
]


@pytest.fixture(scope="module")
def bag() -> DagBag:
    return DagBag(dag_folder=str(DAGS_FOLDER))


def test_every_dag_parses_and_no_script_is_taken_for_one(bag: DagBag) -> None:
    """dags/ also holds the jobs."""
    assert bag.import_errors == {}
    assert sorted(bag.dags) == DAG_IDS


@pytest.mark.parametrize("dag_id", DAG_IDS)
def test_a_dag_survives_serialization(bag: DagBag, dag_id: str) -> None:
    """The scheduler sees nothing else of it."""
    there = DagSerialization.serialize_dag(bag.dags[dag_id])
    assert DagSerialization.deserialize_dag(there).task_dict.keys() == bag.dags[dag_id].task_dict.keys()
    json.dumps(there)


@pytest.mark.parametrize("dag_id", DAG_IDS)
def test_two_runs_never_move_a_stream_at_once_and_no_past_is_caught_up(bag: DagBag, dag_id: str) -> None:
    """Last week's upgrade is not made up for."""
    dag = bag.dags[dag_id]
    # The acts are for any stream, and one's must not wait for another's; of one stream the controller refuses a second.
    # A DAG that reports events moves no stream, and a run that is held back would leave events to a later one.
    assert (dag.max_active_runs == 1) is (dag_id not in (*ACT_DAG_IDS, "on_stream_event"))
    assert dag.catchup is False


@pytest.mark.parametrize(
    "dag_id",
    ["upgrade_stream", "drain_gate", "planned_upgrade", "retire_stream", "upgrade_in_one_task", "approved_upgrade"],
)
def test_every_parameter_has_a_title_and_a_sound_default(bag: DagBag, dag_id: str) -> None:
    """They are the form of a manual run; a scheduled run takes the defaults."""
    params = bag.dags[dag_id].params
    for name in params:
        param = params.get_param(name)
        assert param.schema.get("title") or param.description, name
    params.validate()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stream_id", "../x"),
        ("stream_id", ""),
        ("stream_id", "a" * 64),
        ("stream_id", "Flights"),
        ("state", "perhaps"),
        ("start", "empty"),
        ("arguments", "--input /in"),
        ("arguments", [1]),
        ("conf", {"spark.x": 1}),
        ("expires_in_seconds", 0),
        ("allow_state_loss", "yes"),
        ("application", ""),
    ],
)
def test_what_cannot_be_meant_is_refused_by_the_form(bag: DagBag, name: str, value: Any) -> None:
    """Before any task runs."""
    param = bag.dags["upgrade_stream"].params.get_param(name)
    with pytest.raises(ParamValidationError):
        param.resolve(value)


@pytest.mark.parametrize("dag_id", ACT_DAG_IDS)
def test_an_act_takes_any_stream_of_the_homes_of_the_page(bag: DagBag, dag_id: str) -> None:
    """By just these parameters, which the page sends; a run without a stream, with a malformed one, or for a home that
    the page does not show, is refused."""
    params = bag.dags[dag_id].params
    more = {"upgrade_id": "u-0123456789ab", "approve": True, "after_stop": "finish"}
    asked = {"stream_id": "flights", "conn_id": "streamstate_default", "reason": "why"}
    asked |= {name: value for name, value in more.items() if name in params}
    assert set(asked) == set(params)
    for name, value in asked.items():
        assert params.get_param(name).resolve(value) == value
    for stream_id in ("../../etc", "<script>", "a" * 64, None):
        with pytest.raises(ParamValidationError):
            params.get_param("stream_id").resolve(stream_id)
    for conn_id in ("eu", "aws_default", "", None):
        with pytest.raises(ParamValidationError):
            params.get_param("conn_id").resolve(conn_id)


def test_the_homes_of_acts_are_those_of_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one is asked for by default."""
    monkeypatch.setenv("AIRFLOW__STREAMSTATE__PAGE_CONN_IDS", "eu, us")
    bag = DagBag(dag_folder=str(DAGS_FOLDER / "act_on_stream.py"))
    assert bag.import_errors == {}
    assert {dag.params.get_param("conn_id").value for dag in bag.dags.values()} == {"eu"}
    for dag in bag.dags.values():
        param = dag.params.get_param("conn_id")  # the acts share it, and it keeps what it resolves
        assert param.resolve("us") == "us"
        with pytest.raises(ParamValidationError):
            param.resolve("streamstate_default")


def _default_of(dag: DAG, name: str) -> Any:
    """The default of a parameter, also if it does not validate; what only a run names has none."""
    return dag.params.get_param(name).value if name in dag.params else None


def test_every_version_of_the_flights_writes_to_one_folder(bag: DagBag) -> None:
    """By their defaults: another folder under ids of batches that continue is a hazard (``sink-replaced``)."""
    outputs = {}
    for dag_id, dag in bag.dags.items():
        if dag_id in ACT_DAG_IDS:  # a run of them alone names a stream
            continue
        arguments = _default_of(dag, "arguments") or []
        if _default_of(dag, "stream_id") == "flights" and "--output" in arguments:
            outputs[dag_id] = arguments[arguments.index("--output") + 1]
    assert {"upgrade_stream", "planned_upgrade", "approved_upgrade"} <= outputs.keys()
    assert len(set(outputs.values())) == 1, outputs


def test_airflow_up_deploys_what_the_defaults_change(bag: DagBag, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger triggers a DAG as it is: another folder of results would be refused (``sink-replaced``)."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(DAGS_FOLDER.parent)])
    from demo.site import STREAMS, arguments_of

    deployed = arguments_of("flights", Path("/srv/flights"))
    asked = {
        dag_id: list(_default_of(dag, "arguments"))
        for dag_id, dag in bag.dags.items()
        if _default_of(dag, "stream_id") == "flights" and _default_of(dag, "arguments")
    }
    assert {"upgrade_in_one_task", "planned_upgrade", "approved_upgrade", "upgrade_stream"} <= asked.keys()
    assert asked == dict.fromkeys(asked, deployed)
    scheduled = bag.dags["scheduled_upgrade"].task_dict["deploy"]
    assert (list(scheduled.arguments), scheduled.master) == (deployed, STREAMS["flights"].master)


@pytest.mark.parametrize("dag_id", ["scheduled_upgrade", "upgrade_stream"])
def test_nothing_is_stopped_to_keep_its_state_before_the_plan_fits(bag: DagBag, dag_id: str) -> None:
    """What would be refused after the stop is refused while the old version runs (Law 17)."""
    tasks = bag.dags[dag_id].task_dict
    plan, deploy = tasks["plan"], tasks["deploy"]
    assert "plan" in tasks["stop"].upstream_task_ids
    assert plan.fail_unless_it_fits is True
    for name in ("application", "arguments", "master", "conf", "spark_conn_id"):
        assert getattr(plan, name) == getattr(deploy, name), name


def test_the_parts_that_the_pages_quote_are_marked(bag: DagBag) -> None:
    """A how-to page quotes what runs here."""
    for dag_id in DAG_IDS:
        name = "act_on_stream" if dag_id in ACT_DAG_IDS else dag_id
        text = (DAGS_FOLDER / f"{name}.py").read_text()
        assert re.findall(r"# \[START (\w+)\]", text) == re.findall(r"# \[END (\w+)\]", text)
        assert f"# [START {name}]" in text


@pytest.mark.parametrize("page", ["README.md", "docs/how-to/deploy.md"])
def test_the_shortest_dag_of_a_page_parses(page: str, tmp_path: Path) -> None:
    """As it is shown: one task, which deploys or upgrades the stream."""
    (text,) = re.findall(r"```python\n(.*?)```", (DAGS_FOLDER.parent / page).read_text(), re.DOTALL)
    (tmp_path / "flights.py").write_text(text)
    shown = DagBag(dag_folder=str(tmp_path))
    assert shown.import_errors == {}
    (task,) = shown.dags["flights"].tasks
    assert (task.stream_id, task.if_running, task.arguments[0]) == ("flights", "ensure", "--input")


@pytest.mark.parametrize("job", sorted((DAGS_FOLDER / "jobs").glob("*.py")), ids=lambda path: path.name)
def test_a_job_knows_nothing_of_us(job: Path) -> None:
    """The scripts are ordinary PySpark."""
    text = job.read_text()
    assert "streamstate" not in text.lower()
    assert "airflow" not in text.lower()


def test_an_airflow_that_cannot_ask_a_person_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one sentence, where the list of DAGs shows what could not be imported; and nowhere else."""
    monkeypatch.setitem(sys.modules, "airflow.providers.standard.operators.hitl", None)
    bag = DagBag(dag_folder=str(DAGS_FOLDER / "approved_upgrade.py"))
    (why,) = bag.import_errors.values()
    assert "approved_upgrade needs Airflow 3.1 or newer: older ones cannot ask a person" in why
