"""``StreamsDag`` as Airflow loads it: of a folder, and of each file."""

from __future__ import annotations

from pathlib import Path

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_streamstate.declarations.diff import FieldDifference, StreamDifference
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.operators.declared import CompareStreamsOperator, as_markdown
from airflow_streamstate.streams_dag import StreamsDag
from support.airflow_names import DagBag, DagSerialization

pytestmark = pytest.mark.fast

FILE = """# a dag of airflow
from airflow_streamstate.streams_dag import StreamsDag
globals().update(StreamsDag.of_each("streams", needs_approval=True))
whole = StreamsDag("streams", dag_id="whole", tags=["mine"])
"""


def test_a_folder_is_one_dag_or_one_for_each_file(tmp_path: Path) -> None:
    """A file with a problem has a DAG, too; all name the file that made them, which is in a version of a bundle."""
    (tmp_path / "streams").mkdir()
    for name in ("a", "b"):
        (tmp_path / "streams" / f"{name}.yaml").write_text(f"id: {name}\napplication: ../job.py\n")
    (tmp_path / "streams" / "wrong.yaml").write_text("id: c\n")
    (tmp_path / "declared.py").write_text(FILE)
    bag = DagBag(dag_folder=str(tmp_path / "declared.py"))
    assert bag.import_errors == {}
    assert sorted(bag.dags) == ["streams-a", "streams-b", "streams-wrong", "whole"]
    assert {dag.fileloc for dag in bag.dags.values()} == {str(tmp_path / "declared.py")}
    assert set(bag.dags["whole"].task_dict) == {"compare", "waves", "apply"}
    one = bag.dags["streams-b"]
    assert one.task_dict["compare"].only == ["b"]
    assert one.task_dict["compare"].streams == str(tmp_path / "streams")
    assert one.task_dict["apply"].upstream_task_ids == {"approve", "compare", "waves"}
    assert DagSerialization.deserialize_dag(DagSerialization.serialize_dag(one)).max_active_runs == 1


def test_only_a_whole_folder_prunes(tmp_path: Path) -> None:
    """One DAG for each file would stop the streams of the others; so would a single file."""
    (tmp_path / "streams").mkdir()
    (tmp_path / "streams" / "a.yaml").write_text("id: a\napplication: ../job.py\n")
    with pytest.raises(InvalidRequestError, match="only some are looked at"):
        StreamsDag.of_each(str(tmp_path / "streams"), prune=True)
    single = CompareStreamsOperator(task_id="compare", streams=str(tmp_path / "streams" / "a.yaml"), prune=True)
    with pytest.raises(AirflowFailException, match="folders alone"):
        single.execute({})


def test_a_person_reads_each_difference_and_verdict() -> None:
    """As Markdown, in which a value breaks nothing; what does not change is only counted."""
    found = [
        StreamDifference("a", "unchanged", "nothing"),
        StreamDifference(
            "b", "changed", "upgrade", "running", "d-0001",
            (FieldDifference("conf.x", "", "1 | <b>\n# no"),), "of two\nlines", "fits",
        ),
    ]  # fmt: skip
    text = as_markdown(found)
    assert text.splitlines() == [
        "1 of 2 streams would be changed.",
        "",
        "| stream | is | would | verdict of its rehearsal |",
        "|---|---|---|---|",
        "| b | changed | upgrade | fits |",
        "",
        "**b** of two lines",
        "",
        "- conf.x: (none) to 1 \\| \\<b\\> \\# no",
    ]
