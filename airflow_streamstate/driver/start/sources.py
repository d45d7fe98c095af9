"""Asks each source before a start whether the input after the stored offset is still there.

A start whose input is lost, or whose source is another one of the same name, is refused, unless the user named the
query (``accept_lost_input``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_streamstate.connectors.source import NO_OFFSET, LostInput, Preflight
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.source_book import SourceBook
from airflow_streamstate.errors import InputLostError
from airflow_streamstate.protocol.positions import SourceIdentity

_WORDS = {
    "removed": "removed at the source before they were read",
    "remade": "of another source of this name, made since the offset was kept",
    "gone": "not there any more",
    "sent_once": "that were sent once, and that no start can read again",
    "elsewhere": "not read by this version, or the offset is of another system",
}
_LISTED = 20
LOOK_AGAIN_SECONDS = 5.0


@dataclass(frozen=True)
class Readable:
    """What a query can start from.

    Attributes:
        lines: its offsets, moved on where lost input was accepted.
        planned_lines: those of a planned batch, likewise.
        remarks: what was lost, in words.
    """

    lines: tuple[str, ...]
    planned_lines: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def look_before_start(
    attempt: Attempt,
    name: str,
    lines: Sequence[str],
    identities: Sequence[SourceIdentity | None],
    newest_batch_id: int,
    *,
    planned_lines: Sequence[str] = (),
    continues: bool = False,
) -> Readable:
    """Check that everything after these offsets can still be read, and record the marks of the sources.

    Args:
        identities: the identity that each offset was stored with; shorter or None where unknown.
        newest_batch_id: the newest batch that is planned or committed; -1 for none.
        planned_lines: of a batch that is planned and runs first.
        continues: the query continues its own checkpoint, whose offsets are never changed.

    Raises:
        InputLostError: some of it is lost, and the user did not accept that.
    """
    book = attempt.sources
    said = _said_behind(book, name, lines, identities)
    if any(part.reason == "gone" for flight in said.values() for part in flight.lost):
        # A broker that has just started may not know a topic yet. A source that does not answer keeps its first answer.
        attempt.clock.sleep(LOOK_AGAIN_SECONDS)
        said |= _said_behind(book, name, lines, identities)
    found = {number: flight for number, flight in said.items() if flight.lost}
    lost = [part for flight in found.values() for part in flight.lost]
    lost_of = set(found)
    readable, planned = list(lines), list(planned_lines)
    for number, flight in found.items():
        readable[number] = flight.readable
        if planned:
            # Over the same bounds but for what is lost (1a.6).
            of_planned = book.preflight(name, number, planned[number], _marks(identities, number))
            planned[number] = of_planned.readable if of_planned is not None else planned[number]
    is_accepted = name in attempt.spec.start.accept_lost_input and not continues
    book.mark(
        name,
        [identity or SourceIdentity("", "") for identity in identities],
        newest_batch_id,
        lost_of if is_accepted else (),
        [number for number, line in enumerate(lines) if line != NO_OFFSET and number not in said],
    )
    if not lost:
        return Readable(tuple(lines), tuple(planned_lines))
    is_sent_once = all(part.reason == "sent_once" for part in lost)
    if continues and not is_sent_once and all(book.passes_over_lost(name, number) for number in lost_of):
        # The script's own options say of each source to pass over lost input.
        return Readable(tuple(lines), tuple(planned_lines), _sentences("lost before this start", lost))
    if not is_accepted:
        raise InputLostError(
            "a source of this query sends each row once, so that no start goes on from its offset"
            if is_sent_once
            else "input that this query has not read is lost at its source",
            query_name=name,
            rows=sum(part.rows or 0 for part in lost) if any(part.rows is not None for part in lost) else "not known",
            lost=[_one(part) for part in lost[:_LISTED]],
            next_step=f"{_otherwise(is_sent_once)} with --accept-lost-input {name}, which goes on with what is there.",
        )
    return Readable(tuple(readable), tuple(planned), _sentences("passed over, as was asked for", lost))


def _otherwise(is_sent_once: bool) -> str:
    return "Deploy" if is_sent_once else "Bring it back; or deploy"


def _said_behind(
    book: SourceBook, name: str, lines: Sequence[str], identities: Sequence[SourceIdentity | None]
) -> dict[int, Preflight]:
    """The answers of the sources that can be asked, by number."""
    found = {}
    for number, line in enumerate(lines[: len(book.identities(name))]):
        flight = book.preflight(name, number, line, _marks(identities, number))
        if flight is not None:
            found[number] = flight
    return found


def _marks(identities: Sequence[SourceIdentity | None], number: int) -> Mapping[str, str]:
    identity = identities[number] if number < len(identities) else None
    return identity.marks if identity is not None else {}


def _sentences(what: str, lost: Sequence[LostInput]) -> tuple[str, ...]:
    return tuple(f"{what}: {_one(part)}" for part in lost[:_LISTED])


def _one(part: LostInput) -> str:
    rows = "rows" if part.rows is None else "1 row" if part.rows == 1 else f"{part.rows} rows"
    return f"{part.part}: {rows} {_WORDS[part.reason]}" + (f" ({part.detail})" if part.detail else "")
