"""The report on a change before it is made: the comparison of the plans, and the rehearsal's verdict."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

from airflow_streamstate.errors import (
    DeadlineExceededError,
    DeploymentFailedError,
    IncompatibleUpgradeError,
    StreamStateError,
)
from airflow_streamstate.plan.differences import (
    Advice,
    Comparison,
    DeploymentComparison,
    Difference,
    Verdict,
    gravest,
)
from airflow_streamstate.protocol.rehearsals import Rehearsal, RehearsalVerdict, RehearsedQuery

ReportOutcome = Literal["fits", "refused", "failed", "deadline"]
FITTING: tuple[Verdict, ...] = ("same", "state-compatible")
START_ONE = "Let the script start its queries under a rehearsal, too (STREAMSTATE_REHEARSAL=1), and plan again."
_ASKED_FOR = frozenset({"query-added", "query-renamed"})


@dataclass(frozen=True)
class QueryReport:
    """One query.

    Attributes:
        verdict: of its plan; None where that could not be compared.
        differences: the gravest first.
        advice: of the new plan.
        rehearsed: its rehearsal; None where it was not started in it.
    """

    verdict: Verdict | None
    differences: tuple[Difference, ...] = ()
    advice: tuple[Advice, ...] = ()
    rehearsed: RehearsedQuery | None = None

    @property
    def reason_to_drain(self) -> str:
        """The first difference that needs a drain; "" for none, and where the rehearsal already seeded it."""
        if self.rehearsed is not None and self.rehearsed.start == "seeded":
            return ""
        return next((each.reason for each in self.differences if each.verdict == "needs-drain"), "")


@dataclass(frozen=True)
class PlanReport:
    """A change, before it is made.

    Attributes:
        outcome: ``fits``: it may be made as it is; ``refused``: not without a drain, or a decision; ``failed``: its
            script, or its driver; ``deadline``: unknown.
        reason: why it does not fit, one line; else "".
        deployment_id: the current one, with which it was compared.
        verdict: the gravest of all queries; None where not all were seen.
        queries: by name, those of the new version first.
        runs_batches: an empty batch was asked for; else only plans were compared.
        seconds: that the script took.
        error: what went wrong in the rehearsal, one line; "" for nothing.
        traceback, log_tail: of a script that failed, of a driver that died.
        seed_ok: whether the new version could be seeded after a drain; None where that was not tried.
        seed_error: why it could not, one line; else "".
    """

    stream_id: str
    rehearsal_id: str
    deployment_id: str
    outcome: ReportOutcome
    reason: str
    verdict: Verdict | None
    queries: Mapping[str, QueryReport]
    runs_batches: bool
    seconds: float
    error: str = ""
    traceback: str = ""
    log_tail: str = ""
    spark_version: str = ""
    notes: tuple[str, ...] = field(default=())
    seed_ok: bool | None = None
    seed_error: str = ""

    @property
    def fits(self) -> bool:
        """Whether it may be made as it is: the state is kept, and the sink gets what the new version says."""
        return self.outcome == "fits"

    def as_error(self) -> StreamStateError | None:
        """Why it does not fit, as an error; None where it fits."""
        facts: dict[str, object] = {
            "stream_id": self.stream_id,
            "deployment_id": self.deployment_id,
            "rehearsal_id": self.rehearsal_id,
            "verdict": self.verdict,
            "reason": self.reason,
        }
        if self.outcome == "refused":
            remedies = dict.fromkeys(each.remedy for query in self.queries.values() for each in query.differences)
            remedy = " ".join(remedies) if self.queries else START_ONE
            return IncompatibleUpgradeError("the change does not fit", **facts, next_step=remedy)
        if self.outcome == "failed":
            texts = {"traceback": self.traceback, "log_tail": self.log_tail}
            return DeploymentFailedError(
                "the new version failed in its rehearsal", **facts, **texts, next_step="Mend it, and plan again."
            )
        if self.outcome == "deadline":
            return DeadlineExceededError(
                "the rehearsal was not over at its deadline", **facts, next_step="Give it more time, and plan again."
            )
        return None

    def to_json(self) -> dict[str, object]:
        """``stream_id deployment_id rehearsal_id outcome reason verdict queries rehearsal{ok,seconds,error}
        seed{ok,error} notes``."""
        return {
            "stream_id": self.stream_id,
            "deployment_id": self.deployment_id,
            "rehearsal_id": self.rehearsal_id,
            "outcome": self.outcome,
            "reason": self.reason,
            "verdict": self.verdict,
            "queries": {name: _query_json(query) for name, query in self.queries.items()},
            "rehearsal": {
                "ok": self.rehearsal_ok,
                "seconds": self.seconds,
                "error": self.error or None,
                "traceback": self.traceback,
                "log_tail": self.log_tail,
                "spark_version": self.spark_version,
            },
            "seed": {"ok": self.seed_ok, "error": self.seed_error or None},
            "notes": list(self.notes),
        }

    @property
    def reason_to_drain(self) -> str:
        """The first query's reason to drain, whatever hazards there are; "" for none."""
        for name, query in self.queries.items():
            reason = query.reason_to_drain
            if reason:
                return f"query {name} is needs-drain: {reason}"
        return ""

    @property
    def rehearsal_ok(self) -> bool | None:
        """Whether the empty batches ran; None where none was asked for, and the script came to its end."""
        if self.error:
            return False
        return True if self.runs_batches else None


