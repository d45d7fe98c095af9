"""Partitioned sources under real Spark and the runner: a life with a kill, a rotation, an upgrade, an end."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from http.server import ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.observe.lineage import Lineage, lineage_of
from airflow_streamstate.protocol.events import Drained, QueryStarted, Stopped
from airflow_streamstate.protocol.records import StartPlan
from support.drivers import STREAM, Deployments
from support.loopback import QuietHandler, served

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_jvm")]

SCRIPT = (Path(__file__).parents[2] / "dags" / "sources" / "shops.py").read_text()
ORDERS = 60


class Api(ThreadingHTTPServer):
    """Two shops with a page for each question, and a book of the questions; ``may_close``: no order will follow."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Pages)
        self.asked: Counter[str] = Counter()
        self.may_close = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Pages(QuietHandler):
    server: Api

    def do_GET(self) -> None:
        where = urlsplit(self.path)
        body: object = ["left", "right"]
        if where.path == "/orders":
            asked = {name: values[0] for name, values in parse_qs(where.query).items()}
            after, limit = int(asked["after"]), min(int(asked["limit"]), 20)
            numbers = range(after + 1, min(after + limit, ORDERS) + 1)
            orders = [{"number": n, "at": f"2026-01-01T00:00:{n - 1:02d}+00:00", "amount": n / 2} for n in numbers]
            self.server.asked.update(f"{asked['shop']} {n}" for n in numbers)
            body = {"orders": orders, "closed": self.server.may_close.is_set()}
        text = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


def _write(path: Path, first: int, last: int) -> None:
    with path.open("a") as file:
        file.writelines(f"2026-01-01T00:{n // 60:02d}:{n % 60:02d}Z,{n}\n" for n in range(first, last))


@pytest.mark.named
def test_a_stream_of_parts_is_killed_upgraded_and_drains_itself(tmp_path: Path) -> None:
    """Each line of rotated files and each order of an API that is read ahead comes out once (Laws 5, 9)."""
    logs, api = tmp_path / "logs", Api()
    arguments = (api.url, f"{logs}/*.log", str(tmp_path / "spool"), str(tmp_path / "out"))
    with Deployments(tmp_path) as stream, served(api):
        logs.mkdir()
        _write(logs / "a.log", 0, 100)
        _write(logs / "b.log", 0, 50)
        first = stream.deploy(SCRIPT, *arguments)
        stream.wait_committed("lines", 0, first)
        stream.wait_committed("revenue", 0, first)
        first.kill()
        _write(logs / "a.log", 100, 110)
        (logs / "a.log").rename(logs / "a.log.1")
        _write(logs / "a.log", 110, 200)

        second = stream.resume()
        stream.wait_event(QueryStarted, second, count=4)
        stream.wait_committed("lines", max(stream.committed("lines")) + 1, second)
        stream.stop()
        assert second.exit_status() == 0, second.log
        (stopped,) = stream.events(Stopped)

        _write(logs / "b.log", 50, 60)
        changed = SCRIPT.replace('maxPerTrigger="100"', 'maxPerTrigger="10"')
        third = stream.deploy(changed, *arguments, start=StartPlan("restore", stopped.snapshot_id, "d-0001"))
        for name in ("a", "b"):
            (logs / f"{name}.log.done").touch()
        api.may_close.set()
        drained = stream.wait_event(Drained, third)
        assert third.exit_status() == 0, third.log
        assert drained.reason == "self-drained: all 4 parts finished"
        assert "2 parts in 2 tasks" in third.log
        assert _audit(stream).is_whole, _audit(stream).to_json()

        lines, revenue = stream.output("out/lines"), stream.output("out/revenue")
        assert _sums(lines) == (260, sum(range(200)) + sum(range(60)))
        assert _sums(revenue) == (2 * ORDERS, sum(range(1, ORDERS + 1)))
        assert max(api.asked.values()) <= 2  # of a poll that the kill cut off before its rows were kept


def _sums(rows: Iterable[Mapping[str, object]]) -> tuple[int, float]:
    return sum(int(str(row["n"])) for row in rows), sum(float(str(row["s"])) for row in rows)


def _audit(stream: Deployments) -> Lineage:
    return lineage_of(Home.of(stream.home, stream.home, stream.base / "launches", SYSTEM_CLOCK), STREAM)
