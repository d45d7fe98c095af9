"""How much of its sources a query has not read: by asking them, by Spark's book of files, by Spark's own metrics.

Nothing here is ever waited for by a query. What cannot be told is said with its reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_streamstate.checkpoint.file_source import files_taken, parse_file_source_offset
from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.connectors.measuring import between
from airflow_streamstate.connectors.source import (
    NO_OFFSET,
    Lag,
    ListedSource,
    OpenSource,
    Unit,
    Untold,
)
from airflow_streamstate.driver.attempt.source_book import KnownSource, SourceBook
from airflow_streamstate.protocol.heartbeat import SourceLag

OUTSTANDING: tuple[tuple[str, Unit], ...] = (("numFilesOutstanding", "files"), ("numBytesOutstanding", "bytes"))
"""What a source may say of itself in its metrics, in the order in which it is asked for (Databricks' sources do)."""
MAX_FILES = 200_000
NOT_KNOWN = "nobody here knows this kind of source"
NOT_READ = "nothing of it is read yet"
NO_ANSWER = "it did not answer; an event says why"
NOT_COUNTED = f"it has read more than {MAX_FILES:,} files, which are not gone through for a count"


class SourceLags:
    """Measures for one attempt; remembers which files were read, so that the book of them is not read anew each time.

    Args:
        book: what the sources are, and the questions to them.
    """

    def __init__(self, book: SourceBook) -> None:
        self._book = book
        self._taken: dict[tuple[str, str], tuple[int, set[str]]] = {}

    def behind(
        self,
        query_name: str,
        checkpoint: Checkpoint,
        offsets: Sequence[str],
        metrics: Sequence[Mapping[str, str]] = (),
    ) -> tuple[SourceLag, ...]:
        """How far each source is ahead of these offsets; () where the sources and the offsets are not known.

        Args:
            query_name: the query; it was looked up.
            checkpoint: its own, with Spark's book of files.
            offsets: of its last committed batch, in the order of the lines.
            metrics: what each source said of itself at that batch, in the same order; () for nothing.
        """
        sources = self._book.sources(query_name)
        if len(sources) != len(offsets):
            return ()
        found = []
        for number, known in enumerate(sources):
            answer = self._asked(query_name, number, known, checkpoint, offsets[number])
            if isinstance(answer, Untold) and number < len(metrics):
                answer = _outstanding(metrics[number]) or answer
            what = known.identity.what or f"source {number}"
            if isinstance(answer, Untold):
                found.append(SourceLag(what, untold=answer.reason))
            else:
                found.append(SourceLag(what, max(0, answer.behind), answer.unit))
        return tuple(found)

    def between(
        self, query_name: str, checkpoint: Checkpoint, first: Sequence[str], second: Sequence[str]
    ) -> tuple[Lag | None, ...]:
        """How much the second offsets cover that the first do not, source by source; None where nobody can tell."""
        sources = self._book.sources(query_name)
        if not len(sources) == len(first) == len(second):
            return (None,) * len(sources)
        return tuple(
            between(known.adapter, (checkpoint.store, checkpoint.key(f"sources/{known.source.folder}")), one, other)
            for known, one, other in zip(sources, first, second, strict=True)
        )

    def has_listings(self, query_name: str) -> bool:
        """Whether asking the sources of a query lists folders, which takes as long as they are large."""
        return any(isinstance(known.opened, ListedSource) for known in self._book.sources(query_name))

    def _asked(
        self, query_name: str, number: int, known: KnownSource, checkpoint: Checkpoint, offset: str
    ) -> Lag | Untold:
        if not known.is_known:
            return Untold(NOT_KNOWN)
        if offset == NO_OFFSET:
            return Untold(NOT_READ)

        def ask(opened: OpenSource) -> Lag | Untold | None:
            if isinstance(opened, ListedSource):
                return self._unread(query_name, known, checkpoint, offset, opened)
            lag = opened.lag(offset)
            return lag if lag is None or isinstance(lag, Untold) else Lag(int(lag.behind), lag.unit)

        return self._book.ask(query_name, number, "its lag", ask) or Untold(NO_ANSWER)

    def _unread(
        self, query_name: str, known: KnownSource, checkpoint: Checkpoint, offset: str, opened: ListedSource
    ) -> Lag | Untold:
        last = parse_file_source_offset(offset)
        if last is None:
            return Untold("its offset is not that of a source of files")
        upto, taken = self._taken.get((query_name, known.source.folder), (-1, set()))
        if last < upto:
            upto, taken = -1, set()  # it began anew elsewhere
        if last > upto:
            entries = files_taken(checkpoint.store, checkpoint.key(f"sources/{known.source.folder}"), last, upto)
            taken.update(entry.path for entry in entries)
            self._taken[query_name, known.source.folder] = last, taken
        if len(taken) > MAX_FILES:
            return Untold(NOT_COUNTED)
        return Lag(len(opened.paths() - taken), "files")


def _outstanding(metrics: Mapping[str, str]) -> Lag | None:
    for name, unit in OUTSTANDING:
        text = str(metrics.get(name, ""))
        if text.isdigit():
            return Lag(int(text), unit)
    return None
