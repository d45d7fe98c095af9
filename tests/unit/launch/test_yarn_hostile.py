"""A cluster of YARN whose servers give false answers, and handles that are not what the launcher wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.errors import UnavailableError, UntrustedRecordError
from airflow_streamstate.launch import yarn as yarn
from airflow_streamstate.launch import yarn_api
from airflow_streamstate.launch.interface import LaunchHandle, LaunchPlace
from airflow_streamstate.launch.yarn import YarnLauncher, tag_of
from support.hostile_server import Act, answering, dripping, endless, hostile_server, redirecting

pytestmark = pytest.mark.fast

APP = "application_1700000000000_0001"
NODE = "node.example:45454"
ATTEMPT = {"appAttemptState": "RUNNING", "nodeId": NODE, "containerId": "container_1_1_1_1"}
INFO = {"clusterInfo": {"state": "STARTED", "haState": "ACTIVE", "startedOn": 1}}
PLACE = LaunchPlace(launcher="yarn", scope="home/stream", launch_key="d-0001-a0001", folder="/nosuch")


def handle(url: str, **data: object) -> LaunchHandle:
    """Of a driver whose ResourceManager is this server."""
    tag = tag_of(PLACE, "streamstate")
    return LaunchHandle(
        "yarn", PLACE.launch_key, {"resource_managers": [url], "tag": tag, "application_id": APP, **data}
    )


def app(**fields: object) -> dict[str, object]:
    """As the ResourceManager reports a driver."""
    return {"id": APP, "state": "RUNNING", "user": "spark", "queue": "default", "startedTime": 1, **fields}


def cluster(told: object, *, attempt: object = None, node: object = None) -> dict[str, object]:
    """The answers of a ResourceManager with this application."""
    return {
        "/cluster/info": INFO,
        "/cluster/apps": {"apps": {"app": [told]}},
        "/appattempts": {"appAttempts": {"appAttempt": [attempt or ATTEMPT]}},
        f"/nodes/{NODE}": {"node": node or {"nodeHTTPAddress": "node.example:8042"}},
    }


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> YarnLauncher:
    """One that waits for answers a tenth as long."""
    monkeypatch.setattr(yarn_api, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(yarn, "KILL_SECONDS", 0.1)
    return YarnLauncher(SYSTEM_CLOCK, environ={"HADOOP_CONF_DIR": str(tmp_path)})


@pytest.mark.parametrize(("act", "words"), [(dripping, "no whole answer"), (endless, "")])
def test_a_server_that_does_not_end_leaves_the_driver_unknown(launcher: YarnLauncher, act: Act, words: str) -> None:
    """Slow or endless: no call waits for more than its time, and nothing is read beyond a limit."""
    with hostile_server(act) as server:
        status = launcher.status(handle(server.url))
        assert status.state == "unknown"
        assert words in status.reason
        assert launcher.logs(handle(server.url), 1000) == ""
        assert launcher.links(handle(server.url)) == {}
        assert not launcher.kill(handle(server.url), 0.0).has_ended


def test_a_resource_manager_that_leads_elsewhere_is_not_followed(launcher: YarnLauncher) -> None:
    """The other server is never asked."""
    with hostile_server(answering(cluster(app()))) as other, hostile_server(redirecting(other.url)) as server:
        assert launcher.status(handle(server.url)).state == "unknown"
        assert launcher.logs(handle(server.url), 1000) == ""
        assert other.paths == []


def test_the_log_of_a_node_comes_from_nodes_of_the_cluster_only(launcher: YarnLauncher) -> None:
    """An address that the cluster does not list, or that leads on, gives no log and no proof of an end."""
    log = b"LogContents:\nsecret\nEnd of LogType:stdout\n"

    def tells(handler: object) -> None:
        handler.send_response(200)  # type: ignore[attr-defined]
        handler.send_header("Content-Length", str(len(log)))  # type: ignore[attr-defined]
        handler.end_headers()  # type: ignore[attr-defined]
        handler.wfile.write(log)  # type: ignore[attr-defined]

    with hostile_server(tells) as other, hostile_server(redirecting(other.url)) as leading:
        for node, listed, is_told in (
            (other, "node.example:8042", False),
            (leading, leading.address, False),
            (other, other.address, True),  # the whole cluster is on this machine
        ):
            logs = f"{node.url}/node/containerlogs/container_1_1_1_1/spark"
            killed = app(amContainerLogs=logs, state="KILLED", diagnostics="Container killed on request")
            told = cluster(killed, node={"nodeHTTPAddress": listed})
            with hostile_server(answering(told)) as server:
                assert ("secret" in launcher.logs(handle(server.url), 1000)) == is_told
                assert launcher.status(handle(server.url)).state != "exited"
            assert bool(other.paths) == is_told


def test_a_node_that_is_this_machine_is_not_asked_for_a_cluster_elsewhere() -> None:
    """Neither is the address of a cloud's metadata."""
    manager = yarn_api.ResourceManager(["http://rm.example:8088"])
    manager._active = manager.addresses[0]
    for address in ("127.0.0.1", "::1", "169.254.169.254", "fe80::1%eth0", "::ffff:127.0.0.1", "0.0.0.0"):  # noqa: S104
        assert manager._is_no_node(address)
    assert not manager._is_no_node("10.0.0.7")


