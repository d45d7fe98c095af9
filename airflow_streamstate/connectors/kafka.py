"""Kafka: what a topic still has after an offset, how far an offset is behind, and which topic it is of.

Spark's own lag (``offsetsBehindLatest``) is 0 without ``maxOffsetsPerTrigger``, and a rehearsal reads nothing, so the
broker is asked, with the admin client of Spark's connector. Rows are counted as offsets: markers of transactions and
compacted records count, too.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from airflow_streamstate.connectors.source import (
    NO_OFFSET,
    SYSTEM,
    Lag,
    LossReason,
    LostInput,
    Narrowed,
    OffsetOrder,
    Preflight,
    Source,
    SparkDoor,
    Untold,
)
from airflow_streamstate.frozen import dataclass

ANSWER_SECONDS = 10
_TIMES_MS = {
    "request.timeout.ms": "5000",
    "default.api.timeout.ms": "9000",
    "socket.connection.setup.timeout.ms": "3000",
    "reconnect.backoff.max.ms": "1000",
}
NO_TOPIC_ID = "A" * 22
"""How Kafka writes the id of a topic without one: brokers before 2.8, and servers that only speak its protocol."""

Partition = tuple[str, int]


@dataclass(frozen=True)
class Topic:
    """A topic that exists.

    Attributes:
        id: the cluster's id of it, another one once it is deleted and created again; "" where the cluster gives none.
        partitions: their numbers.
    """

    id: str
    partitions: tuple[int, ...]


class KafkaAdmin:
    """Questions to one cluster, each answered within ``ANSWER_SECONDS`` or with an error of the JVM.

    Args:
        jvm: as py4j shows it.
        options: of a source, names in lower case; those that start with ``kafka.`` are the client's.
    """

    def __init__(self, jvm: Any, options: Mapping[str, str]) -> None:
        self._jvm = jvm
        self._options = options
        self._client: Any = None

    def cluster_id(self) -> str:
        """The cluster's own id; "" if not set."""
        return str(self._answer(self._connected().describeCluster().clusterId()) or "")

    def topic_names(self) -> list[str]:
        """Every topic that this client may see."""
        return [str(name) for name in self._answer(self._connected().listTopics().names())]

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        """Those of these topics that exist."""
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
        """By partition its first offset, the one after its last, or that of the first record of this time or later.

        The time is in milliseconds since 1970; -1 if there is no such record.
        """
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

    def commit(self, group: str, offsets: Mapping[Partition, int]) -> None:
        """Keep these offsets as those of a consumer group, which must have no members."""
        asked = self._jvm.java.util.HashMap()
        for (topic, number), at in offsets.items():
            partition = self._jvm.org.apache.kafka.common.TopicPartition(topic, number)
            asked.put(partition, self._jvm.org.apache.kafka.clients.consumer.OffsetAndMetadata(at))
        self._answer(self._connected().alterConsumerGroupOffsets(group, asked).all())

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close(self._jvm.java.time.Duration.ofSeconds(1))

    def _connected(self) -> Any:
        if self._client is None:
            settings = self._jvm.java.util.Properties()
            prefix = "kafka."
            own = {name.removeprefix(prefix): one for name, one in self._options.items() if name.startswith(prefix)}
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


def _is_unknown_topic(error: Exception) -> bool:
    """By the name of the JVM's class: py4j is not imported."""
    raised = getattr(error, "java_exception", None)
    cause = raised.getCause() if raised is not None else None
    return cause is not None and str(cause.getClass().getSimpleName()) == "UnknownTopicOrPartitionException"


