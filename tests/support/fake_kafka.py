"""A JVM with as much of a Kafka admin client as the connector uses: topics are in a dictionary."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


@dataclass
class FakeTopic:
    """A topic: what each partition still has, as (earliest, latest), and the first offset of each time."""

    id: str
    parts: list[tuple[int, int]]
    times: list[dict[int, int]] = field(default_factory=list)


class _Raised(Exception):  # noqa: N818 - as py4j's
    def __init__(self, name: str) -> None:
        super().__init__(name)
        cause = SimpleNamespace(getClass=lambda: SimpleNamespace(getSimpleName=lambda: name))
        self.java_exception = SimpleNamespace(getCause=lambda: cause)


class _Future:
    def __init__(self, value: Any) -> None:
        self._value = value

    def get(self, _seconds: int, _unit: object) -> Any:
        if isinstance(self._value, Exception):
            raise self._value
        return self._value


class _Map(dict[Any, Any]):
    def put(self, key: Any, value: Any) -> None:
        self[key] = value

    def entrySet(self) -> list[Any]:
        return [SimpleNamespace(getKey=lambda k=k: k, getValue=lambda v=v: v) for k, v in self.items()]


class _List(list[Any]):
    def add(self, value: Any) -> None:
        self.append(value)


@dataclass(frozen=True)
class _Partition:
    name: str
    number: int

    def topic(self) -> str:
        return self.name

    def partition(self) -> int:
        return self.number


@dataclass
class FakeKafka:
    """A cluster and the JVM that reaches it.

    Attributes:
        outage: raised by every answer, where set.
        settings: what the client was made with.
        closed: how often a client was closed.
        groups: the offsets of consumer groups.
    """

    cluster_id: str = "cluster-1"
    topics: dict[str, FakeTopic] = field(default_factory=dict)
    outage: Exception | None = None
    settings: dict[str, str] = field(default_factory=dict)
    closed: int = 0
    groups: dict[str, dict[tuple[str, int], int]] = field(default_factory=dict)

    @property
    def session(self) -> Any:
        """None is needed."""
        return None

    @property
    def jvm(self) -> Any:
        """As py4j shows a JVM."""
        admin = SimpleNamespace(AdminClient=SimpleNamespace(create=self._create), OffsetSpec=_Specs)
        return SimpleNamespace(
            java=SimpleNamespace(
                util=SimpleNamespace(
                    ArrayList=_List,
                    HashMap=_Map,
                    Properties=_Map,
                    concurrent=SimpleNamespace(TimeUnit=SimpleNamespace(SECONDS="s")),
                ),
                time=SimpleNamespace(Duration=SimpleNamespace(ofSeconds=float)),
            ),
            org=SimpleNamespace(
                apache=SimpleNamespace(
                    kafka=SimpleNamespace(
                        clients=SimpleNamespace(
                            admin=admin, consumer=SimpleNamespace(OffsetAndMetadata=lambda offset: offset)
                        ),
                        common=SimpleNamespace(TopicPartition=_Partition),
                    )
                )
            ),
        )

    def _create(self, settings: dict[str, str]) -> FakeKafka:
        self.settings = dict(settings)
        return self

    def _future(self, value: Any) -> _Future:
        return _Future(self.outage or value)

    def describeCluster(self) -> Any:
        return SimpleNamespace(clusterId=lambda: self._future(self.cluster_id))

    def listTopics(self) -> Any:
        return SimpleNamespace(names=lambda: self._future(list(self.topics)))

    def describeTopics(self, names: list[str]) -> Any:
        return SimpleNamespace(
            topicNameValues=lambda: _Map({name: self._future(self._described(name)) for name in names})
        )

    def _described(self, name: str) -> Any:
        topic = self.topics.get(name)
        if topic is None:
            return _Raised("UnknownTopicOrPartitionException")
        numbers = [SimpleNamespace(partition=lambda n=n: n) for n in range(len(topic.parts))]
        return SimpleNamespace(topicId=lambda: _Text(topic.id), partitions=lambda: numbers)

    def listOffsets(self, asked: dict[_Partition, int]) -> Any:
        found = _Map()
        for part, which in asked.items():
            topic = self.topics[part.name]
            at = topic.parts[part.number][which] if which < 2 else topic.times[part.number].get(which, -1)
            found[part] = SimpleNamespace(offset=lambda at=at: at)
        return SimpleNamespace(all=lambda: self._future(found))

    def alterConsumerGroupOffsets(self, group: str, asked: dict[_Partition, int]) -> Any:
        self.groups[group] = {(part.name, part.number): at for part, at in asked.items()}
        return SimpleNamespace(all=lambda: self._future(None))

    def close(self, _duration: float) -> None:
        self.closed += 1


class _Specs:
    @staticmethod
    def earliest() -> int:
        return 0

    @staticmethod
    def latest() -> int:
        return 1

    @staticmethod
    def forTimestamp(time_ms: int) -> int:
        return time_ms


class _Text(str):
    __slots__ = ()

    def toString(self) -> str:
        return str(self)
