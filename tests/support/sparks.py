"""Every Spark of the tests, each with its own python, installed once in the user's cache.

Our environment and Spark's are two, as they are for most users: ``environment(spark)`` is all that a ``LocalLauncher``
or the shell needs to start drivers there. ``python tests/support/sparks.py [VERSION…]`` fills the cache by hand.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from support.go_program import cache_folder
from support.maven import fetch_jars, pinned

NEWEST: dict[str, str] = {"3.5": "3.5.9", "4.0": "4.0.5", "4.1": "4.1.4", "4.2": "4.2.1", "4.3": "4.3.0"}
"""The one release of each Spark that the tests know."""
IN_FULL = "4.2.0"
"""The release that the other tiers run on."""
VERSIONS: tuple[str, ...] = ("3.5.9", "4.0.5", "4.1.4", "4.2.0", "4.2.1", "4.3.0")
SPARKS_4 = VERSIONS[1:]
"""Those on which sinks and Python sources are tried."""
BESIDE: tuple[str, ...] = (
    "grpcio==1.76.0",  # these two for transformWithState
    "protobuf==6.33.5",  # not older than what the newest Spark was built with
    "pandas==2.3.3",  # older Sparks do not know pandas 3
    "pyarrow==22.0.0; python_version >= '3.10'",
    "pyarrow==21.0.0; python_version < '3.10'",
    "setuptools<81; python_version >= '3.12'",  # the distutils that Spark 3.5 imports
    "boto3>=1.40,<2",  # for homes on S3
)
INSTALL_SECONDS = 900
SCALA_213 = "3.5.9-scala-2.13"
"""The build of Spark 3.5 for the other Scala: PyPI has it for 2.12 alone, its jars are on Maven Central."""
_SCALA_213_JARS = Path(__file__).with_name("spark_3_scala_213_jars.txt")


@dataclass(frozen=True)
class Spark:
    """One installed Spark.

    Attributes:
        home: its SPARK_HOME, with ``bin`` and ``jars``.
        python: the interpreter of its own environment, which has pyspark and what goes with it.
    """

    version: str
    home: Path
    python: Path

    @property
    def environment(self) -> dict[str, str]:
        """What a driver's environment must contain for this Spark to be the one that runs it, with this python."""
        python = str(self.python)
        return {"SPARK_HOME": str(self.home), "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}


def spark_of(version: str, python: str = "") -> Spark:
    """A Spark by version (``4.1.4``) or by line (``4.1``), installed if it is not there yet.

    Safe for several processes at once: one installs, the others wait. What is half installed is never seen.

    Args:
        python: the interpreter of its environment; "" for one like that of the tests.

    Raises:
        RuntimeError: pip could not install it; with the end of what it printed.
    """
    version = NEWEST.get(version, version)
    folder = cache_folder() / "sparks" / (f"{version}-{Path(python).resolve().name}" if python else version)
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (folder.parent / f"{folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir():
                _install(version, folder, python or _like_ours())
    home = next(folder.glob("lib/python3*/site-packages/pyspark"))
    return Spark(version, home, folder / "bin" / "python")


def told_by(version: str, script: str, folder: Path) -> str:
    """What a script prints in this Spark's own python, with nothing of ours in its environment."""
    done = subprocess.run(
        [str(spark_of(version).python), "-c", script],
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def python_of(version: str) -> str | None:
    """The interpreter of a Python (``3.9``) that is on this machine: on the path, or one of pyenv; None without one."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    on_path = shutil.which(f"python{version}")
    found = [*([on_path] if on_path else []), *map(str, sorted(pyenv.glob(f"{version}.*/bin/python{version}")))]
    # A shim of pyenv is on the path also where its version is not chosen.
    return next((each for each in found if _is_usable(each)), None)


def _is_usable(python: str) -> bool:
    return subprocess.run([python, "-c", ""], check=False, capture_output=True).returncode == 0


def _like_ours() -> str:
    """The base of our python: not ours itself, which may be a venv that is gone tomorrow."""
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    return str(base if base.exists() else sys.executable)


def _install(version: str, folder: Path, base: str) -> None:
    # Nothing that is used of it holds its path, so it may be moved: of its scripts only python itself is run.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{version}-") as made:
        new = Path(made) / "venv"
        _run(base, "-m", "venv", str(new))
        python = str(new / "bin" / "python")
        # Half a gigabyte each: a connection that ends on the way is not yet a failure.
        of_pypi = version.partition("-scala-")[0]
        _run(python, "-m", "pip", "install", "--quiet", f"pyspark=={of_pypi}", *BESIDE, tries=2)
        if version == SCALA_213:
            jars = next(new.glob("lib/python3*/site-packages/pyspark/jars"))
            shutil.rmtree(jars)
            shutil.copytree(fetch_jars(version, pinned(_SCALA_213_JARS)), jars)
        _run(python, "-c", "import pyspark, pandas, pyarrow, grpc, google.protobuf, boto3")
        archive = next(new.glob("lib/python3*/site-packages/pyspark/python/lib/pyspark.zip"))
        _compile_zip(archive, Path(made) / "zip", python)
        new.rename(folder)


def _compile_zip(archive: Path, made: Path, python: str) -> None:
    """Put the compiled modules alongside the sources in the zip that Spark gives its workers.

    Else each worker compiles pyspark again, and on a busy machine one of transformWithState does not call back within
    the ten seconds that Spark waits.
    """
    with zipfile.ZipFile(archive) as whole:
        whole.extractall(made)
    _run(python, "-m", "compileall", "-qq", "-b", "-s", str(made), "--invalidation-mode", "unchecked-hash", str(made))
    fresh = archive.with_suffix(".fresh")
    with zipfile.ZipFile(fresh, "w") as whole:
        for path in sorted(path for path in made.rglob("*") if path.is_file()):
            whole.write(path, path.relative_to(made))
    fresh.replace(archive)


def _run(*command: str, tries: int = 1) -> None:
    strays = ("PYTHON", "SPARK_", "PYSPARK_")
    done = subprocess.run(
        command,
        env={name: value for name, value in os.environ.items() if not name.startswith(strays)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=INSTALL_SECONDS,
        check=False,
    )
    if done.returncode != 0 and tries > 1:
        _run(*command, tries=tries - 1)
    elif done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")


def main(versions: Sequence[str]) -> None:
    """Fill the cache, and print what is there."""
    for version in versions or VERSIONS:
        spark = spark_of(version)
        print(spark.version, spark.home, spark.python)


if __name__ == "__main__":
    main(sys.argv[1:])
