"""Finds Spark, Python and Java on this machine, and the jars by which Spark reaches S3."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from pathlib import Path

from airflow_streamstate.checkpoint.guards import refuse_spark
from airflow_streamstate.errors import DataError, InvalidRequestError, UnavailableError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.launch.folder import translated, write_file
from airflow_streamstate.launch.submit_options import DEFAULTS_FILE
from airflow_streamstate.store.open import is_readable_on_its_way

SPARK_SUBMIT = "spark-submit"
_CORE_JAR = re.compile(r"spark-core_[0-9.]+-([0-9]+\.[0-9]+\.[0-9]+.*)\.jar")
_MOST_REASON = 300
_INSTALL = "Install the extra airflow-streamstate[spark], or set SPARK_HOME to a Spark installation."


OLDEST_PYTHON = (3, 9)
WORKERS_PYTHON = "PYSPARK_PYTHON"
PYTHONS = (WORKERS_PYTHON, "PYSPARK_DRIVER_PYTHON")
"""The variables that name the Python of workers, and of the driver."""


@dataclass(frozen=True)
class SparkSubmit:
    """The command that starts Spark.

    Attributes:
        prefix: the command with its first options.
        environment: what it needs in addition to the user's own environment.
        spark_home: the installation, if known.
    """

    prefix: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    spark_home: Path | None = None


def find_spark_submit(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The command that a launch would use; ``environ`` is by default this process's.

    Raises:
        InvalidRequestError: no ``spark-submit`` was found.
    """
    return own_spark_submit(os.environ if environ is None else environ).prefix


def own_spark_submit(environ: Mapping[str, str]) -> SparkSubmit:
    """The first ``spark-submit`` of: SPARK_HOME, this Python's pyspark, this Python's folder, PATH.

    Args:
        environ: the environment that the driver will have.

    Raises:
        InvalidRequestError: no ``spark-submit`` was found.
    """
    home = environ.get("SPARK_HOME")
    if home:
        path = Path(home) / "bin" / SPARK_SUBMIT
        if not _is_executable(path):
            raise InvalidRequestError(
                "SPARK_HOME is set, but there is no spark-submit in it", SPARK_HOME=home, next_step=_INSTALL
            )
        return SparkSubmit((str(path),), spark_home=Path(home))
    own = own_pyspark()
    if own is not None:
        # Without SPARK_HOME, spark-submit of pip asks the first python3 on PATH where Spark is.
        return SparkSubmit((str(own / "bin" / SPARK_SUBMIT),), {"SPARK_HOME": str(own)}, own)
    path_found = _beside_this_python(SPARK_SUBMIT) or shutil.which(SPARK_SUBMIT, path=environ.get("PATH"))
    if path_found is None:
        raise InvalidRequestError("there is no spark-submit on this machine", next_step=_INSTALL)
    return SparkSubmit((path_found,), _python_beside(Path(path_found)))


def resolve_spark_submit(prefix: tuple[str, ...], environ: Mapping[str, str]) -> SparkSubmit:
    """A given command, with its program found; raises as ``own_spark_submit`` does."""
    program = prefix[0] if prefix else ""
    found: str | None = program
    if program and "/" not in program:
        found = shutil.which(program, path=environ.get("PATH")) or _beside_this_python(program)
    if not found or not _is_executable(Path(found)):
        raise InvalidRequestError(
            "the command that is to start Spark does not exist, or is not executable",
            command=program,
            next_step="Correct the command, or leave it out to use the spark-submit of this machine.",
        )
    return SparkSubmit((str(Path(found).absolute()), *prefix[1:]), _python_beside(Path(found)))


