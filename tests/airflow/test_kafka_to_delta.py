"""Kafka to Delta on a standalone cluster with everything on S3, upgraded by the real DAG."""

from __future__ import annotations

import itertools
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.controller.home import HomeConfig
from airflow_streamstate.controller.request.requests import deploy_request
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.protocol import layout
from airflow_streamstate.store.options import StoreOptions
from support import quick_jvm
from support.airflow_streams import NamedHome, named_by
from support.cluster import EXECUTOR_CONF, Cluster, cluster
from support.dag_results import returned
from support.flights import JOBS, counts, lines_of_flights
from support.kafka_broker import KafkaBroker, kafka_broker
from support.kafka_topics import spark_jars
from support.launches import wait_until
from support.s3_server import BUCKET, options_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(2400),
    pytest.mark.filterwarnings("ignore:Using .httpx. with"),  # Airflow's in-process API server, not ours
]

DELTA = "io.delta:delta-spark_4.2_2.13:4.4.0"
TOPIC = "flights"
ROWS_PER_SECOND = 60
UPGRADES = ("destination",)
CONF = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "800m",
    "spark.driver.extraJavaOptions": quick_jvm.OPTIONS,
    "spark.cores.max": "2",
    **EXECUTOR_CONF,
}


def flights_for_ever() -> Iterator[str]:
    """The flights, and when they are at their end the same again a year later."""
    for year in itertools.count(2001):
        for line in lines_of_flights():
            yield line.replace('"date":"2001/', f'"date":"{year}/')


class Producer:
    """Sends flights one after the other, at an even pace, until it is asked to stop.

    Attributes:
        sent: the lines that the broker has acknowledged.
    """

    def __init__(self, broker: KafkaBroker) -> None:
        from confluent_kafka import Producer as KafkaProducer

        self.sent: list[str] = []
        self._lines = flights_for_ever()
        self._producer = KafkaProducer({"bootstrap.servers": broker.servers, "enable.idempotence": True})
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._ends.wait(0.1):
            for _ in range(ROWS_PER_SECOND // 10):
                line = next(self._lines)
                self._producer.produce(TOPIC, line.encode(), on_delivery=self._delivered)
            self._producer.flush(60)

    def _delivered(self, error: Any, message: Any) -> None:
        assert error is None, error
        self.sent.append(message.value().decode())

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End it; everything in ``sent`` is all that there is."""
        self._ends.set()
        self._thread.join(120)
        assert not self._thread.is_alive()


@contextmanager
def sending(broker: KafkaBroker) -> Iterator[Producer]:
    """A producer at work, ended also after a failure."""
    producer = Producer(broker)
    producer.start()
    try:
        yield producer
    finally:
        producer.stop()


def make_topic(broker: KafkaBroker, partitions: int) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": broker.servers})
    for made in admin.create_topics([NewTopic(TOPIC, partitions, 1)]).values():
        made.result(60)


def rows_of(table: Path) -> list[dict[str, Any]]:
    """The rows of a Delta table that nothing was ever removed from, by its log."""
    import pyarrow.parquet as parquet

    entries = [path for path in sorted((table / "_delta_log").glob("*.json")) if path.stem.isdigit()]
    actions = [json.loads(line) for path in entries for line in path.read_text().splitlines()]
    assert not any("remove" in action for action in actions)
    files = [table / action["add"]["path"] for action in actions if "add" in action]
    return [row for file in files for row in parquet.read_table(file).to_pylist()]


def records_read(home: NamedHome, deployment_id: str) -> int:
    """Records that the committed batches of a deployment and its predecessors have read."""
    checkpoint = Checkpoint(home.home.checkpoints, layout.checkpoint_folder("flights", deployment_id, "delays"))
    position = checkpoint.position()
    entry = None if position.batch_id is None else checkpoint.read_offset(position.batch_id)
    return 0 if entry is None else sum(json.loads(entry.source_lines[0])[TOPIC].values())


@pytest.fixture
def home(real_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NamedHome]:
    """Home and checkpoints on a real S3 server; launches in a folder."""
    options = StoreOptions(options_for(real_url))
    config = HomeConfig(f"s3://{BUCKET}/{tmp_path.name}", None, options, work_dir=str(tmp_path / "here"))
    with named_by(config, tmp_path, monkeypatch) as made:
        yield made


@pytest.fixture
def on_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster that an Airflow connection names."""
    with cluster() as made:
        connection = {"conn_type": "spark", "host": "spark://127.0.0.1", "port": made.port}
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_CLUSTER", json.dumps(connection))
        monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        yield made


@pytest.mark.named
def test_kafka_to_delta_is_drained_and_redeployed_under_load(
    home: NamedHome, on_cluster: Cluster, run_dag: Any, tmp_path: Path
) -> None:
    """With a producer running all the while: each flight is counted once, by one version or by the next (Law 9)."""
    table = tmp_path / "delays"
    conf = {**CONF, "spark.jars.packages": DELTA, "spark.jars": spark_jars()}
    hook = home.hook()
    with kafka_broker() as broker:
        make_topic(broker, partitions=2)
        arguments = ["--servers", broker.servers, "--topic", TOPIC, "--table", str(table)]
        with sending(broker) as producer:
            first = deploy_request(
                "flights",
                JOBS / "kafka_to_delta.py",
                arguments=(*arguments, "--by", "origin"),
                spark_conn_id="spark_cluster",
                conf=conf,
            )
            hook.client.deploy(first)
            hook.client.wait(WaitCondition("healthy", "flights", "d-0001"), timeout_seconds=300)
            for number, by in enumerate(UPGRADES, 2):
                was = len(producer.sent)
                wait_until(lambda was=was: len(producer.sent) > was + 5 * ROWS_PER_SECOND, "more flights", 120)
                params = {
                    "application": str(JOBS / "kafka_to_delta.py"),
                    "arguments": [*arguments, "--by", by],
                    "spark_conn_id": "spark_cluster",
                    "conf": conf,
                    "healthy_deadline_seconds": 300,
                }
                dag_run = run_dag("upgrade_stream", params)
                assert returned(dag_run, "drained")["state_rows_left"] == 0
                deployed = returned(dag_run, "deploy")
                assert (deployed["deployment_id"], deployed["start"]["mode"]) == (f"d-{number:04d}", "seed")
        last = f"d-{len(UPGRADES) + 1:04d}"
        wait_until(lambda: records_read(home, last) == len(producer.sent), "all flights read", 180)
        command = hook.client.order("drain", "flights")
        watch = WaitCondition("drained", "flights", last, command_id=command.command_id)
        assert hook.client.wait(watch, timeout_seconds=300).need_result()["state_rows_left"] == 0
    rows = rows_of(table)
    by_day = Counter[str]()
    for row in rows:
        by_day[f"{row['day']:%Y-%m-%d}"] += row["flights"]
    sent = counts(producer.sent)
    assert by_day == Counter({day: count for (day,), count in sent.items()})
    assert sum(row["delay_sum"] for row in rows) == sum(json.loads(line)["delay"] for line in producer.sent)
    assert {row["counted_by"] for row in rows} == {"origin", "destination"}
