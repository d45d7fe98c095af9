"""What to do about a change that is refused, in one text: no two of its sentences contradict each other. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from airflow_streamstate.plan.codes import DRAIN, MIGRATE
from airflow_streamstate.plan.differences import FITTING, Difference

SPARK_REFUSES = (
    "Spark refuses the kept state for the new code. Drain the old version and seed the new one (`--allow-drain`), or"
    " convert the state (`--migration FILE`)."
)
WITH_ROWS = "Fix the new version: it fails with rows of the stream. A drain does not change that."
_OF_STATE = re.compile(
    r"STATE_STORE|STATE_SCHEMA|STATEFUL_|STREAMING_STATE|state (?:key |value )?schema", re.IGNORECASE
)
"""In Spark's words where it refuses state; used for advice only, nothing is decided by it (Law 13)."""


def remedies_of(differences: Iterable[Difference]) -> str:
    """What to do about these differences together; "" where each of them fits.

    What a person must decide comes first. A migration is named only where it settles all that a drain would.
    """
    found = [each for each in differences if each.verdict not in FITTING]
    hazards = [each for each in found if each.verdict == "hazardous"]
    drains = [each for each in found if each.verdict != "hazardous"]
    migrates = all(each.remedy == MIGRATE for each in drains)
    first = _grouped((each.code, each.remedy) for each in hazards)
    then = _grouped((each.code, DRAIN if each.remedy == MIGRATE and not migrates else each.remedy) for each in drains)
    if len(first) + len(then) <= 1:
        return "".join((*first, *then))
    lead = "After that, for" if first else "For"
    return " ".join(
        (
            *(f"For {', '.join(codes)}: {remedy}" for remedy, codes in first.items()),
            *(f"{lead} {', '.join(codes)}: {remedy}" for remedy, codes in then.items()),
        )
    )


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The codes of each remedy, in order, each once."""
    found: dict[str, list[str]] = {}
    for code, remedy in pairs:
        codes = found.setdefault(remedy, [])
        if code not in codes:
            codes.append(code)
    return found


def remedy_in(report: Mapping[str, object]) -> str:
    """The same for a whole report in its JSON form, the rehearsal included; "" where it knows none."""
    queries = report.get("queries")
    found = [query for query in queries.values() if isinstance(query, Mapping)] if isinstance(queries, Mapping) else []
    words = remedies_of(_difference(each) for query in found for each in query.get("differences", ()))
    return words or _of_rehearsals([each for each in (query.get("rehearsal") for query in found) if each])


def _difference(row: Mapping[str, str]) -> Difference:
    verdict = row.get("verdict", "needs-drain")
    return Difference(row.get("code", ""), verdict, "", "", row.get("remedy", ""))  # type: ignore[arg-type]


def _of_rehearsals(rehearsals: Sequence[Mapping[str, object]]) -> str:
    refused = [each for each in rehearsals if each.get("outcome") in ("refused", "failed")]
    if any(_OF_STATE.search(str(each.get("error") or "")) for each in refused):
        return SPARK_REFUSES
    return WITH_ROWS if any(each.get("fails_with_rows") for each in refused) else ""