def home_of(submit: SparkSubmit, environ: Mapping[str, str]) -> Path | None:
    """The installation that a ``spark-submit`` starts; None if unknown."""
    named = [submit.spark_home] if submit.spark_home else [Path(home)] if (home := environ.get("SPARK_HOME")) else []
    program = Path(submit.prefix[0])
    unpacked = [path.parent.parent for path in (program, program.resolve())]
    of_pip = [*program.parent.parent.glob("lib/python3*/site-packages/pyspark")]
    return next((folder for folder in (*named, *unpacked, *of_pip) if (folder / "jars").is_dir()), None)


def environment_of_spark(path: str) -> dict[str, str]:
    """The variables by which a launch finds a Spark.

    Args:
        path: of an installation (``bin/spark-submit``, ``jars``), or of a virtual environment that has pyspark: then
            its Python is that of the driver and of the workers.

    Raises:
        InvalidRequestError: there is no Spark, or the Python of the environment is too old for the driver's part.
        UnsupportedCheckpointError: the Spark is too old.
    """
    # Not resolved: a link such as /opt/spark stays one.
    folder = Path(os.path.abspath(Path(path).expanduser()))  # noqa: PTH100
    python = folder / "bin" / "python"
    of_pip = [home for home in sorted(folder.glob("lib/python3*/site-packages/pyspark")) if _is_installation(home)]
    for home in (*of_pip, folder):
        refuse_spark(version_of(home))
    if of_pip and _is_executable(python):
        version = of_pip[0].parents[1].name.removeprefix("python")
        if tuple(map(int, version.split("."))) < OLDEST_PYTHON:
            raise InvalidRequestError(
                "the Python of this virtual environment is too old for what runs in the driver",
                spark=str(folder),
                python=version,
                next_step="Use one of Python {}.{} or newer.".format(*OLDEST_PYTHON),
            )
        own = dict.fromkeys(PYTHONS, str(python))
        return {"SPARK_HOME": str(of_pip[0]), **own}
    if _is_installation(folder):
        return {"SPARK_HOME": str(folder)}
    raise InvalidRequestError(
        "there is no Spark at this path",
        spark=str(folder),
        next_step="Name an installation, which has bin/spark-submit and jars, or a virtual environment with pyspark.",
    )


REWRITER_SPARK = "4.2.0"
"""The Spark that rewrites state for drivers on an older one, as tried."""
_REWRITER_PACKAGE = f"pyspark[sql]=={REWRITER_SPARK}"
_DONE = "streamstate-rewriter"
INSTALL_SECONDS = 1_800.0
_UNREACHED = re.compile(r"connection broken|Could not fetch|Connection refused|timed out", re.IGNORECASE)


