"""Options of ``spark-submit`` that come from several sides, master URLs, and releases that are known to fail."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path

from airflow_streamstate.errors import InvalidRequestError, UnavailableError
from airflow_streamstate.frozen import dataclass

_LISTS = {"--py-files": "py_files", "--files": "files", "--packages": "packages", "--jars": "jars"}
_CONF_LISTS = {
    "spark.submit.pyFiles": "py_files",
    "spark.files": "files",
    "spark.jars.packages": "packages",
    "spark.jars": "jars",
}
_SWITCHES = frozenset({"--verbose", "-v", "--supervise", "--load-spark-defaults", "--usage-error", "--version"})


@dataclass(frozen=True)
class SubmitOptions:
    """What ``spark-submit`` gets in addition to the application.

    Attributes:
        master: of a given prefix; "" if not set.
        properties_file: of a given prefix; "" if it names none.
    """

    conf: Mapping[str, str] = field(default_factory=dict)
    py_files: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    jars: tuple[str, ...] = ()
    master: str = ""
    properties_file: str = ""

    def joined_with(self, later: SubmitOptions) -> SubmitOptions:
        """These and the later ones: lists are concatenated, single values of the later one win."""
        lists = {name: getattr(self, name) + getattr(later, name) for name in _LISTS.values()}
        return SubmitOptions(
            conf={**self.conf, **later.conf},
            master=later.master or self.master,
            properties_file=later.properties_file or self.properties_file,
            **lists,
        )


def absorb_conf(options: SubmitOptions) -> SubmitOptions:
    """The options with the lists of the configuration moved into the fields."""
    conf = dict(options.conf)
    for key, name in _CONF_LISTS.items():
        listed = _split(conf.pop(key, ""))
        options = replace(options, **{name: listed + getattr(options, name)})
    return replace(options, conf=conf)


def read_prefix(arguments: Sequence[str]) -> tuple[tuple[str, ...], SubmitOptions]:
    """The options of a command prefix: those that stay in place, and those to be joined.

    Raises:
        InvalidRequestError: it asks for cluster mode, or a ``--conf`` is no ``KEY=VALUE``.
    """
    rest: list[str] = []
    found = SubmitOptions()
    for name, value, words in _pairs(arguments):
        if name in _LISTS:
            found = found.joined_with(SubmitOptions(**{_LISTS[name]: _split(value)}))  # type: ignore[arg-type]
        elif name in ("--conf", "-c"):
            found = found.joined_with(SubmitOptions(conf=_key_value(value)))
        elif name == "--deploy-mode":
            found = found.joined_with(SubmitOptions(conf={"spark.submit.deployMode": value}))
        else:
            rest.extend(words)
            found = replace(
                found,
                master=value if name == "--master" else found.master,
                properties_file=value if name == "--properties-file" else found.properties_file,
            )
    return tuple(rest), found


def _pairs(arguments: Sequence[str]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Option, value ("" for a switch) and the original words, for ``--x y``, ``--x=y`` and ``--switch``."""
    at = 0
    while at < len(arguments):
        word = arguments[at]
        name, equals, value = word.partition("=")
        if equals and word.startswith("--"):
            yield name, value, (word,)
            at += 1
        elif not word.startswith("-") or word in _SWITCHES or at + 1 == len(arguments):
            yield word, "", (word,)
            at += 1
        else:
            yield word, arguments[at + 1], (word, arguments[at + 1])
            at += 2


