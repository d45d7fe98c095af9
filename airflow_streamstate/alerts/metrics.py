"""Metrics of the streams that a watch has seen, for Prometheus. Names and labels: docs/reference/metrics.md."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_streamstate.alerts.alert_watch import AlertWatch, Watched
from airflow_streamstate.alerts.conditions import Sight, watermark_behind_seconds
from airflow_streamstate.controller.observe.health import beats_of
from airflow_streamstate.controller.observe.observation import ALIVE, STATE_TABLE, gave_up_of
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.positions import Downtime, QueryBeat

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

STATES = (*dict.fromkeys(row.state for row in STATE_TABLE), "unreadable")
Sample = tuple[tuple[str, ...], float]
MOST_CHARACTERS = 120
"""Of the value of a label: a home may hold any text, and each value is kept by Prometheus for as long as its series."""
MOST_SERIES = 200
"""Of one stream in one metric."""


@dataclass(frozen=True)
class Metric:
    """One gauge.

    Attributes:
        labels: in addition to ``stream``, which every metric of a stream has.
        samples: the values of its labels, and the value, of one stream.
    """

    name: str
    help: str
    labels: tuple[str, ...]
    samples: Callable[[Watched], Iterator[Sample]]


def _stream(value: Callable[[Watched], float | None]) -> Callable[[Watched], Iterator[Sample]]:
    def samples(watched: Watched) -> Iterator[Sample]:
        found = value(watched)
        if found is not None:
            yield (watched.sight.status.stream_id,), float(found)

    return samples


def _query(value: Callable[[Sight, QueryBeat], float | None]) -> Callable[[Watched], Iterator[Sample]]:
    def samples(watched: Watched) -> Iterator[Sample]:
        for name, beat in _beats(watched).items():
            found = value(watched.sight, beat)
            if found is not None:
                yield (watched.sight.status.stream_id, name), float(found)

    return samples


def _beats(watched: Watched) -> Mapping[str, QueryBeat]:
    """The queries of the current attempt, while it lives."""
    sight = watched.sight
    if sight.seen is None or sight.status.state not in ALIVE:
        return {}
    beats = beats_of(sight.seen)
    return {name: beats[name] for name, query in sight.status.queries.items() if query.is_active and name in beats}


def _states(watched: Watched) -> Iterator[Sample]:
    status = watched.sight.status
    for state in STATES:
        yield (status.stream_id, state), float(status.state == state)


def _lags(watched: Watched) -> Iterator[Sample]:
    for name, beat in _beats(watched).items():
        for number, lag in enumerate(beat.lags):
            if lag.behind is not None:
                labels = (watched.sight.status.stream_id, name, str(number), lag.source, lag.unit)
                yield labels, float(lag.behind)


def _active(watched: Watched) -> Iterator[Sample]:
    if watched.sight.status.state in ("silent", "lost"):
        return  # unknown
    for name, query in watched.sight.status.queries.items():
        yield (watched.sight.status.stream_id, name), float(query.is_active)


def _alerts(watched: Watched) -> Iterator[Sample]:
    for alert in watched.told.standing:
        yield (watched.sight.status.stream_id, alert.rule, alert.subject), 1.0


def _downtimes(watched: Watched) -> Iterator[Sample]:
    yield from _longest(watched, lambda one: one.downtime_seconds)


def _idle_at_upgrade(watched: Watched) -> Iterator[Sample]:
    yield from _longest(watched, lambda one: None if one.seconds is None else one.idle_seconds)


def _longest(watched: Watched, seconds_of: Callable[[Downtime], float | None]) -> Iterator[Sample]:
    longest: dict[str, float] = {}
    for one in watched.downtimes:
        seconds = seconds_of(one)
        if seconds is not None:
            longest[one.query_name] = max(seconds, longest.get(one.query_name, 0.0))
    for name, seconds in sorted(longest.items()):
        yield (watched.sight.status.stream_id, name), seconds


def _gave_up(watched: Watched) -> float | None:
    seen = watched.sight.seen
    return None if seen is None else float(bool(gave_up_of(seen)))


def _committed_age(sight: Sight, beat: QueryBeat) -> float | None:
    seen = sight.seen
    if seen is None or seen.heartbeat is None or beat.committed_at is None:
        return None
    return (seen.heartbeat.at - beat.committed_at).total_seconds()


def _owners(watched: Watched) -> Iterator[Sample]:
    status = watched.sight.status
    if status.owner:
        yield (status.stream_id, status.owner), 1.0


def _labels(watched: Watched) -> Iterator[Sample]:
    status = watched.sight.status
    for name, value in status.labels.items():
        yield (status.stream_id, name, value), 1.0


_OF_STREAM, _OF_QUERY = ("stream",), ("stream", "query")
METRICS: tuple[Metric, ...] = (
    Metric(
        "streamstate_stream_up",
        "1 while the driver sends heartbeats.",
        _OF_STREAM,
        _stream(lambda one: one.sight.status.state in ALIVE),
    ),
    Metric(
        "streamstate_stream_state",
        "1 for the state of the stream, 0 for every other one.",
        ("stream", "state"),
        _states,
    ),
    Metric(
        "streamstate_stream_attempt",
        "The current attempt of the current deployment.",
        _OF_STREAM,
        _stream(lambda one: one.sight.status.attempt),
    ),
    Metric(
        "streamstate_stream_restarts",
        "Attempts of the current deployment after its first one.",
        _OF_STREAM,
        _stream(lambda one: max(one.sight.status.attempt - 1, 0)),
    ),
    Metric(
        "streamstate_stream_restart_given_up",
        "1 if watchers start no further attempt of a failed stream.",
        _OF_STREAM,
        _stream(_gave_up),
    ),
    Metric(
        "streamstate_stream_fencing_token",
        "Grows by one with every deployment: its change is an upgrade, a rollback or a deploy.",
        _OF_STREAM,
        _stream(lambda one: one.sight.status.fencing_token),
    ),
    Metric(
        "streamstate_stream_upgrade_under_way",
        "1 while an upgrade or rollback is under way.",
        _OF_STREAM,
        _stream(lambda one: bool(one.sight.status.upgrade)),
    ),
    Metric(
        "streamstate_stream_heartbeat_age_seconds",
        "Age of the driver's last heartbeat.",
        _OF_STREAM,
        _stream(lambda one: one.sight.status.heartbeat_age_seconds),
    ),
    Metric(
        "streamstate_stream_snapshot_age_seconds",
        "Age of the newest snapshot, by the watcher's clock; none without a snapshot.",
        _OF_STREAM,
        _stream(lambda one: one.sight.status.snapshot_age_seconds),
    ),
    Metric(
        "streamstate_stream_looked_at_seconds",
        "When the watcher polled the stream, in seconds since 1970.",
        _OF_STREAM,
        _stream(lambda one: one.looked_at.timestamp()),
    ),
    Metric(
        "streamstate_stream_owner",
        "1 for the owner of the stream; none without an owner.",
        ("stream", "owner"),
        _owners,
    ),
    Metric(
        "streamstate_stream_label",
        "1 for each label of the stream.",
        ("stream", "name", "value"),
        _labels,
    ),
    Metric("streamstate_query_active", "1 while the query runs; no value if that is unknown.", _OF_QUERY, _active),
    Metric(
        "streamstate_query_batch",
        "The last committed batch.",
        _OF_QUERY,
        _query(lambda _, beat: beat.batch_id),
    ),
    Metric(
        "streamstate_query_batch_seconds",
        "Mean time from one commit to the next, over the last batches.",
        _OF_QUERY,
        _query(lambda _, beat: beat.batch_seconds),
    ),
    Metric(
        "streamstate_query_commit_age_seconds",
        "Time since the last commit, by the driver's clock.",
        _OF_QUERY,
        _query(_committed_age),
    ),
    Metric(
        "streamstate_query_lag",
        "What a source has and the query has not read, in its unit.",
        ("stream", "query", "source_number", "source", "unit"),
        _lags,
    ),
    Metric(
        "streamstate_query_watermark_behind_seconds",
        "By how much the watermark is older than the driver's clock.",
        _OF_QUERY,
        _query(watermark_behind_seconds),
    ),
    Metric(
        "streamstate_query_input_rows_per_second",
        "Rate of input rows over the last minute.",
        _OF_QUERY,
        _query(lambda _, beat: beat.input_rows_per_second),
    ),
    Metric(
        "streamstate_query_processed_rows_per_second",
        "Rate of processed rows in the batches of the last minute that read rows.",
        _OF_QUERY,
        _query(lambda _, beat: beat.processed_rows_per_second),
    ),
    Metric(
        "streamstate_query_state_rows",
        "Rows in the state.",
        _OF_QUERY,
        _query(lambda _, beat: beat.state_rows),
    ),
    Metric(
        "streamstate_query_state_memory_bytes",
        "Memory of the state, as Spark reports it.",
        _OF_QUERY,
        _query(lambda _, beat: beat.state_memory_bytes),
    ),
    Metric(
        "streamstate_query_upgrade_downtime_seconds",
        "Downtime of the query at the last upgrade that the watcher saw.",
        _OF_QUERY,
        _downtimes,
    ),
    Metric(
        "streamstate_query_upgrade_idle_seconds",
        "Idle time of the query around that upgrade.",
        _OF_QUERY,
        _idle_at_upgrade,
    ),
    Metric(
        "streamstate_alert_standing",
        "1 for each raised alert; its subject is a query, an upgrade or a drain.",
        ("stream", "rule", "subject"),
        _alerts,
    ),
)
HOME_UP = "streamstate_home_up"


def bounded(samples: Iterator[Sample]) -> Iterator[Sample]:
    """The first samples of a stream, each series once, with labels of one short line.

    Two samples of one series would fail the whole scrape.
    """
    seen: set[tuple[str, ...]] = set()
    for labels, value in samples:
        short = tuple(map(_short, labels))
        if short in seen:
            continue
        if len(seen) == MOST_SERIES:
            return
        seen.add(short)
        yield short, value


def _short(text: str) -> str:
    """Cut, without signs that cannot be seen; what is not UTF-8 would fail the scrape."""
    shown = "".join(each if each.isprintable() else " " for each in text[: MOST_CHARACTERS + 1])
    return shown if len(shown) <= MOST_CHARACTERS else f"{shown[: MOST_CHARACTERS - 1]}…"


def gauges(watched: Watched) -> Iterator[tuple[str, dict[str, str], float]]:
    """Name, tags and value of what Airflow's own metrics have of a stream."""
    stream_id = watched.sight.status.stream_id
    yield "streamstate.stream.up", {"stream_id": stream_id}, float(watched.sight.status.state in ALIVE)
    for name, beat in itertools.islice(_beats(watched).items(), MOST_SERIES):
        tags = {"stream_id": stream_id, "query": _short(name)}
        behind: dict[str, int] = {}
        for lag in beat.lags:
            if lag.behind is not None:
                behind[lag.unit] = behind.get(lag.unit, 0) + lag.behind
        for unit, left in behind.items():
            yield "streamstate.query.lag", {**tags, "unit": _short(unit)}, float(left)
        if beat.state_rows is not None:
            yield "streamstate.query.state_rows", tags, float(beat.state_rows)


