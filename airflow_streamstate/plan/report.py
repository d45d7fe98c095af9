"""The report on a change before it is made: the comparison of the plans, the rehearsal's verdict, the replay."""

from __future__ import annotations

import importlib.resources
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import field, replace
from typing import ClassVar, Literal

from airflow_streamstate.errors import (
    DeadlineExceededError,
    DeploymentFailedError,
    IncompatibleUpgradeError,
    StreamStateError,
)
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.older_python import zipped
from airflow_streamstate.plan.codes import (
    FITTING,
    Advice,
    Comparison,
    DeploymentComparison,
    Difference,
    Verdict,
    gravest,
    remedy_in,
)
from airflow_streamstate.plan.replay_report import (
    STATE_TITLES,
    VERSIONS_COLUMNS,
    ReplayedVersions,
    ReplayReport,
    SampleTable,
    sample_tables,
    state_rows,
    state_samples,
    versions_rows,
)
from airflow_streamstate.protocol.forms import View, selected
from airflow_streamstate.protocol.scratch import RehearsedQuery, ScratchRun, ScratchVerdict

ReportOutcome = Literal["fits", "refused", "failed", "deadline"]
START_ONE = "Let the script start its queries under a rehearsal, too (STREAMSTATE_REHEARSAL=1), and plan again."
REPAIR = "Fix what the reason names, and plan again."
_ASKED_FOR = frozenset({"query-added", "query-renamed"})


@dataclass(frozen=True)
class QueryReport(View):
    """One query.

    Attributes:
        verdict: of its plan; None if that could not be compared.
        differences: the gravest first.
        advice: of the new plan.
        rehearsed: its rehearsal; None where it was not started in it.
    """

    form: ClassVar[str] = "verdict differences advice rehearsal=rehearsed"

    verdict: Verdict | None
    differences: tuple[Difference, ...] = ()
    advice: tuple[Advice, ...] = ()
    rehearsed: RehearsedQuery | None = None

    @property
    def reason_to_drain(self) -> str:
        """The first difference that needs a drain; "" without one, and where the rehearsal already seeded it."""
        if self.rehearsed is not None and self.rehearsed.start == "seeded":
            return ""
        return next((each.reason for each in self.differences if each.verdict == "needs-drain"), "")


@dataclass(frozen=True)
class PlanReport(View):
    """A change, before it is made.

    Attributes:
        outcome: ``fits``: it may be made as it is; ``refused``: not without a drain, or a decision; ``failed``: its
            script, or its driver; ``deadline``: unknown.
        reason: why it does not fit, one line; else "".
        deployment_id: the current one, with which it was compared.
        verdict: the gravest of all queries; None where not all were seen.
        queries: by name, those of the new version first.
        rehearse: each query was tried; else only plans were compared.
        seconds: that the script took.
        error: what went wrong in the rehearsal, one line; "" for nothing.
        traceback, log_tail: of a script that failed, of a driver that died.
        seed_ok: whether the new version could be seeded after a drain; None if that was not tried.
        seed_error: why it could not, one line; else "".
        replay: recorded batches in both versions; None where none was asked for, or none could be replayed.
        not_replayed: why none was replayed although it was asked for; else "".
    """

    form: ClassVar[str] = (
        "stream_id deployment_id rehearsal_id outcome reason verdict queries rehearsal seed replay not_replayed|null"
        " notes"
    )

    stream_id: str
    rehearsal_id: str
    deployment_id: str
    outcome: ReportOutcome
    reason: str
    verdict: Verdict | None
    queries: Mapping[str, QueryReport]
    rehearse: bool
    seconds: float
    error: str = ""
    traceback: str = ""
    log_tail: str = ""
    spark_version: str = ""
    notes: tuple[str, ...] = field(default=())
    seed_ok: bool | None = None
    seed_error: str = ""
    replay: ReplayedVersions | None = None
    not_replayed: str = ""

    @property
    def fits(self) -> bool:
        """Whether it may be made as it is: the state is kept, and the sink gets what the new version writes."""
        return self.outcome == "fits"

    @property
    def has_same_rows(self) -> bool:
        """Whether each replayed batch was compared, and has the same rows; also where none was replayed."""
        return self.replay is None or self.replay.new.has_same_rows

    def as_error(self, *, fails_on_changed_rows: bool = False) -> StreamStateError | None:
        """Why it does not fit, as an error; None where it fits.

        Args:
            fails_on_changed_rows: whether other rows in replayed batches are an error, too.
        """
        facts = selected(self, "stream_id deployment_id rehearsal_id verdict reason")
        if self.outcome == "refused":
            remedy = remedy_in(self.to_json()) or REPAIR if self.queries else START_ONE
            if self.replay is not None:
                remedy = REPAIR
            return IncompatibleUpgradeError("the change does not fit", **facts, next_step=remedy)
        where = "rehearsal" if self.replay is None else "replay"
        if self.outcome == "failed":
            texts = selected(self, "traceback log_tail")
            return DeploymentFailedError(f"the new version failed in its {where}", **facts, **texts, next_step=REPAIR)
        if self.outcome == "deadline":
            return DeadlineExceededError(
                f"the {where} was not over at its deadline", **facts, next_step="Give it more time, and plan again."
            )
        if fails_on_changed_rows and not self.has_same_rows:
            return IncompatibleUpgradeError(
                "the new version gives other rows",
                **facts,
                batches=changed_batches(self),
                next_step="The report has the first rows of each side. To accept them, do not fail on changed rows.",
            )
        return None

    @property
    def rehearsal(self) -> dict[str, object]:
        """How the rehearsal ended, as JSON."""
        return selected(self, "ok=rehearsal_ok seconds error|null traceback log_tail spark_version")

    @property
    def seed(self) -> dict[str, object]:
        """Whether the new version could be seeded, as JSON."""
        return selected(self, "ok=seed_ok error=seed_error|null")

    @property
    def reason_to_drain(self) -> str:
        """The first query's reason to drain, whatever hazards there are; "" without one."""
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
        return True if self.rehearse else None


