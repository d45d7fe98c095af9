"""The options of a change."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from airflow_streamstate.cli.options import Ordering
from airflow_streamstate.cli.start import change_of, change_options, names_anything
from airflow_streamstate.controller.request.requests import change_request
from airflow_streamstate.protocol.terms.version import LauncherChoice

ORDERING = Ordering(None, False, "", None)


def given(*words: str) -> dict[str, Any]:
    """What click makes of these words."""
    found: dict[str, Any] = {}

    @click.command()
    @change_options
    def verb(**options: Any) -> None:
        found.update(options)

    result = CliRunner().invoke(verb, words, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return found


def test_nothing_given_changes_nothing() -> None:
    """All stays as it runs now; a reason alone is no change."""
    assert not names_anything(given())
    assert not names_anything(given("--label", "nightly"))
    assert names_anything(given("--spark", "/opt/spark-4.2"))
    assert not names_anything(given("--allow-literal-secrets"))
    assert change_of("orders", given(), Ordering(None, False, "a restart", None)) == change_request(
        "orders", reason="a restart"
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--app", "v2.py"), {"application": Path("v2.py")}),
        (("--conf", "spark.a=1", "--conf", "spark.b=x=y"), {"conf": {"spark.a": "1", "spark.b": "x=y"}}),
        (("--env", "TZ=UTC"), {"environment": {"TZ": "UTC"}}),
        (("--packages", "a:b:1,c:d:2", "--packages", "e:f:3"), {"packages": ("a:b:1", "c:d:2", "e:f:3")}),
        (("--py-files", "a.py,b.zip"), {"py_files": (Path("a.py"), Path("b.zip"))}),
        (("--files", "rules.json"), {"files": (Path("rules.json"),)}),
        (("--master", "local[4]"), {"master": "local[4]"}),
        (("--allow-new-query", "raw"), {"allow_new_queries": ("raw",)}),
        (
            ("--rename-query", "a=b", "--move-source", "/old=/new"),
            {"rename_queries": {"a": "b"}, "move_sources": {"/old": "/new"}},
        ),
        (("--on-query-failure", "script"), {"on_query_failure": "script"}),
        (("--working-folder", "/jobs"), {"working_folder": Path("/jobs")}),
        (("--jars", "s3://b/a.jar,s3://b/b.jar"), {"jars": ("s3://b/a.jar", "s3://b/b.jar")}),
        (("--launcher-option", 'list=["a"]'), {"launcher": LauncherChoice("", {"list": ["a"]})}),
        (("--partitions", "4", "--auto-migrate"), {"partitions": 4, "auto_migrate": True}),
        (("--allow-state-loss",), {"allow_state_loss": True}),
        (("--", "--in", "/data"), {"arguments": ("--in", "/data")}),
    ],
)
def test_what_is_given_is_new(
    words: tuple[str, ...], expected: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each by its name, and nothing else."""
    monkeypatch.chdir(tmp_path)
    for name in ("v2.py", "a.py", "rules.json"):
        Path(name).write_text("print(1)\n")
    with zipfile.ZipFile("b.zip", "w") as archive:
        archive.write("a.py")
    assert names_anything(given(*words))
    assert change_of("orders", given(*words), ORDERING) == change_request("orders", **expected)


@pytest.mark.parametrize("label", ["nightly", ""])
def test_a_label_is_given_to_the_next_version(label: str) -> None:
    """An empty one removes it."""
    assert change_of("orders", given("--label", label), ORDERING) == change_request("orders", version_label=label)
