"""What drivers run, on a real Python 3.9: every module of the driver's zip, and every recorded message."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from airflow_streamstate.launch.driver_zip import driver_zip_bytes
from support.examples import GOLDEN_MESSAGES
from support.sparks import python_of

pytestmark = pytest.mark.compat

OF_OTHERS = {"pyspark", "py4j", "boto3", "botocore", "obstore", "google", "azure", "pyarrow", "pandas", "numpy"}
SCRIPT = """
import importlib, sys, zipfile
from dataclasses import is_dataclass
from pathlib import Path

place, messages, of_others = sys.argv[1], sys.argv[2], set(sys.argv[3].split(","))
assert sys.version_info[:2] == (3, 9), sys.version
sys.path.insert(0, place)
imported = 0
for path in sorted(zipfile.ZipFile(place).namelist()):
    if path.endswith(".py"):
        name = path[:-3].replace("/", ".")
        name = name[: -len(".__init__")] if name.endswith(".__init__") else name
        try:
            found = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if str(error.name).partition(".")[0] not in of_others:
                raise
        else:
            assert str(found.__file__).startswith(place), found
            imported += 1

from airflow_streamstate.frozen import dataclass
from airflow_streamstate.older_python import standard_modules, zipped
from airflow_streamstate.protocol.codec import Message, from_bytes, to_bytes
from airflow_streamstate.protocol.terms.declaration import terms_of
from airflow_streamstate.protocol.terms import order

read = 0
for path in sorted(Path(messages).iterdir()):
    body = path.read_bytes()
    assert to_bytes(from_bytes(body, key=path.name, expected=Message)) == body, path
    read += 1
terms = sum(len(terms_of(one)) for one in vars(order).values() if isinstance(one, type) and is_dataclass(one))


@dataclass(frozen=True)
class First:
    one: int


@dataclass(frozen=True, kw_only=True)
class Second(First):
    two: "int | None" = None
    three: str


assert vars(Second(1, three="c")) == {"one": 1, "two": None, "three": "c"}
try:
    Second(1, 2, three="c")
except TypeError:
    pass
else:
    raise AssertionError("a field that is given by its name alone was taken by its place")
assert {"os", "json", "sys"} <= standard_modules() and "airflow_streamstate" not in standard_modules()
assert list(zipped("ab", "cd")) == [("a", "c"), ("b", "d")]
print(imported, read, terms)
"""


def test_a_python_of_vendors_runs_what_travels(tmp_path: Path) -> None:
    """All is imported but what needs a library that is not there; messages are read and written as ever (Law 7)."""
    python = python_of("3.9")
    if python is None:
        pytest.skip("there is no Python 3.9 on this machine")
    place = tmp_path / "driver.zip"
    place.write_bytes(driver_zip_bytes())
    done = subprocess.run(
        [python, "-I", "-c", SCRIPT, str(place), str(GOLDEN_MESSAGES), ",".join(OF_OTHERS)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    imported, read, terms = map(int, done.stdout.split())
    assert (imported > 100, read, terms > 50) == (True, len(list(GOLDEN_MESSAGES.iterdir())), True)