def _query_json(query: QueryReport) -> dict[str, object]:
    tried = query.rehearsed
    return {
        "verdict": query.verdict,
        "differences": [asdict(each) for each in query.differences],
        "advice": [asdict(each) for each in query.advice],
        "rehearsal": None
        if tried is None
        else {
            **asdict(tried),
            "error": tried.error or None,
            "notes": list(tried.notes),
            "batch_ids": list(tried.batch_ids),
        },
    }


def report_of(
    rehearsal: Rehearsal,
    verdict: RehearsalVerdict,
    comparison: DeploymentComparison,
    notes: Collection[str] = (),
) -> PlanReport:
    """The report from a rehearsal's request and verdict.

    Args:
        comparison: of the plans of the current deployment and of the queries that the new version started.
        notes: more for people.
    """
    # A script that started no query did not drop all queries: they were just not seen.
    is_whole = verdict.outcome == "done" and bool(verdict.queries)
    names = [*verdict.queries, *(name for name in comparison.queries if name not in verdict.queries)]
    queries = {
        name: _report_of_query(
            comparison.queries.get(name), verdict.queries.get(name), is_fresh=name in rehearsal.fresh_queries
        )
        for name in names
        if is_whole or name in verdict.queries
    }
    verdicts = [query.verdict for query in queries.values() if query.verdict is not None]
    overall = gravest(verdicts) if is_whole and len(verdicts) == len(queries) else None
    outcome, reason = _decide(verdict, queries, overall)
    return PlanReport(
        stream_id=rehearsal.stream_id,
        rehearsal_id=rehearsal.rehearsal_id,
        deployment_id=rehearsal.deployment_id,
        outcome=outcome,
        reason=reason,
        verdict=overall,
        queries=queries,
        runs_batches=rehearsal.runs_batches,
        seconds=verdict.seconds,
        error=_error_of(verdict),
        traceback=verdict.traceback,
        log_tail=verdict.log_tail,
        spark_version=verdict.spark_version,
        seed_ok=verdict.is_accepted_as_seed if verdict.seeded or verdict.seed_error else None,
        seed_error=verdict.seed_error or _failed_query(verdict.seeded) or "",
        notes=(
            *rehearsal.notes,
            *notes,
            *verdict.notes,
            *((START_ONE,) if verdict.outcome == "done" and not queries else ()),
        ),
    )


def _report_of_query(comparison: Comparison | None, rehearsed: RehearsedQuery | None, *, is_fresh: bool) -> QueryReport:
    """The report without the differences that are settled: the stream is drained already, or the query is named as
    fresh.
    """
    if comparison is None:
        return QueryReport(None, rehearsed=rehearsed)
    is_seeded = rehearsed is not None and rehearsed.start == "seeded"
    settled = [
        (is_seeded and each.verdict == "needs-drain") or (is_fresh and each.code in _ASKED_FOR)
        for each in comparison.differences
    ]
    open_ones = [each for each, is_settled in zip(comparison.differences, settled, strict=True) if not is_settled]
    least: Verdict = "state-compatible" if any(settled) else "same"
    verdict = gravest([least, *(each.verdict for each in open_ones)])
    return QueryReport(verdict, comparison.differences, comparison.advice, rehearsed)


