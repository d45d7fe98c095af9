"""Files of streams: every problem by line, and values as they are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_streamstate.declarations.reader import MOST_BYTES, DeclaredStream, read_stream, read_streams
from airflow_streamstate.declarations.stream_file import places, reasons, values_in
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.terms.version import StreamTerms, Version

WHOLE = """\
id: flights
application: count.py
"""


def written(folder: Path, text: str, name: str = "flights.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def said(path: Path) -> list[str]:
    """What is wrong with a file, without its path."""
    found = read_stream(path)
    assert isinstance(found, list), found
    return [str(one).removeprefix(f"{path}") for one in found]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("id: flights\n", ": application: this field is missing"),
        (
            f"{WHOLE}upgrade:\n  alow_drain: true\n",
            ":4: upgrade.alow_drain: there is no such field; did you mean allow_drain?",
        ),
        (f"{WHOLE}aplication: x.py\n", ":3: aplication: there is no such field; did you mean application?"),
        (f"{WHOLE}zzzz: 1\n", ":3: zzzz: there is no such field; there are id, desired_state, "),
        (
            f"{WHOLE}launcher: {{name: yarn, queue: x}}\n",
            ":3: launcher.queue: there is no such field; there are name, ",
        ),
        (
            f"{WHOLE}restart: {{on_failure: restat}}\n",
            ":3: restart.on_failure: it cannot be 'restat'; did you mean restart? Use restart, ",
        ),
        (f"{WHOLE}alerts: {{lag_ovr: 3}}\n", ":3: alerts.lag_ovr: there is no such field; did you mean lag_over?"),
        (
            f"{WHOLE}alerts: {{off: driver_ded}}\n",
            ":3: alerts: there is no such alert rule (driver_ded); did you mean driver_dead?",
        ),
        (
            f"{WHOLE}alerts: {{no_commit_seconds: -1}}\n",
            ":3: alerts.no_commit_seconds: it cannot be '-1'; use a number of seconds from 1 to 315,360,000.",
        ),
        (f"{WHOLE}labels: {{te am: x}}\n", ":3: labels: this cannot be the name of a label (te am); use 1 to 63 "),
        (f"{WHOLE}owner: {'x' * 101}\n", ":3: owner: this owner or label cannot be recorded (owner xxx"),
        (
            f"{WHOLE}retention: {{keep: -1}}\n",
            ":3: retention.keep: it cannot be '-1'; use a whole number from 0 on.",
        ),
        (f"{WHOLE}retention: {{keep: few}}\n", ":3: retention.keep: it cannot be 'few'; use a whole number"),
        (f"{WHOLE}retention: {{keep: 1.5}}\n", ":3: retention.keep: it cannot be '1.5'; use a whole number"),
        (
            f"{WHOLE}retention: {{older_than_seconds: a week}}\n",
            ":3: retention.older_than_seconds: it cannot be 'a week'; use a number of seconds from 0 to ",
        ),
        (
            f"{WHOLE}retention: {{older_than_seconds: 1e12}}\n",
            ":3: retention.older_than_seconds: it cannot be '1e12'; use a number of seconds from 0 to 3,153,600,000.",
        ),
        (f"{WHOLE}retention: {{kep: 3}}\n", ":3: retention.kep: there is no such field; did you mean keep?"),
        (
            f"{WHOLE}retention: {{}}\n",
            ":3: retention: the retention does not say which snapshots stay; give keep, older_than_seconds or both.",
        ),
        (
            f"{WHOLE}mirrors: [/mnt/b]\nretention:\n  at_mirrors: true\n",
            ":4: retention: the retention does not say which snapshots stay; give keep, older_than_seconds or both.",
        ),
        (
            f"{WHOLE}retention: {{keep: 3, at_mirrors: true}}\n",
            ":3: retention: at_mirrors is for a stream with mirrors; give mirrors, too",
        ),
        (
            f"{WHOLE}state: {{partitions: 0}}\n",
            ":3: state.partitions: it cannot be '0'; use a whole number from 1 to 10,000.",
        ),
        (
            f"{WHOLE}state: {{partitions: 10001}}\n",
            ":3: state.partitions: it cannot be '10001'; use a whole number from 1",
        ),
        (
            f"{WHOLE}state: {{store: rocksdb}}\n",
            ":3: state.store: there is no such field; did you mean state_store?",
        ),
        (
            f"{WHOLE}allow_drain: true\n",
            ":3: allow_drain: there is no such field here; did you mean upgrade.allow_drain?",
        ),
        (
            f"{WHOLE}settings: {{snapshot_every_seconds: 5}}\n",
            ":3: settings.snapshot_every_seconds: there is no such field here; did you mean snapshots.every_seconds?",
        ),
        (f"{WHOLE}alert_rules: {{}}\n", ":3: alert_rules: there is no such field here; did you mean alerts?"),
        (f"{WHOLE}upgrade:\n  warm: perhaps\n", ":4: upgrade.warm: it cannot be 'perhaps'; use true or false."),
        (
            f"{WHOLE}upgrade:\n  roll_back_if_slower: 1\n",
            ":4: upgrade.roll_back_if_slower: it cannot be '1'; use a number from 1.1 to 1,000.",
        ),
        (
            f"{WHOLE}settings:\n  heartbeat_seconds: 0\n",
            ":4: settings.heartbeat_seconds: it cannot be '0'; use a number of seconds from 0.01 to 86,400.",
        ),
        (
            f"{WHOLE}restart: {{initial_backoff_seconds: 900}}\n",
            ":3: restart: the longest backoff of the restart policy is shorter than the first one (900.0 300.0); ",
        ),
        (f"{WHOLE}allow_new_queries: ['']\n", ":3: allow_new_queries: "),
        (f"{WHOLE}conf:\n\tspark.x: 1\n", ":4: a tab is here, and YAML takes blanks alone"),
        (f"{WHOLE}conf:\n  spark.x: 1\n  spark.x: 2\n", ":5: conf.spark.x: this field is given twice, first in line 4"),
        ("- id: flights\n", ":1: it declares no stream: give an object with id and application"),
        ("", ":1: it declares no stream: give an object with id and application"),
        (
            "id: Flights!\napplication: x.py\n",
            ":1: id: this is not a valid stream id ('Flights!'); use 1 to 63 characters of a-z",
        ),
        (f"{WHOLE}conf: x\n", ":3: conf: give a mapping here, each line as `name: value`"),
        (f"{WHOLE}upgrade: x\n", ":3: upgrade: give a mapping here, each line as `name: value`"),
        (f'{WHOLE}owner: "a\\nb"\n', ":3: owner: this owner or label cannot be recorded (owner 'a\\nb'); use one line"),
        ("id: ../../etc\napplication: x.py\n", ":1: id: "),
        (f"{WHOLE}arguments: {'[' * 3000}\n", ": it is nested too deeply"),
        (f"{WHOLE}conf: {{a: *nothing}}\n", ":3: found undefined alias"),
        ("id: a\n---\nid: b\n", ":2: another document starts here, and a file declares one stream"),
    ],
)
def test_each_problem_has_its_line_and_the_nearest_name(tmp_path: Path, text: str, problem: str) -> None:
    """A tab, a field twice, a slip of the pen, an id that leaves the home: where it is, and what was meant."""
    assert any(line.startswith(problem) for line in said(written(tmp_path, text))), said(written(tmp_path, text))


@pytest.mark.parametrize("within", [(), ("upgrade",), ("state",)], ids=".".join)
@pytest.mark.parametrize("name", sorted(reasons()))
def test_what_is_not_for_files_is_refused_with_the_reason(tmp_path: Path, name: str, within: tuple[str, ...]) -> None:
    """Wherever a user of the shell or of an operator looks for it."""
    text = f"{WHOLE}{within[0]}:\n  {name}: x\n" if within else f"{WHOLE}{name}: x\n"
    line, where = 3 + len(within), ".".join((*within, name))
    assert said(written(tmp_path, text)) == [f":{line}: {where}: files do not have this field: {reasons()[name]}"]


def test_what_is_not_for_files() -> None:
    """All else that a deploy or an upgrade takes has a place in a file, and one alone."""
    assert {
        "accept_lost_input", "accept_repeated_input", "allow_state_loss", "assume_dead", "begins_at",
        "max_snapshot_age_seconds", "migration", "offsets", "revive", "snapshot_id",
    } == set(reasons())  # fmt: skip
    names = [one.term.name for one in places().values() if one.term.kind != "part"]
    assert {name for name in names if names.count(name) > 1} == set()


def test_nothing_is_what_a_field_has_that_is_left_out(tmp_path: Path) -> None:
    """Unless nothing is a value: an alert rule without a threshold is not evaluated, in files as elsewhere."""
    text = """
