"""``home doctor`` checks this machine and the home; ``home sign`` signs the records of a home."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from airflow_streamstate.cli import render
from airflow_streamstate.cli.options import Verb, option, pass_session, term_options
from airflow_streamstate.cli.session import ShellSession, status_of_findings
from airflow_streamstate.errors import ConflictError, InvalidRequestError, StreamStateError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.launch.interface import LaunchRequest
from airflow_streamstate.protocol.forms import selected
from airflow_streamstate.protocol.signing import SIGNING_KEY_VARIABLE, SigningKeys
from airflow_streamstate.protocol.terms.version import LauncherChoice

if TYPE_CHECKING:
    from airflow_streamstate.control.signatures import SignedRecord
    from airflow_streamstate.controller.home import Home


ASK_SECONDS = 30
_ASK = """
import importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""
_BUILT_WITH = re.compile(r"^# Protobuf Python Version: ([0-9.]+)", re.MULTILINE)


def driver_python(environ: Mapping[str, str]) -> str:
    """The interpreter of drivers, which need not be the shell's."""
    return environ.get("PYSPARK_DRIVER_PYTHON") or environ.get("PYSPARK_PYTHON") or sys.executable


def versions_in(python: str, packages: Sequence[str]) -> dict[str, str] | None:
    """The versions of the packages that an interpreter has; None if it does not answer."""
    try:
        done = subprocess.run(
            [python, "-c", _ASK, *packages],
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            capture_output=True,
            text=True,
            timeout=ASK_SECONDS,
            check=False,
        )
        found = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return {str(name): str(version) for name, version in found.items()}


def protobuf_wanted(spark_home: Path | None) -> str:
    """The oldest protobuf that this Spark's python code runs with; "" if it is unknown.

    Protobuf refuses code that a newer protobuf generated; a worker of transformWithState then dies without a reason.
    """
    for folder in ("", "python/pyspark"):
        generated = (spark_home or Path()) / folder / "sql" / "streaming" / "proto" / "StateMessage_pb2.py"
        if spark_home is not None and generated.is_file():
            found = _BUILT_WITH.search(generated.read_text(encoding="utf-8", errors="replace"))
            return found[1] if found else ""
    return ""


def is_older(version: str, wanted: str) -> bool:
    """Whether a version is older than the wanted one, if any."""
    return bool(wanted) and _numbers(version) < _numbers(wanted)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"[0-9]+", version)[:3])


JAVA_RELEASES = (17, 21)
JAVA_SECONDS = 30
_LIBRARIES: Mapping[str, tuple[str, ...]] = {
    "s3": ("boto3",),
    "gs": ("obstore", "google-auth"),
    "az": ("obstore",),
    "abfs": ("obstore",),
    "abfss": ("obstore",),
}
"""The libraries that reach a URI, by its scheme."""


@dataclass(frozen=True)
class Check:
    """One check; ``mend`` is "" if it is ok."""

    name: str
    ok: bool
    found: str
    mend: str = ""


@click.command(cls=Verb)
@option("--master", metavar="URL", help="Also check this master, and where its executors keep state.")
@option(
    "--prepare-rewriter",
    is_flag=True,
    help="Also make a virtual environment with a Spark that rewrites the state of streams on an older Spark, for"
    " --rewriter-spark; it stays in the cache of this user.",
)
@term_options(LauncherChoice, heading="")
@pass_session
def doctor(session: ShellSession, /, master: str | None, prepare_rewriter: bool, **given: Any) -> int:
    """Check this machine and the home, and suggest fixes.

    Checks Java, pyspark, what transformWithState needs, spark-submit, and releases that are known to fail; for a home,
    whether it can be written with conditions, the packages of its streams, which of them are not restarted any more,
    and the S3 connector; with --master, whether it answers and its executors find the checkpoints; with --launcher,
    what deploy would check there; with --prepare-rewriter, the Spark for --rewriter-spark. Exit status 1 if a check
    fails.
    """
    from airflow_streamstate.cli.start import launcher_of

    checks = [*machine_checks(), *_home_checks(session), *_master_checks(session, master)]
    checks += _launcher_checks(session, launcher_of(given), master)
    checks += _rewriter_checks(session) if prepare_rewriter else ()
    rows = [selected(check, "*") for check in checks]
    well = all(check.ok for check in checks)
    session.emit({"ok": well, "checks": rows}, lambda console: render.checks(console, rows))
    return status_of_findings(is_well=well)


