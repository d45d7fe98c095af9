"""Places that records of a home name: a controller opens none that its reader has not allowed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_streamstate.allowed import Allowed
from airflow_streamstate.control.registers import Retention
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.home import Home
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import to_bytes
from airflow_streamstate.protocol.records import SnapshotPlace
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.memory import MemoryStore
from support.sim_stage import STREAM, Stage


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    (tmp_path / "here").mkdir()
    return Stage(tmp_path / "here", allowed=Allowed(where="the list"))


def forged(stage: Stage, elsewhere: Path) -> None:
    """Whoever may write the home makes a folder a place of the stream's snapshots, with its record and one file."""
    store = LocalStore(elsewhere)
    record = SnapshotPlace(STREAM, stage.store.uri, stage.clock.now(), stage.clock.new_uuid())
    store.create(layout.place_record_key(STREAM), to_bytes(record))
    store.create(f"{STREAM}/snapshots/s-0001/data/kept.txt", b"a person's own")

    Retention(stage.control, "forger").change(lambda kept: replace(kept, places=(str(elsewhere),)))


def test_a_forged_place_is_neither_read_nor_cleared(stage: Stage, tmp_path: Path) -> None:
    """Its folder is named as missing, with the line that would allow it."""
    stage.controller.deploy(stage.request())
    forged(stage, tmp_path / "elsewhere")
    stores, missing = stage.home.places.all_of(stage.control)
    assert set(stores) == {""}
    assert "this place is not allowed for this home" in missing[0]
    assert f"add \"{tmp_path / 'elsewhere'}\" to 'stores' in the list" in missing[0]
    stage.controller.retention.prune(STREAM)
    assert (tmp_path / "elsewhere" / STREAM / "snapshots" / "s-0001" / "data" / "kept.txt").is_file()


@pytest.mark.parametrize("field", ["snapshots", "mirrors"])
def test_a_place_that_is_not_allowed_is_refused_at_deploy(stage: Stage, field: str) -> None:
    """Before anything is written, there or in the home."""
    wanted = {"snapshots": "memory://beyond"} if field == "snapshots" else {"mirrors": ("memory://beyond",)}
    with pytest.raises(InvalidRequestError, match="this place is not allowed") as error:
        stage.controller.deploy(stage.request(**wanted))
    assert error.value.context["place"] == "memory://beyond"
    assert list(MemoryStore("beyond").list_objects("")) == []
    assert list(stage.store.list_objects(f"{STREAM}/deployments/")) == []


def test_a_place_is_not_used_any_more_when_it_is_allowed_no_longer(stage: Stage) -> None:
    """A driver would be given what reaches it."""
    home = Home.of(stage.store, stage.store, stage.folder, stage.clock, allowed=Allowed(stores=("memory://beyond",)))
    Controller(home, stage.launcher, stage.clock, "tests").deploy(stage.request(mirrors=("memory://beyond",)))
    spec = stage.control.spec(str(stage.control.need_register().value.deployment_id))
    with pytest.raises(InvalidRequestError, match="this place is not allowed"):
        stage.controller.mirrors.chosen(STREAM)
    with pytest.raises(InvalidRequestError, match="this place is not allowed"):
        stage.controller._context.drivers.check(spec, 2)


@pytest.mark.parametrize(
    ("uri", "fits"),
    [
        ("s3://mine/streams", True),
        ("s3://mine/streams/", True),
        ("s3://mine/streams/eu", True),
        ("s3://mine/streams-2", False),
        ("s3://mine/streams/../other", False),
        ("s3://mine", False),
        ("gs://mine/streams", False),
        ("{folder}/kept", True),
        ("file://{folder}/kept/a", True),
        ("{folder}/kept/../other", False),
        ("{folder}/kept/link", False),
        ("{folder}", False),
        ("/", False),
    ],
)
def test_an_entry_stands_for_what_is_below_it(tmp_path: Path, uri: str, fits: bool) -> None:
    """Neither ``..`` nor a link leads out of it."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "kept" / "link").symlink_to(tmp_path / "other")
    allowed = Allowed(stores=("s3://mine/streams", str(tmp_path / "kept")))
    named = uri.format(folder=tmp_path)
    if fits:
        allowed.check_store(named)
    else:
        with pytest.raises(InvalidRequestError, match="is not allowed"):
            allowed.check_store(named)
