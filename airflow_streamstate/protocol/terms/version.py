"""The terms of a version, of its start, and of its stream; the command line that gives a version again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any, Literal

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.codec import Facts, FileName, QueryName, Seconds, Sha256, SnapshotId, Word
from airflow_streamstate.protocol.ids import check_id, encode_query_name
from airflow_streamstate.protocol.policies import AlertRules, Ownership, RestartPolicy, RetentionPolicy
from airflow_streamstate.protocol.settings import AgentSettings
from airflow_streamstate.protocol.terms.declaration import REQUIRED, WORDS, Term, check_terms, term, terms_of

OnQueryFailure = Literal["script", "degrade", "fail"]
NO_SNAPSHOTS = "none"
"""Instead of a URI: no snapshots are kept next to the checkpoints."""
_CODE, _START = "Code", "Start"
_OF_A_CHANGE = ("change", "adopt")
"""Also of the verbs that change a version, which leave alone what is not given, and of ``adopt``."""
_OF_CODE = (*_OF_A_CHANGE, "replay")
"""Also of a replay, which may run other code."""


@dataclass(frozen=True)
class Artifact:
    """A file that a deployment runs, pinned by digest (Law 15).

    Attributes:
        name: its file name, as the script knows it; of a module next to the script its path below the script's folder.
        sha256: hex digest of its bytes.
    """

    name: FileName
    sha256: Sha256


@dataclass(frozen=True)
class LauncherChoice:
    """What starts the drivers of a deployment, if that is not the machine of the caller.

    Attributes:
        python_env: the archive of a Python environment that the option ``python_env`` named by a local path; None for
            none, or for one that is among the options as a URI.
    """

    name: Word = term(
        REQUIRED,
        help="what starts the drivers: local, on the machine of the caller; kubernetes, yarn, ssh, emr-serverless,"
        " emr-eks, or one of another package",
        flag="--launcher",
        metavar="NAME",
        heading=_CODE,
        verbs=_OF_A_CHANGE,
        names={"shell": "launcher"},
    )
    options: Facts = term(
        {},
        help="the launcher's options by name, as its how-to page lists them; none of them is a secret",
        flag="--launcher-option",
        heading=_CODE,
        names={"shell": "launcher_options"},
        verbs=_OF_A_CHANGE,
    )
    conn_id: Word = term(
        "",
        help="the Airflow connection by which it reaches its cluster; yarn takes none",
        verbs=_OF_A_CHANGE,
        in_shell="the shell reads no Airflow connections",
    )
    python_env: Artifact | None = None


@dataclass(frozen=True)
class CodeTerms:
    """How code is named, by every verb that names it. Of one order, and not recorded as given."""

    allow_literal_secrets: bool = term(
        False,
        help="accept literal values under secret-like names, and record them in the home. By default they are refused",
        heading=_CODE,
        verbs=_OF_CODE,
    )
    spark: Word = term(
        "",
        help="the Spark that runs the driver on this machine: an installation, or a virtual environment that has"
        " pyspark, whose Python then runs the driver, too. Recorded as variables of the environment, SPARK_HOME and"
        " those of the Python",
        metavar="PATH",
        heading=_CODE,
        verbs=_OF_CODE,
    )


@dataclass(frozen=True)
class Version:
    """What a deployment runs: the same whether it was just given, runs, or is to run next.

    Attributes:
        script_path: where the script was when it was deployed, absolute: its ``__file__``.

    A reference to a secret (``protocol.redaction``) stays one: in ``conf``, ``environment`` and ``arguments`` the
    launcher looks it up at each launch.
    """

    application: Artifact = term(
        REQUIRED,
        help="the PySpark script, unmodified",
        kind="path",
        flag="--app",
        verbs=_OF_CODE,
        changes="code",
    )
    arguments: tuple[Word, ...] = term(
        (),
        help="the script's arguments. An argument, or its value after `--name=`, may be a reference to a secret:"
        " `env://NAME`, `secret://airflow-connection/ID#password` (or login, host, port, schema, extra.KEY),"
        " `secret://airflow-variable/KEY`. It is looked up at each launch, and only the reference is recorded",
        flag=WORDS,
        verbs=_OF_CODE,
        changes="code",
    )
    master: Word = term(
        "",
        help="Spark's master. By default that of the Spark connection or of the launcher, else local[*]",
        metavar="URL",
        verbs=_OF_A_CHANGE,
        changes="code",
    )
    conf: Mapping[Word, Word] = term(
        {},
        help="Spark configuration. A value may be a reference to a secret",
        verbs=_OF_CODE,
        changes="code",
    )
    environment: Mapping[Word, Word] = term(
        {},
        help="variables for the driver's environment; a value may be a reference to a secret",
        flag="--env",
        heading=_CODE,
        verbs=_OF_CODE,
        changes="code",
        is_secret=True,
    )
    py_files: tuple[Artifact, ...] = term(
        (),
        help="Python files, folders, zips, eggs and wheels for the script; pinned",
        kind="paths",
        heading=_CODE,
        verbs=_OF_CODE,
        changes="code",
        takes_commas=True,
    )
    files: tuple[Artifact, ...] = term(
        (),
        help="files next to the script; pinned",
        kind="paths",
        heading=_CODE,
        verbs=_OF_CODE,
        changes="code",
        takes_commas=True,
    )
    jars: tuple[Artifact | str, ...] = term(
        (),
        help="local paths of jars, pinned; or URIs, as they are",
        metavar="PATH",
        heading=_CODE,
        verbs=_OF_CODE,
        changes="code",
        takes_commas=True,
    )
    packages: tuple[Word, ...] = term(
        (), help="Maven packages", metavar="COORDINATES", verbs=_OF_CODE, changes="code", takes_commas=True
    )
    modules: tuple[Artifact, ...] = term(
        (),
        help="patterns below the script's folder, as `lib/*.py`: what is pinned of it, in place of what the script"
        " imports from there",
        metavar="PATTERN",
        heading=_CODE,
        verbs=_OF_CODE,
        changes="code",
    )
    script_path: Word = ""
    working_folder: Word = term(
        "",
        help="the absolute folder that drivers run in. By default that of the version before; for a new stream the"
        " current one",
        kind="path",
        metavar="FOLDER",
        heading=_CODE,
        verbs=_OF_CODE,
        changes="version",
    )
    spark_conn_id: Word | None = term(
        None,
        help="the Airflow connection of type spark through which the driver is started",
        verbs=_OF_A_CHANGE,
        changes="code",
        in_shell="the shell reads no Airflow connections",
    )
    launcher: LauncherChoice | None = term(
        None, help="what starts the drivers, if not this machine", verbs=_OF_A_CHANGE, changes="code"
    )
    attaches: bool = term(
        False,
        help="the script calls `attach()` itself, and is submitted as it is",
        flag="--attach",
        heading=_CODE,
        changes="code",
    )
    version_label: str = term(
        "", help="your own name of this version", flag="--label", verbs=_OF_A_CHANGE, changes="label"
    )
    on_query_failure: OnQueryFailure = term(
        "script",
        help="what a failed query does to the others: fail stops them and ends the deployment, degrade lets them run"
        " on, script leaves it to the script",
        heading=_START,
        verbs=_OF_A_CHANGE,
        changes="version",
    )
    mirrors: tuple[Word, ...] = term(
        (),
        help="URIs of places that its snapshots are copied to",
        flag="--mirror",
        metavar="URI",
        heading=_START,
        changes="version",
        retried="in any order",
    )
    snapshots: Word = term(
        "",
        help="where its snapshots are kept, instead of next to its checkpoints; none: no snapshot is taken while it"
        " runs",
        metavar="none|URI",
        heading=_START,
        names={"files": "snapshots.place"},
        changes="version",
    )
    settings: AgentSettings = term(
        AgentSettings(),
        help="settings of the agent in the driver. By default a deploy has those of the home, and an upgrade those of"
        " the version before",
        flag="--setting",
        metavar="NAME=VALUE",
        heading=_START,
        verbs=("adopt",),
        changes="version",
    )

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        """All files that it runs."""
        jars = tuple(jar for jar in self.jars if isinstance(jar, Artifact))
        env = () if self.launcher is None or self.launcher.python_env is None else (self.launcher.python_env,)
        return (self.application, *self.modules, *self.py_files, *self.files, *jars, *env)

    @property
    def jar_names(self) -> tuple[str, ...]:
        """The names of its pinned jars, and its other jars as they are given."""
        return tuple(jar if isinstance(jar, str) else jar.name for jar in self.jars)

    @property
    def code_digest(self) -> str:
        """One sha256 over the code, equal for versions that run the same code with the same configuration."""
        code, of_code = asdict(self), {one.name for one in terms_of(Version) if one.declared.changes == "code"}
        return digest_of({name: value for name, value in code.items() if name in of_code})


def digest_of(value: Mapping[str, object]) -> str:
    """Hex sha256 of a JSON object; moments and paths as texts."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False, default=str).encode()).hexdigest()


