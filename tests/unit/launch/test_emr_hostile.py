"""The launchers for EMR with servers that never end or lead elsewhere, and with forged records and names."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest

import airflow_streamstate.launch.emr
from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.errors import (
    InvalidRequestError,
    MalformedMessageError,
    StreamStateError,
    UnavailableError,
    UntrustedRecordError,
)
from airflow_streamstate.launch import emr_client as emr_client
from airflow_streamstate.launch import rest
from airflow_streamstate.launch.emr import EmrOnEksLauncher, EmrServerlessLauncher, _EmrLauncher
from airflow_streamstate.launch.emr_client import Objects, new_client
from airflow_streamstate.launch.interface import LaunchHandle, LaunchPlace
from support.hostile_server import Act, answering, dripping, dripping_head, endless, hostile_server, redirecting
from support.loopback import QuietHandler

pytestmark = pytest.mark.fast

BOTH = [EmrServerlessLauncher, EmrOnEksLauncher]
KEY, SCOPE = "d-0001-a0001", "home/stream"
ROLE = "arn:aws:iam::123456789012:role/streams"


class Session:
    """As boto3's, for one server, with keys that open nothing."""

    def client(self, service: str, **more: Any) -> Any:
        session = boto3.Session(aws_access_key_id="k", aws_secret_access_key="s", region_name="eu-west-3")
        return session.client(service, **more)


def options_of(kind: type[_EmrLauncher], url: str) -> dict[str, object]:
    own = (
        {"application_id": "00abc"}
        if kind is EmrServerlessLauncher
        else {"virtual_cluster_id": "00abc", "release_label": "emr-7.9.0-latest"}
    )
    more = {"execution_role_arn": ROLE, "launch_uri": "s3://streams/launches", "region": "eu-west-3"}
    return {**own, **more, "endpoint_url": url}


def place_of(kind: type[_EmrLauncher], url: str) -> LaunchPlace:
    options = options_of(kind, url)
    return LaunchPlace(
        launcher=kind.name, scope=SCOPE, launch_key=KEY, folder="/nosuch", options=options, conn_id="aws"
    )


def handle_of(kind: type[_EmrLauncher], url: str, **data: object) -> LaunchHandle:
    own = {"job_run_id": "00run", "scope": SCOPE, "conn_id": "aws", "options": options_of(kind, url)}
    return LaunchHandle(kind.name, KEY, {**own, **data})


def launcher_of(kind: type[_EmrLauncher]) -> _EmrLauncher:
    return kind(SYSTEM_CLOCK, lambda _conn_id: Session())


@pytest.fixture(autouse=True)
def shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that may take half a second, and answers of a megabyte."""
    monkeypatch.setattr(emr_client, "CALL_SECONDS", 0.5)
    monkeypatch.setattr(emr_client, "ANSWER_BYTES", 1 << 20)
    monkeypatch.setattr(rest, "_LEFT", set())


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("act", [dripping, dripping_head, endless])
def test_a_server_that_does_not_end_leaves_the_driver_unknown(kind: type[_EmrLauncher], act: Act) -> None:
    """Slow or endless: no call waits for more than its time, and nothing is cancelled."""
    with hostile_server(act) as server:
        launcher, handle = launcher_of(kind), handle_of(kind, server.url)
        assert launcher.status(handle).state == "unknown"
        assert launcher.kill(handle, 0.0).state == "unknown"
        with pytest.raises(StreamStateError):
            launcher.logs(handle, 1000)
        with pytest.raises(StreamStateError):
            launcher.find(place_of(kind, server.url))
        launcher.forget(handle)


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(
    "told", [{}, {"jobRun": {}}, {"jobRun": {"id": "00run", "jobRunId": "00run", "state": "SUCCESS"}}]
)
def test_answers_that_lack_something_never_end_a_driver(kind: type[_EmrLauncher], told: dict[str, object]) -> None:
    """No error reaches the caller."""
    with hostile_server(answering({"/jobruns/00run": told})) as server:
        launcher, handle = launcher_of(kind), handle_of(kind, server.url)
        assert launcher.status(handle).state == "unknown"
        assert launcher.kill(handle, 0.0).state == "unknown"


@pytest.mark.parametrize("kind", BOTH)
def test_a_server_that_leads_elsewhere_is_not_followed(kind: type[_EmrLauncher]) -> None:
    """Credentials and answers stay with the server that the options name."""
    with hostile_server(answering({})) as other, hostile_server(redirecting(other.url)) as server:
        launcher, handle = launcher_of(kind), handle_of(kind, server.url)
        assert launcher.status(handle).state == "unknown"
        with pytest.raises(StreamStateError):
            launcher.logs(handle, 1000)
        assert other.paths == []


def test_too_many_calls_that_hang_are_no_new_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that hangs for ever costs a limited number of threads."""
    monkeypatch.setattr(rest, "LEFT_AT_MOST", 2)
    with hostile_server(dripping) as server:
        launcher, handle = launcher_of(EmrServerlessLauncher), handle_of(EmrServerlessLauncher, server.url)
        reasons = [launcher.status(handle).reason for _ in range(4)]
        assert "2 earlier requests" in reasons[-1]
        assert len(server.paths) == 2