CLUSTER = SYSTEM
TOPIC = "topic_id "
_SUBSCRIPTIONS = ("assign", "subscribe", "subscribepattern")
_SETS_OF_JAVA = re.compile(r"&&|(?<!\\)\[[^\]]*(?<!\\)\[")
"""Unions and intersections of characters in a pattern: Python gives them another meaning than Java."""
_SILENT = (
    "failOnDataLoss=false: input that Kafka has no more, or that a new topic of that name has replaced, is passed over"
    " or read again without an error"
)
_AGAIN = "deploy again: the start reports how many rows are gone, and --accept-lost-input continues after them"
# By Spark's error class, and by the text, because the connector's own errors do not show their class.
_REASONS: tuple[tuple[str, str], ...] = (
    (
        r"COULD_NOT_READ_OFFSET_RANGE|START_OFFSET_RESET|Could not read records in offset \["
        r"|Starting offset for \S+ was \d+ but consumer reset to",
        f"rows that it was about to read are gone from Kafka; {_AGAIN}",
    ),
    (
        r"PARTITION_OFFSET_CHANGED|Partition \S+ offset was changed from \d+ to \d+",
        f"a partition ends before the offset that was read already, so its topic was created again; {_AGAIN}",
    ),
    (
        r"PARTITIONS_DELETED(?:_AND_GROUP_ID_CONFIG_PRESENT)?|LOST_TOPIC_PARTITIONS_IN_END_OFFSET"
        r"|Partitions .{1,10000} have been deleted\.|Some of partitions in Kafka topic\(s\) have been lost",
        "partitions that it has offsets of are not there, or it reads another topic now; bring them back, or deploy"
        " with the topics that it read",
    ),
    (
        r"ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO|Added partition \S+ starts from \d+ instead of 0",
        f"a new partition has lost its first rows before they could be read; {_AGAIN}",
    ),
    (
        r"INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS|Cannot find initial offsets for partitions",
        "new partitions were gone before they could be read; resume the deployment",
    ),
    (
        r"KAFKA_DATA_LOSS|they are not\s+available in Kafka any more",
        f"rows that it was about to read are gone from Kafka; {_AGAIN}",
    ),
    (
        r"UnknownTopicOrPartitionException",
        "a topic that it reads is not there; create it again or deploy without it",
    ),
)


class KafkaSource:
    """Spark's ``kafka`` source. Its identity is what it subscribes to, not the servers' addresses, which may change.

    Ids (``marks``) show whether it is the same cluster and topic, and not others of the name.
    """

    name = "kafka"

    def identify(self, source: Source) -> str | None:
        if source.format != "kafka":
            return None
        found = {name: source.options[name] for name in _SUBSCRIPTIONS if name in source.options}
        if "subscribe" in found:
            found["subscribe"] = ",".join(sorted(_listed(found["subscribe"])))
        return " ".join(("kafka", *(f"{name} {value.strip()}" for name, value in found.items())))

    def continues(self, source: Source, offset: str) -> bool:
        parts = parse_offset(offset)
        return bool(parts) and all(_takes(source, part) for part in parts)

    def narrow(self, source: Source, offset: str) -> Narrowed | None:
        read = parse_offset(offset)
        kept = {part: at for part, at in read.items() if _takes(source, part)}
        left = {_describe(part): str(at) for part, at in read.items() if part not in kept}
        if not kept or not left:
            return None
        return Narrowed(format_offset(kept), frozenset(map(_describe, kept)), left, _names_only(source, read))

    def compare(self, first: str, second: str) -> OffsetOrder:
        one, other = parse_offset(first), parse_offset(second)
        if one == other:
            return "same"
        # Of a partition that an offset lacks, nothing was read yet.
        differences = {one.get(part, -1) - other.get(part, -1) for part in {*one, *other}}
        if min(differences) >= 0:
            return "ahead"
        return "behind" if max(differences) <= 0 else "apart"

    def between(self, first: str, second: str) -> Lag | None:
        """In rows; a partition that the first offset lacks counts from its first row."""
        one, other = parse_offset(first), parse_offset(second)
        return Lag(sum(max(0, at - one.get(part, 0)) for part, at in other.items()))

    def part_way(self, first: str, second: str, share: float) -> str:
        """The same share of each partition, rounded up."""
        one, other = parse_offset(first), parse_offset(second)
        starts = {part: min(one.get(part, 0), at) for part, at in other.items()}
        return format_offset({part: at + math.ceil((other[part] - at) * share) for part, at in starts.items()})

    def open(self, source: Source, spark: SparkDoor) -> OpenKafka:
        return OpenKafka(source, spark.jvm)

    def remarks(self, source: Source) -> tuple[str, ...]:
        return (_SILENT,) if self.passes_over_lost(source) else ()

    def passes_over_lost(self, source: Source) -> bool:
        return source.options.get("failondataloss", "true").strip().lower() == "false"

    def explain(self, failure: str) -> str | None:
        return next((words for pattern, words in _REASONS if re.search(pattern, failure)), None)


