"""Every difference that a comparison can name, what follows from it, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, get_args

from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.upgrades import PlanVerdict

if TYPE_CHECKING:
    from typing import TypeAlias

# The result of comparing two plans: verdicts, differences, advice.

Verdict: TypeAlias = PlanVerdict

VERDICTS: tuple[Verdict, ...] = get_args(PlanVerdict)
"""From harmless to grave. ``same``: nothing that matters differs. ``state-compatible``: a restore continues with the
old state, and then writes what the new definition yields. ``needs-drain``: Spark refuses a restore, or it mixes results
of both definitions; after drain and seed, each row is counted by one of them. ``hazardous``: a person has to decide
before either is exact."""


FITTING: tuple[Verdict, ...] = ("same", "state-compatible")
"""Those with which a start may continue the state."""


@dataclass(frozen=True)
class Difference:
    """One thing in which two plans differ.

    Attributes:
        code: of ``codes.CODES``.
        verdict: what this one alone would mean.
        path: where in the plan, human-readable.
        reason: what differs and its effect, a lower-case sentence without its full stop.
        remedy: what to do, a whole sentence.
    """

    code: str
    verdict: Verdict
    path: str
    reason: str
    remedy: str


@dataclass(frozen=True)
class Advice:
    """Advice on the new plan, independent of the old one.

    Attributes:
        code: of ``codes.ADVICE``.
        path: where in the plan, human-readable.
        text: a whole sentence or two.
    """

    code: str
    path: str
    text: str


@dataclass(frozen=True)
class Comparison:
    """Two plans of one query, compared; the gravest difference is the first, and gives the verdict."""

    verdict: Verdict = "same"
    differences: tuple[Difference, ...] = ()
    advice: tuple[Advice, ...] = ()

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of the differences, each once, the gravest first."""
        return tuple(dict.fromkeys(difference.code for difference in self.differences))


@dataclass(frozen=True)
class DeploymentComparison:
    """All queries of two versions of a stream, compared; the verdict is the gravest of all queries.

    Attributes:
        queries: by name; one that only the old version has is under its old name.
    """

    verdict: Verdict = "same"
    queries: Mapping[str, Comparison] = field(default_factory=dict)


def refusing(comparison: Comparison, *, accepts_hazards: bool) -> tuple[Difference, ...]:
    """The differences for which no state may be continued; hazards that the user has accepted are none of
    them (Law 17)."""
    fits = (*FITTING, "hazardous") if accepts_hazards else FITTING
    return tuple(each for each in comparison.differences if each.verdict not in fits)


def gravest(verdicts: Iterable[Verdict]) -> Verdict:
    """The gravest of these; ``same`` without any."""
    return max(verdicts, key=VERDICTS.index, default="same")


def compared(differences: Iterable[Difference], advice: Iterable[Advice] = ()) -> Comparison:
    found = sorted(dict.fromkeys(differences), key=lambda each: -VERDICTS.index(each.verdict))
    return Comparison(gravest(each.verdict for each in found), tuple(found), tuple(dict.fromkeys(advice)))


DRAIN = (
    "Drain the old version and seed the new one (`upgrade --allow-drain`): open results come out by the old rule, all"
    " that follows is counted by the new one."
)
MIGRATE = (
    "Migrate the state: `--auto-migrate`, if that needs no function, or `--migration FILE`. Or drain the old version"
    " and seed the new one."
)
FORGET = (
    "Stay on the Spark and the script that made the state. A drain forgets which rows were seen, so that they can come"
    " again: `upgrade --allow-drain --allow-state-loss`."
)
"""For deduplications, whose state a drain cannot flush."""
RESTORE = "This difference alone needs nothing: the state is kept."
DECIDE = "Decide for yourself, and deploy with the mode that you want."


@dataclass(frozen=True)
class Code:
    """What a difference of this code means by itself.

    Attributes:
        verdict: of a query with state below or in it; a rule may find a lighter one without state.
        means: for the docs: a few lower-case words.
        remedy: what to do about it, a whole sentence.
    """

    verdict: Verdict
    means: str
    remedy: str


def _drain(means: str, remedy: str = DRAIN) -> Code:
    return Code("needs-drain", means, remedy)


def _restore(means: str, remedy: str = RESTORE) -> Code:
    return Code("state-compatible", means, remedy)


def _person(means: str, remedy: str) -> Code:
    return Code("hazardous", means, remedy)


