"""Where a benchmark's stream lives, disk or a real S3 server, and what else works on the two cores at the same time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.controller.home import HomeConfig
from airflow_streamstate.launch.spark_home import home_of, own_spark_submit
from airflow_streamstate.store.open import open_store
from airflow_streamstate.store.options import EXCLUDES, ReachedBySpark, s3_connector, s3a_uri
from benchmarks.jobs_at_work import BareRun, PlainJob
from benchmarks.results import BenchmarkError
from benchmarks.streams import HERE, Drivers, Streams

RunPlain = Callable[[str, Sequence[str], Path], PlainJob]
"""Starts a script of ``jobs/`` with arguments; its output goes to a file."""


@dataclass(frozen=True)
class Ground:
    """A place for checkpoints and homes.

    Attributes:
        root: its URI.
        objects: the folder of this machine in which its objects are files, whose times are when each was written.
        work: a folder of this machine.
        run_plain: runs a script there without us.
        drivers: where those of streams run.
    """

    root: str
    objects: Path
    work: Path
    run_plain: RunPlain = BareRun
    drivers: Drivers = HERE

    def streams(self, name: str) -> Streams:
        """A home of its own there."""
        if "://" not in self.root:
            return Streams.on_disk(self.objects / name / "home", self.drivers)
        home = HomeConfig(f"{self.root}/{name}/home", work_dir=str(self.work / name / "launches"))
        return Streams(home, self.drivers)

    def checkpoint_location(self, name: str) -> str:
        """For a plain job."""
        return s3a_uri(f"{self.root}/{name}/checkpoint")

    def plain_commits(self, name: str) -> dict[int, float]:
        """When a plain job committed each batch, in seconds since 1970."""
        return commits_in(self.objects / name / "checkpoint")

    def commits_of(self, checkpoint: Checkpoint) -> dict[int, float]:
        """When each batch of a deployment was committed, in seconds since 1970."""
        return commits_in(self.path_of(checkpoint))

    def path_of(self, checkpoint: Checkpoint) -> Path:
        """The folder of this machine that holds the files of a deployment's checkpoint."""
        return self.objects / checkpoint.store.uri.removeprefix(self.root).strip("/") / checkpoint.prefix


@contextmanager
def on_disk(folder: Path) -> Iterator[Ground]:
    """A folder, which is made."""
    folder.mkdir(parents=True)
    yield Ground(str(folder), folder, folder)


@contextmanager
def on_s3(folder: Path) -> Iterator[Ground]:
    """A real S3 server.

    Raises:
        BenchmarkError: there is no Go to build it with.
    """
    folder.mkdir(parents=True)
    with _server() as (root, objects):
        store = open_store(root)
        if not isinstance(store, ReachedBySpark):
            raise BenchmarkError(f"Spark has no connector for {root}")
        settings = store.for_spark()
        connector = s3_connector(home_of(own_spark_submit(os.environ), os.environ), {})
        conf = {**settings.conf, **settings.secret_conf, EXCLUDES: ",".join(connector.excludes)}
        words = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
        words = ["--packages", ",".join(connector.packages), *words]
        yield Ground(root, objects, folder, partial(BareRun, spark_words=words))


@contextmanager
def _server() -> Iterator[tuple[str, Path]]:
    from support import s3_server, versitygw

    with s3_server.real_s3_server() as endpoint_url:
        if "versitygw" not in s3_server.used:
            raise BenchmarkError("this is measured on versitygw, and there is no Go here to build it")
        named = {
            "AWS_ENDPOINT_URL_S3": endpoint_url,
            "AWS_REGION": s3_server.REGION,
            "AWS_ACCESS_KEY_ID": s3_server.ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": s3_server.SECRET_KEY,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        with environment(named):
            yield f"s3://{s3_server.BUCKET}", versitygw.folder_of(endpoint_url) / s3_server.BUCKET


@contextmanager
def environment(named: Mapping[str, str]) -> Iterator[None]:
    """These variables in this process."""
    before = {name: os.environ.get(name) for name in named}
    os.environ.update(named)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            os.environ.update({} if value is None else {name: value})


@contextmanager
def busy(cores: int) -> Iterator[None]:
    """Run ``cores`` other processes that each want a core."""
    with ExitStack() as stack:
        for _ in range(cores):
            process = subprocess.Popen([sys.executable, "-c", "while True: pass"], stdin=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield


def commits_in(checkpoint: Path) -> dict[int, float]:
    """When each batch was committed, in seconds since 1970."""
    return {int(path.name): path.stat().st_mtime for path in (checkpoint / "commits").glob("[0-9]*")}