def report_of(
    run: ScratchRun,
    verdict: ScratchVerdict,
    comparison: DeploymentComparison,
    notes: Collection[str] = (),
) -> PlanReport:
    """The report from a rehearsal's request and verdict.

    Args:
        comparison: of the plans of the current deployment and of the queries that the new version started.
        notes: more remarks, human-readable.
    """
    # A script that started no query did not drop all queries: they were just not seen.
    is_whole = verdict.outcome == "done" and bool(verdict.queries)
    names = [*verdict.queries, *(name for name in comparison.queries if name not in verdict.queries)]
    queries = {
        name: _report_of_query(
            comparison.queries.get(name), verdict.queries.get(name), is_fresh=name in run.rehearsal.allow_new_queries
        )
        for name in names
        if is_whole or name in verdict.queries
    }
    verdicts = [query.verdict for query in queries.values() if query.verdict is not None]
    overall = gravest(verdicts) if is_whole and len(verdicts) == len(queries) else None
    outcome, reason = _decide(verdict, queries, overall)
    return PlanReport(
        stream_id=run.stream_id,
        rehearsal_id=run.run_id,
        deployment_id=run.deployment_id,
        outcome=outcome,
        reason=reason,
        verdict=overall,
        queries=queries,
        rehearse=run.rehearsal.terms.rehearse,
        seconds=verdict.seconds,
        error=_error_of(verdict),
        traceback=verdict.traceback,
        log_tail=verdict.log_tail,
        spark_version=verdict.spark_version,
        seed_ok=verdict.is_accepted_as_seed if verdict.seeded or verdict.seed_error else None,
        seed_error=verdict.seed_error or _failed_query(verdict.seeded) or "",
        notes=(
            *run.notes,
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
    open_ones = [each for each, is_settled in zipped(comparison.differences, settled) if not is_settled]
    least: Verdict = "state-compatible" if any(settled) else "same"
    verdict = gravest([least, *(each.verdict for each in open_ones)])
    return QueryReport(verdict, comparison.differences, comparison.advice, rehearsed)


def _decide(
    verdict: ScratchVerdict, queries: Mapping[str, QueryReport], overall: Verdict | None
) -> tuple[ReportOutcome, str]:
    if verdict.outcome != "done":
        return verdict.outcome, verdict.error
    if not verdict.queries:
        return "refused", "the script ended without having started a query"
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


def _error_of(verdict: ScratchVerdict) -> str:
    if verdict.outcome != "done":
        return verdict.error or ("it failed" if verdict.outcome == "failed" else "it was not over in time")
    return _failed_query(verdict.queries) or ("" if verdict.queries else "the script started no query")


# replay


def queries_to_replay(report: PlanReport) -> tuple[tuple[str, ...], str]:
    """The queries whose recorded batches the new version can run, going by its plan; and why there are none, or "".

    The new version cannot continue with the state of a query that needs a drain, though the stream be drained by now.
    """
    if report.outcome == "refused" and report.verdict is not None and report.verdict not in FITTING:
        return (), f"the verdict is {report.verdict}, and only a version that continues with the state can be replayed"
    if report.outcome != "fits":
        return (), "the rehearsal did not succeed"
    names = tuple(
        name
        for name, query in report.queries.items()
        if query.rehearsed is not None
        and query.rehearsed.start != "fresh"
        and all(each.verdict in FITTING for each in query.differences)
    )
    return names, "" if names else "no query of the new version continues with the state of the recorded one"


def with_replay(report: PlanReport, found: ReplayedVersions) -> PlanReport:
    """A report that fits, with what the replay of its version showed.

    A batch that fails in the new version refuses the change; rows that are gone, and what the recorded version does,
    do not.
    """
    report = replace(report, replay=found)
    new = found.new
    fails = {name: query.error for name, query in new.queries.items() if any(each.error for each in query.batches)}
    if not new.error:
        fails |= {name: query.error for name, query in new.queries.items() if query.outcome == "failed"}
    for name, error in fails.items():
        too = ", as in the version that runs" if _fails_alike(found.old, name, error) else ""
        return replace(report, outcome="refused", reason=f"in the replay of query {name} {error}{too}")
    if new.outcome == "deadline":
        return replace(report, outcome="deadline", reason=f"the replay was not over in time: {new.error}")
    if new.outcome == "failed":
        reason = f"the new version failed in its replay: {new.error}"
        return replace(report, outcome="failed", reason=reason, traceback=new.traceback, log_tail=new.log_tail)
    if not any(new is not None for _, _, new in found.pairs):
        why = [f"query {name}: {query.error}" for name, query in new.queries.items() if query.error]
        return replace(report, replay=None, not_replayed="; ".join(why))
    return report


def _fails_alike(old: ReplayReport, name: str, error: str) -> bool:
    return name in old.queries and old.queries[name].outcome == "failed" and old.queries[name].error == error


def changed_batches(report: PlanReport) -> list[str]:
    """The replayed batches whose rows are others in the new version, or could not be compared."""
    pairs = () if report.replay is None else report.replay.pairs
    return [
        f"{new.batch_id} of {name}"
        for name, _, new in pairs
        if new is not None and (new.comparison is None or not new.comparison.is_same)
    ]


def replay_sentences(report: PlanReport) -> tuple[str, ...]:
    """What to report of the replay besides its table; nothing where none was asked for."""
    if report.not_replayed:
        return (f"no batch was replayed: {report.not_replayed}",)
    if report.replay is None:
        return ()
    changed = changed_batches(report)
    told = [f"the rows are others, or were not compared: batch {'; batch '.join(changed)}"] if changed else []
    for which, side in (("recorded version", report.replay.old), ("new version", report.replay.new)):
        if side.error:
            told.append(f"the {which} did not end in the replay: {side.error}")
        errors = {name: query.error for name, query in side.queries.items() if query.error and not side.error}
        told += [f"the {which}, query {name}: {error}" for name, error in errors.items()]
    speed = report.replay.speed
    if speed is not None:
        told.append(f"speed: {speed}")
    notes = (*report.replay.old.notes, *report.replay.new.notes)
    notes += tuple(f"query {name}: {note}" for name, query in report.replay.new.queries.items() for note in query.notes)
    return (*told, *(note for note in dict.fromkeys(notes) if note not in report.notes))


# Markdown


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
    lines += _replayed(report)
    for title, text in (("traceback", report.traceback), ("end of the log", report.log_tail)):
        lines += _folded(title, text)
    return "\n".join(lines) + "\n"


def _replayed(report: PlanReport) -> list[str]:
    lines = [f"- {_cell(text)}" for text in replay_sentences(report)]
    found = report.replay
    if found is None:
        return lines
    titles = ("query", "batch", *(title for title, _ in VERSIONS_COLUMNS))
    table = ["", f"| {' | '.join(titles)} |", f"|---|{'---:|' * (len(titles) - 1)}"]
    table += [f"| `{_cell(name)}` | {' | '.join(cells)} |" for name, *cells in versions_rows(found)]
    for name, old, new in found.pairs:
        for title, sample in sample_tables(name, new).items():
            table += _folded_table(title, sample)
        for which, batch in (("the recorded version", old), ("the new version", new)):
            if batch is not None:
                title = f"batch {batch.batch_id} of {name} in {which}"
                table += _folded(title, batch.traceback)
                table += _folded(f"{title}, values where it failed", batch.failed_at)
    state = state_rows(found.new)
    if state:
        table += ["", f"| {' | '.join(STATE_TITLES)} |", f"|---|---|{'---:|' * (len(STATE_TITLES) - 2)}"]
        table += [f"| `{_cell(name)}` | `{path}` | {' | '.join(cells)} |" for name, path, *cells in state]
    for title, text in state_samples(found.new).items():
        table += _folded(title, text)
    return [*table, "", *lines]


def _folded(title: str, text: str) -> list[str]:
    if not text:
        return []
    summary = f"<details><summary>{_cell(title)}</summary>"
    return ["", summary, "", "```", text.replace("```", "'''"), "```", "", "</details>"]


def _folded_table(title: str, sample: SampleTable) -> list[str]:
    head = f"| {' | '.join(map(_cell, sample.columns))} |"
    rows = [f"| {' | '.join(map(_cell, row))} |" for row in sample.rows]
    summary = f"<details><summary>{_cell(title)}</summary>"
    return ["", summary, "", head, f"|{'---|' * len(sample.columns)}", *rows, "", "</details>"]


_WORDS = {
    "fits": "fits",
    "refused": "does not fit",
    "failed": "could not be tried: its script failed",
    "deadline": "was not tried in time",
}


def _rehearsed(report: PlanReport) -> str:
    if not report.rehearse:
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
    """The text in a form that neither ends a cell of a table nor starts markup."""
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def _place(path: str) -> str:
    return f", {_cell(path)}" if path else ""


# What another Spark does in another way with the same script: Spark's migration guide as data.
#
# ``spark_changes.json`` has the defaults that change rows, the settings that are gone, and names of pyspark that are
# gone. A test holds it against each Spark.

CHANGES = "spark_changes.json"
Line = tuple[int, int]


def spark_changes() -> list[dict[str, str]]:
    """The entries of the file, by their first line of Spark.

    ``setting`` with its defaults, ``was`` and ``now``, and ``what`` ``did`` and ``does`` by them; or with ``instead``
    what is ``gone`` (a setting), or a ``name`` (of a ``DataFrame``) that is. ``uses``: what a script contains that it
    concerns, a regular expression.
    """
    text = importlib.resources.files("airflow_streamstate.plan").joinpath(CHANGES).read_text(encoding="utf-8")
    found: list[dict[str, str]] = json.loads(text)
    return found


def notes_of_move(
    old: Line | None, new: Line | None, conf: Mapping[str, str], sources: Mapping[str, str]
) -> tuple[str, ...]:
    """What a script has to expect of another Spark, one sentence each.

    Args:
        old, new: the lines of both, ``(4, 2)``; None if unknown.
        conf: of the new version.
        sources: the texts of its script and modules, by file name.
    """
    if old is None or new is None or old == new:
        return ()
    low, high = sorted((old, new))
    found = []
    for entry in spark_changes():
        since = tuple(int(part) for part in entry["since"].split("."))
        if low < since <= high:
            found.append(_note_of_change(entry, conf, sources, is_newer=new > old))
    return tuple(dict.fromkeys(filter(None, found)))


def _note_of_change(
    entry: Mapping[str, str], conf: Mapping[str, str], sources: Mapping[str, str], *, is_newer: bool
) -> str:
    """The sentence about one entry; "" where it does not concern this script."""
    instead = f": use {entry['instead']}" if entry.get("instead") else ""
    if "gone" in entry:
        is_there = is_newer and entry["gone"] in conf
        return f"Spark {entry['since']} has no setting {entry['gone']}{instead}" if is_there else ""
    place = _first_place(rf"\.{entry['name']}\b" if "name" in entry else entry.get("uses", ""), sources)
    if place is None:
        return ""
    if "name" in entry:
        return f"Spark {entry['since']} has no DataFrame.{entry['name']}{instead}{place}" if is_newer else ""
    setting, value = entry["setting"], entry["was" if is_newer else "now"]
    if setting in conf or (not is_newer and ".legacy." in setting):
        return ""
    what = f"{entry['what']} {entry['did']} before Spark {entry['since']}, and {entry['does']} since{place}"
    return f"{what}; `--conf {setting}={value}` keeps what this stream has"


def _first_place(pattern: str, sources: Mapping[str, str]) -> str | None:
    """Where a pattern is first found, for a sentence: "" for one that is always found; None if it is not found."""
    if not pattern:
        return ""
    for name, text in sources.items():
        for number, line in enumerate(text.splitlines(), 1):
            if re.search(pattern, line) and not line.lstrip().startswith("#"):
                return f" ({name}, line {number})"
    return None