def _decide(
    verdict: RehearsalVerdict, queries: Mapping[str, QueryReport], overall: Verdict | None
) -> tuple[ReportOutcome, str]:
    if verdict.outcome != "done":
        return verdict.outcome, verdict.error
    if not verdict.queries:
        return "refused", "the script came to its end without having started a query"
    failed = _failed_query(verdict.queries)
    if failed is not None:
        return "refused", failed
    if overall is None:
        return "refused", "not every query could be compared"
    if overall not in FITTING:
        name, query = next((name, query) for name, query in queries.items() if query.verdict == overall)
        because = query.differences[0].reason if query.differences else "its plans differ"
        return "refused", f"query {name} is {overall}: {because}"
    return "fits", ""


def _failed_query(queries: Mapping[str, RehearsedQuery]) -> str | None:
    for name, query in queries.items():
        if query.outcome in ("refused", "failed"):
            return f"query {name} {'was refused' if query.outcome == 'refused' else 'failed in Spark'}: {query.error}"
    return None


def _error_of(verdict: RehearsalVerdict) -> str:
    if verdict.outcome != "done":
        return verdict.error or ("it failed" if verdict.outcome == "failed" else "it was not over in time")
    return _failed_query(verdict.queries) or ("" if verdict.queries else "the script started no query")


def to_markdown(report: PlanReport) -> str:
    """The report as a comment on a pull request."""
    verdict = f" (`{report.verdict}`)" if report.verdict is not None else ""
    lines = [
        f"### `{report.stream_id}`: the change {_WORDS[report.outcome]}{verdict}",
        "",
        f"Compared with `{report.deployment_id}`; {_rehearsed(report)}",
    ]
    if report.reason:
        lines += ["", f"**{_cell(report.reason)}**"]
    lines += ["", "| query | plan | rehearsal |", "|---|---|---|"]
    for name, query in report.queries.items():
        lines.append(f"| `{_cell(name)}` | {query.verdict or 'not compared'} | {_tried(query.rehearsed)} |")
    lines.append("")
    for name, query in report.queries.items():
        for each in query.differences:
            lines += [
                f"- **{each.code}** ({each.verdict}) in `{_cell(name)}`{_place(each.path)}: {_cell(each.reason)}."
                f" {_cell(each.remedy)}",
            ]
        lines += [f"- *{each.code}* in `{_cell(name)}`: {_cell(each.text)}" for each in query.advice]
        tried = query.rehearsed
        told = () if tried is None else (*ran_again(tried), *tried.notes)
        lines += [f"- `{_cell(name)}`: {_cell(text)}" for text in told]
    lines += [f"- {_cell(note)}" for note in report.notes]
    for title, text in (("traceback", report.traceback), ("end of the log", report.log_tail)):
        if text:
            lines += ["", f"<details><summary>{title}</summary>", "", "```", text.replace("```", "'''"), "```", ""]
            lines += ["</details>"]
    return "\n".join(lines) + "\n"


_WORDS = {
    "fits": "fits",
    "refused": "does not fit",
    "failed": "could not be tried: its script failed",
    "deadline": "was not tried in time",
}


def _rehearsed(report: PlanReport) -> str:
    if not report.runs_batches:
        return "the plans alone were compared."
    return f"rehearsed on a fork of its state in {report.seconds:.0f} s, on Spark {report.spark_version or '?'}."


def _tried(rehearsed: RehearsedQuery | None) -> str:
    if rehearsed is None:
        return "not started"
    words = {"accepted": "accepted", "refused": "refused", "failed": "failed in Spark", "not_run": "not run"}
    start = f", {rehearsed.start}" if rehearsed.start else ""
    error = f": {_cell(rehearsed.error)}" if rehearsed.error else ""
    return f"{words[rehearsed.outcome]}{start}{error}"


def ran_again(tried: RehearsedQuery) -> tuple[str, ...]:
    """A sentence on the batches that ran again with their rows; none where none did."""
    ids = tried.batch_ids
    if not ids:
        return ()
    batches = f"batch {ids[0]}" if len(ids) == 1 else f"batches {ids[0]} to {ids[-1]}"
    out = "" if tried.rows_out is None else f", {tried.rows_out:,} out"
    return (f"{batches} ran again with {tried.rows_in or 0:,} rows{out}, in {tried.batch_seconds:.1f} s",)


def _cell(text: str) -> str:
    """The text in a form that neither ends a cell of a table nor begins markup."""
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def _place(path: str) -> str:
    return f", {_cell(path)}" if path else ""
