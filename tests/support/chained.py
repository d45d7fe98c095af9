"""Two queries of one deployment: one counts by minute what the other writes per window."""

from __future__ import annotations

from airflow_streamstate.protocol.events import Drained, Draining
from support.drivers import Deployments, Driver, seconds_of

PER_MINUTE = """
per_minute = (landed.withWatermark("start", "0 seconds").groupBy(F.window("start", "1 minute"), "k")
    .agg(F.count("*").alias("windows"), F.sum("n").alias("n")))
per_minute.writeStream.queryName("per_minute").format("json").trigger(processingTime="1 hour").start(base + "/minutes")
"""
"""The downstream, of ``landed``, which the script reads from wherever the query ``per_window`` writes to. It sleeps."""
ROWS = 9


def feed_minutes(stream: Deployments) -> None:
    """Three files of a minute each, a row in each of three windows; each is a separate batch."""
    for minute in range(3):
        stream.feed(*({"t": seconds_of(minute, at), "k": "a", "v": 1} for at in (1, 21, 41)))


def drain_in_order(stream: Deployments, driver: Driver) -> None:
    """Drain once all is read, and see that the upstream was flushed first, and that the downstream, although it slept,
    has counted each window that this wrote."""
    stream.wait_committed("per_window", 2, driver, seconds=150)
    stream.drain()
    assert driver.exit_status() == 0, driver.log
    (drained,) = stream.events(Drained)
    left = {name: query.state_rows_left for name, query in drained.queries.items()}
    assert left == {"per_window": 0, "per_minute": 0}
    assert [sorted(event.flush_batch_ids) for event in stream.events(Draining)] == [["per_window"], ["per_minute"]]
    minutes = stream.output("minutes")
    assert [sum(int(str(row[name])) for row in minutes) for name in ("windows", "n")] == [ROWS, ROWS]
