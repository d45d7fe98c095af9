"""A socket sends each row once: no start goes on from an offset of it."""

from __future__ import annotations

import pytest

from airflow_streamstate.adapters.rate_source import RateSource
from airflow_streamstate.adapters.replaying import sending_once
from airflow_streamstate.adapters.socket_source import SENDS_ONCE, SocketSource
from airflow_streamstate.adapters.source import LostInput, Preflight, SendingOnceAdapter, Source
from airflow_streamstate.adapters.source_conformance import check_open_source, check_source
from airflow_streamstate.protocol.positions import SourceIdentity

HERE = Source("socket", {"host": "127.0.0.1", "port": "9999"})


def test_it_keeps_to_what_every_adapter_promises() -> None:
    """Identity, order and measures, as of any other; nothing connects to it, which would take its rows."""
    there = Source("socket", {"host": "127.0.0.1", "port": "9998"})
    check_source(SocketSource(), own=[HERE, there], foreign=[Source("kafka"), Source("rate")], offsets=["-1", "0", "7"])
    check_open_source(SocketSource().open(HERE, None), start="-1", end="-1", rows_between=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(("offset", "is_lost"), [("-1", False), ("0", True), ("41", True)])
def test_behind_an_offset_that_read_anything_all_is_lost(offset: str, is_lost: bool) -> None:
    """What can be read is what comes from the connection on, which is counted from -1."""
    opened = SocketSource().open(HERE, None)  # type: ignore[arg-type]
    lost = (LostInput("socket 127.0.0.1:9999", "sent_once"),)
    assert opened.preflight(offset, {}) == (Preflight(lost, "-1") if is_lost else Preflight((), "-1"))


def test_its_sources_are_known_by_identity_and_offset_alone() -> None:
    """A controller, which has no Spark, knows them by the snapshot; one that has read nothing has lost nothing."""
    socket, kafka = SourceIdentity("socket", "socket a:1"), SourceIdentity("kafka", "kafka subscribe in")
    adapters = (SocketSource(), RateSource())
    assert sending_once([kafka, socket], ['{"in":{"0":4}}', "4"], adapters) == {"socket a:1": SENDS_ONCE}
    assert sending_once([socket, socket], ["-1", "-"], adapters) == {}
    assert sending_once([], ["4"], adapters) == {}
    assert not isinstance(RateSource(), SendingOnceAdapter), "rate makes the same rows again from its creation time"


def test_sparks_words_for_it_are_explained() -> None:
    """The failure that Spark comes to with an offset of before."""
    words = "java.lang.RuntimeException: Offsets committed out of order: 4 followed by -1"
    assert "--accept-lost-input" in str(SocketSource().explain(words))
    assert "--accept-lost-input" in SocketSource().remarks(HERE)[0]
