"""A socket sends each row once: no start continues from an offset of it."""

from __future__ import annotations

import pytest

from airflow_streamstate.connectors.plain import SENDS_ONCE, RateSource, SocketSource
from airflow_streamstate.connectors.registry import sending_once
from airflow_streamstate.connectors.source import LostInput, Preflight, SendingOnceConnector, Source, Untold
from airflow_streamstate.connectors.testing import check_source
from airflow_streamstate.protocol.positions import SourceIdentity

HERE = Source("socket", {"host": "127.0.0.1", "port": "9999"})


def test_it_keeps_to_what_every_connector_promises() -> None:
    """Identity, order and measures, as of any other; nothing connects to it, which would take its rows."""
    there = Source("socket", {"host": "127.0.0.1", "port": "9998"})
    check_source(SocketSource(), own=[HERE, there], foreign=[Source("kafka"), Source("rate")], offsets=["-1", "0", "7"])


@pytest.mark.parametrize("offset", ["-1", "0", "41"])
def test_no_offset_of_it_can_be_gone_on_from(offset: str) -> None:
    """It starts without one; also behind -1, from which Spark would never connect."""
    opened = SocketSource().open(HERE, None)  # type: ignore[arg-type]
    assert opened.preflight(offset, {}) == Preflight((LostInput("socket 127.0.0.1:9999", "sent_once"),), "-")
    assert isinstance(opened.lag(offset), Untold)


def test_its_sources_are_known_by_identity_and_offset_alone() -> None:
    """A controller, which has no Spark, knows them by the snapshot; one that has read nothing has lost nothing."""
    socket, kafka = SourceIdentity("socket", "socket a:1"), SourceIdentity("kafka", "kafka subscribe in")
    connectors = (SocketSource(), RateSource())
    assert sending_once([kafka, socket], ['{"in":{"0":4}}', "4"], connectors) == {"socket a:1": SENDS_ONCE}
    assert sending_once([socket], ["-1"], connectors) == {"socket a:1": SENDS_ONCE}
    assert sending_once([socket], ["-"], connectors) == {}
    assert sending_once([], ["4"], connectors) == {}
    assert not isinstance(RateSource(), SendingOnceConnector), "rate makes the same rows again from its creation time"


def test_sparks_words_for_it_are_explained() -> None:
    """The failure that Spark comes to with an offset of before."""
    words = "java.lang.RuntimeException: Offsets committed out of order: 4 followed by -1"
    assert "--accept-lost-input" in str(SocketSource().explain(words))
    assert "--accept-lost-input" in SocketSource().remarks(HERE)[0]
