"""Moves of a query's position: texts for what is skipped and read again, and the consent that is needed."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from airflow_streamstate.protocol.positions import SourceMove


def counted(count: int, unit: str) -> str:
    """``3 files``, ``1 file``, ``1,200 rows``."""
    one = "batch" if unit == "batches" else unit.removesuffix("s")
    return f"{count:,} {one if count == 1 else unit}"


def describe(moves: Sequence[SourceMove]) -> tuple[str, ...]:
    """One clause for each source: ``file /in: 3 files read again ({…} to {…})``."""
    return tuple(_one(move) for move in moves)


def passes_over(moves: Sequence[SourceMove]) -> bool:
    """Whether input may be left unread; True if that is unknown."""
    return any(move.passed_over != 0 and move.from_offset != move.to_offset for move in moves)


def reads_again(moves: Sequence[SourceMove]) -> bool:
    """Whether input may be read a second time; True if that is unknown."""
    return any(move.read_again != 0 and move.from_offset != move.to_offset for move in moves)


def consent_missing(
    query_name: str, moves: Sequence[SourceMove], accept_lost: Collection[str], accept_repeated: Collection[str]
) -> str:
    """The options that would have to name the query; "" if no consent is missing."""
    options = []
    if passes_over(moves) and query_name not in accept_lost:
        options.append(f"--accept-lost-input {query_name}")
    if reads_again(moves) and query_name not in accept_repeated:
        options.append(f"--accept-repeated-input {query_name}")
    return " and ".join(options)


def _one(move: SourceMove) -> str:
    if move.from_offset == move.to_offset:
        return f"{move.source}: where it was ({move.to_offset})"
    clauses = (
        _clause(move.passed_over, move.unit, "passed over"),
        _clause(move.read_again, move.unit, "read again"),
    )
    words = ", ".join(filter(None, clauses)) or "nothing passed over"
    return f"{move.source}: {words} ({move.from_offset} to {move.to_offset})"


def _clause(count: int | None, unit: str, verb: str) -> str:
    if count is None:
        return f"unknown how much is {verb}"
    return f"{counted(count, unit)} {verb}" if count else ""
