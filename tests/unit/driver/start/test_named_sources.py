"""Named sources: which offset belongs to which, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_streamstate.checkpoint.guards import OFFSET_LOG_FORMAT
from airflow_streamstate.checkpoint.log import SOURCES_NAMED, OffsetEntry
from airflow_streamstate.connectors.files import FileSource
from airflow_streamstate.connectors.source import NO_OFFSET, SYSTEM, Source
from airflow_streamstate.driver.attempt.ports import QuerySource, WriterFacts
from airflow_streamstate.driver.attempt.query_sources import UNKNOWN, KnownSource
from airflow_streamstate.driver.start.offset_mapping import (
    MappedOffsets,
    check_same_names,
    check_same_order,
    log_folders,
    map_offsets,
    map_offsets_by_name,
    refuse_source_twice,
    source_keys,
    told_apart,
)
from airflow_streamstate.errors import IncompatibleUpgradeError, UnsupportedCheckpointError
from airflow_streamstate.protocol.manifest import QuerySnapshot
from airflow_streamstate.protocol.positions import QueryPosition, SourceIdentity

Kept = Mapping[str, tuple[str, str]]
KEPT: Kept = {"one": ("/in/a", "1"), "two": ("/in/b", "2")}


def files(name: str, path: str, number: int = 0) -> KnownSource:
    """A folder that is read under a name ("": not named)."""
    planned = Source("json", {"path": path})
    identity = SourceIdentity("file", str(FileSource().identify(planned)), number)
    return KnownSource(QuerySource(planned, number, name), FileSource(), identity)


def mystery(name: str, number: int = 0) -> KnownSource:
    """A source of a kind that no connector knows."""
    return KnownSource(QuerySource(Source("mystery"), number, name), None, SourceIdentity("", "", number))


def sources(**read: str) -> tuple[KnownSource, ...]:
    """What a plan reads, name by name, in the order of its offset lines; numbers are of the plan."""
    found = [files(name, path, number) for number, (name, path) in enumerate(read.items())]
    return tuple(sorted(found, key=lambda source: source.source.name))


def snapshot(kept: Kept = KEPT, *, known: bool = True) -> QuerySnapshot:
    """One whose sources had these names, in their order."""
    identities = [files(name, path, number).identity for number, (name, (path, _)) in enumerate(kept.items())]
    position = QueryPosition(7, tuple(line for _, line in kept.values()))
    found = tuple(identities) if known else (UNKNOWN,) * len(identities)
    return QuerySnapshot(query_id="q", position=position, files=(), identities=found, drained=True)


def startable(found: Sequence[KnownSource], *, stateful: bool = False, **conf: str) -> Any:
    """A query over these sources in a session of these settings."""
    facts = WriterFacts(
        "noop", "default", "append", (), stateful, len(found), sources=tuple(source.source for source in found)
    )
    settings = {OFFSET_LOG_FORMAT: conf.get("format", "1"), SOURCES_NAMED: conf.get("named", "false")}
    return SimpleNamespace(facts=facts, session_conf=lambda names: {name: settings[name] for name in names})


def mapped(known: QuerySnapshot, names: Sequence[str], now: Sequence[KnownSource]) -> MappedOffsets:
    """As a seed does it."""
    return map_offsets("counts", *told_apart(known, names, now), accepts=False)


def entry(names: Sequence[str], version: str = "v2") -> OffsetEntry:
    """The last entry of a snapshot whose sources have these names; none for sources without."""
    keys = tuple(names) or ("0", "1")
    conf = {SOURCES_NAMED: "true" if names else "false"}
    return OffsetEntry(0, 0, conf, ("1", "2"), version=version, source_keys=keys if version == "v2" else ())


def test_each_source_keeps_its_offset_wherever_it_stands_and_whatever_its_name() -> None:
    """Swapped in the plan; with names exchanged; with a new name: the offset is of what was read (Law 5)."""
    known = snapshot()
    assert mapped(known, ("one", "two"), sources(two="/in/b", one="/in/a")).lines == ("1", "2")
    assert mapped(known, ("one", "two"), sources(one="/in/b", two="/in/a")).lines == ("2", "1")
    renamed = sources(one="/in/a", zwei="/in/b")
    found = mapped(known, ("one", "two"), renamed)
    assert found.lines == ("1", "2")
    folders = log_folders(found.folders, known, ("one", "two"), renamed)
    assert folders == {"one": "one", "two": "zwei"}


def test_a_source_more_and_a_source_less_are_told() -> None:
    """The new one starts where its options specify, the other is left at its offset, by name."""
    found = mapped(snapshot(), ("one", "two"), sources(three="/in/c", one="/in/a", two="/in/b"))
    assert found.lines == ("1", NO_OFFSET, "2")
    assert "file:/in/c" in " ".join(found.remarks) or "/in/c" in " ".join(found.remarks)
    found = mapped(snapshot(), ("one", "two"), sources(two="/in/b"))
    assert found.lines == ("2",)
    assert found.remarks[0] == "source file /in/a is not read any more; it is left at 1"


def test_of_two_that_read_the_same_each_keeps_the_offset_of_its_name() -> None:
    """By what they are they cannot be distinguished; by their names they can."""
    twins = {"left": ("/in/a", "1"), "right": ("/in/a", "2")}
    found = mapped(snapshot(twins), ("left", "right"), sources(right="/in/a"))
    assert found.lines == ("2",)
    found = mapped(snapshot(twins), ("left", "right"), sources(right="/in/a", another="/in/a"))
    assert found.lines == ("1", "2")  # of a different name: the one that is left


def test_names_come_and_go_with_a_seed() -> None:
    """Positions go from numbers to names and back, and the logs of the sources with them."""
    named = sources(b="/in/a", a="/in/b")
    found = mapped(snapshot(), (), named)
    assert found.lines == ("2", "1")
    assert log_folders(found.folders, snapshot(), (), named) == {"1": "a", "0": "b"}
    plain = (files("", "/in/b", 0), files("", "/in/a", 1))
    found = mapped(snapshot(), ("one", "two"), plain)
    assert found.lines == ("2", "1")
    assert log_folders(found.folders, snapshot(), ("one", "two"), plain) == {"one": "1", "two": "0"}


def test_of_two_that_read_the_same_the_order_of_the_plan_tells_where_names_do_not() -> None:
    """Names come and go, and lines then are in another order than the sources: neither takes the other's offset."""
    twins = snapshot({"0": ("/in/a", "1"), "1": ("/in/a", "2")})
    named = sources(zebra="/in/a", ant="/in/a")
    assert mapped(twins, (), named).lines == ("2", "1")
    by_name = replace(
        twins,
        identities=tuple(reversed(twins.identities)),
        position=replace(twins.position, end_offsets=("2", "1")),
    )
    assert mapped(by_name, ("ant", "zebra"), (files("", "/in/a", 0), files("", "/in/a", 1))).lines == ("1", "2")
    renamed = sources(mule="/in/a", horse="/in/a")
    assert mapped(by_name, ("ant", "zebra"), renamed).lines == ("2", "1")


