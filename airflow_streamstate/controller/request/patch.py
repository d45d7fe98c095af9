"""A patch of a version: its local files read, no literal secrets. Applied to a version, it gives the next one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, fields, replace
from pathlib import Path, PurePath
from typing import Any

from airflow_streamstate.checkpoint.guards import PROVIDER, REWRITES_SINCE, ROCKSDB_PROVIDER, STATE_FORMAT, line_of
from airflow_streamstate.checkpoint.log import PARTITIONS
from airflow_streamstate.checkpoint.seed import pins_of
from airflow_streamstate.controller.request.scripts import (
    CodeFile,
    jar_files,
    modules_beside,
    py_file,
    python_env_file,
    refuse_triggers,
    refuse_twice,
    script_file,
    script_path_of,
    with_python_env,
)
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.launch.interface import LOCAL, PYTHON_ENV
from airflow_streamstate.launch.spark_home import PYTHONS, WORKERS_PYTHON, environment_of_spark, own_pyspark, version_of
from airflow_streamstate.launch.submit_options import is_on_this_machine
from airflow_streamstate.migration import read_migrations
from airflow_streamstate.protocol.records import StateRewrite
from airflow_streamstate.protocol.redaction import (
    is_reference,
    is_secret_name,
    named_secrets,
    parse_reference,
    redact_uri,
    secrets_in_value,
    split_argument,
)
from airflow_streamstate.protocol.terms.declaration import check_given, terms_of
from airflow_streamstate.protocol.terms.version import (
    NO_SNAPSHOTS,
    Artifact,
    LauncherChoice,
    Version,
)
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.open import open_store

# Requests to rewrite state, checked as far as that needs no Spark.


def conf_of(rewrite: StateRewrite | None) -> dict[str, str]:
    """The settings of a session whose state is rewritten like this: it keeps to them when it is seeded later, too."""
    if rewrite is None:
        return {}
    conf = pins_of(rewrite)
    if rewrite.checkpoint_format == 2:
        conf[PROVIDER] = ROCKSDB_PROVIDER
    if rewrite.checkpoint_format is not None:
        conf[STATE_FORMAT] = str(rewrite.checkpoint_format)
    return conf


def spark_of(version: Version) -> str:
    """The Spark 4.2 or newer that runs a version on this machine, by its path; "" where it is another or unknown."""
    if version.launcher is not None or version.spark_conn_id is not None:
        return ""
    own = version.environment.get("SPARK_HOME") or str(own_pyspark() or "")
    return own if own and (line_of(version_of(Path(own))) or (0, 0)) >= REWRITES_SINCE else ""


def rewriter_back(given: StateRewrite, before: StateRewrite | None, old: Version, left: Version) -> str:
    """The Spark that rewrites the state for an old version, by its path; "" for the old version's own.

    Args:
        given, before: how the state was rewritten for the version that is left, and for the old one.
        old, left: these versions; the Spark of the one that is left can do it where no other was named.
    """
    named = given.rewriter_spark or ("" if before is None else before.rewriter_spark)
    return named or ("" if spark_of(old) else spark_of(left))


def check_rewriter(rewrite: StateRewrite | None, version: Version) -> None:
    """Check the Spark that is to rewrite the state, where its path is one of this machine and it is needed.

    Raises:
        InvalidRequestError: there is no Spark, or one that cannot rewrite state.
    """
    if rewrite is None or not rewrite.rewriter_spark or version.launcher is not None or spark_of(version):
        return
    home = environment_of_spark(rewrite.rewriter_spark)["SPARK_HOME"]
    found = version_of(Path(home))
    if (line_of(found) or REWRITES_SINCE) < REWRITES_SINCE:
        raise InvalidRequestError(
            "this Spark cannot rewrite state",
            rewriter=rewrite.rewriter_spark,
            version=found,
            next_step="Name a Spark 4.2 or newer; `streamstate home doctor --prepare-rewriter` makes one.",
        )


def migration_file(path: Path) -> CodeFile:
    """The file with migrations.

    Raises:
        InvalidRequestError: it cannot be read, or is not usable.
    """
    file = CodeFile(path.name, path)
    read_migrations(file.read(), path.name)
    return file


# Secrets given literally where a reference belongs: they would be recorded in the home.
#
# The name of a setting decides, except for names about secrets: a file, a provider class, a switch, a number of
# tokens.

# Names about a secret that hold none: ``…secret.file``, ``…credentials.provider``, ``…sasl.token.mechanism``.
_ABOUT = (
    r"enabled?|disabled?|providers?|type|mechanism|class|file|path|dir|directory|folder|url|uri|endpoint|ratio"
    r"|interval|timeout|bits?|length|size|regex|id|name|expiry|ttl|seconds|ms|algorithm|version|location|column|columns"
    r"|keyfile|itemkey|email|impl|binding|servers|count|limit|retries|mode|method|scope|arn|env|var|sock|username"
)
_ABOUT_END = re.compile(rf"(?:[._-](?i:{_ABOUT})|[a-z](?:{_ABOUT.title()}))$")
_ABOUT_WITHIN = re.compile(
    r"auth\.type\b|auth\.login\.config\b|auth\.tunneling\.|provider\.type\b|pass-through|GOOGLE_APPLICATION_CREDENTIALS$"
    r"|^spark\.kubernetes\.(?:driver|executor)\.secret(?:s|KeyRef)\.|tokeni[sz]",
    re.IGNORECASE,
)
_SWITCH = re.compile(r"|true|false|yes|no|none", re.IGNORECASE)
_COUNTED = re.compile(r"tokens(?![a-z])", re.IGNORECASE)
_KEY_OF_SERVICE = re.compile(r"(?:arn:|alias/).*")
_ON_COMMAND_LINE = re.compile(
    r".*(?:JavaOptions|ClassPath|LibraryPath)|spark\.(?:master|app\.name|jars|files|jars\.packages|submit\.pyFiles)"
)
_ON_EXECUTORS_COMMAND_LINE = re.compile(
    r"spark\.(?:(?!authenticate\.secret$)auth|rpc|network|ssl(?!.*Password)|port\.).*|spark\.(?:.*\.)?port"
)
"""Settings on an executor's command line (Spark's ``SparkConf.isExecutorStartupConf``)."""
_EXECUTORS_VARIABLE = "spark.executorEnv."
_SHOWN_VARIABLES = frozenset(
    {
        "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS",
        "PYSPARK_SUBMIT_ARGS", "SPARK_DIST_CLASSPATH",
    }
)  # fmt: skip
"""Java logs these, or Spark puts them on its command line."""
_FILE_LIKE = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]*):/+")
_INSTEAD = "secret://airflow-connection/ID#password, secret://airflow-variable/KEY or env://NAME"

CONSENT = ", or allow it: allow_literal_secrets, --allow-literal-secrets"
"""Of the next step, where the caller has such a consent to give."""


def check_secrets(
    conf: Mapping[str, str], arguments: Sequence[str], environment: Mapping[str, str], *, may_be_literal: bool
) -> None:
    """Check that secrets are given as references, and none where other users of the machine could read it.

    Args:
        may_be_literal: values under secret-like names may be recorded as they are.

    Raises:
        InvalidRequestError: a reference is malformed, a value looks like a secret, or one would be on a command line.
            The error has names, never values.
    """
    for value in (*conf.values(), *environment.values(), *(split_argument(argument)[1] for argument in arguments)):
        parse_reference(value)
    _check_shown(conf, environment)
    if may_be_literal:
        return
    settings = (*conf.items(), *environment.items())
    names = {name for name, value in settings if is_literal_secret(name, value)}.union(_in_arguments(arguments))
    if names:
        raise InvalidRequestError(
            "these look like secrets and would be recorded in the home as they are",
            names=sorted(names),
            next_step=f"Give references instead ({_INSTEAD}){CONSENT}.",
        )


def check_plain_uris(**lists: Sequence[str]) -> None:
    """Check that values for a command line hold no password; raises InvalidRequestError."""
    for what, values in lists.items():
        for value in values:
            if redact_uri(value) != value:
                raise InvalidRequestError(
                    "a secret is in something that every user of the machine could read on the command line",
                    **{what: redact_uri(value)},
                    next_step="Fetch the file beforehand, or keep the secret in Ivy's or Hadoop's own settings.",
                )


def check_local_paths(**lists: Sequence[PurePath]) -> None:
    """Check that no local path is a URI with a password in it; raises InvalidRequestError."""
    for what, paths in lists.items():
        for path in paths:
            uri = _FILE_LIKE.sub(r"\1://", str(path))  # a path has no two slashes in a row
            if redact_uri(uri) != uri:
                raise InvalidRequestError(
                    "this is a URI with a password, where the path of a local file belongs",
                    **{what: redact_uri(uri)},
                    next_step="Fetch the file beforehand, and give its path.",
                )


def check_attached_arguments(arguments: Sequence[str]) -> None:
    """Check the arguments of a script that attaches: they are on the command line, whatever may be recorded.

    Raises:
        InvalidRequestError: one is a secret, or refers to one.
    """
    is_reference_there = any(is_reference(split_argument(argument)[1]) for argument in arguments)
    names = sorted(set(_in_arguments(arguments)))
    if is_reference_there or names:
        raise InvalidRequestError(
            "a script that attaches by itself has its arguments on the command line, which other users can read",
            **({"names": names} if names else {}),
            next_step="Give the secret by --env, and let the script read it from its environment.",
        )


def is_literal_secret(name: str, value: str) -> bool:
    """Whether a value under this name looks like a secret itself."""
    if is_reference(value) or _SWITCH.fullmatch(value.strip()):
        return False
    if not is_secret_name(name) or _is_about_secret(name, value):
        return bool(secrets_in_value("", value))
    return True


def _is_about_secret(name: str, value: str) -> bool:
    """Whether a secret-like name belongs to a setting about secrets, whose value is not secret."""
    return bool(
        _ABOUT_END.search(name)
        or _ABOUT_WITHIN.search(name)
        or (_COUNTED.search(name) and value.strip().isdecimal())
        or (_KEY_OF_SERVICE.fullmatch(value) and "encryption" in name.lower())
    )


def _in_arguments(arguments: Sequence[str]) -> Iterator[str]:
    for at, (argument, name, secret) in enumerate(named_secrets(arguments)):
        if secret is None and secrets_in_value("", argument):
            yield f"argument {at + 1}"
        elif secret is not None and is_literal_secret(name, secret):
            yield name


def _check_shown(conf: Mapping[str, str], environment: Mapping[str, str]) -> None:
    seen = [name for name, value in conf.items() if _is_shown(name, value)]
    seen += [name for name, value in environment.items() if name in _SHOWN_VARIABLES and _is_secret_line(value)]
    if seen:
        raise InvalidRequestError(
            "a secret in one of these would be on Java's command line or in the log, where other users can read it",
            names=sorted(seen),
            next_step="Keep it in a file that only the driver's user, or the executors', can read.",
        )


def _is_shown(name: str, value: str) -> bool:
    if _ON_COMMAND_LINE.fullmatch(name) or name.removeprefix(_EXECUTORS_VARIABLE) in _SHOWN_VARIABLES:
        return _is_secret_line(value)
    is_secret = is_reference(value) or is_literal_secret(name, value)
    return is_secret and bool(_ON_EXECUTORS_COMMAND_LINE.fullmatch(name))


def _is_secret_line(value: str) -> bool:
    return is_reference(value) or any(True for _ in _in_arguments([word.removeprefix("-D") for word in value.split()]))


DEFAULT_MASTER = "local[*]"
LEAST_HEARTBEATS = 2
"""A driver may be late with a heartbeat, and must not be with two."""
NO_SCRIPT = Artifact("", "")
"""Of the defaults of a version, which no script belongs to."""
_OF_THE_STATE = (PARTITIONS, PROVIDER, STATE_FORMAT)
"""Settings that belong to the state, which keeps them until it is rewritten."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Patch:
    """What is given of a version, by the names of its terms. What is not given stays.

    Attributes:
        values: as they are recorded; files by their digests. ``launcher``: as it was asked for.
        script, modules: the local files of the script; None, none: it stays.
        files: the other local files that the values name.
        allow_literal_secrets: values under secret-like names may be recorded as they are.
        spark: the variables of a Spark that was named by its path, which ``values`` have in their environment, too.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    script: CodeFile | None = None
    modules: tuple[CodeFile, ...] = ()
    files: tuple[CodeFile, ...] = ()
    allow_literal_secrets: bool = False
    spark: Mapping[str, str] = field(default_factory=dict)

    def but(self, **values: Any) -> Patch:
        """The patch with other values; None for what stays. Without an ``application`` its modules stay, too."""
        if "application" in values:
            values |= {"modules": None, "script_path": None}
        merged = {name: value for name, value in {**self.values, **values}.items() if value is not None}
        has_script = "application" in merged
        script, modules = (self.script, self.modules) if has_script else (None, ())
        return replace(self, values=merged, script=script, modules=modules)

    def pin(self, home: Store, stream_id: str) -> None:
        """Copy the local files into the home, by their digests (Law 15).

        Raises:
            InvalidRequestError: a file cannot be read, or was changed since it was first read.
        """
        script = () if self.script is None else (self.script,)
        for file in (*script, *self.modules, *self.files):
            if file.pin(home, stream_id) != file.artifact:
                raise file.was_changed()


def read_patch(
    *,
    application: Path | None = None,
    modules: tuple[str, ...] | None = None,
    allow_literal_secrets: bool = False,
    spark: str = "",
    **given: Any,
) -> Patch:
    """Read what is given of a version.

    Args:
        application: local path of the script, unmodified.
        modules: globs below the script's folder: what is pinned of it; none for what the script imports from there.
        allow_literal_secrets: values under secret-like names may be recorded as they are.
        spark: the Spark that runs the driver, as ``CodeTerms.spark``; "" for what the environment says.
        given: the other terms of a ``Version`` by name, each as a user has it: files as local paths, jars as local
            paths (also with wildcards) or URIs; None, or absent, for what stays.

    Raises:
        InvalidRequestError: a value is malformed, a file cannot be read, or two files of one kind have the same name.
        UnsupportedCheckpointError: the script asks for a trigger that knows no barrier.
    """
    known = {each.name for each in fields(Version)}
    if unknown := sorted(given.keys() - known):
        raise TypeError(f"no term of a version: {', '.join(unknown)}")
    named = {name: value for name, value in given.items() if value is not None}
    if named.get("spark_conn_id") == "":
        del named["spark_conn_id"]
    if modules and application is None:
        raise InvalidRequestError(
            "modules are those of a new script, and no script is given",
            modules=list(modules),
            next_step="Give the script, too.",
        )
    check_texts({**named, "application": application, "modules": modules, "spark": spark})
    of_spark = environment_of_spark(spark) if spark else {}
    if of_spark:
        named["environment"] = _with_spark(spark, of_spark, named.get("environment", {}))
    _check(named, application, allow_literal_secrets=allow_literal_secrets)
    values, files = dict(named), list[CodeFile]()
    for name, read in _READERS.items():
        if name in named:
            values[name], read_files = read(named[name])
            files += read_files
    script, beside = None, tuple[CodeFile, ...]()
    if application is not None:
        script, beside = script_file(application), modules_beside(application, modules or None)
        refuse_triggers(application, beside)
        values["application"] = script.artifact
        values["modules"] = tuple(file.artifact for file in beside)
        values["script_path"] = script_path_of(application)
    return Patch(values, script, beside, tuple(files), allow_literal_secrets, of_spark)


def patched(before: Version, patch: Patch, rewrite: StateRewrite | None = None) -> Version:
    """The version after a patch.

    Args:
        rewrite: how the state is rewritten, whose settings the version keeps.

    Raises:
        InvalidRequestError: what is given contradicts what stays.
    """
    given = dict(patch.values)
    for name in (one.name for one in terms_of(Version) if one.kind == "mapping"):
        given[name] = {**getattr(before, name), **given.get(name, {})}
    given["conf"] |= conf_of(rewrite)
    if "application" in given:
        given.setdefault("version_label", "")
    launcher, master, spark_conn_id, folder = _where(before, given)
    given |= {"launcher": launcher, "master": master, "spark_conn_id": spark_conn_id, "working_folder": folder}
    after = replace(before, **given)
    if patch.spark:
        after = replace(after, environment=_on_spark(before, after, patch.spark))
    if after.attaches:
        check_attached_arguments(after.arguments)
        if patch.script is not None:
            check_attaches(patch.script)
    return after


def whole_version(patch: Patch) -> Version:
    """The version of a patch alone: what it does not name has its default. Raises as ``patched``."""
    version = patched(Version(NO_SCRIPT), patch)
    if not version.master and version.spark_conn_id is None and version.launcher is None:
        version = replace(version, master=DEFAULT_MASTER)
    return replace(version, snapshots=_place_of(version))


def following(version: Version, before: Version, rewrite: StateRewrite | None = None) -> Version:
    """A version of its own as it follows another one: in its working folder, with what belongs to the state."""
    kept = {name: before.conf[name] for name in _OF_THE_STATE if name in before.conf}
    folder = version.working_folder
    if not folder and (version.launcher and version.launcher.name) == (before.launcher and before.launcher.name):
        folder = before.working_folder
    return replace(version, conf={**kept, **version.conf, **conf_of(rewrite)}, working_folder=folder)


def in_working_folder(version: Version, before: Version | None) -> Version:
    """The version with a working folder: its own, else that of the version before, else the current folder.

    Drivers on other machines run in the folder of their launch, unless the version names one.

    Args:
        before: the version that it follows; None for the first one of a stream.

    Raises:
        InvalidRequestError: the current folder is gone.
    """
    if version.launcher is not None:
        return version
    folder = version.working_folder or ("" if before is None else before.working_folder)
    if not folder:
        try:
            folder = str(Path.cwd())
        except OSError:
            raise InvalidRequestError(
                "the current folder is gone, so drivers cannot run in it",
                next_step="Change to a folder that exists, or name one with --working-folder.",
            ) from None
    return replace(version, working_folder=folder)


def beside_checkpoints(version: Version, checkpoints_uri: str) -> Version:
    """The version as it is recorded: a place of snapshots that is that of the checkpoints is not named."""
    return replace(version, snapshots="") if version.snapshots == checkpoints_uri else version


def launcher_after(before: LauncherChoice | None, asked: LauncherChoice | None) -> LauncherChoice | None:
    """The launcher of the version after a change, by the one before and what is asked; None for this machine.

    Raises InvalidRequestError for options without a launcher.
    """
    if asked is None:
        return before
    if asked.name == LOCAL or (not asked.name and before is None):
        return _named_launcher(asked)
    if before is not None and asked.name in ("", before.name):
        merged = {**before.options, **asked.options}
        if asked.python_env is not None:
            merged.pop(PYTHON_ENV, None)
        kept = {name: value for name, value in merged.items() if value != ""}
        env = before.python_env if asked.python_env is None and PYTHON_ENV not in asked.options else asked.python_env
        return LauncherChoice(before.name, kept, asked.conn_id or before.conn_id, env)
    return _named_launcher(asked)


def check_attaches(script: CodeFile) -> None:
    """Check that a script which has to attach by itself contains ``attach``; raises InvalidRequestError."""
    if script.path.suffix != ".py":
        raise InvalidRequestError(
            "spark-submit runs a script that attaches only if its name ends in .py",
            application=str(script.path),
            next_step="Rename it, or deploy it without --attach.",
        )
    if b"attach" not in script.read():
        raise InvalidRequestError(
            "this script never calls attach, so no agent would supervise its queries",
            application=str(script.path),
            next_step="Call airflow_streamstate.driver.attach() in it, or deploy it without --attach.",
        )


# reading


def _files(read: Callable[[Path], CodeFile], kind: str, paths: tuple[Path, ...]) -> tuple[Any, list[CodeFile]]:
    found = [read(path) for path in paths]
    refuse_twice(kind, [file.name for file in found])
    return tuple(file.artifact for file in found), found


def _py_files(paths: tuple[Path, ...]) -> tuple[Any, list[CodeFile]]:
    return _files(py_file, "py_files", paths)


def _plain_files(paths: tuple[Path, ...]) -> tuple[Any, list[CodeFile]]:
    return _files(lambda path: CodeFile(path.name, path), "files", paths)


def _jars(jars: tuple[str, ...]) -> tuple[Any, list[CodeFile]]:
    found = jar_files(jars)
    values = tuple(jar if isinstance(jar, str) else jar.artifact for jar in found)
    return values, [jar for jar in found if isinstance(jar, CodeFile)]


def _mirrors(uris: tuple[str, ...]) -> tuple[Any, list[CodeFile]]:
    return tuple(dict.fromkeys(open_store(uri).uri for uri in uris)), []


def _launcher(asked: LauncherChoice) -> tuple[Any, list[CodeFile]]:
    env = python_env_file(asked)
    return with_python_env(asked, lambda file: file.artifact), [] if env is None else [env]


def _folder(folder: Path) -> tuple[Any, list[CodeFile]]:
    if not folder.is_absolute():
        raise InvalidRequestError(
            "the working folder must be an absolute path",
            working_folder=str(folder),
            next_step="Give the whole path: it is the same wherever a driver is launched from.",
        )
    return str(folder), []


_READERS: Mapping[str, Callable[[Any], tuple[Any, list[CodeFile]]]] = {
    "py_files": _py_files,
    "files": _plain_files,
    "jars": _jars,
    "mirrors": _mirrors,
    "launcher": _launcher,
    "working_folder": _folder,
}
"""By term: what reads it, and gives the value as it is recorded, and its local files."""


# what stays and what moves


def _where(before: Version, given: Mapping[str, Any]) -> tuple[LauncherChoice | None, str, str | None, str]:
    """Launcher, master, Spark connection and working folder; a move to another launcher keeps none of the others."""
    asked: LauncherChoice | None = given.get("launcher")
    master, spark_conn_id = given.get("master") or None, given.get("spark_conn_id")
    if spark_conn_id is not None:  # it starts drivers on this machine
        asked = LauncherChoice(LOCAL)
    launcher = launcher_after(before.launcher, asked)
    has_moved = (launcher and launcher.name) != (before.launcher and before.launcher.name)
    if master is None and spark_conn_id is None:
        if has_moved:
            master = "" if launcher else DEFAULT_MASTER
        else:
            master, spark_conn_id = before.master, before.spark_conn_id
    folder: str | None = given.get("working_folder")
    if folder is None:
        folder = "" if has_moved else before.working_folder
    return launcher, master or "", spark_conn_id, folder


def _named_launcher(launcher: LauncherChoice) -> LauncherChoice | None:
    """A launcher by its own name; None for this machine.

    Raises:
        InvalidRequestError: options or a connection are given, and no launcher that takes any.
    """
    if launcher == LauncherChoice(LOCAL):
        return None
    if launcher.name not in ("", LOCAL):
        return launcher
    if launcher.conn_id and not launcher.options:
        raise InvalidRequestError(
            "drivers on this machine need no Airflow connection of a launcher",
            launcher_conn_id=launcher.conn_id,
            next_step="Leave it out, or name the launcher that it belongs to. A Spark connection is spark_conn_id.",
        )
    raise InvalidRequestError(
        "options of a launcher are given, and no launcher that has any",
        options=sorted(launcher.options),
        conn_id=launcher.conn_id,
        next_step="Name the launcher, too, for example --launcher kubernetes.",
    )


def _place_of(version: Version) -> str:
    """The place of the snapshots as the deployment records it: a whole URI, "none", or "" for with the checkpoints.

    Raises:
        InvalidRequestError: it names no store, or contradicts the rest of the version.
    """
    if version.snapshots in (NO_SNAPSHOTS, ""):
        return version.snapshots
    uri = open_store(version.snapshots).uri
    if uri in version.mirrors:
        raise InvalidRequestError(
            "a mirror is another place than that of the snapshots",
            mirror=uri,
            next_step="Name another disk, bucket or region.",
        )
    return uri


# checks


def _check(named: Mapping[str, Any], application: Path | None, *, allow_literal_secrets: bool) -> None:
    environment, settings, launcher = named.get("environment", {}), named.get("settings"), named.get("launcher")
    for name, value in environment.items():
        if not _VARIABLE.fullmatch(name) or "\0" in value:
            raise InvalidRequestError(
                "this environment variable cannot be given to a driver",
                name=name[:60],
                next_step="Use letters, digits and _ in its name, and no zero byte in its value.",
            )
    arguments = named.get("arguments", ())
    check_secrets(named.get("conf", {}), arguments, environment, may_be_literal=allow_literal_secrets)
    if named.get("attaches"):
        check_attached_arguments(arguments)
    uris = {name: named.get(name, ()) for name in ("jars", "packages")}
    check_plain_uris(**uris, master=(named.get("master", ""),))
    paths = {name: named.get(name, ()) for name in ("py_files", "files")}
    check_local_paths(application=() if application is None else (application,), **paths)
    if launcher is not None:
        _check_launcher(launcher, named.get("spark_conn_id"))
    check_given(Version, {one.name: named[one.name] for one in terms_of(Version) if one.choices and one.name in named})
    if settings is not None and settings.lost_after_seconds < LEAST_HEARTBEATS * settings.heartbeat_seconds:
        # It would count as lost, or as ended where a cluster reports so, between two of its heartbeats (1a.8).
        raise InvalidRequestError(
            "a driver that works would count as lost between two of its heartbeats",
            heartbeat_seconds=settings.heartbeat_seconds,
            lost_after_seconds=settings.lost_after_seconds,
            next_step=f"Give a lost_after_seconds of at least {LEAST_HEARTBEATS} times heartbeat_seconds.",
        )
    if settings is not None and named.get("snapshots") == NO_SNAPSHOTS and settings.snapshot_every_seconds is not None:
        raise InvalidRequestError(
            "a deployment that keeps no snapshots cannot take periodic ones",
            snapshot_every_seconds=settings.snapshot_every_seconds,
            next_step="Leave out the setting, or `--snapshots none`.",
        )


def _with_spark(spark: str, variables: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """The given environment, with the variables of this Spark."""
    if twice := sorted(name for name, value in variables.items() if given.get(name, value) != value):
        raise InvalidRequestError(
            "a Spark and variables of the environment say different things",
            spark=spark,
            variables=twice,
            next_step="Leave out one of them.",
        )
    return {**given, **variables}


def _on_spark(before: Version, after: Version, variables: Mapping[str, str]) -> dict[str, str]:
    """The environment of a version that a named Spark runs: without the Python of the Spark before, and without a path
    of this machine for workers elsewhere."""
    if after.launcher is not None or after.spark_conn_id is not None:
        raise InvalidRequestError(
            "a Spark by its path is one of this machine, and the drivers are started elsewhere or by a connection",
            launcher=LOCAL if after.launcher is None else after.launcher.name,
            spark_conn_id=after.spark_conn_id,
            next_step="Name the other Spark as the launcher does (an image, a release, an archive), or change the"
            " connection.",
        )
    found, home = dict(after.environment), before.environment.get("SPARK_HOME", "")
    for name in PYTHONS:
        # Of the virtual environment in which the Spark before is.
        is_its_own = home.startswith(f"{found.get(name, '').removesuffix('/bin/python')}/lib/python3")
        if name not in variables and is_its_own:
            found.pop(name, None)
    if WORKERS_PYTHON in variables and not is_on_this_machine(after.master or DEFAULT_MASTER):
        del found[WORKERS_PYTHON]
    return found


def _check_launcher(launcher: LauncherChoice, spark_conn_id: str | None) -> None:
    if spark_conn_id is not None and launcher.name != LOCAL:
        raise InvalidRequestError(
            "a Spark connection starts drivers on this machine, and a launcher starts them elsewhere",
            launcher=launcher.name,
            spark_conn_id=spark_conn_id,
            next_step="Give one of them.",
        )
    try:
        json.dumps(launcher.options, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError):
        raise InvalidRequestError(
            "the options of a launcher must be plain JSON",
            launcher=launcher.name,
            next_step="Use texts, numbers, lists and objects, as in YAML.",
        ) from None


def check_texts(named: Mapping[str, Any]) -> None:
    """Refuse texts that cannot be recorded as UTF-8 (Law 15); InvalidRequestError has the name."""
    for name, value in named.items():
        if not _is_text(value):
            raise InvalidRequestError(
                "this text is not valid UTF-8 and cannot be recorded",
                what=name,
                next_step="Give valid text; if it is the name of a file, rename the file.",
            )


def _is_text(value: Any) -> bool:
    """Whether each text in it can be recorded as UTF-8."""
    if isinstance(value, Mapping):
        return all(_is_text(part) for pair in value.items() for part in pair)
    if isinstance(value, list | tuple):
        return all(map(_is_text, value))
    try:
        str(value).encode()
    except UnicodeEncodeError:
        return not isinstance(value, str | Path)
    return True
