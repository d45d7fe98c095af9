"""A version of a stream: its script, files, arguments, configuration, and what starts its drivers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal, get_args

from airflow_streamstate.protocol.fields import Facts, FileName, Sha256, Word
from airflow_streamstate.protocol.settings import AgentSettings

OnQueryFailure = Literal["script", "degrade", "fail"]
ON_QUERY_FAILURE: tuple[OnQueryFailure, ...] = get_args(OnQueryFailure)
NO_SNAPSHOTS = "none"
"""Instead of a URI: no snapshots are kept beside the checkpoints."""


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
        name: of an installed launcher: kubernetes, yarn, ssh, …
        options: of the launcher, plain JSON without secrets.
        conn_id: the Airflow connection by which it reaches its cluster; "" for none.
        python_env: the archive of a Python environment that the option ``python_env`` named by a local path; None for
            none, or for one that is among the options as a URI.
    """

    name: Word
    options: Facts = field(default_factory=dict)
    conn_id: Word = ""
    python_env: Artifact | None = None


@dataclass(frozen=True)
class Version:
    """What a deployment runs: the same whether it was just given, runs, or is to run next.

    Attributes:
        application: the script.
        arguments: its arguments; a reference to a secret (``protocol.references``) stays one.
        master: Spark's master URL; "" for that of ``spark_conn_id``, or for the default of ``launcher``.
        conf: Spark's configuration, as given; references as in ``arguments``.
        environment: variables of the driver besides the launcher's; references as in ``arguments``.
        py_files, files: more artifacts.
        jars: artifacts, or URIs with a scheme, word for word.
        packages: Maven coordinates.
        modules: what the script imports from its own folder.
        script_path: where the script was when it was deployed, absolute: its ``__file__``.
        working_folder: the current folder of its drivers, absolute; "" for that of the process that launches them.
        spark_conn_id: the Airflow connection whose spark-submit launches it; None for the local one.
        launcher: what starts its drivers; None for the machine of the caller.
        attaches: the script itself is submitted and calls ``driver.attach()``, instead of being run by our runner.
        version_label: the user's own name of this version; "" for none.
        on_query_failure: what a failed query does to the others. ``script``: the script decides, as without this
            package: it ends where it waits for that query or any. ``degrade``: the others run on, and no wait raises
            before the last one has ended. ``fail``: the others are stopped, and the deployment has failed.
        mirrors: places that its snapshots are copied to.
        snapshots: the URI of the place of its snapshots' data; "none" for none; "" for beside its checkpoints.
        settings: of the agent in its drivers.
    """

    application: Artifact
    arguments: tuple[Word, ...] = ()
    master: Word = ""
    conf: Mapping[Word, Word] = field(default_factory=dict)
    environment: Mapping[Word, Word] = field(default_factory=dict)
    py_files: tuple[Artifact, ...] = ()
    files: tuple[Artifact, ...] = ()
    jars: tuple[Artifact | str, ...] = ()
    packages: tuple[Word, ...] = ()
    modules: tuple[Artifact, ...] = ()
    script_path: Word = ""
    working_folder: Word = ""
    spark_conn_id: Word | None = None
    launcher: LauncherChoice | None = None
    attaches: bool = False
    version_label: str = ""
    on_query_failure: OnQueryFailure = "script"
    mirrors: tuple[Word, ...] = ()
    snapshots: Word = ""
    settings: AgentSettings = field(default_factory=AgentSettings)

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
        code = asdict(self)
        for name in _NO_CODE:
            del code[name]
        return digest_of(code)


_NO_CODE = ("script_path", "working_folder", "version_label", "on_query_failure", "mirrors", "snapshots", "settings")


def digest_of(value: Mapping[str, object]) -> str:
    """Hex sha256 of a JSON object; moments and paths as texts."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False, default=str).encode()).hexdigest()
