"""A home with a signing key on real Spark: upgraded, restarted by a watcher, and attacked by its own driver."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.signing import SIGNING_KEY_VARIABLE
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.s3 import s3_store
from support.launches import end_processes, wait_until
from support.s3_server import BUCKET, options_for
from support.s3_stream import SCRIPT, S3Stream, desk_on_s3, driver_folder
from support.shell import Desk, desk_with, shell
from support.watching import watching

pytestmark = [
    pytest.mark.spark,
    pytest.mark.s3,
    pytest.mark.named,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("quick_jvm"),
]

KEY = "key-of-the-controllers-and-nobody-else"
FORGES = (
    """
import hashlib, json, os, threading, time
from airflow_streamstate.protocol import layout
from airflow_streamstate.store.open import open_store
from airflow_streamstate.store.options import StoreOptions

EVIL = b"raise SystemExit('evil code ran')"


def forge(base):
    while not os.path.exists(base + "/forge"):
        time.sleep(0.1)
    home = open_store(open(base + "/forge").read(), options=StoreOptions())
    digest = hashlib.sha256(EVIL).hexdigest()
    home.put(layout.artifact_key("flights", digest, "job.py"), EVIL)
    own = json.loads(home.get(layout.spec_key("flights", "d-0002")).body)
    forged = {**own, "application": {"name": "job.py", "sha256": digest}, "modules": []}
    home.put(layout.spec_key("flights", "d-0002"), json.dumps(forged).encode())
    later = {**forged, "deployment_id": "d-0003", "fencing_token": 3}
    home.put(layout.spec_key("flights", "d-0003"), json.dumps(later).encode())
    keys = [name for name, value in os.environ.items() if "SIGNING" in name]
    open(base + "/forged", "w").write(json.dumps(keys))


threading.Thread(target=forge, args=(__import__("sys").argv[1],), daemon=True).start()
"""
    + SCRIPT
)
AT_ONCE = ("--on-failure", "restart", "--initial-backoff", 0)


@pytest.fixture(params=["disk", "s3"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Desk, Store, str]]:
    """A home in a folder, or on a real S3 server; its store, and its URI."""
    variables = {SIGNING_KEY_VARIABLE: KEY}
    if request.param == "disk":
        with desk_with(tmp_path, monkeypatch, ("PYSPARK_", "SPARK_", "STREAMSTATE_"), variables) as desk:
            yield desk, LocalStore(desk.home), str(desk.home)
        return
    url = request.getfixturevalue("real_url")
    with desk_on_s3(tmp_path, monkeypatch, url) as desk:
        monkeypatch.setenv(SIGNING_KEY_VARIABLE, KEY)
        yield desk, s3_store(BUCKET, tmp_path.name, options_for(url)), f"s3://{BUCKET}/{tmp_path.name}"


def launches(store: Store) -> int:
    """How many drivers were ever launched for deployments."""
    prefix = f"{layout.deployments_folder('flights')}/"
    return sum(info.key.endswith(".json") and "/launches/d-" in info.key for info in store.list_objects(prefix))


def test_a_signed_stream_refuses_what_its_driver_forges(place: tuple[Desk, Store, str], tmp_path: Path) -> None:
    """Deploy, upgrade, kill -9 and restart by a watcher, with every record signed. Then the driver puts other code into
    its own spec and writes that of its successor, and dies: nothing is launched from either."""
    desk, store, uri = place
    stream = S3Stream(desk.base)
    stream.app.write_text(FORGES)
    stream.feed(3)
    stream.deploy(*AT_ONCE)
    words = ("--conf", "spark.sql.session.timeZone=UTC", "--healthy-batches", 1, "--no-warm")
    upgraded = stream.done("upgrade", *words).json
    assert (upgraded["outcome"], upgraded["new_deployment_id"]) == ("upgraded", "d-0002"), upgraded
    with watching(tmp_path / "watch.out") as watch:
        end_processes(driver_folder(desk, "d-0002", 1))
        watch.wait_for("restarting")
        stream.feed(2)
        wait_until(lambda: shell("status", "flights", "--json").json["state"] == "running", "the restart", 120)
    assert shell("home", "sign", "--json").json["records"] == []
    before = launches(store)
    honest = store.get(layout.spec_key("flights", "d-0002"))
    assert honest is not None

    (tmp_path / "forge").write_text(uri)
    wait_until((tmp_path / "forged").exists, "the driver to forge", 60)
    assert json.loads((tmp_path / "forged").read_text()) == [], "the driver has no key"
    end_processes(driver_folder(desk, "d-0002", 2))
    shell("watch", "--once", "--json")
    refused = shell("resume", "flights", "--timeout", 60, "--json")
    assert refused.error["type"] == "SignatureError"
    refused = shell("deploy", "flights", "--app", stream.app, "--timeout", 60, "--json", "--", desk.base)
    assert refused.error["type"] == "SignatureError"
    assert launches(store) == before
    assert {row["key"] for row in shell("home", "sign", "--json").json["records"]} == {
        layout.spec_key("flights", "d-0002"),
        layout.spec_key("flights", "d-0003"),
    }

    (tmp_path / "forge").unlink()
    store.put(layout.spec_key("flights", "d-0002"), honest.body)
    store.delete(layout.spec_key("flights", "d-0003"))
    stream.done("resume")
    stream.wait_until_read(store, "d-0002")
    assert stream.done("drain").json["queries"]["counts"]["state_rows_left"] == 0
    assert stream.written() == stream.expected()
