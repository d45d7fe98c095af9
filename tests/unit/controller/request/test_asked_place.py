"""The place of the snapshots in a request."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_streamstate.controller.request.requests import deploy_request
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.settings import AgentSettings


@pytest.fixture(autouse=True)
def _script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text("print(1)\n")


def asked(snapshots: str, mirrors: tuple[str, ...] = (), settings: AgentSettings | None = None) -> str:
    request = deploy_request("orders", Path("job.py"), snapshots=snapshots, mirrors=mirrors, settings=settings)
    return request.version.snapshots


def test_a_place_is_recorded_as_a_whole_uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the working directory is later; "none" and "" stay as they are."""
    monkeypatch.chdir(tmp_path)
    assert asked("disk") == str(tmp_path / "disk")
    assert asked("s3://second/streams/") == "s3://second/streams"
    assert (asked("none"), asked("")) == ("none", "")


def test_what_is_no_place_is_refused() -> None:
    """A URI that names no store, a mirror, and periodic snapshots of a deployment that keeps none."""
    with pytest.raises(InvalidRequestError, match="no store that is known"):
        asked("ftp://there")
    with pytest.raises(InvalidRequestError, match="a mirror is another place"):
        asked("/disk", mirrors=("/disk",))
    with pytest.raises(InvalidRequestError, match="cannot take periodic ones"):
        asked("none", settings=AgentSettings(snapshot_every_seconds=60.0))
