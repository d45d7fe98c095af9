"""What it takes to move the position of a query: words for what is passed over and read again, and the consent."""

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
    """Whether any input is read by nobody, as far as anybody can tell."""
    return any(move.passed_over != 0 and move.from_offset != move.to_offset for move in moves)


def reads_again(moves: Sequence[SourceMove]) -> bool:
    """Whether any input is read a second time, as far as anybody can tell."""
    return any(move.read_again != 0 and move.from_offset != move.to_offset for move in moves)


def consent_missing(
    query_name: str, moves: Sequence[SourceMove], accept_lost: Collection[str], accept_repeated: Collection[str]
) -> str:
    """The options that would have to name the query; "" where nothing is missing."""
    options = []
    if passes_over(moves) and query_name not in accept_lost:
        options.append(f"--accept-lost-input {query_name}")
    if reads_again(moves) and query_name not in accept_repeated:
        options.append(f"--accept-repeated-input {query_name}")
    return " and ".join(options)


def _one(move: SourceMove) -> str:
    if move.from_offset == move.to_offset:
        return f"{move.source}: where it stood ({move.to_offset})"
    told = [
        "nobody can tell how much is passed over" if move.passed_over is None else _much(move.passed_over, move.unit),
        "nobody can tell how much is read again" if move.read_again is None else _much(move.read_again, move.unit),
    ]
    words = [
        text if text.startswith("nobody") else f"{text} {verb}"
        for text, verb in zip(told, ("passed over", "read again"), strict=True)
        if text
    ]
    return f"{move.source}: {', '.join(words) or 'nothing passed over'} ({move.from_offset} to {move.to_offset})"


def _much(count: int, unit: str) -> str:
    return counted(count, unit) if count else ""
