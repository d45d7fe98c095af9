"""The ``spark-submit`` command line of a driver, also with the files of a driver on another machine."""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.launch.driver_zip import RUNNER, RUNNER_NAME, ZIP_NAME, driver_zip_bytes, zip_bytes
from airflow_streamstate.launch.interface import DRIVER_CONFIG, LaunchRequest
from airflow_streamstate.launch.spark_home import (
    SparkSubmit,
    check_java,
    defaults_file,
    find_java,
    find_spark_submit,
    home_of,
    own_spark_submit,
    pinned_jars,
    python_environment,
    resolve_spark_submit,
    version_of,
)
from airflow_streamstate.launch.submit_options import (
    SubmitOptions,
    absorb_conf,
    check_master,
    is_asked,
    is_in_process,
    is_on_this_machine,
    read_prefix,
)
from airflow_streamstate.protocol.redaction import is_secret_name, secrets_in_value
from airflow_streamstate.protocol.signing import without_signing_key
from airflow_streamstate.store.options import EXCLUDES, format_properties, s3_connector, survives

__all__ = ["DriverCommand", "build_command", "find_java", "find_spark_submit"]

DRIVER_VARIABLE = "STREAMSTATE_DRIVER"
"""Where a script that attaches finds its configuration."""
PROPERTIES = "spark.properties"
MODULES_ZIP = "modules.zip"
"""The script's modules, for the Python processes of executors."""
COMPILED = (".so", ".pyd")

# Spark puts these on an executor's command line. It passes its own secret by the environment, and the excluded names
# only look like secrets.
_ON_EXECUTORS_COMMAND_LINE = re.compile(r"spark\.(?:auth(?!enticate\b)|rpc|network(?!\.auth\.))")
_SCHEME = re.compile(r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]*):")


@dataclass(frozen=True)
class DriverCommand:
    """What to start.

    Attributes:
        argv: program and arguments, without secrets.
        environment: the whole environment of the driver.
        files: working files by their name in the launch folder; may hold secrets.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    files: Mapping[str, bytes]


@dataclass(frozen=True)
class PropertiesBeneath:
    """The properties that stay in force below those of a launch: a file of the user's, else ``spark-defaults.conf``.

    Attributes:
        switches: with which ``spark-submit`` loads them besides the launch's own file.
        content: their text where it cannot, which is so before Spark 4: then the launch's own file has both.
    """

    switches: tuple[str, ...]
    content: bytes = b""

    @classmethod
    def of(cls, spark_home: Path | None, environ: Mapping[str, str], properties_file: str = "") -> PropertiesBeneath:
        """Of a ``spark-submit``; of one whose version is unknown, as of Spark 4.

        Args:
            spark_home: its installation, if known.
            properties_file: of the user's command; "" if it has none.

        Raises:
            InvalidRequestError: the user's file cannot be read.
        """
        if spark_home is None or not version_of(spark_home).startswith("3."):
            return cls(("--extra-properties-file",) if properties_file else ("--load-spark-defaults",))
        try:
            # A blank line ends a last line that has a backslash at its end.
            return cls((), Path(properties_file or defaults_file(spark_home, environ)).read_bytes() + b"\n\n")
        except OSError as error:
            if not properties_file and isinstance(error, FileNotFoundError):
                return cls(())
            raise InvalidRequestError(
                "the properties file of the command that starts Spark cannot be read",
                file=error.filename,
                reason=error.strerror,
                next_step="Correct the command, or the file's permissions.",
            ) from None

    def options(self, path: str) -> tuple[str, ...]:
        """The options of ``spark-submit`` for the launch's own file at this path."""
        if "--extra-properties-file" in self.switches:
            return (*self.switches, path)
        return ("--properties-file", path, *self.switches)


