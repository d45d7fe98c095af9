"""EMR Serverless in somebody's account as a stage of the conformance suite: its programs report through S3."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import boto3

from airflow_streamstate.clock import SYSTEM_CLOCK, Clock
from airflow_streamstate.launch.emr import EmrServerlessLauncher
from airflow_streamstate.launch.interface import LaunchHandle, LaunchRequest

NEEDED = ("STREAMSTATE_EMR_APPLICATION_ID", "STREAMSTATE_EMR_ROLE_ARN", "STREAMSTATE_EMR_LAUNCH_URI")
SYNC_SECONDS = 1.0
# Runs on driver and test alike: what is written here goes to S3, and what others write comes from there.
MIRROR = """
import atexit, os, threading, time
import boto3

def mirror(folder, bucket, prefix, stop=None):
    os.makedirs(folder, exist_ok=True)
    client, sizes = boto3.client("s3"), {}

    def once():
        found = client.list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", [])
        for item in found:
            path = os.path.join(folder, item["Key"][len(prefix):])
            if not os.path.exists(path) or os.path.getsize(path) < item["Size"]:
                client.download_file(bucket, item["Key"], path)
                sizes[path] = item["Size"]
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            size = os.path.getsize(path)
            if os.path.isfile(path) and sizes.get(path) != size:
                client.upload_file(path, bucket, prefix + name)
                sizes[path] = size

    def go_on():
        while stop is None or not stop.is_set():
            once()
            time.sleep(SECONDS)

    threading.Thread(target=go_on, daemon=True).start()
    atexit.register(once)
""".replace("SECONDS", str(SYNC_SECONDS))


class EmrStage:
    """As ``LauncherStage``. Files of a program travel through ``said/`` below the launch URI.

    Args:
        base: an empty local folder, whose name is unique.
    """

    patience_seconds = 600.0

    def __init__(self, base: Path) -> None:
        self.clock: Clock = SYSTEM_CLOCK
        self.base = base
        # The programs make it on their own machine, too.
        self.folder = base / "said"
        self.folder.mkdir()
        self._run = SYSTEM_CLOCK.new_uuid()
        application, role, uri = (os.environ[name] for name in NEEDED)
        self._launch_uri = f"{uri.rstrip('/')}/{self._run}"
        self._options = {
            "application_id": application,
            "execution_role_arn": role,
            "launch_uri": self._launch_uri,
        }
        self._bucket, _, prefix = self._launch_uri.removeprefix("s3://").partition("/")
        self._prefix = f"{prefix}/"
        self._stop = threading.Event()
        mirrored: dict[str, object] = {}
        exec(MIRROR, mirrored)  # noqa: S102
        mirrored["mirror"](str(self.folder), self._bucket, f"{self._prefix}said/", self._stop)  # type: ignore[operator]

    def close(self) -> None:
        """Stop the mirror."""
        self._stop.set()

    def launcher(self) -> EmrServerlessLauncher:
        return EmrServerlessLauncher(SYSTEM_CLOCK)

    def request(self, launch_key: str, program: str, scope: str = "") -> LaunchRequest:
        path = self.base / f"{scope[-1:]}{launch_key}.py"
        place = (str(self.folder), self._bucket, f"{self._prefix}said/")
        path.write_text(f"{MIRROR}\nmirror{place!r}\n{program}")
        folder = self.base / "launches" / scope[-1:] / launch_key
        return LaunchRequest(
            launch_key=launch_key,
            application=str(path),
            master="yarn",
            folder=str(folder),
            log_path=str(folder / "driver.log"),
            attaches=True,  # the program itself runs, not a stream
            launcher="emr-serverless",
            scope=scope or f"{self._run}/conformance",
            options=self._options,
        )

    def impossible_request(self, launch_key: str) -> LaunchRequest:
        return replace(self.request(launch_key, ""), driver_config={"home_uri": "file:///home"})

    def lacking_request(self, launch_key: str) -> LaunchRequest:
        return replace(self.request(launch_key, ""), packages=("org.example:nosuch:1.0",))

    def roomless_request(self, launch_key: str) -> LaunchRequest:
        raise NotImplementedError("see the limits of the launcher")

    def shown(self, handle: LaunchHandle) -> str:
        raise NotImplementedError("see the limits of the launcher")

    def left_behind(self) -> list[str]:
        found = boto3.client("s3").list_objects_v2(Bucket=self._bucket, Prefix=self._prefix).get("Contents", [])
        keys = [item["Key"].removeprefix(self._prefix) for item in found]
        return [key for key in keys if not key.startswith(("said/", "logs/")) and not key.endswith("/job-run.json")]

    def launch_and_die(self, request: LaunchRequest) -> None:
        raise NotImplementedError("see the limits of the launcher")

    @contextlib.contextmanager
    def out_of_reach(self, handle: LaunchHandle) -> Iterator[LaunchHandle]:
        """By an address where nothing listens."""
        options = {**self._options, "endpoint_url": "http://127.0.0.1:9"}
        yield replace(handle, data={**handle.data, "options": options})