def _rewriter_checks(session: ShellSession) -> Iterator[Check]:
    from airflow_streamstate.launch.spark_home import REWRITER_SPARK, prepare_rewriter

    try:
        with session.progress("the Spark that rewrites state") as report:
            folder = prepare_rewriter(os.environ, report)
    except StreamStateError as error:
        yield Check("rewriter", False, f"{error.message}: {error.context.get('reason', '')}", error.next_step)
        return
    yield Check("rewriter", True, f"--rewriter-spark {shlex.quote(str(folder))} (Spark {REWRITER_SPARK})")


def machine_checks() -> Iterator[Check]:
    """Java, pyspark, pyspark-client, protobuf, grpcio, spark-submit."""
    from airflow_streamstate.launch.spark_home import home_of, own_spark_submit, version_of
    from airflow_streamstate.launch.submit_options import installed_names

    yield java_check()
    yield from pyspark_checks()
    try:
        submit = own_spark_submit(os.environ)
        spark_home = home_of(submit, os.environ)
    except StreamStateError as error:
        yield from stateful_checks(None)
        yield Check("spark-submit", False, "not found", error.next_step)
        return
    yield from stateful_checks(spark_home)
    version = version_of(spark_home)
    yield known_bad_check("spark", installed_names(spark_home, _conf_folder()), version)
    yield Check("spark-submit", True, f"{' '.join(submit.prefix)} (Spark {version or 'of a version not to be seen'})")


def known_bad_check(name: str, brought: Iterable[str], spark_version: str) -> Check:
    """Whether a release among these Maven coordinates and jars is known to fail with this Spark ("": unknown)."""
    from airflow_streamstate.launch.submit_options import known_bad_among

    found = known_bad_among(brought, spark_version)
    what = "; ".join(f"{one.known.component} {one.release} ({one.name}): {one.known.symptom}" for one in found)
    remedy = " ".join(dict.fromkeys(one.known.remedy for one in found))
    return Check(f"releases of {name}", not found, what or "none that is known to fail", remedy)


def _conf_folder() -> Path | None:
    folder = os.environ.get("SPARK_CONF_DIR")
    return Path(folder) if folder else None


def _stream_checks(home: Home) -> Iterator[Check]:
    """The streams that watchers abandoned, and the current deployments whose packages or jars are known to fail."""
    from airflow_streamstate.launch.submit_options import brought_names
    from airflow_streamstate.plan.record import recorded_plans

    for stream_id in home.stream_ids() if home.is_there() else ():
        with contextlib.suppress(StreamStateError):  # `status` and `list` report it
            control = home.control(stream_id)
            register = control.need_register().value
            deployment_id = register.deployment_id
            if deployment_id is None:
                continue
            is_restarted = register.restart_policy.on_failure != "nothing"
            if is_restarted and register.restarts is not None and register.restarts.gave_up:
                mend = f"`streamstate status {stream_id}` shows more; `resume` or `deploy` starts it again."
                yield Check(f"restarts of {stream_id}", False, f"abandoned: {register.restarts.gave_up}", mend)
            spec = control.spec(deployment_id)
            spark = next((plan.spark_version for plan in recorded_plans(control, deployment_id).values()), "")
            brought = brought_names(spec.version.packages, spec.version.jar_names, spec.version.conf)
            check = known_bad_check(f"stream {stream_id}", brought, spark)
            if not check.ok:
                yield check