def _key_value(text: str) -> dict[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise InvalidRequestError(
            "a --conf of the command that starts Spark is no KEY=VALUE", key=key, next_step="Correct the command."
        )
    return {key: value}


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


# What a master URL shows about where drivers run, and whether a standalone master answers.
#
# Spark itself asks a standalone master that is down for a minute and a half, and then only logs it. Drivers in client
# mode run on this machine and reach only what can be reached from here.

SETTING = "spark.streamstate.master.check"
"""``connect`` (the default), or ``none`` where only the driver's command reaches the master."""
CONNECT_SECONDS = 3.0

_MASTER = re.compile(
    r"local|local\[(?:\*|0*[1-9][0-9]*)(?:\s*,\s*[0-9]+)?\]|local-cluster\[\s*[0-9]+\s*,\s*[0-9]+\s*,\s*[0-9]+\s*\]"
    r"|spark://.+|k8s://.+|yarn"
)
_STANDALONE = "spark://"
_ADDRESS = re.compile(r"(?P<host>\[[0-9a-fA-F:.%]+\]|[^\[\]:/@]+):(?P<port>[0-9]{1,5})")
_LOOPBACK = re.compile(r"localhost|127\.[0-9.]+|::1")
# As the kernel names them; a fuse mount is usually on a different machine, too.
_SHARED_FILE_SYSTEM = re.compile(
    r"9p|afs|beegfs|ceph|cifs|fhgfs|fuse\..*|gfs2|glusterfs|gpfs|lustre|nfs4?|ocfs2|panfs|smb3|smbfs|virtiofs|wekafs"
)
_MOUNTS = Path("/proc/self/mounts")


def check_master(master: str) -> None:
    """Check that Spark knows this kind of master; Spark would report it only after its JVM has started.

    Raises:
        InvalidRequestError: it does not.
    """
    if not _MASTER.fullmatch(master) or (master.startswith(_STANDALONE) and not addresses_of(master)):
        raise InvalidRequestError(
            "this is not a master that Spark knows",
            master=master,
            next_step="Use local[N], spark://HOST:PORT, k8s://…, or yarn.",
        )


def addresses_of(master: str) -> tuple[tuple[str, int], ...]:
    """Host and port of each master of a standalone cluster, which may have several; () for any other kind."""
    if not master.startswith(_STANDALONE):
        return ()
    found = [_ADDRESS.fullmatch(part.strip()) for part in master.removeprefix(_STANDALONE).split(",")]
    return tuple((match["host"].strip("[]"), int(match["port"])) for match in found if match)


def is_in_process(master: str) -> bool:
    """Whether the executors are the driver's own process."""
    return master.startswith("local") and not master.startswith("local-cluster")


def is_on_this_machine(master: str) -> bool:
    """Whether the whole job runs on this machine: in one process, or on a cluster on loopback."""
    addresses = addresses_of(master)
    return master.startswith("local") or bool(addresses and all(_LOOPBACK.fullmatch(host) for host, _ in addresses))


def check_master_answers(master: str, conf: Mapping[str, str]) -> None:
    """Check that one of the masters of a standalone cluster takes connections; other kinds are not asked.

    Raises:
        InvalidRequestError: the setting has no such value.
        UnavailableError: none does.
    """
    if not is_asked(conf):
        return
    import socket

    reasons = []
    for host, port in addresses_of(master):
        try:
            socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
            return
        except (OSError, OverflowError) as error:
            reasons.append(f"{host}:{port}: {_words(error)}")
    if reasons:
        raise UnavailableError(
            "the master of the cluster does not answer",
            master=master,
            reason="; ".join(reasons),
            next_step="Start it or correct its address, then do the same again; where only the driver reaches it, set"
            f" {SETTING}=none.",
        )


def is_asked(conf: Mapping[str, str]) -> bool:
    """Whether the master is asked before a driver is started.

    Raises:
        InvalidRequestError: the setting has no such value.
    """
    asked = conf.get(SETTING, "connect").strip()
    if asked not in ("connect", "none"):
        raise InvalidRequestError(
            "this setting has no such value", setting=SETTING, value=asked, next_step="Set it to connect or none."
        )
    return asked == "connect"


def own_disk_note(master: str, folder: Path, mounts: Path = _MOUNTS) -> str:
    """One sentence where executors of such a master may keep state on disks of their own; "" where they cannot.

    Args:
        folder: of the checkpoints; need not exist yet.
        mounts: the list of mounts.
    """
    if is_on_this_machine(master) or _is_shared(folder, mounts):
        return ""
    return (
        f"checkpoints are on a disk of this machine ({folder}), but executors of {master} may run on others: they would"
        " keep their state there, where no restart and no snapshot finds it. Put checkpoints on S3, or into a folder"
        " that every machine of the cluster mounts at the same path"
    )


def _is_shared(folder: Path, mounts: Path) -> bool:
    try:
        lines = [line.split() for line in mounts.read_text("utf-8", "replace").splitlines()]
    except OSError:
        return False
    place = folder.resolve()
    kinds = {Path(_unescaped(line[1])): line[2] for line in lines if len(line) > 2}
    kind = next((kinds[parent] for parent in (place, *place.parents) if parent in kinds), "")
    return bool(_SHARED_FILE_SYSTEM.fullmatch(kind))


def _unescaped(path: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), path)


def _words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {CONNECT_SECONDS:g} s"
    if isinstance(error, OverflowError):
        return "no such port"
    return str(getattr(error, "strerror", None) or error).lower()


# Releases of a driver's components that are known to fail: one table, for ``doctor``, ``plan`` and the docs.
#
# A release is recognised by its Maven coordinates (``--packages``, ``spark.jars.packages``) or by the name of its jar
# (``--jars``, ``spark.jars``, the jars of an installation).

DEFAULTS_FILE = "spark-defaults.conf"


@dataclass(frozen=True)
class KnownBad:
    """Releases of one component that fail in one way.

    Attributes:
        component: human-readable.
        artifact: its Maven artifact, without the suffix of Scala or Spark.
        releases: those that fail.
        symptom: a lower-case clause without its full stop.
        remedy: a whole sentence.
        sparks: they fail only on these releases of Spark; () for all.
    """

    component: str
    artifact: str
    releases: tuple[str, ...]
    symptom: str
    remedy: str
    sparks: tuple[str, ...] = ()