def prepare_rewriter(environ: Mapping[str, str], say: Callable[[str], None]) -> Path:
    """A virtual environment of this user with a Spark that rewrites state, made if it is not there.

    It is of the Python that runs this, and what pip installs comes from where pip is configured to look.

    Raises:
        InvalidRequestError: the folder cannot be written.
        UnavailableError: pip could not install Spark.
    """
    folder = _caches(environ) / "rewriter" / REWRITER_SPARK
    done = folder / _DONE
    if done.is_file() and _is_executable(folder / "bin" / "python"):
        return folder
    say(f"pip installs Spark {REWRITER_SPARK} (500 MB) into {folder}")
    with translated(folder):
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Under a name of its own until it is whole: several may do this at once, and any may be killed.
        made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _install_rewriter(made, environ)
        with translated(folder):
            write_file(made / _DONE, REWRITER_SPARK.encode())
            if not done.is_file():
                shutil.rmtree(folder, ignore_errors=True)
                made.rename(folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def _install_rewriter(made: Path, environ: Mapping[str, str]) -> None:
    python = str(made / "bin" / "python")
    clean = {name: value for name, value in environ.items() if not name.startswith("PYTHON")}
    for command in (
        [sys.executable, "-m", "venv", str(made)],
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", _REWRITER_PACKAGE],
    ):
        try:
            ended = subprocess.run(
                command, env=clean, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
            )
            said = ended.stderr.strip() or ended.stdout.strip() or f"exit status {ended.returncode}"
            problem = said if ended.returncode else ""
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = str(error)
        if problem:
            lines = problem.splitlines()
            unreached = [line for line in lines if _UNREACHED.search(line)]  # pip then calls the release unknown
            raise UnavailableError(
                "the Spark that rewrites state could not be installed",
                reason=(unreached or lines)[-1][:_MOST_REASON],
                next_step="Fix what the reason names, then do the same again; or name another Spark 4.2 or newer by"
                " --rewriter-spark.",
            )


def _caches(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "streamstate"


def _is_installation(folder: Path) -> bool:
    return _is_executable(folder / "bin" / SPARK_SUBMIT) and (folder / "jars").is_dir()


def defaults_file(spark_home: Path, environ: Mapping[str, str]) -> Path:
    """The file of an installation's default settings, which need not exist."""
    return Path(environ.get("SPARK_CONF_DIR") or spark_home / "conf") / DEFAULTS_FILE


def version_of(spark_home: Path | None) -> str:
    """The version of an installation, by the name of its core jar; "" if unknown."""
    names = (path.name for path in (spark_home / "jars").glob("spark-core_*.jar")) if spark_home else iter(())
    found = sorted(match[1] for match in map(_CORE_JAR.fullmatch, names) if match)
    return found[-1] if len(found) == 1 else ""


def own_pyspark() -> Path | None:
    """The folder of the complete pyspark (not only its client) that this Python has; None if it has none."""
    try:
        spec = importlib.util.find_spec("pyspark")
    except ValueError:
        return None
    for location in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(location)
        if _is_installation(folder):
            return folder
    return None


def python_environment(environ: Mapping[str, str], *, on_this_machine: bool) -> dict[str, str]:
    """The Python for driver and workers, where the environment does not set it.

    By default Spark takes the first ``python3`` on PATH. On the machines of a cluster, where this Python's path means
    nothing, the workers' Python stays the cluster's choice.
    """
    if environ.get("PYSPARK_PYTHON"):
        return {}
    driver = environ.get("PYSPARK_DRIVER_PYTHON")
    if on_this_machine:
        return {"PYSPARK_PYTHON": driver or sys.executable}
    return {} if driver else {"PYSPARK_DRIVER_PYTHON": sys.executable}


def check_java(environ: Mapping[str, str], spark_home: Path | None) -> None:
    """Check that ``spark-submit`` will find a Java; raises as ``find_java`` does."""
    conf = environ.get("SPARK_CONF_DIR") or (str(spark_home / "conf") if spark_home else "")
    if not (conf and (Path(conf) / "spark-env.sh").is_file()):  # which may set JAVA_HOME
        find_java(environ)


def find_java(environ: Mapping[str, str] | None = None) -> str:
    """The ``java`` that ``spark-submit`` would use: of JAVA_HOME if that is set, else on PATH.

    Raises:
        InvalidRequestError: no ``java`` was found.
    """
    environ = os.environ if environ is None else environ
    java_home = environ.get("JAVA_HOME")
    found = str(Path(java_home) / "bin" / "java") if java_home else shutil.which("java", path=environ.get("PATH"))
    if found and _is_executable(Path(found)):
        return found
    raise InvalidRequestError(
        "Spark needs Java, which is not found on this machine",
        JAVA_HOME=java_home or "not set",
        next_step="Install a Java 17 runtime, or set JAVA_HOME to one.",
    )


def _beside_this_python(program: str) -> str | None:
    path = Path(sys.executable).parent / program
    return str(path) if _is_executable(path) else None


def _python_beside(spark_submit: Path) -> dict[str, str]:
    """The Python of a ``spark-submit`` that pip installed, which is the one that has pyspark."""
    python = spark_submit.parent / "python3"
    if (spark_submit.parent / "find_spark_home.py").is_file() and _is_executable(python):
        return {"PYSPARK_PYTHON": str(python)}
    return {}


def _is_executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


# Jars by which Spark reaches S3, fetched by us and compared with digests that are part of this package.
#
# Spark's own resolver compares what it downloads with checksums of the same repository, which whoever can change a
# jar there can change, too.

URL_VARIABLE = "STREAMSTATE_MAVEN_URL"
"""Another repository than Maven Central: a mirror, with or without a path."""
CENTRAL = "https://repo1.maven.org/maven2"
FETCH_SECONDS = 120.0
MOST_BYTES = 64 << 20
_AT_ONCE = 6
_AWS: Mapping[str, str] = {
    "annotations": "6f36bd87155d1dd85d6efbdd29e532e3759a022211feb71affebee1aa34f04b8",
    "apache-client": "6eade21b482724ed0a4613eaa95d20e47e7a81304bd28538ac427fece94a7740",
    "arns": "c63cc29f76a8527e9e10b621703163df541dc5cb315508dc2898518602c75380",
    "auth": "6b601323004833fb4a857ffc95db4795e0e6320eb93e64b1246c655c9ff04994",
    "aws-core": "fdb5fc8f1a48d97fa7d04d3460fb42f6973c7b1bbe1b9d317871ef0162bcb623",
    "aws-query-protocol": "9b4cf9b78977cc9f5b4ceae9c435dedbde6a055a0f8d9e053eaca945715e2a9f",
    "aws-xml-protocol": "4f59176da2522c357b1993e4a890fde529f12f365795ef86269bde4a3984cd0d",
    "checksums": "94464af4374d08ecf33ca06ed4d03e1615529e547726e26b56abacefbeee7948",
    "checksums-spi": "88b5af85ac2d3c862be8856be4e683ab31932e4a5a3c1c45af864d2671ac7cec",
    "crt-core": "2c6aaa17bf9ccbb9d962dded4351e73decb197e3c5519970e0dae17e05d3df62",
    "endpoints-spi": "ef02441bda916959b8341290b49c68cc35538e1ad6f8629b75d8334dc6653e00",
    "http-auth": "3ec933a06e751a05e195eb3589209e23c44e1897263b6fcae34ef4cc63cd4491",
    "http-auth-aws": "c4acb92fdec90bfd9b67bfab8e41b69cd152c03cacc10281a8ab464791856e01",
    "http-auth-aws-eventstream": "709107552f302be3fa9e05969a3779f5c0f07fb809e6fa1fa571a6f0c61326dd",
    "http-auth-spi": "4495463406bb98eb136f2c3f3604ed5f08ec9974ebc3f34f2121b20679f61d5c",
    "http-client-spi": "728be89b2a07b595edb0adee3a2cbbbdd4cb1f4caddde0d08c3979fe2620dedb",
    "identity-spi": "188d73db7d4e2361654bc3c5a1b3eaeb445d0500fb012cc46c5d67975adf97bf",
    "json-utils": "80d67a6bb3e7eb49c7d4b6e4ba4c1463ed7da0192b795158328602dc131c5ecc",
    "metrics-spi": "c2a4ee90a21081317e2e6eba0c414d05d3d518aed2f86b1c1710a7367b450487",
    "netty-nio-client": "b82f8b33e5c85273a47da45ede884d7ccb31c9c2f69e6910a76c5c48fa1275dc",
    "profiles": "0f4ef7ca72ccd80dd49ebeaf7f3ce60a7d7a00da59a91aeeae6e91052bbacbd8",
    "protocol-core": "f2532eca6ba2142fe4821d5decb03c83a3e15dc8bfae2240e7f2efa75f9868b5",
    "regions": "77eae87b34ce96ecdf916a9bc06684dbeafcb6d38ef0513285fa5d5d6d41f5ca",
    "retries": "f99fb2f8c66d7e859955b3542d3af8f9de8f23a21d5e3250f0f2c5f18487e469",
    "retries-spi": "668638751d059c527ddd41ffa4dcebe36a7c14860ed56776df09b861c14dc7dd",
    "s3": "f23532c5223be9b0bfec0d72837ed09ed34dbdf8022818ba145b20076a78b4bc",
    "s3-transfer-manager": "0eec78870b3d0abc509a847072cf963cb2ae6e360dc6161a9449b3398c470476",
    "sdk-core": "fa559a4ce598852f3519c8f3b36250f583b0858a7611eedc4a81997778c617f4",
    "sts": "8d0f7816d3f96e3f00249f5d054d926e939a104bcf9ef57676ee0b16c59684d2",
    "third-party-jackson-core": "32f4252c6c2df8f3a4aff885e6dc77024ad6b4cb48455d07b461ec30c41643ea",
    "utils": "642aeef536a071668f0b772f05f9d21573abf6955e7b6fb5fdb893760cca10e8",
    "utils-lite": "e004806def5e22ec98edc48a133ff3317166255e1ba29d93d129e9fdfa64a7be",
}
_ACCELERATOR = "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1"
HADOOP_3_5_0: Mapping[str, str] = {
    "org.apache.hadoop:hadoop-aws:3.5.0": "66bd9eefb938b1a1657487324b63c13df2d8b17164a1dd24e0ef37b905bc5baa",
    "org.reactivestreams:reactive-streams:1.0.4": "f75ca597789b3dac58f61857b9ac2e1034a68fa672db35055a8fb4509e325f28",
    "software.amazon.eventstream:eventstream:1.0.1": "0c37d8e696117f02c302191b8110b0d0eb20fa412fce34c3a269ec73c16ce822",
    _ACCELERATOR: "4959a9747cbb479c73c3ffbcd479bee5b014f8b2880994585a8693fb9d24675e",
    **{f"software.amazon.awssdk:{name}:2.35.4": digest for name, digest in _AWS.items()},
}
"""By Maven coordinate the sha256 of each jar that hadoop-aws 3.5.0 needs in addition to those of Spark 4.2."""


def pinned_jars(environ: Mapping[str, str], digests: Mapping[str, str] = HADOOP_3_5_0) -> tuple[str, ...]:
    """The paths of the jars in the cache of this user, fetched where they are not there yet.

    Raises:
        DataError: one is not what was pinned; none is used.
        InvalidRequestError: the repository cannot be used.
        UnavailableError: one cannot be had now.
    """
    base = environ.get(URL_VARIABLE, CENTRAL).rstrip("/")
    if not base.startswith(("https://", "http://")) or is_readable_on_its_way(base):
        raise InvalidRequestError(
            "this is no repository of jars", variable=URL_VARIABLE, url=base, next_step="Give an https URL."
        )
    top = _caches(environ) / "jars"
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return tuple(pool.map(lambda jar: str(_fetched(base, top, *jar)), digests.items()))


def _fetched(base: str, top: Path, coordinate: str, digest: str) -> Path:
    group, artifact, version = coordinate.split(":")
    name = f"{artifact}-{version}.jar"
    path = top / digest / name
    if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == digest:
        return path
    from airflow_streamstate.launch.rest import ask

    url = f"{base}/{group.replace('.', '/')}/{artifact}/{version}/{name}"
    answer = ask("GET", url, seconds=FETCH_SECONDS, at_most=MOST_BYTES)
    if answer.status != 200:
        raise UnavailableError(
            "a jar cannot be had from its repository",
            url=url,
            status=answer.status,
            next_step=f"Name a repository that has it by {URL_VARIABLE}, then do the same again.",
        )
    if hashlib.sha256(answer.body).hexdigest() != digest:
        raise DataError(
            "a jar of the repository is not the one that this release was tried with, and is not used",
            url=url,
            expected_sha256=digest,
            next_step="Use another repository; if Maven Central itself gives it, report it.",
        )
    with translated(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_file(path, answer.body)
    return path