# How a version starts, and what the user consents to.

StartMode = Literal["restore", "seed", "fresh"]
MOST_SNAPSHOT_AGE_SECONDS = 10 * 365 * 86_400.0


_ONCE = "it is of one start, and a file is applied again and again: give it to the verb that needs it"
_HEAD, _CONSENT = "Start", "Consent"


@dataclass(frozen=True)
class LostInputTerms:
    """A consent of every verb that continues a query at its offsets."""

    accept_lost_input: tuple[QueryName, ...] = term(
        (),
        help="queries that may continue although input after their offsets is lost at the source",
        heading=_CONSENT,
        verbs=("change",),
        in_files=_ONCE,
        retried="in any order",
    )


@dataclass(frozen=True)
class HazardTerms:
    """A consent of every verb that may continue a state by another plan (Law 17)."""

    accept_hazards: bool = term(
        False,
        help="accept a `hazardous` plan; a difference that needs a drain still needs it",
        heading=_CONSENT,
        verbs=("restart", "deploy", "resume"),
        names={"files": "upgrade.accept_hazards"},
    )


@dataclass(frozen=True)
class HandoverTerms(LostInputTerms):
    """What a version does with the state of the version before: of a deploy and of a change.

    Raises:
        InvalidRequestError: a value is malformed.
    """

    allow_state_loss: bool = term(
        False, help="drop state that the drain could not flush", heading=_CONSENT, verbs=("change",), in_files=_ONCE
    )
    allow_new_queries: tuple[QueryName, ...] = term(
        (),
        help="queries that may start empty although the snapshot does not contain them",
        flag="--allow-new-query",
        heading=_CONSENT,
        verbs=("change", "adopt"),
        retried="in any order",
    )
    rename_queries: Mapping[QueryName, QueryName] = term(
        {},
        help="queries that the script has renamed: by their names in the snapshot, their names now; their state is"
        " kept",
        flag="--rename-query",
        metavar="OLD=NEW",
        heading=_HEAD,
        verbs=("change",),
    )
    move_sources: Mapping[str, str] = term(
        {},
        help="folders of file sources that have moved: by the folder at the snapshot, the folder below which the same"
        " files are now, under the same names. The script reads the new folder; what was read is not read again",
        flag="--move-source",
        metavar="OLD=NEW",
        heading=_HEAD,
        verbs=("change",),
    )

    def __post_init__(self) -> None:
        named = (*self.rename_queries, *self.rename_queries.values(), *self.allow_new_queries, *self.accept_lost_input)
        for query_name in named:
            encode_query_name(query_name)
        check_terms(self)


