"""The command as a whole: one JSON object in every case, the exit status, no traceback."""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_streamstate import errors
from airflow_streamstate.cli.main import cli, run
from airflow_streamstate.cli.session import exit_status_of
from airflow_streamstate.controller.home import Home, HomeConfig
from airflow_streamstate.errors import StreamStateError
from support.shell import STREAM_VERBS, VERBS, Desk, parameters_of, shell, words_of

HOSTILE_IDS = ["../x", "..", "", "a/b", "A", "x" * 64, "-x", "x-", "a b", "ä", "a\nb", "flights/../../x", "%2e"]
ERRORS = [
    cls
    for cls in vars(errors).values()
    if inspect.isclass(cls) and issubclass(cls, StreamStateError) and cls is not StreamStateError
]


@contextlib.contextmanager
def verb_that(act: Callable[[], object]) -> Iterator[str]:
    """One more verb, which does this; its name."""
    cli.add_command(click.Command("act", callback=act))
    try:
        yield "act"
    finally:
        del cli.commands["act"]


def raising(error: BaseException) -> Callable[[], None]:
    """A verb that ends so."""

    def act() -> None:
        raise error

    return act


@pytest.mark.parametrize("error", ERRORS, ids=lambda cls: cls.__name__)
def test_every_error_is_one_object_with_its_exit_status(error: type[StreamStateError]) -> None:
    """Whatever class of error a verb meets: its words as JSON on stdout, or as lines on stderr."""
    raised = error("it is so", next_step="Fix it.", stream_id="flights", lines="a\nb", none=None)
    with verb_that(raising(raised)) as verb:
        as_json, as_text = shell("--json", verb), shell(verb)
    assert as_json.status == as_text.status == exit_status_of(raised)
    assert as_json.error == {
        "type": error.__name__,
        "message": "it is so",
        "context": {"stream_id": "flights", "lines": "a\nb", "none": None},
        "next_step": "Fix it.",
    }
    assert as_json.err == as_text.out == ""
    assert as_text.err == "streamstate: it is so. stream_id=flights\n-> Fix it.\nlines:\n    a\n    b\n"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()], ids=["Ctrl-C", "abort"])
def test_an_interrupt_is_one_object_and_says_that_orders_go_on(error: BaseException) -> None:
    """Ctrl-C ends the command, not what it ordered."""
    with verb_that(raising(error)) as verb:
        as_json, as_text = shell("--json", verb), shell(verb)
    assert as_json.status == as_text.status == 1
    assert as_json.error["type"] == "Interrupted"
    assert "continues" in as_json.error["message"]
    assert "continues" in as_text.err


