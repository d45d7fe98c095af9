"""A real Kafka broker on loopback: one node in KRaft mode, from the jars of Maven, on free ports."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.maven import fetch_jars, pinned
from support.versitygw import die_with_the_test

VERSION = "4.1.0"
START_SECONDS = 90
STOP_SECONDS = 30
# Partitions without a leader after a restart get one at once.
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={logs}
num.partitions=1
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
delete.topic.enable=true
controlled.shutdown.enable=true
broker.session.timeout.ms=1000
broker.heartbeat.interval.ms=200
log.retention.check.interval.ms=3600000
log.segment.delete.delay.ms=100
file.delete.delay.ms=100
"""
_LOGGING = """\
<Configuration status="off"><Appenders><Console name="out" target="SYSTEM_OUT">
<PatternLayout pattern="%d %p %c{1} %m%n"/></Console></Appenders>
<Loggers><Root level="WARN"><AppenderRef ref="out"/></Root></Loggers></Configuration>
"""


class KafkaBroker:
    """One broker; what it keeps outlives its process until the folder is deleted.

    Attributes:
        servers: for ``bootstrap.servers``; the same over restarts.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._jars = fetch_jars(f"kafka-{VERSION}", pinned(Path(__file__).with_name("kafka_broker_jars.txt")))
        port, controller_port = _free_ports(2)
        self._port = port
        self.servers = f"127.0.0.1:{port}"
        self._log = folder / "broker.log"
        self._properties = folder / "server.properties"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "log4j2.xml").write_text(_LOGGING)
        self._properties.write_text(
            _PROPERTIES.format(port=port, controller_port=controller_port, logs=folder / "logs")
        )
        self._process: subprocess.Popen[bytes] | None = None
        cluster_id = self._run_to_end("kafka.tools.StorageTool", "random-uuid").split()[-1]
        self._run_to_end("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(self._properties))

    def _java(self, main: str, *arguments: str) -> list[str]:
        java_home = os.environ.get("JAVA_HOME")
        java = str(Path(java_home) / "bin" / "java") if java_home else shutil.which("java") or "java"
        options = ["-Xmx256m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
        logging = f"-Dlog4j2.configurationFile={self._folder / 'log4j2.xml'}"
        return [java, *options, logging, "-cp", f"{self._jars}/*", main, *arguments]

    def _run_to_end(self, main: str, *arguments: str) -> str:
        done = subprocess.run(
            self._java(main, *arguments), capture_output=True, text=True, check=False, timeout=START_SECONDS
        )
        if done.returncode != 0:
            raise RuntimeError(f"{main} {arguments[0]}: {done.stdout[-1000:]} {done.stderr[-2000:]}")
        return done.stdout

    def start(self) -> None:
        """Start it, and wait until it answers; where it runs already, nothing."""
        if self._process is not None and self._process.poll() is None:
            return
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._java("kafka.Kafka", str(self._properties)),
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=die_with_the_test,
            )
        self._wait_until_it_answers()

    def kill(self) -> None:
        """End it at once, as a machine that is lost; ``start`` brings it back with all that was written."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it in order."""
        self._end(signal.SIGTERM)

    def _end(self, with_signal: signal.Signals) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(with_signal)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_SECONDS)

    def _wait_until_it_answers(self) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        process = self._process
        until = time.monotonic() + START_SECONDS  # noqa: TID251 - a real process
        while process is not None and process.poll() is None and time.monotonic() < until:  # noqa: TID251
            try:
                with socket.create_connection(("127.0.0.1", self._port), timeout=1):
                    pass
                if AdminClient({"bootstrap.servers": self.servers}).list_topics(timeout=5).brokers:
                    return
            except (OSError, KafkaException):
                time.sleep(0.1)  # noqa: TID251
        status = None if process is None else process.poll()
        raise RuntimeError(f"the broker does not answer (status {status}): {self._log.read_text()[-2000:]}")


@contextmanager
def kafka_broker() -> Iterator[KafkaBroker]:
    """A running broker without a topic. It is gone afterwards, also after a failure."""
    with tempfile.TemporaryDirectory(prefix="streamstate-kafka-", ignore_cleanup_errors=True) as folder:
        broker = KafkaBroker(Path(folder))
        try:
            broker.start()
            yield broker
        finally:
            broker.kill()


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
