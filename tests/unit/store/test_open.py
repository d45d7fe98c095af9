"""From URIs to stores."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.memory import MemoryStore
from airflow_streamstate.store.open import open_store
from airflow_streamstate.store.options import StoreOptions
from airflow_streamstate.store.server import ServerStore
from support.s3_server import options_for

PACKAGE_FOLDER = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "uri", ["{0}", "{0}/", "file://{0}", "file:{0}", "file://localhost{0}", "file://{0}/", "{0}/x/.."]
)
def test_a_folder_has_many_uris(tmp_path: Path, uri: str) -> None:
    """A path and every form of a file URI open the same folder."""
    store = open_store(uri.format(tmp_path))
    assert isinstance(store, LocalStore)
    assert store.uri == str(tmp_path)


def test_signs_in_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """File URIs are percent-encoded, paths are not; a relative path and ``~`` are made absolute at once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_store(f"file://{tmp_path}/a%20b").uri == f"{tmp_path}/a b"
    assert open_store(f"{tmp_path}/a%20b").uri == f"{tmp_path}/a%20b"
    assert open_store("home").uri == open_store("./home").uri == open_store("~/home").uri == f"{tmp_path}/home"
    assert open_store("./a:b").uri == f"{tmp_path}/a:b"


def test_one_name_in_memory_is_one_store() -> None:
    """Two opens of one name share their objects; another name is another store."""
    first = open_store("memory://test-open")
    first.put("a", b"1")
    assert isinstance(first, MemoryStore)
    assert open_store("memory://test-open") is first
    assert open_store("memory://test-open-2").get("a") is None


@pytest.mark.parametrize(
    ("uri", "expected"),
    [("s3://b", "s3://b"), ("s3://b/", "s3://b"), ("s3://b/p/q", "s3://b/p/q"), ("s3://b/p/", "s3://b/p")],
)
def test_s3_is_bucket_and_prefix(uri: str, expected: str) -> None:
    """The first part is the bucket, the rest the prefix, with or without a slash at its end."""
    store = open_store(uri, options=StoreOptions(options_for("http://127.0.0.1:9")))
    assert isinstance(store, ServerStore)
    assert store.uri == expected


@pytest.mark.parametrize(
    "uri",
    [
        "gs:b",
        "gs://",
        "az:///p",
        "abfss://c/p",
        "s3a://b/p",
        "s3:b",
        "s3://",
        "s3:///p",
        "memory://",
        "memory:x",
        "hdfs://h/p",
        "file://host/p",
        "file:p",
    ],
)
def test_what_is_not_known_is_refused_with_what_is(uri: str) -> None:
    """An unknown or unfinished URI is a mistake to fix, reported with all forms that are known."""
    with pytest.raises(InvalidRequestError) as caught:
        open_store(uri)
    assert uri in str(caught.value)
    assert "s3://bucket/prefix" in caught.value.next_step


@pytest.mark.parametrize("uri", ["~no-such-user/home", "", "  ", "a\0b", "s3://b//p", "s3://b/../p"])
def test_what_names_no_place_is_refused(uri: str) -> None:
    """Emptiness and climbing are refused, in printable words."""
    with pytest.raises(InvalidRequestError) as caught:
        open_store(uri)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "uri", ["s3://key:hidden@bucket/p", "gs://key:hidden@bucket/p", "abfss://c:hidden@x/p", "ftp://user:hidden@host/p"]
)
def test_a_password_in_a_uri_is_not_repeated(uri: str) -> None:
    """Credentials do not belong in a URI, and do not appear in its error."""
    with pytest.raises(InvalidRequestError) as caught:
        open_store(uri)
    assert "hidden" not in str(caught.value)


def run_without_boto3(code: str) -> str:
    script = f"import sys; sys.modules['boto3'] = None; sys.modules['botocore'] = None\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=PACKAGE_FOLDER, capture_output=True, text=True, timeout=40
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_folder_needs_no_boto3(tmp_path: Path) -> None:
    """A driver without boto3 opens and uses a home in a folder."""
    code = f"from airflow_streamstate.store.open import open_store; print(open_store({str(tmp_path)!r}).put('a', b''))"
    assert run_without_boto3(code)


def test_gcs_and_azure_are_a_place_and_a_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither disk nor network is asked; an abfss URI names its account, and is kept as it is."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "127.0.0.1:9")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "acc")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
    for uri in (
        "gs://b",
        "gs://b/p/q",
        "az://c/p",
        "abfs://c@other.dfs.core.windows.net/p",
        "abfss://c@other.dfs.core.windows.net/p",
    ):
        assert open_store(uri).uri == open_store(f"{uri}/").uri == uri


@pytest.mark.parametrize(
    ("uri", "missing", "package"),
    [
        ("s3://b/p", "boto3", "boto3>=1.40"),
        ("gs://b/p", "obstore", "airflow-streamstate[gcs]"),
        ("gs://b/p", "google", "airflow-streamstate[gcs]"),
        ("az://c/p", "obstore", "airflow-streamstate[azure]"),
    ],
)
def test_a_missing_library_says_what_to_install(uri: str, missing: str, package: str) -> None:
    """As in a driver's Python that has only pyspark: a mistake to fix, not a traceback of imports."""
    code = (
        "from airflow_streamstate.errors import InvalidRequestError\n"
        "from airflow_streamstate.store.open import open_store\n"
        f"sys.modules[{missing!r}] = None\n"
        f"try:\n    open_store({uri!r})\nexcept InvalidRequestError as error:\n    print(error)\n"
    )
    assert f"pip install '{package}" in run_without_boto3(code)
