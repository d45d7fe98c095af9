"""Jars that a launcher brings are those that were pinned, or none."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from airflow_streamstate.errors import DataError, InvalidRequestError, UnavailableError
from airflow_streamstate.launch.spark_home import HADOOP_3_5_0, pinned_jars
from airflow_streamstate.store.options import S3_PACKAGES, s3_connector
from support.hostile_server import Act, hostile_server, redirecting
from support.loopback import QuietHandler

BODY = b"a jar"
DIGESTS = {"org.example:thing:1.0": hashlib.sha256(BODY).hexdigest()}


def giving(body: bytes) -> Act:
    """A repository whose every jar is this."""

    def act(handler: QuietHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return act


def test_a_jar_is_fetched_once_and_again_where_it_was_changed(tmp_path: Path) -> None:
    """The cache is compared, too."""
    with hostile_server(giving(BODY)) as server:
        environ = {"STREAMSTATE_MAVEN_URL": server.url, "XDG_CACHE_HOME": str(tmp_path)}
        (path,) = pinned_jars(environ, DIGESTS)
        assert pinned_jars(environ, DIGESTS) == (path,)
        assert server.paths == ["/org/example/thing/1.0/thing-1.0.jar"]
        Path(path).write_bytes(b"another jar")
        pinned_jars(environ, DIGESTS)
        assert Path(path).read_bytes() == BODY


def test_another_jar_is_refused(tmp_path: Path) -> None:
    """Nothing of it is kept; neither is one of a repository that leads elsewhere."""
    with hostile_server(giving(b"another jar")) as server, hostile_server(redirecting(server.url)) as leading:
        with pytest.raises(DataError, match="is not the one"):
            pinned_jars({"STREAMSTATE_MAVEN_URL": server.url, "XDG_CACHE_HOME": str(tmp_path)}, DIGESTS)
        with pytest.raises(UnavailableError, match="cannot be had"):
            pinned_jars({"STREAMSTATE_MAVEN_URL": leading.url, "XDG_CACHE_HOME": str(tmp_path)}, DIGESTS)
    assert list(tmp_path.rglob("*.jar")) == []


@pytest.mark.parametrize("url", ["http://mirror.example/maven2", "file:///srv/maven", "mirror"])
def test_a_repository_is_asked_by_https(url: str, tmp_path: Path) -> None:
    """But for one on this machine."""
    with pytest.raises(InvalidRequestError, match="no repository"):
        pinned_jars({"STREAMSTATE_MAVEN_URL": url, "XDG_CACHE_HOME": str(tmp_path)}, DIGESTS)


def test_pinned_is_for_the_hadoop_that_was_tried(tmp_path: Path) -> None:
    """Of a different one no digest is known; where a deployment brings the connector nothing is added."""
    conf = {S3_PACKAGES: "pinned"}
    for version, words in (("3.5.0", ""), ("3.4.2", "are not pinned")):
        home = tmp_path / version
        (home / "jars").mkdir(parents=True)
        (home / "jars" / f"hadoop-client-api-{version}.jar").touch()
        if words:
            with pytest.raises(InvalidRequestError, match=words):
                s3_connector(home, conf)
            continue
        found = s3_connector(home, conf)
        assert (found.is_pinned, found.packages, found.excludes) == (True, (), ())
        assert not s3_connector(home, conf, jars=("/x/hadoop-aws-3.5.0.jar",)).is_pinned
    assert all(len(digest) == 64 for digest in HADOOP_3_5_0.values())
    assert "org.apache.hadoop:hadoop-aws:3.5.0" in HADOOP_3_5_0
