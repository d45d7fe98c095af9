"""Kafka topics of a test: made, written to, truncated, read."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from support.drivers import wait_until
from support.maven import fetch_jars
from support.sink_runs import kafka_jars, pinned_jars
from support.sparks import IN_FULL

ANSWER_SECONDS = 60


def spark_jars(spark: str = IN_FULL) -> str:
    """Spark's own connector and what it needs, for ``spark.jars``.

    The packages would do for a user; that Maven Central lacks one of the four at this version is what the fixture is
    about (``spark-token-provider-kafka``, of which an older one works).
    """
    parts = kafka_jars(spark)
    jars = {path: digest for path, digest in pinned_jars().items() if any(part in path for part in parts)}
    folder = fetch_jars(f"spark-kafka-{spark}", jars)
    return ",".join(str(jar) for jar in sorted(folder.glob("*.jar")))


class Topics:
    """What a test does with a broker; use as a context manager, which ends its producers.

    Args:
        prefix: makes the names of topics this test's own.
    """

    def __init__(self, servers: str, prefix: str) -> None:
        self.servers = servers
        self._prefix = f"{prefix[:40]}-{uuid.uuid4().hex[:6]}"  # noqa: TID251 - a name
        self._admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        self._flows: list[Flow] = []

    def __enter__(self) -> Topics:
        return self

    def __exit__(self, *_: object) -> None:
        for flow in self._flows:
            flow.stop()

    def name(self, short: str) -> str:
        """The full name of a topic of this test."""
        return f"{self._prefix}-{short}"

    def create(self, short: str, partitions: int = 1) -> str:
        """A topic, there when this comes back; its name."""
        name = self.name(short)

        def made() -> bool:
            try:
                self._admin.create_topics([NewTopic(name, partitions, 1)])[name].result(ANSWER_SECONDS)
            except KafkaException as error:
                if "EXISTS" in str(error):  # one of the name is still being deleted
                    return False
                raise
            return True

        wait_until(made, lambda: f"topic {name}", ANSWER_SECONDS)
        wait_until(lambda: self._partitions(name) == partitions, lambda: f"partitions of {name}", ANSWER_SECONDS)
        return name

    def delete(self, name: str) -> None:
        """No topic of this name when this comes back."""
        self._admin.delete_topics([name])[name].result(ANSWER_SECONDS)
        wait_until(lambda: self._partitions(name) == 0, lambda: f"the end of {name}", ANSWER_SECONDS)

    def add_partitions(self, name: str, total: int) -> None:
        """The topic has ``total`` partitions when this returns."""
        self._admin.create_partitions([NewPartitions(name, total)])[name].result(ANSWER_SECONDS)
        wait_until(lambda: self._partitions(name) == total, lambda: f"partitions of {name}", ANSWER_SECONDS)

    def remove_before(self, name: str, partition: int, offset: int) -> None:
        """What retention does: nothing below this offset is there any more."""
        at = TopicPartition(name, partition, offset)
        for future in self._admin.delete_records([at]).values():
            future.result(ANSWER_SECONDS)

    def _partitions(self, name: str) -> int:
        found = self._admin.list_topics(timeout=ANSWER_SECONDS).topics.get(name)
        return 0 if found is None or found.error is not None else len(found.partitions)

    def write(self, name: str, values: Iterable[object], partition: int | None = None) -> None:
        """These values as JSON, all there when this comes back."""
        producer = Producer({"bootstrap.servers": self.servers, "log_level": 0, "enable.idempotence": True})
        for value in values:
            where = {} if partition is None else {"partition": partition}
            producer.produce(name, json.dumps(value).encode(), **where)
        assert producer.flush(ANSWER_SECONDS) == 0

    def read(self, name: str) -> list[Any]:
        """Every value that is there for a consumer of isolation read_committed, as JSON."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": uuid.uuid4().hex,  # noqa: TID251 - a name
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        parts = [TopicPartition(name, number) for number in range(self._partitions(name))]
        ends = {}
        for part in parts:
            part.offset, high = _bounds(consumer, part)
            if part.offset < high:
                ends[part.partition] = high
        consumer.assign(parts)
        found = []
        deadline = time.monotonic() + ANSWER_SECONDS  # noqa: TID251 - a real broker
        # A partition of which nothing has arrived yet has no position: it is not at its end.
        while any(at.offset < ends.get(at.partition, at.offset) for at in consumer.position(parts)):
            assert time.monotonic() < deadline, f"waited for the end of {name}"  # noqa: TID251
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                found.append(json.loads(message.value()))
        consumer.close()
        return found

    def flow(self, name: str, rows_per_second: int) -> Flow:
        """A producer that writes until it is stopped."""
        flow = Flow(self.servers, name, rows_per_second)
        self._flows.append(flow)
        return flow


