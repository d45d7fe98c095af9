"""Which offset belongs to which source, where a version reads other parts of what was read before."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from airflow_streamstate.connectors.files import FileSource
from airflow_streamstate.connectors.kafka import KafkaSource
from airflow_streamstate.connectors.source import NO_OFFSET, SYSTEM, Source
from airflow_streamstate.driver.attempt.ports import QuerySource
from airflow_streamstate.driver.attempt.query_sources import KnownSource
from airflow_streamstate.driver.start.offset_mapping import IF_MOVED, MappedOffsets, check_same_order, map_offsets
from airflow_streamstate.errors import IncompatibleUpgradeError, UnavailableError
from airflow_streamstate.protocol.manifest import QuerySnapshot
from airflow_streamstate.protocol.positions import QueryPosition, SourceIdentity

AB = '{"a":{"0":3,"1":4},"b":{"0":5}}'


def kafka(how: str, number: int = 0, cluster: str = "") -> KnownSource:
    """A source by ``subscribe a,b`` and the like, in the cluster of this id."""
    kind, _, what = how.partition(" ")
    planned = Source("kafka", {kind: what, "kafka.bootstrap.servers": "b:9092"})
    connector = KafkaSource()
    marks = {SYSTEM: cluster} if cluster else {}
    identity = SourceIdentity("kafka", str(connector.identify(planned)), number, marks)
    return KnownSource(QuerySource(planned, number), connector, identity)


def snapshot(*kept: tuple[str, str], clusters: Sequence[str] = ("", "")) -> QuerySnapshot:
    """One whose sources were read like this, up to these offsets."""
    sources = (kafka(how, number, clusters[number]) for number, (how, _) in enumerate(kept))
    identities = tuple(source.identity for source in sources)
    position = QueryPosition(7, tuple(line for _, line in kept))
    return QuerySnapshot(query_id="q", position=position, files=(), identities=identities, drained=True)


def mapped(known: QuerySnapshot, *sources: KnownSource, accepts: bool = False) -> MappedOffsets:
    return map_offsets("counts", known, sources, accepts=accepts)


@pytest.mark.parametrize("accepts", [False, True])
def test_a_topic_taken_out_of_the_list_is_left_and_the_others_keep_their_offsets(accepts: bool) -> None:
    """The script names what it reads: what it leaves out is reported with its offsets, and nothing else is touched."""
    found = mapped(snapshot(("subscribe a,b", AB)), kafka("subscribe a"), accepts=accepts)
    assert found.lines == ('{"a":{"0":3,"1":4}}',)
    (said,) = found.remarks
    assert "kafka subscribe a,b" in said
    assert "b[0] at 5" in said
    assert found.identities[0] is not None
    assert found.folders == {0: 0}


@pytest.mark.parametrize("how", ["subscribepattern a.*", "subscribe a,c"])
def test_what_nobody_took_out_by_name_is_asked_about(how: str) -> None:
    """Refused until it is accepted; then what is read as before keeps its offsets. (Law 5)"""
    known = snapshot(("subscribe a,b", AB))
    with pytest.raises(IncompatibleUpgradeError, match="another source") as caught:
        mapped(known, kafka(how))
    assert "--accept-lost-input counts" in caught.value.next_step
    assert "continues at its own offsets" in caught.value.next_step
    found = mapped(known, kafka(how), accepts=True)
    assert found.lines == ('{"a":{"0":3,"1":4}}',)
    assert "b[0] at 5" in " ".join(found.remarks)


def test_a_topic_that_is_added_is_said_to_be_read_from_its_first_row() -> None:
    """Also one that was read once: its offset is not known any more."""
    found = mapped(snapshot(("subscribe a", '{"a":{"0":3}}')), kafka("subscribe a,b"))
    assert found.lines == ('{"a":{"0":3}}',)
    (said,) = found.remarks
    assert said.startswith("source kafka subscribe a,b continues where kafka subscribe a was;")


def test_topics_read_together_may_be_read_apart() -> None:
    """Each continues at its own offset, and nothing is left."""
    found = mapped(snapshot(("subscribe a,b", AB)), kafka("subscribe b"), kafka("subscribe a", 1))
    assert found.lines == ('{"b":{"0":5}}', '{"a":{"0":3,"1":4}}')
    assert found.remarks == ()


@pytest.mark.parametrize("others", [("subscribe b,c",), ("subscribepattern [bc]",), ("subscribe b,c", "subscribe d")])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_part_that_is_read_with_something_new_does_not_begin_where_options_say(
    others: tuple[str, ...], is_first: bool
) -> None:
    """It would pass over unread rows, or read all again. (Law 5)"""
    hows = ("subscribe a", *others) if is_first else (*others, "subscribe a")
    sources = [kafka(how, number) for number, how in enumerate(hows)]
    with pytest.raises(IncompatibleUpgradeError, match="another source"):
        mapped(snapshot(("subscribe a,b", AB)), *sources)
    found = mapped(snapshot(("subscribe a,b", AB)), *sources, accepts=True)
    assert '{"b":{"0":5}}' in found.lines
    assert '{"a":{"0":3,"1":4}}' in found.lines


def test_parts_that_overlap_are_asked_about() -> None:
    """What only the second one reads would start by its options; accepted, each continues at the kept offsets."""
    known = snapshot(("subscribe a,b,c", '{"a":{"0":3},"b":{"0":5},"c":{"0":7}}'))
    sources = kafka("subscribe a,b"), kafka("subscribe b,c", 1)
    with pytest.raises(IncompatibleUpgradeError, match="another source"):
        mapped(known, *sources)
    found = mapped(known, *sources, accepts=True)
    assert found.lines == ('{"a":{"0":3},"b":{"0":5}}', '{"b":{"0":5},"c":{"0":7}}')


def test_a_topic_that_is_read_twice_now_is_gone_on_with_once() -> None:
    """The second place is a new source, and is reported as one."""
    found = mapped(snapshot(("subscribe a,b", AB)), kafka("subscribe a"), kafka("subscribe a"))
    assert found.lines == ('{"a":{"0":3,"1":4}}', NO_OFFSET)
    assert "kafka subscribe a is new" in found.remarks[0]


def test_topics_read_apart_are_not_read_together() -> None:
    """One source has one offset: what another one read would be read again from its first row."""
    known = snapshot(("subscribe a", '{"a":{"0":3}}'), ("subscribe b", '{"b":{"0":5}}'))
    with pytest.raises(IncompatibleUpgradeError, match="in one source what was read in several"):
        mapped(known, kafka("subscribe a,b"))


def test_a_source_more_and_a_source_less_are_told() -> None:
    """No offset is made up for the one, none is lost for the others."""
    known = snapshot(("subscribe a,b", AB), ("subscribe c", '{"c":{"0":1}}'))
    found = mapped(known, kafka("subscribe c"))
    assert found.lines == ('{"c":{"0":1}}',)
    assert found.remarks == (f"source kafka subscribe a,b is not read any more; it is left at {AB}",)
    found = mapped(known, kafka("subscribe d"), kafka("subscribe c", 1), kafka("subscribe b,a", 2))
    assert found.lines == (NO_OFFSET, '{"c":{"0":1}}', AB)


OF_TWO = (("subscribe t", '{"t":{"0":1}}'), ("subscribe t", '{"t":{"0":2}}'))


def test_topics_of_one_name_in_two_clusters_are_two_sources() -> None:
    """By their places each would continue at the other's offset; the servers of a cluster prove nothing."""
    known = snapshot(*OF_TWO, clusters=("one", "two"))
    found = mapped(known, kafka("subscribe t", 0, "two"), kafka("subscribe t", 1, "one"))
    assert found.lines == ('{"t":{"0":2}}', '{"t":{"0":1}}')
    found = mapped(known, kafka("subscribe t", 0, "two"))
    assert found.lines == ('{"t":{"0":2}}',)
    assert found.remarks == (
        'source kafka subscribe t (cluster_id one) is not read any more; it is left at {"t":{"0":1}}',
    )
    found = mapped(
        known, kafka("subscribe t", 0, "three"), kafka("subscribe t", 1, "one"), kafka("subscribe t", 2, "two")
    )
    assert found.lines == (NO_OFFSET, '{"t":{"0":1}}', '{"t":{"0":2}}')