def test_a_link_leads_to_the_cluster_only(launcher: YarnLauncher) -> None:
    """The address that an application gives of itself may be any."""
    for tracking, is_linked in (
        ("http://evil.example/proxy", False),
        ("javascript:alert(1)", False),
        ("http://[::1", False),
        ("http://127.0.0.1:20888/proxy/x\nevil", False),
        ("http://127.0.0.1:20888/proxy/x", True),
    ):
        with hostile_server(answering(cluster(app(trackingUrl=tracking)))) as server:
            assert ("Spark UI" in launcher.links(handle(server.url))) == is_linked


ODD: Mapping[str, Mapping[str, object]] = {
    "no info": {"/cluster/info": {"clusterInfo": []}},
    "an odd state of the server": {"/cluster/info": {"clusterInfo": {"state": "STARTED", "haState": 3}}},
    "no list": {"/cluster/info": INFO, "/cluster/apps": {"apps": []}},
    "a text": {"/cluster/info": INFO, "/cluster/apps": {"apps": {"app": "x"}}, f"/apps/{APP}": {"app": [1]}},
    "an id with a path": cluster(app(id="application_1_1/../../x")),
    "a number as id": cluster(app(id=7)),
    "a list as state": cluster(app(state=[])),
    "another state": cluster(app(state="LOST")),
    "odd times": cluster(app(state="KILLED", startedTime="x", finishedTime=None, amContainerLogs=3, diagnostics=[])),
    "odd results": cluster(app(state="FINISHED", diagnostics={}, finalStatus=[], user="../../etc")),
    "odd attempts": cluster(app(), attempt={"appAttemptState": [], "nodeId": {}, "containerId": 3}),
    "an odd node": cluster(app(), node={"nodeHTTPAddress": 1}),
    "no attempts": {**cluster(app(state="KILLED")), "/appattempts": {}},
    "attempts of another kind": {**cluster(app(state="KILLED")), "/appattempts": {"appAttempts": ["x"]}},
    "an attempt of another kind": {**cluster(app(state="KILLED")), "/appattempts": {"appAttempts": {"appAttempt": 1}}},
    "long texts": cluster(app(queue="a\nb" + "x" * 5000), attempt={"appAttemptState": "NEW"}),
}


@pytest.mark.parametrize("answers", ODD.values(), ids=ODD)
def test_answers_of_odd_types_never_end_a_driver(launcher: YarnLauncher, answers: Mapping[str, object]) -> None:
    """No error reaches the caller, and what people see is one line."""
    with hostile_server(answering(answers)) as server:
        for status in (launcher.status(handle(server.url)), launcher.kill(handle(server.url), 0.0)):
            assert not status.has_ended
            assert len(status.reason.splitlines()) <= 1
            assert len(status.reason) < 1000
        assert launcher.logs(handle(server.url), 1000) == ""
        launcher.links(handle(server.url))