CODES: Mapping[str, Code] = {
    # operators
    "operator-added": _drain("a new operator with state"),
    "operator-removed": _drain("an operator with state was removed"),
    "operator-kind-changed": _drain("another kind of operator in its place"),
    "operators-swapped": _drain("operators with state have changed places"),
    "key-added": _drain("a new key"),
    "key-removed": _drain("a key was removed"),
    "keys-reordered": _drain("the same keys in another order"),
    "key-changed": _drain("a key is another expression"),
    "window-changed": _drain("another length, slide, start, gap or column of a window"),
    "aggregate-added": _drain("a new aggregate", MIGRATE),
    "aggregate-removed": _drain("an aggregate was removed", MIGRATE),
    "aggregates-reordered": _drain("the same aggregates in another order", MIGRATE),
    "aggregate-changed": _drain("an aggregate is another function, of another type, or of another expression", MIGRATE),
    "join-type-changed": _drain("another type of join"),
    "join-condition-changed": _drain("another condition of a join"),
    "join-sides-swapped": _drain("the two sides of a join have changed places"),
    "join-columns-changed": _drain("a join keeps other columns of its rows", MIGRATE),
    "input-changed": _drain("the input of an operator with state is computed differently"),
    "input-moved": _drain("other sources or operators feed an operator with state"),
    "function-renamed": _drain("a function or processor with state has another name"),
    "time-mode-changed": _drain("another time mode of a processor"),
    "timeout-changed": _drain("another timeout of a function with state"),
    "operator-mode-changed": _drain("another output mode of a function with state"),
    "state-schema-changed": _drain("another schema of the state of a function", MIGRATE),
    "initial-state-changed": _drain("an initial state was added or removed"),
    "variable-added": _restore(
        "a new state variable",
        "Nothing to do. The variable is empty for each earlier key.",
    ),
    "variable-removed": _restore(
        "a state variable was removed",
        "Restore; its values stay in the checkpoint, and return with the variable.",
    ),
    "variable-changed": _drain("a state variable of another kind or type", MIGRATE),
    "variable-ttl-changed": _drain("the time to live of a state variable was set or removed"),
    "limit-changed": _person(
        "another limit",
        "Keep the limit, or deploy --start fresh: it counts over the life of a query, and cannot be drained.",
    ),
    # time
    "watermark-added": _drain("a watermark, and there was none before"),
    "watermark-removed": _drain("no watermark, and there was one before"),
    "watermark-column-changed": _drain("the watermark of another column"),
    "watermark-delay-changed": _drain("another delay of the watermark"),
    # sources
    "source-added": _drain(
        "a new source", "Drain and seed: each source keeps its position, the new one starts where its options say."
    ),
    "source-removed": _drain(
        "a source was removed",
        "Drain and seed: the other sources keep their positions.",
    ),
    "sources-reordered": _drain("the same sources in another order", "Drain and seed: each source keeps its position."),
    "source-renamed": _drain(
        "a source has another name",
        "Keep the name; or drain and seed, if a connector knows the source.",
    ),
    "source-replaced": _person(
        "another path, topic or table instead of a source",
        "If the same files were only moved, add --move-source OLD=NEW. Otherwise keep the old source as well for a"
        " while, or deploy --start fresh with starting options of the new one.",
    ),
    "source-format-changed": _drain("the same input read in another format"),
    "source-columns-changed": _restore("other columns of a source"),
    "source-reading-changed": _drain("a source reads its input by other rules"),
    "source-pace-changed": _restore("other batch sizes or admission of a source"),
    "source-start-changed": _restore(
        "another starting position of a source",
        "Nothing to do: only a fresh start (--start fresh) uses it.",
    ),
    # sinks and output
    "sink-replaced": _person(
        "another target, which skips batches by their ids",
        "Check that no stream wrote to the new target: it silently skips batches whose ids it has. Earlier rows stay in"
        " the old target.",
    ),
    "sink-redirected": _restore(
        "another target, which takes every batch",
        "Restore, if that is intended: earlier rows stay in the old target.",
    ),
    "sink-format-changed": _person(
        "another format in the same target",
        "Write to a new target: this one would have files of two formats.",
    ),
    "sink-options-changed": _restore("other options of the sink"),
    "sink-partitioning-changed": _person(
        "other partition columns in the same target",
        "Write to a new target: this one would have two layouts.",
    ),
    "output-changed": _restore("the output is computed differently from the same state"),
    "output-columns-changed": _restore("other columns are written, or the same under other names"),
    "output-mode-changed": _restore(
        "another output mode", "Restore, if its readers can use it: the sink gets other rows for the same results."
    ),
    "output-mode-complete": _person(
        "to or from complete output",
        "Deploy --start fresh on a new target: a complete result needs all input, and closed state is gone.",
    ),
    "trigger-changed": _restore("another trigger"),
    "trigger-unsupported": _person(
        "a trigger without barriers", "Keep micro-batches: continuous and real-time triggers are refused at start."
    ),
    # state and session
    "partitions-changed": _restore(
        "another number of state partitions is set",
        "Restore: the state keeps the number that it has. `streamstate rescale` changes it.",
    ),
    "provider-changed": _restore(
        "another state store is set",
        "Restore: the state stays in the store that it is in. `streamstate upgrade --state-store` moves it.",
    ),
    "state-encoding-changed": _restore(
        "another encoding of state is set",
        "Restore: the state keeps its encoding. To change it, drain and seed.",
    ),
    "checkpoint-format-changed": _drain(
        "another state checkpoint format",
        "Upgrade with --checkpoint-format, which rewrites the state; or drain and seed.",
    ),
    "changelog-changed": _restore("changelogs of state switched on or off"),
    "setting-pinned": _restore(
        "a setting that the checkpoint pins",
        "Restore: the checkpoint's own value stays. To change it, drain and seed.",
    ),
    "setting-changed": _drain("a setting that changes values which are in the state"),
    "setting-harmless": _restore("a setting that changes no value in the state"),
    "spark-changed": _restore("another version of Spark"),
    "spark-goes-back": _drain(
        "an older Spark that cannot read the state", "Stay on that Spark or a newer one; or drain and seed."
    ),
    "not-comparable": _drain(
        "plans of two versions of the normalisation",
        "Start the old version once with this release, which records its plan again; or drain and seed.",
    ),
    "plan-too-large": _drain(
        "a plan of more nodes or names than are compared",
        "Cut the query into smaller ones; or drain and seed.",
    ),
    # queries
    "query-renamed": _person(
        "a query of the old version under another name",
        "Keep the old name, by which state and positions go, or pass --rename-query OLD=NEW. To leave them behind,"
        " deploy with --allow-new-query NAME.",
    ),
    "query-added": _person(
        "a query that the old version did not have",
        "Deploy with --allow-new-query NAME: it starts where its sources' options say.",
    ),
    "query-dropped": _drain(
        "a query that the new version does not have",
        "Drain, to write its open results. Restored, its checkpoint is kept, and the query can return.",
    ),
    "queries-swapped": _person(
        "two queries have changed names",
        "Give each query its old name: each would continue with the state of the other.",
    ),
}
"""Code -> what it means, in the order of the docs."""

