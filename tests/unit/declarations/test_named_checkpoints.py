"""A new stream whose script has run before is found without Spark (first contact)."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_streamstate.controller.request.requests import deploy_request
from airflow_streamstate.declarations.diff import check_named_checkpoints
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.store.options import StoreOptions


def used(folder: Path) -> Path:
    """A checkpoint with three committed batches."""
    for name in ("commits", "offsets"):
        (folder / name).mkdir(parents=True)
        for number in range(3):
            (folder / name / str(number)).write_text("v1\n{}")
    return folder


def check(tmp_path: Path, script: str, *arguments: str, **conf: str) -> None:
    """As for a new stream with this script."""
    job = tmp_path / "job.py"
    job.write_text(script)
    settings = {f"spark.sql.streaming.{name}": value for name, value in conf.items()}
    check_named_checkpoints(
        deploy_request(stream_id="flights", application=job, arguments=arguments, conf=settings), StoreOptions()
    )


@pytest.mark.parametrize("named", ["option", "options", "session", "argument", "assigned", "conf", "above"])
def test_a_used_checkpoint_is_found_however_it_is_named(tmp_path: Path, named: str) -> None:
    """With the adoption that continues with it."""
    place = used(tmp_path / "checkpoints" / "rows")
    script, arguments, conf = "w.queryName('rows')\n", (), {}
    if named == "option":
        script = f"w.option('checkpointLocation', '{place}/')\n"
    elif named == "options":
        script = f"w.options(checkpointLocation='{place}')\n"
    elif named == "session":
        script += f"spark.conf.set('spark.sql.streaming.checkpointLocation', '{place.parent}')\n"
    elif named == "argument":
        arguments = ("--checkpoint", str(place))
    elif named == "assigned":
        arguments = (f"--checkpoint-dir={place}",)
    else:
        conf = {"checkpointLocation": str(place if named == "conf" else place.parent)}
    with pytest.raises(InvalidRequestError) as refused:
        check(tmp_path, script, *arguments, **conf)
    assert refused.value.context["committed_batch_id"] == 2
    assert f"streamstate adopt flights --checkpoint {place} --stopped" in refused.value.next_step
    assert "start: fresh" in refused.value.next_step


@pytest.mark.parametrize(
    "script",
    [
        "w.option('checkpointLocation', '/nowhere/at/all')\n",
        "w.option('checkpointLocation', 'relative')\n",
        "w.option('checkpointLocation', 'what://is/this')\n",
        "w.option('checkpointLocation', '/')\n",
        "w.option('checkpointLocation', f'{x}/y')\n",
        "w.option('checkpointLocation', '\\0')\n",
        "not Python at all\n",
    ],
)
def test_what_holds_no_batch_or_cannot_be_read_is_no_finding(tmp_path: Path, script: str) -> None:
    """The driver looks again, at what the query really has."""
    (tmp_path / "unused" / "offsets").mkdir(parents=True)
    check(tmp_path, script, "--checkpoint", str(tmp_path / "unused"), "--checkpoint")


def test_the_checkpoint_of_another_job_beside_it_is_no_finding(tmp_path: Path) -> None:
    """Many jobs may keep theirs in one folder, each below the name of its query."""
    used(tmp_path / "checkpoints" / "theirs")
    check(tmp_path, "w.queryName('ours')\n", checkpointLocation=str(tmp_path / "checkpoints"))
    check(tmp_path, "w.queryName('ours')\n", "--checkpoints", str(tmp_path / "checkpoints"))
