"""The files of a driver on another machine, and the ``spark-submit`` options that name them by relative paths.

A launcher puts all files into one folder there, and starts ``spark-submit`` in it. ``driver.json`` and the properties
file may hold secrets, so a launcher keeps both readable by the driver's user only.
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.launch.command import (
    DRIVER_VARIABLE,
    MODULES_ZIP,
    PROPERTIES,
    check_remote,
    format_properties,
    modules_zip,
)
from airflow_streamstate.launch.driver_zip import RUNNER, RUNNER_NAME, ZIP_NAME, driver_zip_bytes
from airflow_streamstate.launch.interface import DRIVER_CONFIG, LaunchRequest
from airflow_streamstate.launch.master import is_in_process
from airflow_streamstate.launch.submit_options import SubmitOptions, absorb_conf

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
    """

    files: Mapping[str, bytes]
    submit_arguments: tuple[str, ...]
    environment: Mapping[str, str]
    conf: Mapping[str, str]


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
    files[PROPERTIES] = format_properties(conf)
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
    return DriverBundle(files, _arguments(request, options, py_files, others, jars), environment, conf)


def _arguments(
    request: LaunchRequest,
    options: SubmitOptions,
    py_files: Iterable[str],
    files: tuple[str, ...],
    jars: tuple[str, ...],
) -> tuple[str, ...]:
    return (
        *("--master", request.master),
        *("--deploy-mode", "client"),
        *("--properties-file", PROPERTIES, "--load-spark-defaults"),
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
