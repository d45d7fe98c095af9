"""Runs in the driver's pod as its first process, with whatever Python 3 the image has.

It puts the files of the bundle into the working folder, runs ``spark-submit`` there, hands signals on to it, and ends
as it ended. Its output is the pod's log.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, NoReturn

MOUNT = Path("/streamstate/bundle")
WORK = Path("/streamstate/work")
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
REFUSED = 70
OLDEST = (3, 9)
ASKED_TO_END = "asked_to_end"
LAST_SECONDS = 5.0
LEAST_SECONDS = 0.5


def fail(sentence: str) -> NoReturn:
    print("streamstate: " + sentence, file=sys.stderr, flush=True)
    sys.exit(REFUSED)


def bundle() -> zipfile.ZipFile:
    parts = sorted(MOUNT.glob("part-*"))
    digests = {part.name.split("-")[2] for part in parts}
    body = b"".join(part.read_bytes() for part in parts)
    if digests != {hashlib.sha256(body).hexdigest()[:16]}:
        fail("the files of this driver are not whole: two callers with different files started it at once")
    return zipfile.ZipFile(io.BytesIO(body))


def spark_submit() -> str:
    homes = [os.environ.get("SPARK_HOME"), "/opt/spark"]
    found = [Path(home, "bin", "spark-submit") for home in homes if home]
    found += [Path(path) for path in [shutil.which("spark-submit")] if path]
    spec = importlib.util.find_spec("pyspark")
    if spec and spec.submodule_search_locations:
        found.append(Path(next(iter(spec.submodule_search_locations)), "bin", "spark-submit"))
    for path in found:
        if os.access(path, os.X_OK):
            return str(path)
    fail("the image has no spark-submit: neither below SPARK_HOME nor /opt/spark, nor on the PATH")


def check_spark(submit: str) -> None:
    """End where the image has a Spark that does not know the options of this launcher."""
    jars = Path(os.environ.get("SPARK_HOME") or Path(submit).resolve().parent.parent, "jars")
    for jar in jars.glob("spark-core_*-3.*.jar"):
        fail("the image has {}: this launcher starts Spark 4 and newer".format(jar.name[: -len(".jar")]))


def conf_of(plan: dict[str, Any]) -> dict[str, str]:
    """Settings that only the pod knows; those of the request come first."""
    conf = dict(plan["conf"])
    if not plan["in_process"] and os.environ.get("STREAMSTATE_POD_IP"):
        conf["spark.driver.host"] = os.environ["STREAMSTATE_POD_IP"]
    if plan["pods"]:
        conf["spark.kubernetes.driver.pod.name"] = os.environ["STREAMSTATE_POD_NAME"]
        conf["spark.kubernetes.namespace"] = os.environ["STREAMSTATE_POD_NAMESPACE"]
        files = {"caCertFile": "ca.crt", "oauthTokenFile": "token"}
        for key, name in files.items():
            if (ACCOUNT / name).exists():
                conf["spark.kubernetes.authenticate." + key] = str(ACCOUNT / name)
    return {key: value for key, value in conf.items() if key not in plan["given"]}


def run(command: list[str], grace_seconds: float) -> int:
    """Run it as the first process of a pod has to: no signal is lost, and no process stays a zombie.

    A SIGTERM would end Spark's JVM within a batch. So the driver is asked by a file to stop at its barrier, and gets
    the signal itself only where it has not ended shortly before the kubelet's SIGKILL.
    """
    child: list[int] = []

    def hand_on(number: int, _frame: object) -> None:
        for pid in child:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def ask_to_end(_number: int, _frame: object) -> None:
        (WORK / ASKED_TO_END).touch()
        signal.setitimer(signal.ITIMER_REAL, max(LEAST_SECONDS, grace_seconds - LAST_SECONDS))

    signal.signal(signal.SIGTERM, ask_to_end)
    signal.signal(signal.SIGALRM, lambda _number, frame: hand_on(signal.SIGTERM, frame))
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, hand_on)
    process = subprocess.Popen(command, cwd=WORK)
    child.append(process.pid)
    while True:
        pid, status = os.wait()
        if pid == process.pid:
            child.clear()
            return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def main() -> None:
    if sys.version_info < OLDEST:
        fail("the image has {}, which is Python {}.{}, older than 3.9".format(sys.executable, *sys.version_info))
    os.umask(0o077)
    with bundle() as files:
        plan = json.loads(files.read("start.json"))
        for name in files.namelist():
            if name.startswith("files/") and not name.endswith("/"):
                path = WORK / name[len("files/") :]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(files.read(name))
    os.umask(0o022)
    os.environ.update(plan["environment"])
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = [part for key, value in sorted(conf_of(plan).items()) for part in ("--conf", key + "=" + value)]
    submit = spark_submit()
    check_spark(submit)
    sys.exit(run([submit, *settings, *plan["arguments"]], plan["grace_seconds"]))


if __name__ == "__main__":
    main()