def test_a_defect_is_one_object_that_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unforeseen error is one object of a defect, with its place and without a traceback."""
    monkeypatch.delenv("STREAMSTATE_TRACEBACK", raising=False)
    with verb_that(raising(ZeroDivisionError("oh"))) as verb:
        as_json, as_text = shell("--json", verb), shell(verb)
    assert as_json.status == as_text.status == 1
    assert as_json.error["type"] == "InternalError"
    assert as_json.error["context"]["error"] == "ZeroDivisionError: oh"
    assert "test_main.py" in as_json.error["context"]["where"]


def test_the_traceback_of_a_defect_is_there_for_whoever_asks(monkeypatch: pytest.MonkeyPatch, desk: Desk) -> None:
    """STREAMSTATE_TRACEBACK=1 shows it, on stderr."""
    monkeypatch.setenv("STREAMSTATE_TRACEBACK", "1")
    with verb_that(raising(ZeroDivisionError("oh"))) as verb, pytest.raises(AssertionError, match="Traceback"):
        shell("--json", verb)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "no verb"),
        (["nosuch"], "nosuch"),
        (["stauts", "flights"], "stauts"),
        (["--nosuch", "list"], "--nosuch"),
        (["list", "--nosuch"], "--nosuch"),
        (["snapshot"], "Missing command"),
        (["snapshot", "nosuch"], "nosuch"),
        (["status"], "STREAM"),
        (["status", "flights", "more"], "more"),
        (["snapshot", "verify", "flights"], "SNAPSHOT"),
        (["deploy", "flights"], "--app"),
        (["deploy", "flights", "--app", "x.py", "--start", "empty"], "empty"),
        (["deploy", "flights", "--app", "x.py", "--setting", "poll=1"], "command_poll_seconds"),
        (["deploy", "flights", "--app", "x.py", "--setting", "heartbeat_seconds=x"], "number of seconds"),
        (["drain", "flights", "--mode", "fast"], "fast"),
        (["stop", "flights", "--timeout"], "--timeout"),
        (["stop", "flights", "--timeout", "nan"], "nan"),
        (["stop", "flights", "--timeout", "5", "--async"], "--async does not wait"),
        (["skip", "flights", "--batch", "1"], "--reason"),
        (["logs", "flights", "--attempt", "0"], "--attempt"),
        (["logs", "flights", "--follow"], "--follow"),
        (["list", "--home"], "--home"),
    ],
)
def test_a_mistake_in_the_command_line_is_one_object(desk: Desk, words: list[str], part: str) -> None:
    """Unknown verbs and options, values that are none, and what is missing: exit status 2, and what is wrong."""
    answer = shell("--json", *words)
    assert answer.status == 2
    assert answer.error["type"] == "UsageError"
    assert part in answer.error["message"]
    assert "--help" in answer.error["next_step"]
    assert answer.err == ""
    assert not desk.home.exists()


def test_a_word_that_is_no_text_is_refused(desk: Desk) -> None:
    """Bytes that are no UTF-8 could not be recorded, so a later start would run with other arguments (Law 15)."""
    answer = shell("deploy", "flights", "--app", "job.py", "--json", "--async", "--", "\udcff")
    assert answer.status == 2
    assert "'\\udcff'" in answer.error["message"]


def test_the_mistake_names_the_help_of_its_verb() -> None:
    """The next step of a mistake in a verb is the help of that verb."""
    answer = shell("stop", "flights", "--nosuch", "--async")
    assert answer.status == 2
    assert "streamstate: " in answer.err
    assert "`streamstate stop --help`" in answer.err


def test_an_option_of_the_script_is_pointed_behind_the_two_dashes() -> None:
    """Where the verb runs a script, and nowhere else."""
    assert "-- --input" in shell("deploy", "flights", "--app", "job.py", "--input", "/in", "--async").err
    assert "-- --input" not in shell("stop", "flights", "--input", "/in", "--async").err
    for verb in ("label", "validate", "apply"):  # which take several words that are no script's
        assert "script's arguments" not in shell(verb, "flights", "--set", "team=x").err


@pytest.mark.parametrize("verb", ["deploy", "plan", "upgrade", "adopt"])
@pytest.mark.parametrize("rest", [["stray"], ["stray", "--", "--input", "in"]])
def test_a_word_that_got_in_front_of_the_two_dashes_is_refused(desk: Desk, verb: str, rest: list[str]) -> None:
    """It is nothing that the script should be given, and it would be recorded for every later start."""
    answer = shell("--json", verb, "flights", "--app", "job.py", *rest)
    assert answer.status == 2
    assert answer.error["type"] == "UsageError"
    assert "'stray'" in answer.error["message"]
    assert not desk.home.exists()


def test_the_stream_may_stand_behind_the_two_dashes(desk: Desk) -> None:
    """Then what follows it is the script's."""
    for words in (["--app", "nosuch.py", "--", "flights", "in"], ["flights", "--app", "nosuch.py", "--", "flights"]):
        assert "nosuch.py" in shell("--json", "deploy", *words, "--async").error["context"]["path"]