@dataclass(frozen=True)
class StartTerms(HazardTerms, HandoverTerms):
    """How a deployment starts.

    Raises:
        InvalidRequestError: a value is malformed, or two of them contradict each other.
    """

    start: StartMode | None = term(
        None,
        help="start with the state of the last snapshot (restore), with its offsets alone (seed), or empty (fresh). By"
        " default the last snapshot decides between the first two",
    )
    snapshot_id: SnapshotId | None = term(
        None,
        help="check that it starts from this snapshot",
        metavar="ID",
        heading=_HEAD,
        in_files=_ONCE,
    )
    max_snapshot_age_seconds: Seconds | None = term(
        None, help="refuse to start from an older snapshot", heading=_HEAD, least=0.1, most=MOST_SNAPSHOT_AGE_SECONDS,
        in_files=_ONCE,
    )  # fmt: skip
    offsets: Mapping[QueryName, tuple[str, ...]] = term(
        {},
        help="with the start mode seed: start at these offsets, by query, one text per source as Spark writes it, in"
        " the order that `snapshot list --json` shows",
        heading=_HEAD,
        in_files=_ONCE,
    )
    begins_at: datetime | None = term(
        None,
        help="with the start mode seed: start with the input of this time",
        flag="--at",
        heading=_HEAD,
        in_files=_ONCE,
    )
    accept_repeated_input: tuple[QueryName, ...] = term(
        (),
        help="queries that may read input a second time",
        heading=_CONSENT,
        in_files=_ONCE,
        retried="in any order",
    )
    assume_dead: bool = term(
        False,
        help="continue although the launcher does not know whether the old driver is dead",
        heading=_CONSENT,
        verbs=("resume", "skip"),
        in_files=_ONCE,
        retried="freely",
    )
    revive: bool = term(
        False,
        help="deploy although the stream was retired",
        heading=_CONSENT,
        in_files=_ONCE,
        retried="freely",
    )

    @property
    def handover(self) -> HandoverTerms:
        """The terms that an upgrade has, too."""
        return HandoverTerms(**{each.name: getattr(self, each.name) for each in fields(HandoverTerms)})

    @property
    def begins_elsewhere(self) -> bool:
        """Whether it starts at other offsets than its predecessor's end."""
        return bool(self.offsets) or self.begins_at is not None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.snapshot_id is not None:
            check_id(self.snapshot_id, "snapshot id")
        if self.start == "fresh" and self.snapshot_id is not None:
            raise InvalidRequestError(
                "a fresh start takes nothing from a snapshot",
                snapshot_id=self.snapshot_id,
                next_step="Leave out the snapshot, or the fresh start.",
            )
        for query_name in (*self.accept_repeated_input, *self.offsets):
            encode_query_name(query_name)
        self._check_elsewhere()

    def _check_elsewhere(self) -> None:
        if not self.begins_elsewhere:
            return
        if self.start != "seed":
            raise InvalidRequestError(
                "only a seed can start elsewhere: state belongs to the offsets that it was built from",
                start=self.start,
                next_step="Pass --start seed, or leave out the offsets and the time.",
            )
        if self.offsets and self.begins_at is not None:
            raise InvalidRequestError(
                "offsets and a time exclude each other", next_step="Give the offsets, or the time."
            )
        if self.begins_at is not None and self.begins_at.utcoffset() is None:
            raise InvalidRequestError(
                "this time has no time zone", begins_at=str(self.begins_at), next_step="End it with Z, or +01:00."
            )