conf:
arguments: ~
environment: {A: , B: ''}
restart: null
modules: ~
launcher: ~
retention:
alerts: {no_commit_seconds: ~}
"""
    found = read_stream(written(tmp_path, WHOLE + text))
    assert isinstance(found, DeclaredStream), found
    assert values_in(Version, found.declaration) == {"application": "count.py", "environment": {"A": "", "B": ""}}
    assert values_in(StreamTerms, found.declaration) == {"alert_rules": {"no_commit_seconds": None}}
    assert said(written(tmp_path, "id: flights\napplication:\n")) == [":2: application: this field is missing"]


def test_all_problems_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    """One run of `validate` is enough to fix a file."""
    found = said(written(tmp_path, "id: flights\nupgrade: {warm: perhaps}\nowner: [a]\n"))
    assert len(found) == 3


def test_problems_are_in_the_order_of_their_lines(tmp_path: Path) -> None:
    """Whatever found them."""
    written(tmp_path, f"zzzz: 1\n{WHOLE}owner: {'x' * 101}\nconf: x\n")
    assert [one.line for one in read_streams([tmp_path]).problems] == [1, 4, 5]


def test_values_are_the_words_of_the_file(tmp_path: Path) -> None:
    """Arguments and settings are the script's: ``010`` is no number eight; only a launcher's options have types."""
    text = """