def test_what_follows_the_two_dashes_is_the_scripts_own(desk: Desk) -> None:
    """A --json among the arguments of the script does not change the form of our output."""
    answer = shell(
        "deploy", "flights", "--app", desk.base / "nosuch.py", "--async", "--", "--json", "--home", "/elsewhere"
    )
    assert answer.status == 2
    assert answer.out == ""
    assert "nosuch.py" in answer.err


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_every_verb_has_a_help(verb: str) -> None:
    """--help explains what a verb is for and names its options; with --json as one object."""
    words = verb.split()
    plain = shell(*words, "--help")
    assert plain.status == 0
    assert plain.out.startswith(f"Usage: streamstate{' ' if verb else ''}{verb}")
    assert "--home" in plain.out
    for words_with_json in (("--json", *words, "--help"), (*words, "--help", "--json")):
        assert shell(*words_with_json).json == {"help": plain.out.removesuffix("\n")}


def test_the_help_lists_every_verb_once_in_one_line_each() -> None:
    """Nothing is cut off with dots, on a terminal of 80 columns; a group has its own help."""
    texts = {group: shell(*group.split(), "--help").out for group in ("", "snapshot", "home")}
    assert "..." not in texts[""].split("Start:")[1]
    for verb in VERBS:
        group, _, name = verb.rpartition(" ")
        assert len([line for line in texts[group].splitlines() if line.startswith(f"  {name} ")]) == 1


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_fits_one_screen(verb: str) -> None:
    """At most 20 options are described and the others named, in 40 lines of 100 columns; --help-all describes all."""
    short, whole = shell(verb, "--help").out, shell(verb, "--help-all").out
    assert len(short.splitlines()) <= 40
    assert len([line for line in short.splitlines() if line.startswith("  --")]) <= 20
    for parameter in parameters_of(verb):
        if isinstance(parameter, click.Option):
            assert any(name in short for name in (*parameter.opts, *parameter.secondary_opts))
            assert parameter.opts[-1] in whole