class OpenKafka:
    """An open Kafka source; it connects at the first question, through the driver's JVM."""

    def __init__(self, source: Source, jvm: Any) -> None:
        self._source = source
        self._admin = KafkaAdmin(jvm, source.options)

    def marks(self) -> Mapping[str, str]:
        topics = self._admin.topics(self._topics())
        ids = {CLUSTER: self._admin.cluster_id()} | {f"{TOPIC}{name}": topic.id for name, topic in topics.items()}
        return {name: one for name, one in ids.items() if one}

    def lag(self, offset: str) -> Lag | None:
        read = parse_offset(offset)
        topics = self._admin.topics(self._topics())
        parts = [(name, number) for name, topic in topics.items() for number in topic.partitions]
        wanted = [part for part in parts if self._is_assigned(part)]
        latest = self._admin.offsets(wanted, "latest")
        new = self._admin.offsets([part for part in wanted if part not in read], "earliest")
        return Lag(sum(max(0, latest[part] - read.get(part, new.get(part, 0))) for part in latest))

    def offset_at(self, moment: datetime, last: str) -> str | Untold:
        """By the times of the records; a partition with none since then is at its end."""
        topics = self._admin.topics(self._topics())
        parts = [(name, number) for name, topic in topics.items() for number in topic.partitions]
        wanted = [part for part in parts if self._is_assigned(part)]
        if not wanted:
            return Untold("none of its topics exists")
        since = self._admin.offsets(wanted, int(moment.timestamp() * 1_000))
        latest = self._admin.offsets([part for part in wanted if since.get(part, -1) < 0], "latest")
        return format_offset({**since, **latest})

    def commit_to_group(self, group: str, offset: str) -> None:
        self._admin.commit(group, parse_offset(offset))

    def preflight(self, offset: str, marks: Mapping[str, str]) -> Preflight:
        read = parse_offset(offset)
        topics = self._admin.topics(sorted({topic for topic, _ in read}))
        cluster_id = self._admin.cluster_id()
        is_elsewhere = _differ(marks.get(CLUSTER, ""), cluster_id)
        there = [part for part in read if part[0] in topics and part[1] in topics[part[0]].partitions]
        earliest, latest = self._admin.offsets(there, "earliest"), self._admin.offsets(there, "latest")
        lost: list[LostInput] = []
        readable: dict[Partition, int] = {}
        for part, at in read.items():
            reason = self._reason(part, at, topics, marks, earliest, latest) if not is_elsewhere else "elsewhere"
            if reason is None:
                readable[part] = at
                continue
            detail = f"its cluster was {marks[CLUSTER]} and is {cluster_id} now" if is_elsewhere else ""
            if reason == "remade":
                detail = _made_anew(part, at, topics[part[0]].id, marks, latest)
            rows = _rows(reason, part, at, earliest, latest)
            lost.append(LostInput(_describe(part), reason, rows, detail))
            if part in earliest and _takes(self._source, part):
                readable[part] = earliest[part]
        return Preflight(tuple(lost), format_offset(readable) if lost else offset)

    def close(self) -> None:
        self._admin.close()

    def _reason(
        self,
        part: Partition,
        at: int,
        topics: Mapping[str, Topic],
        marks: Mapping[str, str],
        earliest: Mapping[Partition, int],
        latest: Mapping[Partition, int],
    ) -> LossReason | None:
        topic = topics.get(part[0])
        if topic is None or part not in earliest:
            return "gone"
        if not _takes(self._source, part):
            return "elsewhere"
        if _differ(marks.get(f"{TOPIC}{part[0]}", ""), topic.id) or latest[part] < at:
            return "remade"
        return "removed" if earliest[part] > at else None

    def _is_assigned(self, part: Partition) -> bool:
        assigned = _assigned(self._source)
        return assigned is None or part in assigned

    def _topics(self) -> list[str]:
        options = self._source.options
        assigned = _assigned(self._source)
        if assigned is not None:
            return sorted({topic for topic, _ in assigned})
        if "subscribe" in options:
            return _listed(options["subscribe"])
        return sorted(topic for topic in self._admin.topic_names() if _reads(self._source, topic))