ADVICE: Mapping[str, str] = {
    "state-without-bound": "an operator whose state is never removed",
    "session-without-bound": "a session window without a watermark",
    "variables-without-ttl": "a processor in no time mode: it has neither timers nor time to live",
    "timeout-missing": "a function with state and no timeout",
    "function-unseen": "a function of the script before or in an operator with state, whose body is not in a plan",
    "sink-function-unseen": "a function of the script that writes",
    "source-sends-once": "a source that cannot read again what it has read, such as a socket",
    "duplicates-forever": "duplicates are removed without an event time",
}
"""Code -> what it is about, in the order of the docs."""


def difference(
    code: str, path: str, reason: str, *, verdict: Verdict | None = None, remedy: str | None = None
) -> Difference:
    """A difference of this code, of ``CODES``.

    Args:
        path: where in the plan.
        reason: what differs, a lower-case sentence without its full stop.
        verdict: if it is not the code's own; then the remedy is the usual one of that verdict.
        remedy: if it is not the code's own.
    """
    known = CODES[code]
    if verdict is None or verdict == known.verdict:
        return Difference(code, known.verdict, path, reason, remedy or known.remedy)
    usual = {"same": RESTORE, "state-compatible": RESTORE, "needs-drain": DRAIN, "hazardous": DECIDE}
    return Difference(code, verdict, path, reason, usual[verdict])


def advice(code: str, path: str, text: str) -> Advice:
    """A piece of advice of this code, of ``ADVICE``."""
    if code not in ADVICE:
        raise KeyError(code)
    return Advice(code, path, text)


# What to do about a change that is refused, in one text: no two of its sentences contradict each other. Pure.

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