def test_words_are_completed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verbs with what they are for, verbs of groups, options, and the streams of the home."""
    desk.stream().deploy()

    def completed(*words: str) -> str:
        monkeypatch.setenv("_STREAMSTATE_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", " ".join(("streamstate", *words)))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            run([])
        out.seek(0)
        return out.read()

    assert completed("up").split() == ["plain,upgrade"]
    assert completed("snapshot", "un").split() == ["plain,unpin"]
    assert "plain,--timeout" in completed("stop", "flights", "--t")
    assert completed("status", "fl").split() == ["plain,flights"]


def test_without_a_verb_the_help_is_shown() -> None:
    """The help is on stderr; exit status 2, and nothing on stdout."""
    answer = shell()
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith("Usage: streamstate")


def test_the_version_is_told() -> None:
    """--version, for a person and as an object."""
    version = shell("--json", "--version").json["version"]
    assert shell("--version").out == f"streamstate {version}\n"


@pytest.mark.parametrize("verb", STREAM_VERBS)
def test_a_hostile_id_is_refused_before_anything_is_touched(desk: Desk, verb: str) -> None:
    """Ids that leave the home, or are none, are a mistake in the request: no file is read or written for them."""
    (desk.base / "job.py").write_text("runs\n")
    before = desk.files()
    for stream_id in HOSTILE_IDS:
        answer = shell(*words_of(verb, stream_id, desk))
        assert answer.status == 2, stream_id
        assert answer.error["type"] == "InvalidRequestError"
        assert "not a valid stream id" in answer.error["message"]
    assert desk.files() == before


@pytest.mark.parametrize("verb", [verb for verb in STREAM_VERBS if verb != "deploy"])
def test_a_stream_that_is_not_there_is_told_by_every_verb(desk: Desk, verb: str) -> None:
    """An unknown stream: exit status 2, its name, its home; and nothing comes to be."""
    Home(HomeConfig(str(desk.home))).begin("tests")
    before = desk.files()
    answer = shell(*words_of(verb, "nosuch", desk))
    assert answer.status == 2
    assert answer.error["type"] == "StreamNotFoundError"
    assert answer.error["context"]["stream_id"] == "nosuch"
    assert desk.files() == before


@pytest.mark.parametrize("verb", [verb for verb in STREAM_VERBS if verb not in ("deploy", "adopt")])
def test_a_home_that_is_not_there_is_told_by_every_verb(desk: Desk, verb: str) -> None:
    """No home where one was expected (unmounted, renamed, a wrong URI): no word of its streams, and none is made."""
    (desk.base / "job.py").write_text("runs\n")
    for makes_mount_point in (False, True):
        if makes_mount_point:
            desk.home.mkdir()
        answer = shell(*words_of(verb, "flights", desk))
        assert (answer.status, answer.error["type"]) == (2, "HomeNotFoundError")
        assert answer.error["context"]["home"] == str(desk.home)
        assert desk.home.exists() is makes_mount_point
    assert list(desk.home.iterdir()) == []


@pytest.mark.parametrize("option", ["--deployment", "--request-id", "--snapshot"])
@pytest.mark.parametrize("value", ["../x", "A", "x" * 64, "d-0001/../.."])
def test_hostile_ids_in_options_are_refused(desk: Desk, option: str, value: str) -> None:
    """Ids of deployments, requests and snapshots are checked like those of streams."""
    desk.stream().deploy().runs()
    (desk.base / "job.py").write_text("runs\n")
    before = desk.files()
    words = ["deploy", "flights", "--app", desk.base / "job.py"] if option == "--snapshot" else ["stop", "flights"]
    answer = shell(*words, "--json", "--async", option, value)
    assert answer.status == 2
    assert answer.error["type"] == "InvalidRequestError"
    assert desk.files() == before


@pytest.mark.parametrize("home", ["{base}/job.py", "{base}/job.py/home", "/proc/streams", "ftp://host/x", "s3://"])
@pytest.mark.parametrize("verb", ["deploy", "list", "home doctor"])
def test_a_home_that_cannot_be_used_is_told(desk: Desk, home: str, verb: str) -> None:
    """A home that is a file, cannot be written, or is no place at all: its own error, never a traceback."""
    script = desk.base / "job.py"
    script.write_text("runs\n")
    rest = ["flights", "--app", script] if verb == "deploy" else []
    uri = home.format(base=desk.base)
    answer = shell(verb, *rest, "--json", *(["--async"] if verb == "deploy" else []), "--home", uri)
    if verb == "home doctor":
        (check,) = [check for check in answer.json["checks"] if check["name"] == "home"]
        assert answer.status == 1
        assert not answer.json["ok"]
        assert not check["ok"]
        assert check["mend"]
    elif verb == "list" and ":" not in uri:
        assert (answer.status, answer.error["type"]) == (2, "HomeNotFoundError")
    else:
        assert answer.status in (1, 2)
        assert answer.error["type"] in ("InvalidRequestError", "UnavailableError")
        assert uri.rpartition("/")[2] in str(answer.error)


def test_a_reader_that_has_gone_gets_no_traceback(desk: Desk) -> None:
    """``streamstate … | head`` ends quietly."""
    desk.stream().deploy()
    code = "from airflow_streamstate.cli.main import main; main()"
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-c", code, "list", "--json"], stdout=closed, stderr=subprocess.PIPE, check=False
        )
    assert done.stderr == b""
    assert done.returncode == 1


VALUES_OF = {
    "--home": [""],  # the home of the test; another could be a place that exists
    "--checkpoints": [""],
    "--work-dir": [""],
    "--timeout": ["0.1", "nan", "x", "-1", ""],  # what may be waited for does not come
    "--deadline": ["0.1", "1", "nan", ""],
    "--app": ["job.py", "job.py", "nosuch.py", ".", "", "x" * 300],
    "--conf": ["spark.x=y", "a=b", "=", "x"],
    "--setting": ["heartbeat_seconds=1", "heartbeat_seconds=0", "heartbeat_seconds=nan", "x=1"],
}
VALUES = [
    "d-0001", "d-0002", "restore", "seed", "fresh", "default", "event_time", "spark.x=y", "=", "1", "0", "-1", "99",
    "9" * 30, "nan", "local[2]", "d-0001-stopped-000001", "d-0001-drained-000001", "job.py", "[/red]",
    "\x1b[2J", "\udcff",
]  # fmt: skip
TEXTS = st.text(st.characters(blacklist_characters="\0-/"), max_size=5)
STRAY_WORDS = st.sampled_from(["--nosuch", "-x", "-h", "-", "--", "--=x", "--json=1", "more"]) | TEXTS


def words_for(parameter: click.Parameter) -> st.SearchStrategy[list[str]]:
    """An option with some value, or an argument."""
    if isinstance(parameter, click.Argument):
        known = {"stream_id": ["flights", "stopped", "drained", "launching", "nosuch", "../x"]}
        return (st.sampled_from(known.get(str(parameter.name), VALUES)) | TEXTS).map(lambda word: [word])
    option = parameter.opts[0]
    if getattr(parameter, "is_flag", False):
        return st.just([option])
    values = st.sampled_from(VALUES_OF[option]) if option in VALUES_OF else st.sampled_from(VALUES) | TEXTS
    return values.map(lambda value: [option, value])


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """A verb, its arguments, some of its options, and sometimes a word that has no place there."""
    verb = draw(st.sampled_from(VERBS))
    arguments = [parameter for parameter in parameters_of(verb) if isinstance(parameter, click.Argument)]
    options = [parameter for parameter in parameters_of(verb) if isinstance(parameter, click.Option)]
    needed = [parameter for parameter in options if parameter.required]
    chosen = [*needed, *draw(st.lists(st.sampled_from(options), max_size=4))]
    parts = [draw(words_for(parameter)) for parameter in [*arguments, *chosen]]
    names = {option.opts[0] for option in options}
    if "--timeout" in names and "--deadline" not in {option.opts[0] for option in chosen}:
        short = [["--timeout", "0.1"], *([["--async"]] if "--async" in names else [])]
        parts.insert(0, draw(st.sampled_from(short)))  # what is chosen counts over it
    if verb == "watch":
        parts.append(["--once"])  # else it never ends
    parts += draw(st.lists(STRAY_WORDS.map(lambda word: [word]), max_size=1)) if draw(st.integers(0, 3)) == 0 else []
    return [*verb.split(), *(word for part in parts for word in part)]


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A home with streams in several states, on a machine that cannot launch anything."""
    base = tmp_path_factory.mktemp("fuzzed")
    desk = Desk(base)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STREAMSTATE_HOME", str(desk.home))
        patch.setenv("SPARK_HOME", str(base / "nosuch"))
        patch.setenv("JAVA_HOME", str(base / "nosuch"))
        patch.chdir(base)
        Path("job.py").write_text("runs\n")
        desk.stream().deploy().runs()
        desk.stream("launching").deploy()
        for stream_id, end in (("stopped", "stopped"), ("drained", "drained")):
            attempt = desk.stream(stream_id).deploy().runs()
            getattr(attempt, end)()
        yield desk


@pytest.mark.fast
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(line=command_lines())
def test_no_command_line_ends_in_a_traceback(fuzzed: Desk, line: list[str]) -> None:
    """Whatever is typed: a known exit status, human-readable words, and with --json one object or lines of them."""
    answer = shell(*line)
    assert answer.status in (0, 1, 2, 3, 4)
    assert "InternalError" not in answer.out
    assert "defect of streamstate" not in answer.err
    own = line[: line.index("--")] if "--" in line else line
    if "--json" in own:
        assert answer.json_lines if line[0] == "watch" else answer.json
    elif answer.status not in (0, 1):
        assert answer.err