@pytest.mark.parametrize("kind", BOTH)
def test_a_forged_record_is_refused(kind: type[_EmrLauncher]) -> None:
    """Whatever decides whom it reaches; and nothing is asked to find that out."""
    with hostile_server(answering({})) as server:
        place, own = place_of(kind, "https://aws.example"), handle_of(kind, "https://aws.example")
        launcher = launcher_of(kind)
        right = launcher.handle_at(place, own)
        assert launcher.handle_at(place, right) == right
        assert launcher.handle_at(place, LaunchHandle(kind.name, KEY, {"job_run_id": "00run"})) == right
        forged: list[dict[str, object]] = [
            {"options": options_of(kind, server.url)},
            {"options": {**options_of(kind, "https://aws.example"), "profile": "admin"}},
            {"options": {**options_of(kind, "https://aws.example"), "launch_uri": "s3://other/all"}},
            {"options": [1]},
            {"folder_uri": "s3://streams/home"},
            {"conn_id": "admin"},
            {"scope": "home/other"},
            {"job_run_id": "../../applications"},
            {"job_run_id": ["00run"]},
            {"job_run_id": None},
        ]
        for data in forged:
            with pytest.raises(UntrustedRecordError):
                launcher.handle_at(place, handle_of(kind, "https://aws.example", **data))
        assert server.paths == []


@pytest.mark.parametrize("kind", BOTH)
def test_the_run_of_another_launch_is_neither_told_nor_cancelled(kind: type[_EmrLauncher]) -> None:
    """An id of the right form may be that of any run of the account: its tags show whose it is."""
    run = {
        "id": "00run",
        "jobRunId": "00run",
        "state": "SUCCESS" if kind is EmrServerlessLauncher else "COMPLETED",
        "createdAt": 1_700_000_000,
        "tags": {"streamstate-launch-key": KEY, "streamstate-scope": "home/other"},
    }
    with hostile_server(answering({"/jobruns/00run": {"jobRun": run, "jobRunId": "00run"}})) as server:
        launcher, handle = launcher_of(kind), handle_of(kind, server.url)
        status = launcher.status(handle)
        assert (status.state, "another launch" in status.reason) == ("unknown", True)
        asked = len(server.paths)
        assert launcher.kill(handle, 0.0).state == "unknown"
        assert len(server.paths) == asked + 1, "a run of another launch was cancelled"
        launcher.forget(handle)
        assert not [path for path in server.paths if "launches" in path]


def test_the_address_that_lets_anybody_in_is_made_when_it_is_opened() -> None:
    """Links, which are recorded and shown, name the page alone; EMR on EKS has none."""
    run = {"jobRunId": "00run", "state": "RUNNING", "createdAt": 1_700_000_000}
    kind = EmrServerlessLauncher

    def opened(url: str, tags: dict[str, str], page: str = "Spark UI") -> str:
        told = {"/jobruns/00run": {"jobRun": {**run, "tags": tags}}, "/dashboard": {"url": url}}
        with hostile_server(answering(told)) as server:
            launcher, handle = launcher_of(kind), handle_of(kind, server.url)
            assert launcher.links(handle)["Spark UI"] == ""
            assert server.paths == []
            return launcher.opened(handle, page)

    own = {"streamstate-launch-key": KEY, "streamstate-scope": SCOPE}
    assert opened("https://dash.example/?token=t", own) == "https://dash.example/?token=t"
    for url, tags in (
        ("http://dash.example/", own),
        ("javascript:alert(1)", own),
        ("https://dash.example/", {**own, "streamstate-launch-key": "d-0002-a0001"}),
    ):
        with pytest.raises(UnavailableError):
            opened(url, tags)
    with pytest.raises(InvalidRequestError, match="makes no such page"):
        opened("https://dash.example/", own, "Other")
    assert "Spark UI" not in launcher_of(EmrOnEksLauncher).links(handle_of(EmrOnEksLauncher, "https://aws.example"))


@pytest.mark.parametrize(
    "data", [{"job_run_id": "a/b"}, {"scope": 1}, {"conn_id": 1}, {"options": "x"}, {"job_run_id": 7}], ids=str
)
def test_a_handle_with_odd_values_asks_nobody(data: dict[str, object]) -> None:
    """It names no job run."""
    with hostile_server(answering({})) as server, pytest.raises(MalformedMessageError):
        launcher_of(EmrServerlessLauncher).status(handle_of(EmrServerlessLauncher, server.url, **data))


def test_an_object_that_is_not_ours_is_not_read_whole() -> None:
    """The record of a launch is small; what unpacks to much is read in pieces."""

    def large(handler: QuietHandler) -> None:
        handler.send_response(200)
        handler.send_header("Last-Modified", "Sun, 29 Nov 2026 00:00:00 GMT")
        handler.end_headers()
        handler.wfile.write(b" " * (1 << 18))

    with hostile_server(large) as server:
        client = new_client(Session(), "s3", "eu-west-3", server.url)
        with pytest.raises(MalformedMessageError, match="too large"):
            Objects(client, "s3://streams/launches").read("job-run.json")


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/x", "a//x", "./x", "a/", ""])
def test_a_name_that_leaves_the_folder_ends_the_driver(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 takes any name, and the entry point of a driver makes files of them."""
    fetched: list[str] = []
    pages = [{"Contents": [{"Key": f"launch/{name}"}]}]
    client = SimpleNamespace(
        get_paginator=lambda _: SimpleNamespace(paginate=lambda **_: pages),
        download_file=lambda _bucket, _key, path: fetched.append(path),
    )
    monkeypatch.setattr(boto3, "client", lambda *_, **__: client)
    start = runpy.run_path(str(Path(airflow_streamstate.launch.emr.__file__).with_name("emr_start.py")))
    with pytest.raises(SystemExit, match="leaves its folder"):
        start["fetch"]("s3://streams/launch/", tmp_path / "driver")
    assert fetched == []
