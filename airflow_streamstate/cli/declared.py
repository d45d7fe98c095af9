"""The verbs on streams as files: ``validate``, ``diff``, ``apply`` and ``export``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from airflow_streamstate.cli.naming import allow_request
from airflow_streamstate.cli.options import Verb, option, pass_session, stream_argument, term_options, terms_given
from airflow_streamstate.cli.render import plain_table, shown
from airflow_streamstate.cli.session import DONE, ShellSession, status_of_applied, status_of_findings
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.forms import selected
from airflow_streamstate.protocol.terms.order import CompareTerms, FileTerms, WaveTerms

if TYPE_CHECKING:
    from rich.console import Console

    from airflow_streamstate.declarations.apply import Applied
    from airflow_streamstate.declarations.diff import StreamDifference
    from airflow_streamstate.declarations.reader import DeclaredStream

_COLOURS = {"new": "green", "changed": "yellow", "refused": "red", "not declared": "yellow"}
_RESULTS = {"done": "green", "refused": "red", "failed": "red", "not begun": "yellow"}
_LONGEST = 60
paths_argument = click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path(path_type=Path))


@click.command(cls=Verb)
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=click.Path(path_type=Path))
@term_options(FileTerms)
@option("--schema", "shows_schema", is_flag=True, help="Print the JSON schema of these files, for editors, and end.")
@pass_session
def validate(session: ShellSession, /, paths: tuple[Path, ...], shows_schema: bool, **given: Any) -> int:
    """Check the files of streams: each problem with its line. Needs no home.

    A PATH is a file, or a folder with files that end with .yaml, .yml or .json, those of its folders included.
    """
    from airflow_streamstate.declarations.diff import checked
    from airflow_streamstate.declarations.reader import read_streams

    if shows_schema:
        click.echo(json.dumps(schema(), indent=2))
        return DONE
    if not paths:
        raise click.UsageError("Name a file or a folder; --schema prints the schema.")
    read = checked(read_streams(paths, terms_given(FileTerms, given).root))
    result: dict[str, object] = {
        "streams": [one.stream_id for one in read.streams],
        "problems": [{"path": str(one.path), **selected(one, "line field=where reason")} for one in read.problems],
    }

    def human(console: Console) -> None:
        for problem in read.problems:
            console.print(shown(str(problem)))
        count, wrong = len(read.streams), len(read.problems)
        streams, problems = ("stream" if count == 1 else "streams"), ("problem" if wrong == 1 else "problems")
        console.print(f"{count:,} {streams} without a problem, {wrong:,} {problems}")

    session.emit(result, human)
    return status_of_findings(is_well=not read.problems)


def schema() -> dict[str, Any]:
    """The JSON schema of a file."""
    from airflow_streamstate.declarations.stream_file import StreamDeclaration

    found = StreamDeclaration.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found, "title": "Stream"}


@click.command(cls=Verb)
@paths_argument
@term_options(FileTerms)
@term_options(CompareTerms)
@pass_session
def diff(session: ShellSession, /, paths: tuple[Path, ...], **given: Any) -> int:
    """Show what `apply` with the same files would do: new, changed, unchanged, no longer declared.

    Of a folder, the streams of the home that none of its files declares are shown, too. Changes nothing. Exit status 1
    if a stream could not be made as declared.
    """
    from airflow_streamstate.declarations.diff import compare_all
    from airflow_streamstate.declarations.reader import are_folders, read_streams

    terms = terms_given(CompareTerms, given)
    declared = read_streams(paths, terms_given(FileTerms, given).root).need_all()
    _allow(session, declared)
    with session.progress("diff") as report:
        deadline = terms.rehearsal_deadline_seconds if terms.rehearse else None
        found = compare_all(session.controller(), declared, deadline, report, are_all=are_folders(paths))
    session.emit({"streams": [one.to_json() for one in found]}, lambda console: _print_differences(console, found))
    return status_of_findings(is_well=all(one.kind != "refused" for one in found))


def _print_differences(console: Console, found: Sequence[StreamDifference]) -> None:
    from rich.text import Text

    table = plain_table("stream", "is", "apply would", "now", "plan")
    for one in found:
        is_pruned = one.kind == "not declared" and one.step == "stop"
        table.add_row(
            shown(one.stream_id), Text(one.kind, _COLOURS.get(one.kind, "")),
            shown("stop, with --prune" if is_pruned else one.step), shown(one.state), shown(one.verdict),
        )  # fmt: skip
    console.print(table)
    for one in found:
        if one.reason:
            console.print(shown(f"  {one.stream_id}: {one.reason}"))
        for each in one.fields:
            before, after = (_cut(text) or "(none)" for text in (each.before, each.after))
            console.print(shown(f"  {one.stream_id}: {each.name}: {before} -> {after}"))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


@click.command(cls=Verb)
@paths_argument
@term_options(FileTerms)
@term_options(WaveTerms)
@option(
    "--compared",
    "compared_path",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="What `diff --json` printed: a stream that would be changed otherwise by now is refused.",
)
@pass_session
def apply(session: ShellSession, /, paths: tuple[Path, ...], compared_path: Path | None, **given: Any) -> int:
    """Make the streams of the home as declared: deploy, upgrade, rescale, resume or stop each of them.

    Each change has its journal. The same command again continues what was interrupted, and changes nothing that is as
    declared. A stream that is refused holds back no other, but those that depend on it. Ctrl-C starts nothing more and
    waits for what is under way, a second one leaves. Exit status 1 if a stream is not as declared then, 4 if all of
    those were refused.
    """
    from airflow_streamstate.declarations.apply import Applying, ApplyTerms, wait_for
    from airflow_streamstate.declarations.reader import need_folders, read_streams

    if given["prune"]:
        need_folders(paths)
    declared = read_streams(paths, terms_given(FileTerms, given).root).need_all()
    _allow(session, declared)

    def say(stream_id: str, line: str) -> None:
        session.say(lambda console: console.print(shown(f"{stream_id}: {line}")))

    def interrupted(stream_ids: Sequence[str]) -> None:
        names = ", ".join(stream_ids) or "no stream"
        line = (
            f"interrupted; nothing more is started, and what is under way is waited for ({names}). Ctrl-C again leaves."
        )
        session.say(lambda console: console.print(shown(line)))
        session.call(line)

    compared = None if compared_path is None else _compared(compared_path)
    with session.progress("apply") as report:
        wait = partial(wait_for, report=lambda stream_id, line: report(f"{stream_id}: {line}"))
        applying = Applying(session.controller, session.clock, say, wait, interrupted)
        found = applying.apply(declared, terms_given(ApplyTerms, given, compared=compared))
    session.emit({"streams": [one.to_json() for one in found]}, lambda console: _print_applied(console, found))
    return status_of_applied(one.result for one in found if not one.is_well)


def _allow(session: ShellSession, declared: Sequence[DeclaredStream]) -> None:
    """Allow what the files name that a person gives to this command."""
    from airflow_streamstate.declarations.reader import deploy_request

    for one in declared:
        with suppress(InvalidRequestError):  # a stream that is refused holds back no other
            allow_request(session, deploy_request(one, session.home().home.uri))


def _compared(path: Path) -> dict[str, StreamDifference]:
    from airflow_streamstate.declarations.diff import StreamDifference

    try:
        streams = json.loads(path.read_bytes())["streams"]
        found = [StreamDifference.from_json(one) for one in streams]
    except (OSError, ValueError, KeyError, TypeError, InvalidRequestError):
        raise InvalidRequestError(
            "this is not what `diff` printed", path=str(path), next_step="Give the output of `streamstate diff --json`."
        ) from None
    return {one.stream_id: one for one in found}


def _print_applied(console: Console, found: Sequence[Applied]) -> None:
    from rich.text import Text

    table = plain_table("stream", "step", "result", "runs")
    for one in found:
        result = Text(one.result, _RESULTS.get(one.result, ""))
        table.add_row(shown(one.stream_id), shown(one.step), result, shown(one.deployment_id))
    console.print(table)
    for one in found:
        if one.reason:
            console.print(shown(f"  {one.stream_id}: {one.reason}"))


@click.command(cls=Verb)
@stream_argument
@click.argument("folder", type=click.Path(path_type=Path))
@pass_session
def export(session: ShellSession, /, stream_id: str, folder: Path) -> None:
    """Write the file of STREAM into FOLDER: STREAM.yaml, and its pinned code in STREAM/.

    Applied again, it changes nothing. Values that are secrets in the home are left out, and named.
    """
    from airflow_streamstate.declarations.export import export_stream

    path, notes = export_stream(session.controller(), stream_id, folder)

    def human(console: Console) -> None:
        console.print(shown(f"{stream_id}: {path}"))
        for note in notes:
            console.print(shown(f"  {note}"))

    session.emit({"stream_id": stream_id, "path": str(path), "notes": list(notes)}, human)
