"""A version of a stream: its script, files, arguments, configuration, and what starts its drivers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Literal, get_args

from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.fields import Facts, FileName, Sha256, Word
from airflow_streamstate.protocol.settings import AgentSettings
from airflow_streamstate.protocol.terms.declaration import REQUIRED, WORDS, term, terms_of

OnQueryFailure = Literal["script", "degrade", "fail"]
ON_QUERY_FAILURE: tuple[OnQueryFailure, ...] = get_args(OnQueryFailure)
NO_SNAPSHOTS = "none"
"""Instead of a URI: no snapshots are kept beside the checkpoints."""
_CODE, _START = "Code", "Start"
_OF_A_CHANGE = ("change", "adopt")
"""Also of the verbs that change a version, which leave alone what is not given, and of ``adopt``."""
_OF_CODE = (*_OF_A_CHANGE, "replay")
"""Also of a replay, which may run other code."""


@dataclass(frozen=True)
class Artifact:
    """A file that a deployment runs, pinned by digest (Law 15).

    Attributes:
        name: its file name, as the script knows it; of a module beside the script its path below the script's folder.
        sha256: hex digest of its bytes.
    """

    name: FileName
    sha256: Sha256


@dataclass(frozen=True)
class LauncherChoice:
    """What starts the drivers of a deployment, where that is not the machine of the caller.

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
class LiteralSecretTerms:
    """A consent of every verb that names code. It is of one order, and not recorded."""

    allow_literal_secrets: bool = term(
        False,
        help="accept literal values under secret-like names, and record them in the home. By default they are refused",
        heading=_CODE,
        verbs=_OF_CODE,
    )


@dataclass(frozen=True)
class Version:
    """What a deployment runs: the same whether it was just given, runs, or is to run next.

    Attributes:
        script_path: where the script was when it was deployed, absolute: its ``__file__``.

    A reference to a secret (``protocol.references``) stays one: in ``conf``, ``environment`` and ``arguments`` the
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
        help="files beside the script; pinned",
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
        help="where its snapshots are kept, in place of beside its checkpoints; none: no snapshot is taken while it"
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
