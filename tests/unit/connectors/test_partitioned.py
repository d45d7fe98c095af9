"""The connector of partitioned sources: what a start learns about lost input, and where it continues."""

from __future__ import annotations

from airflow_streamstate.connectors.partitioned import OpenPartitioned, PartitionedConnector
from airflow_streamstate.connectors.source import PassingOverConnector
from airflow_streamstate.connectors.source import Source as SourceFacts
from airflow_streamstate.sources import offsets
from airflow_streamstate.sources.growing_files import GrowingFiles
from airflow_streamstate.sources.interface import Json, Lost, Part, remember
from support.listed_source import ListedPart, ListedSource, Reading, Shelf, numbers


class Emptied(ListedPart):
    """A part whose rows were all replaced by fewer ones."""

    def lost(self) -> Lost | None:
        is_short = self.given > len(self.shelf.parts[self.name])
        return Lost("remade", None, "it ends before what was read") if is_short else None


class Source(ListedSource):
    def build_part(self, part: str, state: Json) -> Part:
        return Emptied(self.shelf, part, state or 0)


def test_its_remarks_do_not_let_a_resume_pass_over_lost_input() -> None:
    """No option of a partitioned source accepts it, and it always has a remark."""
    connector = PartitionedConnector()
    remember(GrowingFiles)
    assert connector.remarks(SourceFacts("growing_files", {"path": "/logs/*.log"}))
    assert not isinstance(connector, PassingOverConnector)


def test_rows_that_were_read_ahead_and_are_in_no_spool_are_lost() -> None:
    """The source has given them already, and gives them to nobody again (Law 5)."""
    read = offsets.SourceOffset("l-1", parts={"a": offsets.PartOffset(state=0, chunks=1, taken=2, digest="d")})
    found = OpenPartitioned(Source(Shelf({"a": numbers(0, 4)}))).preflight(offsets.to_text(read), {})
    assert [(one.part, one.reason) for one in found.lost] == [("a", "removed")]
    assert offsets.parse(found.readable).parts == {}


def test_a_part_that_begins_anew_by_accepted_loss_is_not_given_the_rows_of_before() -> None:
    """Its lineage stays, and the spool still has what it gave before."""
    shelf = Shelf({"a": numbers(0, 4), "b": numbers(0, 4)})
    reading = Reading(Source(shelf))
    reading.rest()
    shelf.parts["a"] = numbers(50, 51)
    found = OpenPartitioned(reading.source).preflight(offsets.to_text(reading.at), {})
    assert [one.part for one in found.lost] == ["a"]
    again = Reading(Source(shelf), store=reading.store).begin(offsets.parse(found.readable))
    assert again.rest() == {"a": [50, 51]}