def test_a_snapshot_that_knows_no_cluster_is_compared_by_names() -> None:
    """Of an earlier version, or of a broker that did not answer: in their order, as before."""
    swapped = (kafka("subscribe t", 0, "two"), kafka("subscribe t", 1, "one"))
    assert mapped(snapshot(*OF_TWO), *swapped).lines == ('{"t":{"0":1}}', '{"t":{"0":2}}')
    known = snapshot(*OF_TWO, clusters=("one", "two"))
    by_elimination = mapped(known, kafka("subscribe t", 0, "two"), kafka("subscribe t", 1))
    assert by_elimination.lines == ('{"t":{"0":2}}', '{"t":{"0":1}}')


def test_a_source_that_moved_to_another_cluster_is_left_to_the_look_at_its_input() -> None:
    """That counts the unread rows, and refuses or accepts their loss."""
    found = mapped(snapshot(OF_TWO[0], clusters=("one",)), kafka("subscribe t", 0, "two"))
    assert found.lines == ('{"t":{"0":1}}',)


def test_two_clusters_of_which_nobody_can_tell_which_is_which_are_refused() -> None:
    """Neither answers: guessed wrong, rows of both are read again, and passed over."""
    known = snapshot(*OF_TWO, clusters=("one", "two"))
    with pytest.raises(UnavailableError, match="cannot be distinguished"):
        mapped(known, kafka("subscribe t"), kafka("subscribe t", 1))


def test_a_restore_finds_each_cluster_where_it_stood() -> None:
    """State and offsets go by place. (Law 5)"""
    known = snapshot(*OF_TWO, clusters=("one", "two"))
    one, two, unknown = (kafka("subscribe t", 0, cluster) for cluster in ("one", "two", ""))
    check_same_order("counts", known, (one, two))
    check_same_order("counts", known, (unknown, unknown))
    check_same_order("counts", snapshot(*OF_TWO), (two, one))
    with pytest.raises(IncompatibleUpgradeError, match="in another order"):
        check_same_order("counts", known, (two, one))


def folder(path: str) -> KnownSource:
    planned = Source("json", {"path": path})
    connector = FileSource()
    return KnownSource(QuerySource(planned, 0), connector, SourceIdentity("file", str(connector.identify(planned)), 0))


def test_files_that_were_moved_have_a_way_on() -> None:
    """A link or a mount at the old place keeps the paths in Spark's log of the files true; Kafka has no such way."""
    position = QueryPosition(7, ('{"logOffset":3}',))
    known = QuerySnapshot("q", position=position, files=(), identities=(folder("/in").identity,), drained=True)
    with pytest.raises(IncompatibleUpgradeError) as restored:
        check_same_order("counts", known, (folder("/bucket2/in"),))
    with pytest.raises(IncompatibleUpgradeError) as seeded:
        mapped(known, folder("/bucket2/in"))
    assert restored.value.next_step.startswith(IF_MOVED)
    assert seeded.value.next_step.startswith(IF_MOVED)
    with pytest.raises(IncompatibleUpgradeError) as other:
        mapped(snapshot(("subscribe a", '{"a":{"0":3}}')), kafka("subscribe b"))
    assert IF_MOVED not in other.value.next_step
