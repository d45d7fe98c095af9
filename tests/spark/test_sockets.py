"""A socket under real Spark: no start continues from its offsets unless accepted; an audit finds one that went back."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.observe.lineage import Lineage, lineage_of
from airflow_streamstate.plan.record import recorded_plans
from airflow_streamstate.protocol.events import Failed, QueryStarted, Stopped
from airflow_streamstate.protocol.records import StartPlan
from support.drivers import STREAM, Deployments

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_jvm")]

SCRIPT = """
import sys
from pyspark.sql import SparkSession

base, port = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
lines = spark.readStream.format("socket").option("host", "127.0.0.1").option("port", port).load()
query = lines.writeStream.queryName("lines").format("json").trigger(processingTime="200 milliseconds")
query.start(base + "/out").awaitTermination()
"""


@pytest.fixture
def port() -> Iterator[int]:
    """A server that sends a line every 50 ms to each that connects, from 0 on."""
    server = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def send(connection: socket.socket) -> None:
        number = 0
        with suppress(OSError), connection:
            while not over.wait(0.05):
                connection.sendall(f"{number}\n".encode())
                number += 1

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                threading.Thread(target=send, args=(connection,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    yield server.getsockname()[1]
    over.set()
    server.close()


def test_no_start_goes_on_from_a_socket_unless_it_is_accepted(tmp_path: Path, port: int) -> None:
    """Resumed, Spark would commit -1 over a good position and fail. Refused, the position stays; accepted, it starts
    again behind the batch where it stood, and its batch ids continue (Laws 5, 9)."""
    arguments = str(tmp_path), str(port)
    with Deployments(tmp_path) as stream:
        first = stream.deploy(SCRIPT, *arguments)
        stream.wait_committed("lines", 3, first)
        stream.stop()
        assert first.exit_status() == 0, first.log
        (stopped,) = stream.events(Stopped)
        (stood_at,) = stopped.queries["lines"].end_offsets
        assert int(stood_at) > 0
        assert any("sends each row once" in word for word in stream.events(QueryStarted)[0].remarks)
        assert recorded_plans(stream.control, "d-0001")["lines"].sources[0].sends_once

        assert stream.resume().exit_status() == 1
        assert "sends each row once" in stream.events(Failed)[-1].error
        found = _audit(stream)
        assert (found.is_whole, [one.source for one in found.sent_once]) == (True, [f"socket 127.0.0.1:{port}"])
        last_id = stopped.queries["lines"].batch_id
        assert Checkpoint(stream.home, stream.checkpoint_key("lines")).position().batch_id == last_id

        start = StartPlan("restore", stopped.snapshot_id, "d-0001", accept_lost_input=("lines",))
        second = stream.deploy(SCRIPT, *arguments, start=start)
        began = stream.wait_event(QueryStarted, second)
        assert (began.how, began.batch_id) == ("restored", last_id)
        assert began.batch_id is not None
        stream.wait_committed("lines", began.batch_id + 2, second)
        stream.stop()
        assert second.exit_status() == 0, second.log
        found = _audit(stream)
        told = [(one.kind, one.ended_at, one.began_at, one.accepted) for one in found.breaks]
        assert told == [("gap", stood_at, "-", True)], found.to_json()
        assert found.is_whole, found.to_json()


def _audit(stream: Deployments) -> Lineage:
    home = Home.of(stream.home, stream.home, stream.base / "launches", SYSTEM_CLOCK)
    return lineage_of(home, STREAM)