def test_names_that_are_exchanged_between_two_systems_take_no_position_along() -> None:
    """What is read counts, and one name in two clusters is two sources: each continues where it was (Law 5)."""
    twins = snapshot({"left": ("/in/a", "1"), "right": ("/in/a", "2")})
    known = replace(twins, identities=tuple(in_system(one, at) for one, at in zip(twins.identities, "AB", strict=True)))
    for systems, lines in (("AB", ("1", "2")), ("BA", ("2", "1"))):
        now = [
            replace(source, identity=in_system(source.identity, at))
            for source, at in zip(sources(left="/in/a", right="/in/a"), systems, strict=True)
        ]
        assert mapped(known, ("left", "right"), now).lines == lines


def in_system(identity: SourceIdentity, cluster_id: str) -> SourceIdentity:
    """The same, in a cluster that reports its id."""
    return replace(identity, marks={SYSTEM: cluster_id})


def test_of_unknown_kinds_the_name_alone_says_which_it_is() -> None:
    """A source more or less is reported; one of a different name may be the same, which would be read again (Law 5)."""
    known, names = snapshot(known=False), ("one", "two")
    found = map_offsets_by_name("counts", known, names, (mystery("one"), mystery("three"), mystery("two")))
    assert (found.lines, found.remarks[0]) == (
        ("1", NO_OFFSET, "2"),
        "source three is new: it starts where its options say",
    )
    assert map_offsets_by_name("counts", known, names, (mystery("two"),)).lines == ("2",)
    for now, before in (
        ((mystery("one"), mystery("zwei")), names),
        ((mystery(""), mystery("", 1)), names),
        ((mystery("one"), mystery("two")), ()),
    ):
        with pytest.raises(IncompatibleUpgradeError):
            map_offsets_by_name("counts", known, before, now)
    with pytest.raises(IncompatibleUpgradeError, match="another source under the name"):
        map_offsets_by_name("counts", snapshot(), names, (files("one", "/in/other"), mystery("two", 1)))