arguments: [010, 1.10, yes, "~", 2026-01-01]
conf: {spark.a: true, spark.b: 0x10, spark.c: "null"}
launcher: {name: kubernetes, options: {tolerations: [{key: a, tolerationSeconds: 60}]}}
"""
    found = read_stream(written(tmp_path, WHOLE + text))
    assert isinstance(found, DeclaredStream), found
    given = values_in(Version, found.declaration)
    assert given["arguments"] == ("010", "1.10", "yes", "~", "2026-01-01")
    assert given["conf"] == {"spark.a": "true", "spark.b": "0x10", "spark.c": "null"}
    assert given["launcher"]["options"] == {"tolerations": [{"key": "a", "tolerationSeconds": 60}]}


def test_anchors_and_merges_are_yaml_as_elsewhere(tmp_path: Path) -> None:
    """A merged object may be overridden."""
    text = "conf: &base {a: 1, b: 2}\nenvironment: {<<: *base, b: 3}\n"
    found = read_stream(written(tmp_path, WHOLE + text))
    assert isinstance(found, DeclaredStream), found
    assert values_in(Version, found.declaration)["environment"] == {"a": "1", "b": "3"}


def test_a_small_file_that_aliases_make_large_is_refused(tmp_path: Path) -> None:
    """Before it fills the memory."""
    lines = ["conf: &l0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"n{level}: &l{level} [{', '.join([f'*l{level - 1}'] * 10)}]" for level in range(1, 8)]
    (problem,) = said(written(tmp_path, WHOLE + "\n".join(lines)))
    assert "it has more than 100,000 values" in problem


def test_json_is_read_too_and_what_is_no_text_is_refused(tmp_path: Path) -> None:
    """JSON is YAML; other bytes, and too many of them, are one sentence."""
    found = read_stream(written(tmp_path, '{"id": "flights", "application": "x.py", "attaches": true}', "f.json"))
    assert isinstance(found, DeclaredStream)
    assert values_in(Version, found.declaration)["attaches"] is True
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    assert said(binary) == [": it is no UTF-8"]
    binary.write_bytes(b"x" * (MOST_BYTES + 1))
    assert "a stream needs no more than" in said(binary)[0]


def test_files_of_one_folder_agree(tmp_path: Path) -> None:
    """One stream has one file; what a stream depends on is declared, and does not wait for it."""
    written(tmp_path, WHOLE, "a.yaml")
    written(tmp_path, WHOLE, "b.yaml")
    written(tmp_path, "id: c\napplication: c.py\ndepends_on: d\n", "c.yaml")
    written(tmp_path, "id: d\napplication: c.py\ndepends_on: [c]\n", "d.yaml")
    written(tmp_path, "id: e\napplication: c.py\ndepends_on: [flight]\n", "e.yaml")
    written(tmp_path, "id: good\napplication: c.py\n", "good.yaml")
    (tmp_path / ".hidden.yaml").write_text("nonsense: [")
    read = read_streams([tmp_path])
    assert [one.stream_id for one in read.streams] == ["good"]
    reasons = [one.reason for one in read.problems]
    assert f"another file declares this stream: {tmp_path / 'a.yaml'}" in reasons
    assert "no file declares the stream flight; did you mean flights?" in reasons
    assert {"c waits for itself", "d waits for itself"} <= set(reasons)
    with pytest.raises(InvalidRequestError, match="files of streams are wrong"):
        read.need_all()


def test_paths_that_hold_no_stream_are_refused(tmp_path: Path) -> None:
    """A wrong path is no empty folder, and an empty folder no declaration."""
    with pytest.raises(InvalidRequestError, match="no such file or folder"):
        read_streams([tmp_path / "nowhere"])
    with pytest.raises(InvalidRequestError, match="no file of a stream in this folder"):
        read_streams([tmp_path])


def test_ten_thousand_streams_are_read(tmp_path: Path) -> None:
    """A large folder is read as a small one."""
    for number in range(10_000):
        (tmp_path / f"{number}.yaml").write_text(f"id: s-{number}\napplication: x.py\n")
    assert len(read_streams([tmp_path]).need_all()) == 10_000