def build_command(request: LaunchRequest, inherited: Mapping[str, str]) -> DriverCommand:
    """The command of a driver, with ``inherited`` as the launcher's own environment.

    Raises:
        InvalidRequestError: it cannot run, or not as requested; the context names the part.
    """
    environ = without_signing_key({**inherited, **request.environment})
    submit, options = _checked(request, environ, is_code_there=True)
    master = request.master or options.master
    folder = Path(request.folder)
    beneath = PropertiesBeneath.of(home_of(submit, environ), environ, options.properties_file)
    # Executors in this process import from the driver's own folder, those of a cluster from a zip.
    zipped = {} if is_in_process(master) or not request.modules else {MODULES_ZIP: modules_zip(request)}
    py_files = (str(folder / ZIP_NAME), *options.py_files, *(str(folder / name) for name in zipped))
    argv = (
        *submit.prefix,
        *(("--master", request.master) if request.master else ()),
        *("--deploy-mode", "client"),
        *beneath.options(str(folder / PROPERTIES)),
        *("--py-files", ",".join(py_files)),
        *(("--files", ",".join(options.files)) if options.files else ()),
        *(("--packages", ",".join(options.packages)) if options.packages else ()),
        *(("--jars", ",".join(options.jars)) if options.jars else ()),
        # Our runner, which runs the script, or the script itself, which attaches.
        *(
            (request.application, *request.arguments)
            if request.attaches
            else (str(folder / RUNNER_NAME), "--", str(folder / DRIVER_CONFIG))
        ),
    )
    conf = {"spark.ui.enabled": "false", "spark.app.name": Path(request.application).name, **options.conf}
    config = {
        **request.driver_config,
        "application": request.application,
        "arguments": list(request.arguments),
        "modules": list(request.modules),
        "launch_key": request.launch_key,
    }
    return DriverCommand(
        argv=argv,
        environment={
            **environ,
            **_environment(submit, environ, on_this_machine=is_on_this_machine(master)),
            **({DRIVER_VARIABLE: str(folder / DRIVER_CONFIG)} if request.attaches else {}),
            **_import_paths(request, environ),
        },
        files={
            **zipped,
            PROPERTIES: beneath.content + format_properties(conf),
            DRIVER_CONFIG: json.dumps(config, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n",
        },
    )


def check_request(request: LaunchRequest, inherited: Mapping[str, str]) -> tuple[str, Mapping[str, str]]:
    """Refuse what ``build_command`` would refuse; files that the caller places later need not exist yet.

    Returns:
        Master and configuration that the driver will have, including those of a given command.

    Raises:
        InvalidRequestError: as ``build_command``.
    """
    _, options = _checked(request, {**inherited, **request.environment}, is_code_there=False)
    return request.master or options.master, options.conf


def check_remote(request: LaunchRequest, spark_home: Path | None, *, is_code_there: bool) -> SubmitOptions:
    """The options of a driver on another machine, whose ``spark-submit`` is there.

    Args:
        spark_home: as of ``bundle.build_bundle``.
        is_code_there: whether its files must exist already.

    Raises:
        InvalidRequestError: as ``build_command``.
    """
    options = absorb_conf(_own_options(request))
    check_master(request.master)
    _check_modules(request.master, request.modules)
    if request.working_folder is not None:
        raise InvalidRequestError(
            "drivers of this launcher run in the folder of their launch",
            launcher=request.launcher,
            working_folder=request.working_folder,
            next_step="Leave out the working folder; files travel by --files.",
        )
    if request.needs_s3 and spark_home is not None:
        options = _with_connector(options, spark_home, os.environ, is_launch=is_code_there)
    _check_conf(options.conf, request.master)
    _check_executor_conf(request.master, options.conf)
    _check_connect(options.conf, request.environment)
    _check_files(request, options, is_code_there=is_code_there, is_elsewhere=True)
    return options


def check_shown(conf: Mapping[str, str], secrets: object, shown: re.Pattern[str], where: str) -> None:
    """Refuse a secret under a key that a cluster shows to others.

    Args:
        secrets: the looked-up ones of the request's ``driver_config``.
        shown: keys whose values it shows.
        where: it shows them, for the sentence: "Spark would write this secret into …".

    Raises:
        InvalidRequestError: there is one; the error has no value.
    """
    known = [str(one) for one in secrets if one] if isinstance(secrets, list | tuple) else []
    for key, value in conf.items():
        if shown.match(key) and (secrets_in_value(key, value) or any(one in value for one in known)):
            raise InvalidRequestError(
                f"this secret would be written into {where}, which others can read",
                key=key,
                next_step="Give it as a variable of the deployment's environment, which only its driver has, or by a"
                " file that the machines have.",
            )


def spark_version_of(request: LaunchRequest, inherited: Mapping[str, str]) -> str:
    """The version of the Spark that ``build_command`` would start; "" if unknown.

    Raises:
        InvalidRequestError: there is no Spark, as ``build_command``.
    """
    environ = {**inherited, **request.environment}
    submit, _options = _spark_submit(request, environ)
    return version_of(home_of(submit, environ))


def _checked(
    request: LaunchRequest, environ: Mapping[str, str], *, is_code_there: bool
) -> tuple[SparkSubmit, SubmitOptions]:
    submit, options = _spark_submit(request, environ)
    check_master(request.master or options.master)
    _check_modules(request.master or options.master, request.modules)
    if request.needs_s3:
        # A version names neither the repository nor the cache of its launcher.
        own = {name: value for name, value in environ.items() if name not in request.environment}
        options = _with_connector(options, home_of(submit, environ), own, is_launch=is_code_there)
    _check_conf(options.conf, request.master or options.master)
    _check_executor_conf(request.master or options.master, options.conf)
    is_asked(options.conf)
    _check_connect(options.conf, environ)
    _check_files(request, options, is_code_there=is_code_there)
    return submit, options


def _own_options(request: LaunchRequest) -> SubmitOptions:
    return SubmitOptions(
        conf=dict(request.conf),
        py_files=request.py_files,
        files=request.files,
        packages=request.packages,
        jars=request.jars,
    )


def _spark_submit(request: LaunchRequest, environ: Mapping[str, str]) -> tuple[SparkSubmit, SubmitOptions]:
    own = _own_options(request)
    if request.spark_submit is None:
        submit = own_spark_submit(environ)
        check_java(environ, submit.spark_home)
        return submit, absorb_conf(own)
    resolved = resolve_spark_submit(request.spark_submit, environ)
    rest, given = read_prefix(resolved.prefix[1:])
    return (
        SparkSubmit((resolved.prefix[0], *rest), resolved.environment, resolved.spark_home),
        absorb_conf(given.joined_with(own)),
    )


def _with_connector(
    options: SubmitOptions, spark_home: Path | None, environ: Mapping[str, str], *, is_launch: bool
) -> SubmitOptions:
    """The options with what Spark needs to reach S3 added to the user's packages and excludes, or to the jars."""
    connector = s3_connector(spark_home, options.conf, options.packages, options.jars)
    if connector.is_pinned:
        return replace(options, jars=(*options.jars, *pinned_jars(environ))) if is_launch else options
    excludes = [part.strip() for part in options.conf.get(EXCLUDES, "").split(",") if part.strip()]
    excludes += [name for name in connector.excludes if name not in excludes]
    conf = {**options.conf, EXCLUDES: ",".join(excludes)} if excludes else options.conf
    return replace(options, conf=conf, packages=(*options.packages, *connector.packages))


def _environment(submit: SparkSubmit, environ: Mapping[str, str], *, on_this_machine: bool) -> dict[str, str]:
    """What is set in addition to the user's environment, which is kept."""
    added = dict(submit.environment)
    if environ.get("PYSPARK_PYTHON") or environ.get("PYSPARK_DRIVER_PYTHON"):
        added.pop("PYSPARK_PYTHON", None)
    added |= python_environment({**environ, **added}, on_this_machine=on_this_machine)
    if on_this_machine and not environ.get("SPARK_LOCAL_IP"):
        added["SPARK_LOCAL_IP"] = "127.0.0.1"  # Spark listens on every interface otherwise
    return added


def modules_zip(request: LaunchRequest) -> bytes:
    """The script's modules, for the Python processes of executors."""
    folder = Path(request.application).parent
    return zip_bytes((name, (folder / name).read_bytes()) for name in request.modules)


def _import_paths(request: LaunchRequest, environ: Mapping[str, str]) -> dict[str, str]:
    """Where Python processes on this machine find the script's modules: as pinned, not in their current folder."""
    if not request.modules:
        return {}
    paths = (str(Path(request.application).parent), environ.get("PYTHONPATH", ""))
    return {"PYTHONPATH": ":".join(filter(None, paths)), "PYTHONSAFEPATH": "1"}


def is_compiled(name: str) -> bool:
    """Whether this is a compiled module, which Python imports from a folder only, never from a zip."""
    return name.endswith(COMPILED)


def _check_modules(master: str, modules: Sequence[str]) -> None:
    compiled = list(filter(is_compiled, modules))
    if compiled and not is_in_process(master):
        raise InvalidRequestError(
            "the script imports a compiled module from its own folder, which cannot be sent to executors",
            compiled=compiled[:5],
            next_step="Install it into the Python of driver and executors.",
        )


def _check_conf(conf: Mapping[str, str], master: str) -> None:
    for key, value in conf.items():
        if not key.startswith("spark.") or key != key.strip():
            raise InvalidRequestError(
                "this configuration key does not start with 'spark.', so Spark would ignore it",
                key=key,
                next_step="Correct the key, or give the value to the script as an argument or environment variable.",
            )
        if not survives(value):
            raise InvalidRequestError(
                "this configuration value starts or ends with a blank, which Spark would cut off",
                key=key,
                next_step="Remove the blank, or set the value in the script.",
            )
    if conf.get("spark.submit.deployMode", "client") != "client":
        raise InvalidRequestError(
            "this launcher starts drivers on this machine only, not in cluster mode",
            key="spark.submit.deployMode",
            next_step=_instead_of_cluster_mode(master),
        )


def _instead_of_cluster_mode(master: str) -> str:
    if master.startswith("spark://"):
        return (
            "Leave it out: Spark's standalone clusters take no Python drivers in cluster mode. `--launcher ssh` starts"
            " them on a machine next to the cluster."
        )
    launcher = "yarn" if master == "yarn" else "kubernetes" if master.startswith("k8s://") else "ssh"
    return f"Use the deploy mode client. `--launcher {launcher}` starts drivers elsewhere."


def _check_executor_conf(master: str, conf: Mapping[str, str]) -> None:
    for key in conf:
        if _ON_EXECUTORS_COMMAND_LINE.match(key) and is_secret_name(key) and not master.startswith("local"):
            raise InvalidRequestError(
                "Spark would put this secret on the command line of every executor, which every user there can read",
                key=key,
                next_step="Give it under a key with another prefix, or by a file that the executors have.",
            )


def _check_connect(conf: Mapping[str, str], environ: Mapping[str, str]) -> None:
    where = next((key for key in ("spark.remote", "SPARK_REMOTE") if (conf.get(key) or environ.get(key))), None)
    if where is None and conf.get("spark.api.mode", "classic") == "connect":
        where = "spark.api.mode"
    if where is not None:
        raise InvalidRequestError(
            "Spark Connect is not supported: its queries would escape supervision",
            setting=where,
            next_step=f"Unset {where} and name a master.",
        )


def _check_files(
    request: LaunchRequest, options: SubmitOptions, *, is_code_there: bool, is_elsewhere: bool = False
) -> None:
    for name in ("folder", "log_path", "application"):
        if not Path(getattr(request, name)).is_absolute():
            raise InvalidRequestError("this must be an absolute path", **{name: getattr(request, name)})
    if is_code_there and not Path(request.application).is_file():
        raise InvalidRequestError(
            "the script is not there", application=request.application, next_step="Correct the path of the script."
        )
    if request.working_folder is not None and not Path(request.working_folder).is_dir():
        raise InvalidRequestError(
            "the folder that the drivers of this deployment run in is not on this machine",
            working_folder=request.working_folder,
            next_step="Make it again, or name another one: `--working-folder FOLDER` of `upgrade` or `deploy`.",
        )
    for what in ("py_files", "files", "jars"):
        own = () if is_code_there else request.placed_later(what)
        for item in getattr(options, what):
            _check_comma(what, item)
            if item not in own and not (is_elsewhere and _SCHEME.match(item)):
                _check_file(what, item)
    if "#" in request.folder:
        raise InvalidRequestError(
            "the folder of a launch contains a '#', at which Spark would cut it",
            folder=request.folder,
            next_step="Put the home somewhere else.",
        )
    _check_comma("folder", request.folder)


def _check_file(what: str, item: str) -> None:
    scheme = _SCHEME.match(item)
    if scheme and scheme["scheme"] != "file":
        return
    path = item.removeprefix("file:").partition("#")[0]
    if not re.search(r"[*?\[{]", path) and not Path(path).exists():
        raise InvalidRequestError(
            "a file that the driver needs is not there", **{what: item}, next_step="Correct the path, or leave it out."
        )


def _check_comma(what: str, path: str) -> None:
    if "," in path:
        raise InvalidRequestError(
            "a path contains a comma, at which Spark would split it", **{what: path}, next_step="Use another path."
        )


# The files of a driver on another machine, and the ``spark-submit`` options that name them by relative paths.
#
# A launcher puts all files into one folder there, and starts ``spark-submit`` in it. ``driver.json`` and the
# properties file may hold secrets, so a launcher keeps both readable by the driver's user only.

_WILDCARD = re.compile(r"[*?\[]")
CODE, PY_FILES, FILES, JARS = "code", "py-files", "files", "jars"
"""The folders of the script with its modules, and of the files of each option."""


@dataclass(frozen=True)
class DriverBundle:
    """What a driver on another machine is started with.

    Attributes:
        files: by their paths below the folder of the bundle.
        submit_arguments: of ``spark-submit``, without its own path: options, then the runner and its argument. Paths
            are relative to the folder of the bundle.
        environment: variables that the request sets; may hold secrets. ``driver.json`` has them too, for a launcher
            that cannot keep variables secret: the runner sets them.
        conf: Spark's configuration as in the properties file; may hold secrets.
        beneath: what is in the properties file above that: the defaults of a Spark that cannot load them besides.
    """

    files: Mapping[str, bytes]
    submit_arguments: tuple[str, ...]
    environment: Mapping[str, str]
    conf: Mapping[str, str]
    beneath: bytes = b""

    def with_conf(self, conf: Mapping[str, str]) -> DriverBundle:
        """The bundle with another configuration."""
        return replace(self, conf=conf, files={**self.files, PROPERTIES: self.beneath + format_properties(conf)})


def build_bundle(request: LaunchRequest, spark_home: Path | None = None) -> DriverBundle:
    """The bundle of a driver.

    Args:
        request: local paths of its files are those of the caller's machine.
        spark_home: a Spark like the one that runs the driver, where one is on this machine: by it the packages are
            found by which Spark reaches S3. None: Spark is expected to reach it by itself.

    Raises:
        InvalidRequestError: it cannot run, or a file is not there.
    """
    options = check_remote(request, spark_home, is_code_there=True)
    files: dict[str, bytes] = {
        ZIP_NAME: driver_zip_bytes(deflated=True),
        RUNNER_NAME: RUNNER.encode(),
    }
    script = Path(request.application)
    application = f"{CODE}/{script.name}"
    files[application] = _read(script)
    files |= {f"{CODE}/{name}": _read(script.parent / name) for name in request.modules}
    zipped = () if is_in_process(request.master) or not request.modules else (MODULES_ZIP,)
    if zipped:
        files[MODULES_ZIP] = modules_zip(request)
    py_files = (ZIP_NAME, *_placed(options.py_files, PY_FILES, files.__setitem__), *zipped)
    others = _placed(options.files, FILES, files.__setitem__)
    jars = _placed(options.jars, JARS, files.__setitem__)
    conf = {"spark.ui.enabled": "false", "spark.app.name": script.name, **options.conf}
    beneath = PropertiesBeneath.of(spark_home, os.environ)
    files[PROPERTIES] = beneath.content + format_properties(conf)
    environment = {
        **request.environment,
        **({DRIVER_VARIABLE: DRIVER_CONFIG} if request.attaches else {}),
    }
    config = {
        **request.driver_config,
        "application": application,
        "arguments": list(request.arguments),
        "modules": list(request.modules),
        "launch_key": request.launch_key,
        "environment": environment,
    }
    files[DRIVER_CONFIG] = json.dumps(config, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n"
    arguments = _arguments(request, options, beneath, py_files, others, jars)
    return DriverBundle(files, arguments, environment, conf, beneath.content)


def _arguments(
    request: LaunchRequest,
    options: SubmitOptions,
    beneath: PropertiesBeneath,
    py_files: Iterable[str],
    files: tuple[str, ...],
    jars: tuple[str, ...],
) -> tuple[str, ...]:
    return (
        *("--master", request.master),
        *("--deploy-mode", "client"),
        *beneath.options(PROPERTIES),
        *("--py-files", ",".join(py_files)),
        *(("--files", ",".join(files)) if files else ()),
        *(("--packages", ",".join(options.packages)) if options.packages else ()),
        *(("--jars", ",".join(jars)) if jars else ()),
        *(
            (f"{CODE}/{Path(request.application).name}", *request.arguments)
            if request.attaches
            else (RUNNER_NAME, "--", DRIVER_CONFIG)
        ),
    )


def sent_files(options: SubmitOptions, folder: Path | None = None) -> list[Path]:
    """The files of this machine that a bundle with these options would have, but for those below ``folder``."""
    options = absorb_conf(options)
    found = []
    for item in expanded((*options.py_files, *options.files, *options.jars)):
        path = None if _is_uri(item) else Path(os.path.abspath(item.partition("#")[0]))  # noqa: PTH100 - no links
        if path is not None and (folder is None or not path.is_relative_to(folder)):
            found.append(path)
    return found


def _is_uri(item: str) -> bool:
    """Whether it is on a server, or a path of the driver's own machine."""
    return "://" in item or item.startswith(("local:", "file:"))


def _placed(items: Iterable[str], folder: str, put: Callable[[str, bytes], None]) -> tuple[str, ...]:
    """The items as the driver finds them: files of this machine in the bundle, URIs unchanged."""
    found = []
    placed: dict[str, str] = {}
    for item in expanded(items):
        if _is_uri(item):
            found.append(item)
            continue
        path, mark, alias = item.partition("#")
        name = f"{folder}/{Path(path).name}"
        if placed.setdefault(name, path) != path:
            raise InvalidRequestError(
                "two files of this kind have the same name",
                kind=folder,
                paths=[placed[name], path],
                next_step="Rename one of them.",
            )
        put(name, _read(Path(path)))
        found.append(f"{name}{mark}{alias}")
    return tuple(found)


def expanded(items: Iterable[str]) -> list[str]:
    """The items, those with wildcards as the files of this machine that match; as they are where none does."""
    found: list[str] = []
    for item in items:
        matching = sorted(glob.glob(item)) if _WILDCARD.search(item) and ":" not in item else []  # noqa: PTH207
        found += matching or [item]
    return found


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidRequestError(
            "a file that the driver needs cannot be read",
            path=str(path),
            reason=str(error.strerror or type(error).__name__).lower(),
            next_step="Correct the path, or give a URI that the driver itself can read.",
        ) from None