def parse_offset(offset: str) -> dict[Partition, int]:
    """Spark's ``{"topic":{"0":12}}`` by partition; empty for ``NO_OFFSET``.

    Raises:
        ValueError: it is no offset of Kafka.
    """
    if offset == NO_OFFSET:
        return {}
    raw = json.loads(offset)
    try:
        found = {(str(topic), int(part)): at for topic, parts in raw.items() for part, at in parts.items()}
    except (AttributeError, TypeError):
        found = {("", -1): None}
    # -1 and -2 mean latest and earliest only in Spark's startingOffsets.
    if any(type(at) is not int or at < 0 for at in found.values()):
        raise ValueError(f"no offset of Kafka: {offset[:100]}")
    return found


def format_offset(offsets: Mapping[Partition, int]) -> str:
    """As Spark writes it: topics sorted, partitions by number."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, part), at in sorted(offsets.items()):
        topics.setdefault(topic, {})[str(part)] = at
    return json.dumps(topics, separators=(",", ":"))


def _differ(kept: str, found: str) -> bool:
    """Whether two ids are of two things; a missing id proves nothing."""
    return kept not in ("", NO_TOPIC_ID) and found != "" and kept != found


def _describe(part: Partition) -> str:
    return f"{part[0]}[{part[1]}]"


def _made_anew(
    part: Partition, at: int, topic_id: str, marks: Mapping[str, str], latest: Mapping[Partition, int]
) -> str:
    kept = marks.get(f"{TOPIC}{part[0]}", "")
    if _differ(kept, topic_id):
        return f"the offset {at} was kept of the topic with the id {kept}, and the present topic has {topic_id}"
    return f"it ends at {latest[part]} now, and the offset that was kept is {at}"


def _rows(
    reason: LossReason,
    part: Partition,
    at: int,
    earliest: Mapping[Partition, int],
    latest: Mapping[Partition, int],
) -> int | None:
    if reason == "removed":
        return earliest[part] - at
    if reason == "elsewhere" and part in latest:
        return max(0, latest[part] - at)
    return None


def _reads(source: Source, topic: str) -> bool:
    options = source.options
    assigned = _assigned(source)
    if assigned is not None:
        return any(topic == name for name, _ in assigned)
    if "subscribe" in options:
        return topic in _listed(options["subscribe"])
    pattern = options.get("subscribepattern", "")
    if _SETS_OF_JAVA.search(pattern):
        return True
    try:
        return re.fullmatch(pattern, topic) is not None
    except re.error:  # valid only in Java
        return True


def _takes(source: Source, part: Partition) -> bool:
    assigned = _assigned(source)
    return _reads(source, part[0]) and (assigned is None or part in assigned)


def _names_only(source: Source, read: Mapping[Partition, int]) -> bool:
    """Whether it names what it reads, and an offset has all of that."""
    assigned = _assigned(source)
    if assigned is not None:
        return all(part in read for part in assigned)
    topics = {topic for topic, _ in read}
    return "subscribe" in source.options and all(topic in topics for topic in _listed(source.options["subscribe"]))


def _assigned(source: Source) -> set[Partition] | None:
    text = source.options.get("assign")
    if text is None:
        return None
    raw = json.loads(text)
    return {(str(topic), int(part)) for topic, parts in raw.items() for part in parts}


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