@pytest.mark.parametrize(
    "now",
    [
        sources(one="/in/a", zwei="/in/b"),
        sources(one="/in/a"),
        sources(one="/in/a", two="/in/b", three="/in/c"),
        (files("", "/in/a"), files("", "/in/b", 1)),
    ],
    ids=["renamed", "less", "more", "without names"],
)
def test_a_restore_under_other_names_is_refused(now: tuple[KnownSource, ...]) -> None:
    """Spark would read what has another name from its beginning, without a word (Law 5)."""
    with pytest.raises(IncompatibleUpgradeError, match="names") as error:
        check_same_names("counts", snapshot(), entry(("one", "two")), now, startable(now))
    assert error.value.context["snapshot_sources"] == ["one", "two"]
    assert "drain" in error.value.next_step


def test_a_restore_that_names_what_had_no_names_is_refused() -> None:
    """In either offset log: the positions are under numbers."""
    now = sources(one="/in/a", two="/in/b")
    for version in ("v1", "v2"):
        with pytest.raises(IncompatibleUpgradeError):
            check_same_names("counts", snapshot(), entry((), version), now, startable(now))


def test_a_restore_may_swap_named_sources_of_a_query_without_state() -> None:
    """Offsets go by name; state goes by place, so there the order must stay."""
    known, now = snapshot(), sources(two="/in/b", one="/in/a")
    check_same_names("counts", known, entry(("one", "two")), now, startable(now))
    check_same_order("counts", known, now)
    with pytest.raises(IncompatibleUpgradeError, match="order"):
        check_same_names("counts", known, entry(("one", "two")), now, startable(now, stateful=True))
    same = sources(one="/in/a", two="/in/b")
    check_same_names("counts", known, entry(("one", "two")), same, startable(same, stateful=True))


def test_a_restore_of_another_source_under_a_name_is_refused() -> None:
    """It would take up that one's offset."""
    now = sources(one="/in/other", two="/in/b")
    check_same_names("counts", snapshot(), entry(("one", "two")), now, startable(now))
    with pytest.raises(IncompatibleUpgradeError):
        check_same_order("counts", snapshot(), now)


def test_keys_are_what_the_sessions_spark_writes() -> None:
    """Names where there are some; numbers in offset log 2; none in offset log 1."""
    named = sources(two="/in/b", one="/in/a")
    assert source_keys("counts", startable(named, format="2", named="true"), 2, "4.2.0") == ("one", "two")
    plain = (files("", "/in/a"), files("", "/in/b", 1))
    assert source_keys("counts", startable(plain, format="2"), 2, "4.2.0") == ("0", "1")
    assert source_keys("counts", startable(plain), 2, "4.2.0") == ()
    assert source_keys("counts", startable(plain, format="2"), 2, "4.1.4") == ()  # which does not know it
    with pytest.raises(UnsupportedCheckpointError, match="names"):
        source_keys("counts", startable((), format="2", named="true"), 2, "4.2.0")


def test_a_source_that_stands_twice_is_refused_in_offset_log_2() -> None:
    """The log has one line of it, the plan two places."""
    twice = (files("", "/in/a"), files("", "/in/a"))
    assert source_keys("counts", startable(twice), 2, "4.2.0") == ()
    with pytest.raises(UnsupportedCheckpointError, match="twice"):
        source_keys("counts", startable(twice, format="2"), 2, "4.2.0")
    with pytest.raises(UnsupportedCheckpointError, match="twice"):
        check_same_names("counts", snapshot(), entry(()), twice, startable(twice))
    refuse_source_twice("counts", startable(()))


def test_what_spark_tells_in_the_order_of_the_plan_comes_in_that_of_the_lines() -> None:
    """Progress has its sources as the plan has them, the log has them by name; asked for others it shows none."""
    facts = startable(sources(two="/in/b", one="/in/a")).facts
    assert [source.name for source in facts.sources] == ["one", "two"]
    assert facts.in_line_order(("of two", "of one")) == ("of one", "of two")
    assert facts.in_line_order(("of two",)) == ()
    plain = startable((files("", "/in/a"), files("", "/in/a"))).facts
    assert plain.in_line_order(("a", "b")) == ("a", "b")
