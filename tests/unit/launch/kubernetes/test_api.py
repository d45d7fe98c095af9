"""What answers of a cluster mean, from a real server on loopback that answers as clusters in trouble do."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("kubernetes")

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.errors import InvalidRequestError, OutcomeUnknownError, StreamStateError, UnavailableError
from airflow_streamstate.launch import kubernetes_api
from airflow_streamstate.launch.interface import LaunchHandle, LaunchRequest
from airflow_streamstate.launch.kubernetes import KubernetesLauncher
from support.loopback import QuietHandler, free_port, served


@dataclass
class Trouble:
    """A server that answers every request of a method with this status."""

    url: str
    statuses: dict[str, int] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    message: str = "said so"


@pytest.fixture
def trouble() -> Iterator[Trouble]:
    found = Trouble("")

    class Handler(QuietHandler):
        def answer(self) -> None:
            self.body()
            found.asked.append(f"{self.command} {self.path}")
            status = found.statuses.get(self.command, 200)
            if status == 0:
                self.close_connection = True
                return
            body = json.dumps({"message": found.message, "metadata": {"uid": "u"}}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self.answer()

        def do_POST(self) -> None:
            self.answer()

        def do_DELETE(self) -> None:
            self.answer()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    with served(server):
        yield found


@pytest.fixture
def kubeconfig(tmp_path: Path, trouble: Trouble) -> Path:
    return _kubeconfig(tmp_path, trouble.url)


def _kubeconfig(folder: Path, url: str) -> Path:
    path = folder / "kubeconfig"
    content = {
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": "a-token-of-somebody"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
    path.write_text(json.dumps(content))
    return path


def _handle(kubeconfig: Path) -> LaunchHandle:
    facts = {"namespace": "n", "pod": "p", "uid": "u", "kubeconfig": str(kubeconfig)}
    return LaunchHandle("kubernetes", "d-0001-a0001", facts)


def _request(base: Path, kubeconfig: Path) -> LaunchRequest:
    script = base / "job.py"
    script.write_text("print('job')\n")
    return LaunchRequest(
        launch_key="d-0001-a0001",
        application=str(script),
        master="local[1]",
        folder=str(base / "launch"),
        log_path=str(base / "launch" / "driver.log"),
        launcher="kubernetes",
        scope="home/stream",
        options={"image": "spark:1", "kubeconfig": str(kubeconfig)},
    )


@pytest.mark.parametrize(
    ("status", "words"),
    [(401, "expired"), (403, "forbids"), (429, "too often"), (500, "HTTP status 500"), (503, "503"), (0, "not answer")],
)
def test_no_answer_is_ever_an_end(trouble: Trouble, kubeconfig: Path, status: int, words: str) -> None:
    """Each is unknown, with its reason; a kill does not turn it into an end, and is asked once each time."""
    trouble.statuses = {"GET": status, "DELETE": status}
    launcher = KubernetesLauncher(SYSTEM_CLOCK)
    for found in (launcher.status(_handle(kubeconfig)), launcher.kill(_handle(kubeconfig), 0.0)):
        assert (found.state, found.reported_end) == ("unknown", False)
        assert words in found.reason
        assert "a-token-of-somebody" not in found.reason
    assert len(trouble.asked) == 2
    assert launcher.logs(_handle(kubeconfig), 100) == ""


def test_a_server_that_hangs_is_unknown(trouble: Trouble, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time for an answer is short, and is waited for once."""
    monkeypatch.setattr(kubernetes_api, "READ_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        path = _kubeconfig(kubeconfig.parent, f"http://127.0.0.1:{silent.getsockname()[1]}")
        found = KubernetesLauncher(SYSTEM_CLOCK).status(_handle(path))
    assert found.state == "unknown"
    assert "does not answer" in found.reason


def test_a_token_goes_to_no_other_machine_in_plain_text(tmp_path: Path) -> None:
    """Over http everybody on the way reads it, and may use it."""
    handle = _handle(_kubeconfig(tmp_path, "http://cluster.example:8080"))
    status = KubernetesLauncher(SYSTEM_CLOCK).status(handle)
    assert (status.state, "a token would go over http" in status.reason) == ("unknown", True)


@pytest.mark.parametrize(
    ("get", "post", "error"),
    [
        (403, 200, UnavailableError),
        (500, 200, UnavailableError),
        (404, 401, InvalidRequestError),
    ],
)
def test_a_launch_that_was_refused_says_what_to_do(
    trouble: Trouble, kubeconfig: Path, tmp_path: Path, get: int, post: int, error: type[StreamStateError]
) -> None:
    """Nothing was started, and the next step is named."""
    trouble.statuses = {"GET": get, "POST": post}
    with pytest.raises(error) as raised:
        KubernetesLauncher(SYSTEM_CLOCK).launch(_request(tmp_path, kubeconfig))
    assert raised.value.next_step
    assert not any(asked.startswith("POST /api/v1/namespaces/default/pods") for asked in trouble.asked)


@pytest.mark.parametrize("status", [500, 504, 0])
def test_a_create_without_an_answer_may_have_been_one(
    trouble: Trouble, kubeconfig: Path, tmp_path: Path, status: int
) -> None:
    """The same key again reports it; nothing proves that it was not started."""

    class NoPodYet(dict[str, int]):
        def get(self, method: str, default: int = 200) -> int:  # type: ignore[override]
            if method == "GET":
                return 404 if "/pods/" in trouble.asked[-1] else 200
            return status

    trouble.statuses = NoPodYet()
    with pytest.raises(OutcomeUnknownError, match="same key"):
        KubernetesLauncher(SYSTEM_CLOCK).launch(_request(tmp_path, kubeconfig))
    assert len([asked for asked in trouble.asked if asked.startswith("POST")]) == 1


def test_credentials_that_were_refused_are_read_anew(trouble: Trouble, kubeconfig: Path) -> None:
    """A kubeconfig with a new token is taken without a restart of the controller."""
    launcher = KubernetesLauncher(SYSTEM_CLOCK)
    trouble.statuses = {"GET": 401}
    assert "expired" in launcher.status(_handle(kubeconfig)).reason
    _kubeconfig(kubeconfig.parent, f"http://127.0.0.1:{free_port()}")
    assert "does not answer" in launcher.status(_handle(kubeconfig)).reason


def test_a_connection_of_airflow_is_used_and_needs_airflow(trouble: Trouble, kubeconfig: Path) -> None:
    """The client that Airflow makes is asked; in the shell one sentence reports what is missing."""
    import kubernetes

    def connect(conn_id: str) -> object:
        assert conn_id == "kubernetes_default"
        configuration = kubernetes.client.Configuration()
        configuration.host = trouble.url
        return kubernetes.client.ApiClient(configuration)

    facts = {**_handle(kubeconfig).data, "conn_id": "kubernetes_default"}
    handle = LaunchHandle("kubernetes", "d-0001-a0001", facts)
    trouble.statuses = {"GET": 500}
    assert "HTTP status 500" in KubernetesLauncher(SYSTEM_CLOCK, connect).status(handle).reason
    assert len(trouble.asked) == 1, "the client's own tries were left on"
    assert "Airflow is not here" in KubernetesLauncher(SYSTEM_CLOCK).status(handle).reason
