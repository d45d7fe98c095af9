"""The terms of reading the state of a snapshot with a Spark driver of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.fields import Seconds, Word
from airflow_streamstate.protocol.terms.declaration import REQUIRED, check_terms, term
from airflow_streamstate.protocol.terms.order import MOST_ORDER_SECONDS

LOCAL_MASTER = "local[*]"
SHOWN_ROWS = 20
"""Of a state, unless more are asked for."""
ExportFormat = Literal["parquet", "delta"]
_EVERY_VERB = ("diff", "verify")


@dataclass(frozen=True, kw_only=True)
class ReaderTerms:
    """The driver that reads."""

    master: Word = term(LOCAL_MASTER, help="Spark's master for the driver that reads", metavar="URL", verbs=_EVERY_VERB)
    conf: Mapping[str, str] = term(
        {},
        help="Spark configuration that overrides the deployment's; a value may be a reference to a secret",
        verbs=_EVERY_VERB,
    )
    packages: tuple[Word, ...] = term(
        (),
        help="Maven packages in addition to the deployment's",
        metavar="COORDINATES",
        takes_commas=True,
        verbs=_EVERY_VERB,
    )
    deadline_seconds: Seconds = term(
        600.0, help="seconds until the driver is ended", most=MOST_ORDER_SECONDS, verbs=_EVERY_VERB
    )

    def __post_init__(self) -> None:
        check_terms(self)


@dataclass(frozen=True, kw_only=True)
class ReadingTerms(ReaderTerms):
    """What is read."""

    snapshot_id: str | None = term(
        None,
        help="the snapshot; by default the newest one with state",
        metavar="ID",
        verbs=("verify",),
    )
    query_name: str | None = term(None, help="only this query", flag="--query", metavar="NAME", verbs=("diff",))


@dataclass(frozen=True, kw_only=True)
class ExportTerms:
    """Where an export of state goes."""

    out: str = term(REQUIRED, help="a folder, or a URI that Spark can write to; not in the home", metavar="URI")
    format: ExportFormat = term(
        "parquet", help="parquet, or delta, which needs its packages and conf unless the deployment has them"
    )
    overwrite: bool = term(False, help="replace an earlier export there; other files are never replaced")
    changes_since: str | None = term(
        None,
        help="write the upserts and deletes that lead from this older snapshot to the newer one",
        metavar="ID",
    )

    def __post_init__(self) -> None:
        check_terms(self)


@dataclass(frozen=True, kw_only=True)
class VerifyTerms:
    """How thoroughly a snapshot is verified."""

    deep: bool = term(False, help="also load every row of its state with Spark")