def collector(watch: AlertWatch) -> Collector:
    """What the watch has seen last, as a collector of ``prometheus_client``.

    Raises:
        InvalidRequestError: that package is not installed.
    """
    try:
        from prometheus_client.core import GaugeMetricFamily
        from prometheus_client.registry import Collector as Base
    except ImportError:
        raise InvalidRequestError(
            "metrics need the package prometheus_client",
            next_step="Install airflow-streamstate[metrics].",
        ) from None

    class StreamCollector(Base):
        """Reads nothing but memory, so a scrape costs no call to the store."""

        def collect(self) -> Iterator[Any]:
            yield GaugeMetricFamily(HOME_UP, "1 if the home answered at the last poll.", value=float(not watch.is_away))
            streams = list(watch.streams.values())
            for metric in METRICS:
                family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
                for watched in streams:
                    for labels, value in bounded(metric.samples(watched)):
                        family.add_metric(labels, value)
                yield family

    return StreamCollector()


class MetricsServer:
    """The endpoint for Prometheus.

    Raises:
        InvalidRequestError: ``prometheus_client`` is not installed, or nothing can listen there.
    """

    def __init__(self, watch: AlertWatch, host: str, port: int) -> None:
        made = collector(watch)
        from prometheus_client import CollectorRegistry, start_http_server

        registry = CollectorRegistry(auto_describe=False)
        registry.register(made)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except (OSError, OverflowError) as error:
            raise InvalidRequestError(
                "nothing can listen for Prometheus here",
                host=host,
                port=port,
                reason=str(getattr(error, "strerror", None) or error),
                next_step="Give another --metrics-port, or an address of this machine as --metrics-host.",
            ) from None

    @property
    def port(self) -> int:
        """The port that it listens at; a free one if 0 was asked for."""
        return int(self._server.server_port)

    def close(self) -> None:
        """Listen no longer."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)