def signing_checks(home: Home) -> Iterator[Check]:
    """What a signing key, or none, means for this home; and the records that it has not signed."""
    from airflow_streamstate.control.signatures import Signatures

    keys = home.config.keys
    if not home.is_there():
        return
    if keys is None:
        signed = [name for name in home.stream_ids() if _is_signed(home, name)]
        if signed:
            mend = f"Set {SIGNING_KEY_VARIABLE} to the key that the other controllers have."
            yield Check("signing key", False, f"none here, and others have signed {', '.join(signed)}", mend)
            return
        what = "none: whoever can write in this home can have its controllers run code (docs: how-to/signing)"
        yield Check("signing key", True, what)
        return
    found = Counter(record.state for record in Signatures(home.guarded, keys).records())
    refused = found["refused"] + found["unreadable"]
    known = f"{found['signed']} records are signed with it ({keys.key_id})"
    if refused:
        mend = "`streamstate home sign` shows them, and signs those that you know."
        yield Check("signing key", False, f"{known}; {refused} are not signed, and nothing is done by them", mend)
    elif found["older key"]:
        mend = "Keep that key among the accepted ones until `streamstate home sign --rotate --yes` has run."
        yield Check("signing key", True, f"{known}; {found['older key']} with an older one. {mend}")
    else:
        yield Check("signing key", True, f"{known}: no one without the key is believed")


def _is_signed(home: Home, stream_id: str) -> bool:
    try:
        stored = home.control(stream_id).register()
    except StreamStateError:
        return False
    return stored is not None and stored.is_signed


def stateful_checks(spark_home: Path | None) -> Iterator[Check]:
    """The packages that transformWithState needs in the python of drivers."""
    python = driver_python(os.environ)
    found = versions_in(python, ("protobuf", "grpcio"))
    where = "" if python == sys.executable else f" in {python}"
    for package in ("protobuf", "grpcio"):
        if found is None:
            yield Check(package, False, f"{python} does not answer", "Correct PYSPARK_PYTHON: drivers run in it.")
            continue
        wanted = protobuf_wanted(spark_home) if package == "protobuf" else ""
        there = found.get(package)
        ok = there is not None and not is_older(there, wanted)
        newer = f'"{package}>={wanted}"' if wanted else package
        mend = "" if ok else f"{python} -m pip install {newer}: transformWithState in Python needs it."
        yield Check(package, ok, f"{there or 'not installed'}{where}", mend)


def connector_check() -> Check:
    """The connector with which a launch lets Spark reach checkpoints on S3."""
    from airflow_streamstate.launch.spark_home import home_of, own_spark_submit
    from airflow_streamstate.store.options import s3_connector

    try:
        connector = s3_connector(home_of(own_spark_submit(os.environ), os.environ), {})
    except StreamStateError as error:
        return Check("s3 connector", False, error.message, error.next_step)
    brought = ", ".join(connector.packages) or "nothing is brought"
    return Check("s3 connector", True, f"{brought} ({connector.reason})")


def library_checks(uris: Collection[str]) -> Iterator[Check]:
    """The libraries with which the agent in a driver reaches a home on a server."""
    wanted = sorted({package for uri in uris for package in _LIBRARIES.get(uri.partition("://")[0], ())})
    if not wanted:
        return
    python = driver_python(os.environ)
    found = versions_in(python, wanted)
    where = "" if python == sys.executable else f" in {python}"
    for package in wanted:
        there = None if found is None else found.get(package)
        mend = "" if there else f"{python} -m pip install {package}: drivers reach the home with it."
        yield Check(package, there is not None, f"{there or 'not installed'}{where}", mend)


def java_check() -> Check:
    """Whether Spark supports its Java."""
    from airflow_streamstate.launch.command import find_java

    try:
        java = find_java()
        printed = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=JAVA_SECONDS, check=False
        ).stderr
    except (StreamStateError, OSError, subprocess.TimeoutExpired):
        return Check("java", False, "not found", "Install a Java 17 runtime (Debian: openjdk-17-jre-headless).")
    match = re.search(r'version "(\d+)', printed)
    release = int(match.group(1)) if match else 0
    ok = release in JAVA_RELEASES
    mend = "" if ok else "Spark 4 runs on Java 17 or 21: install one and set JAVA_HOME to it."
    return Check("java", ok, f"{java}: {printed.splitlines()[0] if printed else 'silent'}", mend)


