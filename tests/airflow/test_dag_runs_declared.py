"""A folder of streams by ``StreamsDag``: compared, and made so wave by wave, with drivers that need no Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from support import scripted_driver
from support.airflow_streams import NamedHome

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:Using .httpx. with"),  # Airflow's in-process API server, not ours
]


@pytest.fixture
def folder(scripted: NamedHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of the files; the DAG asks nobody."""
    monkeypatch.setenv("STREAMS_FOLDER", str(tmp_path / "streams"))
    monkeypatch.setenv("STREAMS_NEED_APPROVAL", "no")
    monkeypatch.setenv("STREAMS_HEALTHY_FOR_SECONDS", "2")
    (tmp_path / "streams").mkdir()
    return tmp_path / "streams"


def declare(folder: Path, stream_id: str, *words: str, **more: Any) -> None:
    """The file of a stream whose driver behaves so."""
    name = "-".join((stream_id, *words)) + ".py"
    scripted_driver.script(folder.parent, *words, name=name)
    values = {
        "id": stream_id, "application": f"../{name}", "master": "local[1]",
        "upgrade": {"warm": False, "healthy_batches": 1, "healthy_deadline_seconds": 120}, **more,
    }  # fmt: skip
    (folder / f"{stream_id}.yaml").write_text(yaml.safe_dump(values))


def results(run: Any) -> list[tuple[int, str, dict[str, str]]]:
    """Of each mapped task: its wave, its state, and the results by stream."""
    found = []
    for ti in run.get_task_instances():
        if ti.task_id == "apply":
            value = ti.xcom_pull(task_ids="apply", map_indexes=ti.map_index) or {"streams": []}
            by_stream = {one["stream_id"]: one["result"] for one in value["streams"]}
            found.append((ti.map_index, str(ti.state), by_stream))
    return sorted(found)


@pytest.mark.named
def test_a_folder_is_made_so_wave_by_wave(folder: Path, scripted: NamedHome, run_dag: Any) -> None:
    """New streams, then nothing to do, then a change whose canary fails and keeps the others as they are."""
    canary = {"labels": {"tier": "canary"}}
    declare(folder, "a", "proves", **canary)
    for stream_id in ("b", "c"):
        declare(folder, stream_id, "proves")
    client = scripted.hook().client
    run = run_dag("declared_streams")
    # `dag.test()` may start with the second wave, which makes the first one, too; the scheduler does not.
    assert [(state, set(found)) for _, state, found in results(run)] == [("success", {"a"}), ("success", {"b", "c"})]
    assert {one.deployment_id for one in client.statuses()} == {"d-0001"}
    run = run_dag("declared_streams")
    assert {ti.task_id: str(ti.state) for ti in run.get_task_instances()} == {
        "compare": "success", "waves": "success", "apply": "skipped"
    }  # fmt: skip
    declare(folder, "a", "crashes", **canary)
    (folder / "b.yaml").unlink()
    declare(folder, "c", "proves", conf={"spark.x": "1"})
    run = run_dag("declared_streams")
    assert [one[1:] for one in results(run)] == [
        ("failed", {"a": "failed"}), ("skipped", {"c": "not begun"}), ("skipped", {"b": "not begun"})
    ]  # fmt: skip
    assert {one.stream_id: str(one.state) for one in client.statuses()} == dict.fromkeys("abc", "running")
    declare(folder, "a", "proves", **canary)
    run = run_dag("declared_streams")
    assert [(state, set(found)) for _, state, found in results(run)] == [("success", {"c"}), ("success", {"b"})]
    assert client.status("b").state == "stopped"
    assert client.status("c").deployment_id == "d-0002"
