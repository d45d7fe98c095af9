"""The file of docs/how-to/files.md on real flights: deployed, upgraded, exported and stopped by ``apply``."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.protocol.layout import checkpoint_folder
from support.drivers import CONF
from support.flights import JOBS, REPOSITORY, Flights, counts, counts_of
from support.launches import wait_until
from support.progress import files_read
from support.quick_jvm import OPTIONS
from support.shell import Desk, desk_with, shell

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
FILE = re.search(r"```yaml\n(.*?)```", (REPOSITORY / "docs/how-to/files.md").read_text(), re.DOTALL)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A home, and a shell without anything of Spark in its environment."""
    with desk_with(tmp_path, monkeypatch, ("PYSPARK_", "SPARK_", "STREAMSTATE_")) as made:
        yield made


def applied(folder: Path) -> dict[str, Any]:
    """What ``apply`` did with the one stream."""
    answer = shell("apply", folder, "--json", "--timeout", 200)
    assert answer.status == 0, f"{answer}\n{shell('logs', 'flights').out[-3000:]}"
    (found,) = answer.json["streams"]
    return dict(found)


@pytest.mark.named
def test_a_stream_lives_by_its_file(desk: Desk) -> None:
    """Each change of the file is one step of the stream, and every flight is counted once (Laws 2, 9 and 14)."""
    flights = Flights(desk.base / "lake", 3)
    lines = flights.feed()
    shutil.copytree(JOBS, desk.base / "jobs")
    folder = desk.base / "streams"
    folder.mkdir()
    assert FILE is not None
    text = FILE[1].replace("/data/delays", flights.arguments[3]).replace("/data/flights", flights.arguments[1])
    quick = {**CONF, "spark.driver.extraJavaOptions": OPTIONS}
    quick.pop("spark.sql.shuffle.partitions", None)
    text = text.replace("conf:\n", "conf:\n" + "".join(f"  {name}: '{value}'\n" for name, value in quick.items()))

    def becomes(old: str, new: str) -> None:
        nonlocal text
        assert old in text
        text = text.replace(old, new)
        (folder / "flights.yaml").write_text(text)

    becomes("batches: 3", "batches: 1")
    assert applied(folder)["step"] == "deploy"
    lines += flights.feed()
    wait_until(lambda: any(True for _ in flights.written()), lambda: shell("logs", "flights").out[-3000:], 120)
    becomes("count_by_origin.py", "count_by_origin_v2.py")
    assert applied(folder)["step"] == "upgrade"
    lines += flights.feed()
    exported = shell("export", "flights", desk.base / "exported", "--json")
    assert exported.status == 0, exported
    (found,) = shell("diff", desk.base / "exported", "--json").json["streams"]
    assert (found["kind"], found["fields"]) == ("unchanged", [])
    deployment_id = shell("status", "flights", "--json").json["deployment_id"]
    checkpoint = desk.home / checkpoint_folder("flights", deployment_id, "delays")
    wait_until(lambda: files_read(checkpoint) == 3, lambda: shell("logs", "flights").out[-3000:], 120)
    becomes("owner:", "desired_state: stopped\nowner:")
    assert applied(folder)["step"] == "stop"
    assert shell("drain", "flights", "--json", "--timeout", 200).status == 0
    assert counts_of(list(flights.written()), "origin") == counts(lines, "origin")
    assert shell("audit", "flights", "--json").json["ok"] is True