def pyspark_checks() -> Iterator[Check]:
    """pyspark is installed, and pyspark-client, which installs the same folder, absent or of the same version."""
    installed = _version_of("pyspark")
    client = _version_of("pyspark-client")
    if installed is None:
        home = os.environ.get("SPARK_HOME")  # Spark may have another environment
        where = str(Path(home) / "bin" / "spark-submit") if home else shutil.which("spark-submit")
        mend = "" if where else 'pip install "airflow-streamstate[spark]", or set SPARK_HOME.'
        yield Check("pyspark", where is not None, f"not installed; spark-submit: {where}", mend)
        return
    code = _code_version()
    equal = code == installed and client in (None, installed)
    mend = f"pip install --force-reinstall --no-deps pyspark=={installed} pyspark-client=={installed}"
    found = f"pyspark {installed} (its files state {code}), pyspark-client {client or 'not installed'}"
    yield Check("pyspark", equal, found, "" if equal else f"One overwrote the other, and UDFs break: {mend}")


def _version_of(package: str) -> str | None:
    import importlib.metadata

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _code_version() -> str | None:
    # Read, not imported: only the driver imports pyspark.
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        return None
    text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    match = re.search(r"__version__(?::\s*str)?\s*=\s*[\"']([^\"']+)[\"']", text)
    return match.group(1) if match else None


def _master_checks(session: ShellSession, master: str | None) -> Iterator[Check]:
    from airflow_streamstate.launch.submit_options import (
        addresses_of,
        check_master,
        check_master_answers,
        own_disk_note,
    )
    from airflow_streamstate.store.local import LocalStore

    if master is None:
        return
    try:
        check_master(master)
        check_master_answers(master, {})
        asked = f"{master} takes connections" if addresses_of(master) else f"{master} is not asked"
        yield Check("master", True, asked)
    except StreamStateError as error:
        yield Check("master", False, _fact(error), error.next_step)
    with contextlib.suppress(StreamStateError):  # reported by the check of the home
        checkpoints = session.home().checkpoints if session.home_uri else None
        if isinstance(checkpoints, LocalStore):
            note = own_disk_note(master, checkpoints.root)
            yield Check("checkpoints", True, f"warning: {note}" if note else f"{master} reaches {checkpoints.root}")


def _launcher_checks(session: ShellSession, asked: LauncherChoice | None, master: str | None) -> Iterator[Check]:
    """What a launcher refuses before it starts a driver."""
    from airflow_streamstate.controller.request.patch import launcher_after
    from airflow_streamstate.launch.launchers import Launchers

    try:
        choice = launcher_after(None, asked)
    except StreamStateError as error:
        yield Check("launcher", False, _fact(error), error.next_step)
        return
    if choice is None:
        return
    launchers, folder = Launchers(session.clock), Path(tempfile.gettempdir()) / "streamstate-doctor"
    config = {}
    with contextlib.suppress(StreamStateError):  # reported by the check of the home
        if session.home_uri:
            home = session.home()
            config = {"home_uri": home.home.uri, "checkpoints_uri": home.checkpoints.uri}
    try:
        one = launchers.named(choice.name)
        one.check(
            LaunchRequest(
                launch_key="d-0001-a0001",
                application=str(folder / "job.py"),
                master=master or one.default_master,
                driver_config=config,
                folder=str(folder),
                log_path=str(folder / "driver.log"),
                launcher=choice.name,
                scope="doctor/doctor",
                options=choice.options,
            )
        )
        yield Check(f"launcher {choice.name}", True, "it takes drivers")
    except StreamStateError as error:
        yield Check(f"launcher {choice.name}", False, _fact(error), error.next_step)


def _home_checks(session: ShellSession) -> Iterator[Check]:
    if not session.home_uri:
        yield Check("home", True, "none given; give --home URI to check it")
        return
    try:
        home = session.home()
        if home.checkpoints.uri.startswith("s3://"):
            yield connector_check()
        yield from library_checks({home.home.uri, home.checkpoints.uri})
        yield Check("home", True, home.check())
        yield from signing_checks(home)
        yield from _stream_checks(home)
    except StreamStateError as error:
        yield Check("home", False, _fact(error), error.next_step or "Give a home that can be written.")


def _fact(error: StreamStateError) -> str:
    """The error without its next step."""
    return str(error).removesuffix(error.next_step).strip()


# ``home sign``: sign the records of a home that a person has looked at.

_OF_ROTATION = "rotation"