# What is recorded of a stream, whatever version it runs.

_OF_ITS_OWN = "`streamstate {verb}` changes it"


@dataclass(frozen=True)
class StreamTerms:
    """What a deploy changes of its stream. No driver is replaced for it.

    Attributes:
        restart_policy, alert_rules: values to change; the others stay as they are.
        retention: all values of the stream's ``RetentionPolicy``; none: no policy. None: as it is.
        labels: all of them. None: as they are.

    Raises:
        InvalidRequestError: a value is malformed.
    """

    restart_policy: Mapping[str, Any] = term(
        {},
        help="what watchers do when a driver of the stream fails",
        part=RestartPolicy,
        names={"files": "restart", "operators": "restart"},
        changes="stream",
    )
    alert_rules: Mapping[str, Any] = term(
        {},
        help="when people are notified about the stream",
        part=AlertRules,
        names={"files": "alerts", "operators": "alerts"},
        changes="stream",
        in_shell=_OF_ITS_OWN.format(verb="alerts"),
    )
    owner: str | None = term(
        None,
        help="a person or a team; alerts, `streamstate status` and the page name it",
        names={"operators": "stream_owner"},
        changes="stream",
        in_shell=_OF_ITS_OWN.format(verb="label"),
    )
    labels: Mapping[str, str] | None = term(
        None,
        help="all labels of the stream by name, for --canary, `streamstate list --label`, the page and metrics",
        changes="stream",
        in_shell=_OF_ITS_OWN.format(verb="label"),
    )
    retention: Mapping[str, Any] | None = term(
        None,
        help="which snapshots of the stream stay when it is pruned, by watchers too",
        part=RetentionPolicy,
        changes="stream",
        in_shell=_OF_ITS_OWN.format(verb="snapshot retention"),
    )

    def __post_init__(self) -> None:
        RestartPolicy().changed(self.restart_policy)
        AlertRules().changed(self.alert_rules)
        Ownership().changed(self.owner, self.labels)
        RetentionPolicy.of(self.retention or {})


