"""A life with home and checkpoints on a server of Azure Blob, real Spark on hadoop-azure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.azurite import ACCOUNT, ACCOUNT_KEY, CONTAINER
from support.launches import command_lines
from support.maven import fetch_jars, pinned
from support.object_stores import object_store
from support.s3_stream import S3Stream, driver_folder
from support.shell import Desk, desk_with, shell

pytestmark = [
    pytest.mark.spark,
    pytest.mark.objects,
    pytest.mark.timeout(1500),
    pytest.mark.usefixtures("quick_jvm"),
]
HOST = f"{ACCOUNT}.dfs.core.windows.net"
CONNECTOR = "hadoop-azure-3.5.0"


@pytest.fixture
def desk(tmp_path: Path, azure_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A home on Azure and nothing else, as the environment sets it; launches in a folder; no driver left afterwards."""
    variables = {
        "STREAMSTATE_HOME": f"abfs://{CONTAINER}@{HOST}/{tmp_path.name}",
        "STREAMSTATE_WORK_DIR": str(Desk(tmp_path).home),
        "AZURE_STORAGE_ACCOUNT_KEY": ACCOUNT_KEY,
        "AZURE_STORAGE_ENDPOINT": f"{azure_url}/{ACCOUNT}",
    }
    with desk_with(tmp_path, monkeypatch, ("PYSPARK_", "SPARK_", "STREAMSTATE_", "AZURE_"), variables) as made:
        yield made


def connector(azure_url: str) -> dict[str, str]:
    """Spark's configuration for the server in Azure's place; the key is handed over by the launch."""
    jars = fetch_jars(CONNECTOR, pinned(Path(__file__).parents[1] / "support" / "azure_jars.txt"))
    hadoop = {
        "abfs.endpoint": azure_url.removeprefix("http://"),
        f"account.auth.type.{HOST}": "SharedKey",
        "account.hns.enabled": "false",
        "fns.account.service.type": "BLOB",
        "always.use.https": "false",
        "ssl.channel.mode": "Default_JSSE",
        "networking.library": "JDK_HTTP_URL_CONNECTION",
    }
    return {
        "spark.jars": ",".join(map(str, sorted(jars.glob("*.jar")))),
        **{f"spark.hadoop.fs.azure.{name}": value for name, value in hadoop.items()},
    }


@pytest.mark.named
def test_a_life_on_azure(desk: Desk, azure_url: str) -> None:
    """Deploy, snapshot, stop, restore, drain, seed, drain: rows in are rows out, and every snapshot is complete."""
    stream = S3Stream(desk.base, connector(azure_url))
    stream.feed(3)
    first = stream.deploy().json["deployment_id"]
    assert ACCOUNT_KEY not in command_lines(driver_folder(desk, first, 1))
    live = stream.done("snapshot create").json
    assert live["kind"] == "live"
    assert shell("snapshot", "verify", "flights", live["snapshot_id"]).status == 0

    stream.feed(3)
    stopped = stream.done("stop").json
    assert stopped["state"] == "stopped"
    assert shell("snapshot", "verify", "flights", stopped["snapshot_id"]).status == 0

    second = stream.deploy().json
    assert (second["start"]["mode"], second["start"]["snapshot_id"]) == ("restore", stopped["snapshot_id"])
    stream.feed(3)
    drained = stream.done("drain").json
    assert drained["queries"]["counts"]["state_rows_left"] == 0

    stream.feed(2)
    third = stream.deploy().json
    assert third["start"]["mode"] == "seed"
    stream.wait_until_read(object_store("azure", azure_url, desk.base.name), third["deployment_id"])
    ended = stream.done("drain").json
    assert ended["queries"]["counts"]["state_rows_left"] == 0
    assert stream.written() == stream.expected()
    assert shell("audit", "flights").status == 0