@click.command(cls=Verb)
@option(
    "--yes",
    "consent",
    is_flag=False,
    flag_value=_OF_ROTATION,
    metavar="DIGEST",
    help="Sign the list that the same command without --yes has shown with this digest. --rotate needs no digest.",
)
@option(
    "--rotate",
    is_flag=True,
    help="Only what has a valid signature of another accepted key. After a rotation, before the old key is removed.",
)
@pass_session
def sign(session: ShellSession, consent: str | None, rotate: bool) -> int:
    """Show the records of the home that its signing key has not signed, and sign exactly these with --yes.

    The key is that of STREAMSTATE_SIGNING_KEY (inside Airflow: of the connection). Each record is shown with all of
    its fields, then one digest of the list, and the command that signs it. Where another record was written in
    between, nothing is signed. At a terminal the command asks. Sign only what you know: whoever wrote it will be
    believed. Of what drivers write only the modules are signed that a script loaded while it ran.

    Exit status 4 where the digest is another one.
    """
    from airflow_streamstate.control.signatures import Signatures

    home = session.home()
    keys = home.config.keys
    if keys is None:
        raise InvalidRequestError(
            "there is no signing key to sign with",
            next_step="Set STREAMSTATE_SIGNING_KEY; `openssl rand -hex 32` makes a key.",
        )
    home.presence.need()
    signatures = Signatures(home.guarded, keys)
    wanted = ("older key",) if rotate else ("older key", "refused", "unreadable")
    records = [record for record in signatures.records() if record.state in wanted]
    if consent is None:
        _show(session, keys, records, rotate=rotate)
        if not records or not _asks(session) or not click.confirm("Sign them?", err=True):
            return status_of_findings(is_well=True)
    else:
        _check_consent(session, consent, records, keys, rotate=rotate)
    rows = [_row(record, _done(record, is_signed=signatures.sign(record))) for record in records]
    signed = sum(row["done"] == "signed" for row in rows)
    answer = {"key_id": keys.key_id, "is_dry": False, "signed": signed, "records": rows}
    session.emit(answer, lambda console: render.signatures(console, answer, rows))
    return status_of_findings(is_well=signed == len(rows))


def _show(session: ShellSession, keys: SigningKeys, records: Sequence[SignedRecord], *, rotate: bool) -> None:
    from airflow_streamstate.control.signatures import digest_of

    rows = [_row(record, "") for record in records]
    digest = digest_of(records, keys)
    command = ["streamstate", "home", "sign", "--home", str(session.home_uri), *(["--rotate"] if rotate else [])]
    answer = {
        "key_id": keys.key_id,
        "is_dry": True,
        "signed": 0,
        "digest": digest,
        "next_command": shlex.join([*command, "--yes", digest]) if rows else "",
        "records": rows,
    }
    session.emit(answer, lambda console: render.signatures(console, answer, rows))


def _check_consent(
    session: ShellSession, consent: str, records: Sequence[SignedRecord], keys: SigningKeys, *, rotate: bool
) -> None:
    """Raise ConflictError, InvalidRequestError where a person has not agreed to sign exactly these records."""
    from airflow_streamstate.control.signatures import digest_of

    again = shlex.join(["streamstate", "home", "sign", "--home", str(session.home_uri)])
    if consent == _OF_ROTATION:
        if rotate:
            return  # each of them has a valid signature
        raise InvalidRequestError(
            "--yes needs the digest of the list that it signs",
            next_step=f"`{again}` shows the records, and the whole command.",
        )
    if consent != digest_of(records, keys):
        raise ConflictError(
            "these are not the records that were shown: nothing is signed",
            asked=consent,
            digest=digest_of(records, keys),
            records=len(records),
            next_step=f"Look again: `{again}`. Something was written since; stop what writes, if it was no attacker.",
        )


def _asks(session: ShellSession) -> bool:
    return not session.as_json and sys.stdin.isatty() and sys.stdout.isatty()


def _done(record: SignedRecord, *, is_signed: bool) -> str:
    if is_signed:
        return "signed"
    return "" if record.state == "unreadable" else "changed since"


def _row(record: SignedRecord, done: str) -> dict[str, object]:
    return selected(record, "key kind state reason sha256 record=fields") | {"done": done}