# The words of a command line that give terms their values again, as the shell has options for them.


@dataclass(frozen=True)
class CommandLine:
    """What gives an object its values again.

    Attributes:
        options: with their values, in the order of the terms.
        words: those after ``--``.
        left_out: by option, the names of its files: where they came from is not recorded.
    """

    options: tuple[str, ...]
    words: tuple[str, ...]
    left_out: Mapping[str, tuple[str, ...]]


def command_line(terms: object, base: object | None = None, verb: str = "") -> CommandLine:
    """The command line of what an object has otherwise than another of its class.

    Args:
        base: what the verb has where no option is given; None for the defaults of the terms.
        verb: only of the terms that this verb takes.
    """
    values = [(one, getattr(terms, one.name)) for one in terms_of(type(terms), verb)]
    changed = [(one, value) for one, value in values if value != _base(one, base)]
    words = tuple(word for one, value in changed if one.flag == WORDS for word in value)
    options = tuple(word for one, value in changed if one.flag != WORDS for word in _options(one, value, base))
    left_out = {one.flag: names for one, value in changed if (names := _file_names(one, value))}
    return CommandLine(options, words, left_out)


def _base(one: Term, base: object | None) -> Any:
    return one.default if base is None else getattr(base, one.name)


def _options(one: Term, value: Any, base: object | None) -> Iterator[str]:
    if one.kind == "part":
        yield from _options_of_part(one, value, _base(one, base))
    elif one.declared.in_shell is True:
        flag, _, off = one.flag.partition("/")
        if one.kind == "flag":
            yield flag if value else off
            return
        for text in _texts(one, value):
            yield from (flag, text)


def _options_of_part(part: Term, value: Any, base: Any) -> Iterator[str]:
    """Of its terms; of one without its own option, as ``NAME=VALUE`` of the part's."""
    for one in terms_of(part.part):
        given = getattr(value, one.name)
        if given == _base(one, base):
            continue
        if one.declared.in_shell is True:
            yield from _options(one, given, base)
        elif part.declared.flag and given is not None:
            yield from (part.flag, f"{one.name}={_text(given)}")


def _texts(one: Term, value: Any) -> Iterator[str]:
    if one.kind == "lists" or value is None:
        return  # a file, or nothing
    if one.kind == "mapping":
        yield from (f"{name}={_text(each)}" for name, each in value.items())
        return
    several = value if isinstance(value, tuple) else (value,)
    yield from (_text(each) for each in several if not isinstance(each, Artifact))


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, (list, Mapping)):
        return json.dumps(value)
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _file_names(one: Term, value: Any) -> tuple[str, ...]:
    several = value if isinstance(value, tuple) else (value,)
    return () if one.kind == "part" else tuple(each.name for each in several if isinstance(each, Artifact))