KNOWN_BAD: tuple[KnownBad, ...] = (
    KnownBad(
        "Spark's Kafka connector",
        "spark-sql-kafka-0-10",
        ("4.1.1", "4.1.2"),
        "a query that is started again over a planned batch (after a kill, or from a snapshot with one) dies with a"
        " NullPointerException in KafkaMicroBatchStream.metrics (SPARK-57438)",
        "Use release 4.1.3 of the connector.",
    ),
    KnownBad(
        "Delta Lake",
        "delta-spark",
        ("4.1.0",),
        "a write fails at the table's first checkpoint with a NoSuchMethodError in ParquetToSparkSchemaConverter",
        "Use the build of Delta 4.4.0 that is made for this Spark.",
        ("4.1.2", "4.2.0"),
    ),
)


@dataclass(frozen=True)
class BadRelease:
    """A release that is known to fail, and the coordinates or jar by which it was recognised."""

    name: str
    release: str
    known: KnownBad

    @property
    def sentence(self) -> str:
        return f"{self.known.component} {self.release} ({self.name}): {self.known.symptom}. {self.known.remedy}"


def known_bad_among(names: Iterable[str], spark_version: str) -> tuple[BadRelease, ...]:
    """The releases among these that are known to fail, each once.

    Args:
        names: Maven coordinates, and names or URIs of jars.
        spark_version: of the Spark that they are used with; "" for unknown, which counts as one that they fail on.
    """
    found: dict[tuple[str, str], BadRelease] = {}
    for name in names:
        for known in KNOWN_BAD:
            release = _release_of(name, known.artifact)
            fails_here = not known.sparks or not spark_version or spark_version in known.sparks
            if release in known.releases and fails_here:
                found.setdefault((known.artifact, release), BadRelease(name, release, known))
    return tuple(found.values())


_SCALA = re.compile(r"_(2\.1[0-9])(?=[:-])")
_OF_A_LINE = re.compile(r"(?:delta-spark|iceberg-spark-runtime|hudi-spark\w*?)[-_]?([345]\.[0-9])")
_OF_SPARK = re.compile(
    r"(?:.*[:/]|^)spark-(?:sql-kafka-0-10|streaming-kafka-0-10|token-provider-kafka-0-10|avro|protobuf|connect|hadoop-cloud)"
    r"_2\.1[0-9][:-]([0-9]+\.[0-9]+)\."
)


def built_for_another(names: Iterable[str], spark_version: str) -> tuple[str, ...]:
    """One sentence for each library that is built for another Spark or Scala than this one has.

    Args:
        names: as ``brought_names`` gives them.
        spark_version: of the Spark that they are used with; "" for unknown.
    """
    line = ".".join(spark_version.split(".")[:2])
    if not line:
        return ()
    sentences = []
    for name in names:
        scala = _SCALA.search(name)
        own = [found[1] for found in (_OF_A_LINE.search(name), _OF_SPARK.match(name)) if found]
        problem = ""
        if scala is not None and line >= "4" and scala[1] != "2.13":
            problem = f"Scala {scala[1]}, and Spark {line} has 2.13"
        elif any(each != line for each in own):
            problem = f"Spark {next(each for each in own if each != line)}, and this is {line}"
        if problem:
            sentences.append(f"{name} is built for {problem}: give the build for Spark {line}, if there is one")
    return tuple(sentences)


def brought_names(packages: Sequence[str], jars: Sequence[str], conf: Mapping[str, str]) -> tuple[str, ...]:
    """The coordinates and jars that a driver is given, including those in its configuration."""
    options = absorb_conf(SubmitOptions(conf=conf, packages=tuple(packages), jars=tuple(jars)))
    return (*options.packages, *options.jars)


def installed_names(spark_home: Path | None, conf_folder: Path | None = None) -> tuple[str, ...]:
    """The jars of a Spark installation, and those that its defaults add.

    Args:
        spark_home: the installation; None if unknown.
        conf_folder: of its defaults; None for ``conf`` in the installation.
    """
    if spark_home is None:
        return ()
    jars = sorted(path.name for path in (spark_home / "jars").glob("*.jar"))
    defaults = (conf_folder or spark_home / "conf") / DEFAULTS_FILE
    try:
        text = defaults.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return tuple(jars)
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
    pairs = [re.split(r"\s*[=\s]\s*", line, maxsplit=1) for line in lines]
    return (*jars, *brought_names((), (), {pair[0]: pair[1] for pair in pairs if len(pair) == 2}))


def _release_of(name: str, artifact: str) -> str:
    """The release of an artifact, if this name is of it; else ""."""
    pattern = rf"(?:.*[:/])?{re.escape(artifact)}(?:_[0-9.]+)*[:-]([0-9][^:/]*?)(?:\.jar)?"
    match = re.fullmatch(pattern, name.strip())
    return match.group(1) if match else ""