def _bounds(consumer: Consumer, part: TopicPartition) -> tuple[int, int]:
    """The first offset of a partition and the one behind its last; a partition may have no leader for a moment."""
    found: list[tuple[int, int]] = []
    refused: list[KafkaException] = []

    def is_told() -> bool:
        try:
            found.append(consumer.get_watermark_offsets(part, timeout=ANSWER_SECONDS))
        except KafkaException as error:
            refused.append(error)
        return bool(found)

    wait_until(is_told, lambda: f"the offsets of {part}: {refused[-1:]}", ANSWER_SECONDS)
    return found[0]


class Flow:
    """A producer in its own thread. Row ``i`` has the event time ``i`` times 20 ms, and the value ``i % 7``."""

    def __init__(self, servers: str, topic: str, rows_per_second: int) -> None:
        self._servers = servers
        self._topic = topic
        self._pause_seconds = 10 / rows_per_second
        self.sent = 0
        self._failed: list[str] = []
        self._paused = threading.Event()
        self._stopped = threading.Event()
        self._guard = threading.Lock()
        self._producer = self._new_producer()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _new_producer(self) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self._servers,
                "enable.idempotence": True,
                "message.timeout.ms": 300_000,
                "log_level": 0,
                "partitioner": "random",
                "sticky.partitioning.linger.ms": 0,
            }
        )

    def _run(self) -> None:
        while not self._stopped.is_set():
            with self._guard:
                for _ in range(10):
                    self._producer.produce(self._topic, json.dumps(row(self.sent)).encode(), on_delivery=self._told)
                    self.sent += 1
                self._producer.poll(0)
            time.sleep(self._pause_seconds)  # noqa: TID251 - a real producer

    def _told(self, error: object, _message: object) -> None:
        if error is not None:
            self._failed.append(str(error))

    @contextmanager
    def renewed(self) -> Iterator[None]:
        """Around a change of the topic's partitions: a new producer sees them."""
        with self._guard:
            assert self._producer.flush(ANSWER_SECONDS) == 0
            yield
            self._producer = self._new_producer()

    def stop(self) -> int:
        """Write no more; how many rows there are, all of them delivered."""
        if not self._stopped.is_set():
            self._stopped.set()
            self._thread.join(ANSWER_SECONDS)
            assert self._producer.flush(2 * ANSWER_SECONDS) == 0
            assert self._failed == []
        return self.sent


def row(number: int) -> dict[str, object]:
    """The row of a flow with this number."""
    at_ms = 1_767_225_600_000 + number * 20
    return {"i": number, "t": at_ms, "k": f"k{number % 3}", "v": number % 7}


def sums(rows: Iterable[dict[str, Any]]) -> Counter[str]:
    """Rows and values per key, of single rows or of counted windows."""
    total: Counter[str] = Counter()
    for found in rows:
        total[f"{found['k']} rows"] += int(found.get("n", 1))
        total[f"{found['k']} sum"] += int(found.get("s", found.get("v")))
    return total
