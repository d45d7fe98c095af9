"""Asking a Kafka cluster, through the admin client that Spark's connector brings into the driver's JVM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

ANSWER_SECONDS = 10
_TIMES_MS = {
    "request.timeout.ms": "5000",
    "default.api.timeout.ms": "9000",
    "socket.connection.setup.timeout.ms": "3000",
    "reconnect.backoff.max.ms": "1000",
}
_UNKNOWN = "UnknownTopicOrPartitionException"
NO_TOPIC_ID = "A" * 22
"""How Kafka writes the id of a topic that has none: brokers before 2.8, and servers that only speak like Kafka."""

Partition = tuple[str, int]


@dataclass(frozen=True)
class Topic:
    """A topic that is there.

    Attributes:
        id: what the cluster named it when it was created; another one after it was deleted and created again; "" where
            the cluster names none.
        partitions: their numbers.
    """

    id: str
    partitions: tuple[int, ...]


class KafkaAdmin:
    """Questions to one cluster, each answered within ``ANSWER_SECONDS`` or an error of the JVM's.

    Args:
        jvm: as py4j shows it.
        options: of a source, names in lower case; those that begin with ``kafka.`` are the client's.
    """

    def __init__(self, jvm: Any, options: Mapping[str, str]) -> None:
        self._jvm = jvm
        self._options = options
        self._client: Any = None

    def cluster_id(self) -> str:
        """The cluster's own id; "" where it has none."""
        return str(self._answer(self._connected().describeCluster().clusterId()) or "")

    def topic_names(self) -> list[str]:
        """Every topic that this client may see."""
        return [str(name) for name in self._answer(self._connected().listTopics().names())]

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        """Those of these topics that are there."""
        wanted = self._jvm.java.util.ArrayList()
        for name in names:
            wanted.add(name)
        futures = self._connected().describeTopics(wanted).topicNameValues()
        found = {}
        for entry in futures.entrySet():
            try:
                description = self._answer(entry.getValue())
            except Exception as error:
                if not _is_unknown_topic(error):
                    raise
                continue
            numbers = tuple(int(part.partition()) for part in description.partitions())
            topic_id = str(description.topicId().toString())
            found[str(entry.getKey())] = Topic("" if topic_id == NO_TOPIC_ID else topic_id, numbers)
        return found

    def offsets(self, parts: Sequence[Partition], which: Literal["earliest", "latest"] | int) -> dict[Partition, int]:
        """The first offset that each of these partitions still has, or the one behind its last; or the first whose
        record is of this time, in milliseconds since 1970, or later: -1 where there is none."""
        if not parts:
            return {}
        spec = self._jvm.org.apache.kafka.clients.admin.OffsetSpec
        asked = self._jvm.java.util.HashMap()
        for topic, number in parts:
            partition = self._jvm.org.apache.kafka.common.TopicPartition(topic, number)
            asked.put(partition, _wanted(spec, which))
        answers = self._answer(self._connected().listOffsets(asked).all())
        return {
            (str(entry.getKey().topic()), int(entry.getKey().partition())): int(entry.getValue().offset())
            for entry in answers.entrySet()
        }

    def close(self) -> None:
        """Disconnect."""
        client, self._client = self._client, None
        if client is not None:
            client.close(self._jvm.java.time.Duration.ofSeconds(1))

    def _connected(self) -> Any:
        if self._client is None:
            settings = self._jvm.java.util.Properties()
            own = {name.removeprefix("kafka."): value for name, value in self._options.items() if _is_clients(name)}
            for name, value in (own | _TIMES_MS).items():
                settings.put(name, value)
            self._client = self._jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
        return self._client

    def _answer(self, future: Any) -> Any:
        return future.get(ANSWER_SECONDS, self._jvm.java.util.concurrent.TimeUnit.SECONDS)


def _wanted(spec: Any, which: Literal["earliest", "latest"] | int) -> Any:
    if isinstance(which, int):
        return spec.forTimestamp(which)
    return spec.earliest() if which == "earliest" else spec.latest()


def _is_clients(name: str) -> bool:
    return name.startswith("kafka.")


def _is_unknown_topic(error: Exception) -> bool:
    """By the class that the JVM's error names; a python without py4j is not to need it."""
    raised = getattr(error, "java_exception", None)
    cause = raised.getCause() if raised is not None else None
    return cause is not None and str(cause.getClass().getSimpleName()) == _UNKNOWN