@pytest.mark.parametrize(
    "data",
    [
        {"application_id": "../../x"},
        {"application_id": 3},
        {"tag": "x&user.name=root"},
        {"resource_managers": 3},
        {"resource_managers": ["file:///etc/passwd"]},
        {"user": ["x"]},
    ],
    ids=str,
)
def test_a_handle_with_odd_values_asks_nobody(launcher: YarnLauncher, data: dict[str, object]) -> None:
    """Ids are checked by pattern before they become part of an address."""
    with hostile_server(answering(cluster(app()))) as server:
        asked = handle(server.url, **data)
        assert launcher.status(asked).state == "unknown"
        assert not launcher.kill(asked, 0.0).has_ended
        assert (launcher.logs(asked, 100), launcher.links(asked), server.paths) == ("", {}, [])


def test_a_user_of_the_cluster_names_no_other_folder(launcher: YarnLauncher) -> None:
    """The name of an application's user is part of the path that is removed after its end."""
    told = cluster(app(state="FINISHED", finalStatus="SUCCEEDED", user="../.."))
    with hostile_server(answering(told)) as server, pytest.raises(UnavailableError, match="impossible user"):
        launcher.forget(handle(server.url))


def test_a_forged_record_is_refused(launcher: YarnLauncher) -> None:
    """Whatever decides whom it reaches; and nothing is asked to find that out."""
    with hostile_server(answering(cluster(app()))) as server:
        place = replace(PLACE, options={"resource_manager": "http://rm.example:8088", "staging_dir": "file:/staging"})
        right = launcher.handle_at(place, handle("http://rm.example:8088"))
        assert launcher.handle_at(place, right) == right
        forged: list[dict[str, object]] = [
            {"resource_managers": [server.url]},
            {"resource_managers": server.url},
            {"staging_dir": "file:/home"},
            {"user": "root"},
            {"tag": tag_of(replace(PLACE, scope="home/other"), "streamstate")},
            {"application_id": "application_1_1/../../x"},
            {"application_id": None},
        ]
        for data in forged:
            with pytest.raises(UntrustedRecordError):
                launcher.handle_at(place, handle("http://rm.example:8088", **data))
        assert server.paths == []


def test_a_forged_staging_folder_is_not_removed(launcher: YarnLauncher, tmp_path: Path) -> None:
    """Only the folder of the application below the one that the reader's options name."""
    kept, removed = tmp_path / "kept" / ".sparkStaging" / APP, tmp_path / "staging" / ".sparkStaging" / APP
    for folder in (kept, removed):
        folder.mkdir(parents=True)
    ended = cluster(app(state="FINISHED", finalStatus="SUCCEEDED"))
    with hostile_server(answering(ended)) as server:
        options = {"resource_manager": server.url, "staging_dir": f"file:{tmp_path / 'staging'}"}
        place = replace(PLACE, options=options)
        launcher.forget(launcher.handle_at(place, handle(server.url, hadoop_conf_dir="/etc/forged")))
        with pytest.raises(UntrustedRecordError):
            launcher.handle_at(place, handle(server.url, staging_dir=f"file:{tmp_path / 'kept'}"))
    assert (kept.is_dir(), removed.is_dir()) == (True, False)


def test_the_application_of_another_launch_is_neither_told_nor_killed(launcher: YarnLauncher) -> None:
    """An id of the right form may be that of any application: its tags show whose it is."""
    answers = cluster(app())
    answers = {**answers, "/cluster/apps": {"apps": None}, f"/apps/{APP}": {"app": app(applicationTags="other")}}
    with hostile_server(answering(answers)) as server:
        status = launcher.status(handle(server.url))
        assert (status.state, "another launch" in status.reason) == ("unknown", True)
        assert not launcher.kill(handle(server.url), 0.0).has_ended
        assert not [path for path in server.paths if path.endswith("/state")]
