"""JVMs that start fast: no second compiler, the simplest collector, shared classes.

The archive of classes is made by the first run on a machine, and kept for later ones; without it a JVM only starts
slower. Measured on a driver with one batch: 9.5 instead of 15 CPU seconds.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PLAIN = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Without the archive, for a JVM whose class path starts with a folder: no archive fits that."""
_JOB = """
import sys
from pyspark.sql import SparkSession, functions as F
spark = SparkSession.builder.getOrCreate()
base = sys.argv[1]
rows = spark.readStream.schema("t timestamp, k string, v int").json(base + "/in")
same = F.udf(lambda v: v, "int")
windows = rows.withColumn("v", same("v")).withWatermark("t", "10 seconds").groupBy(F.window("t", "10 seconds"), "k")
counts = windows.agg(F.count("*").alias("n"), F.sum("v").alias("s")).select("window.start", "k", "n", "s")
writer = counts.writeStream.format("json").option("checkpointLocation", base + "/checkpoint")
writer.trigger(availableNow=True).start(base + "/out").awaitTermination()
"""


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else shutil.which("java") or "java"


def _archive() -> Path:
    java = Path(_java()).resolve()
    # A JVM takes no archive whose jars have another time of change, and does not report it.
    jars = (_pyspark() / "jars").glob("spark-core*.jar")
    spark = sorted((path.name, path.stat().st_mtime_ns) for path in jars)
    facts = (java, java.stat().st_mtime_ns if java.exists() else 0, _pyspark(), spark)
    name = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"streamstate-tests-{os.getuid()}" / f"{name}.jsa"


def _pyspark() -> Path:
    from airflow_streamstate.launch.spark_home import own_pyspark

    return own_pyspark() or Path()


ARCHIVE = _archive()
OPTIONS = f"{PLAIN} -XX:SharedArchiveFile={ARCHIVE} -Xshare:auto"
"""For ``spark.driver.extraJavaOptions``."""


def make_archive(folder: Path) -> None:
    """Make the archive, unless it is there, by a small streaming job in this empty folder."""
    if ARCHIVE.exists():
        return
    ARCHIVE.parent.mkdir(mode=0o700, exist_ok=True)
    fresh = ARCHIVE.with_suffix(f".{os.getpid()}")
    (folder / "in").mkdir()
    (folder / "in" / "0.json").write_text('{"t":"2026-01-01T00:00:01Z","k":"a","v":1}\n')
    (folder / "job.py").write_text(_JOB)
    conf = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.driver.extraJavaOptions": f"{PLAIN} -XX:ArchiveClassesAtExit={fresh}",
    }
    submit = str(_pyspark() / "bin" / "spark-submit")
    words = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")] + ["--master", "local[1]"]
    environment = {"SPARK_HOME": str(_pyspark()), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    try:
        subprocess.run(
            [submit, *words, str(folder / "job.py"), str(folder)],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=200,
            check=True,
        )
        fresh.replace(ARCHIVE)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"without an archive of classes drivers start slower: {error}", file=sys.stderr)
