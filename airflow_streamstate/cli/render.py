"""Human-readable output: every function prints one JSON result as lines or a table."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_streamstate.cli.session import NOT_WELL, Answer, Printer, facts_within
from airflow_streamstate.connectors.moves import describe
from airflow_streamstate.protocol.policies import RetentionPolicy
from airflow_streamstate.protocol.positions import SourceMove
from airflow_streamstate.protocol.redaction import cause_of, cause_of_failure, printable, without_query_report

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

Row = Mapping[str, Any]
COLOURS = {
    "running": "green", "launching": "cyan", "degraded": "red", "draining": "yellow", "stopping": "yellow",
    "drained": "blue", "stopped": "blue", "finished": "blue", "failed": "red", "lost": "red", "fenced": "magenta",
    "silent": "red", "unreadable": "red",
}  # fmt: skip
_QUERY_COLUMNS = {
    "drain_phase": "drain", "batch_id": "batch", "planned_batch_id": "planned batch", "committed_at": "committed at",
    "state_rows": "state rows", "state_rows_left": "state rows left", "watermark_at": "watermark",
    "rows_written_early": "rows written early", "open_windows_from_at": "open windows from",
    "open_windows_until_at": "until", "rows_dropped": "late rows dropped",
    "idle_triggers": "idle triggers", "skipped_batches": "batches skipped?",
    "behind": "behind", "since_snapshot": "since the snapshot",
}  # fmt: skip
_STARTS = {
    "restore": "is restored with the state of snapshot",
    "seed": "is seeded with the offsets of snapshot",
    "fresh": "starts fresh, with nothing",
}
_POLICY_SOURCES = {"given": "by the options", "recorded": "recorded with the stream", "default": "the default"}
_BREAKS = ("gaps", "overlaps", "undone", "backwards")
_IN_TROUBLE = NOT_WELL | {"fenced"}
_OF_TROUBLE = ("cause", "error", "why", "deploying", "upgrade")
"""The facts of a stream in trouble that its short status shows."""
_OTHER_STEPS = {
    "lost": "Look on the machine where it ran, and in `streamstate logs {stream}`. If its driver has surely ended,"
    " `streamstate resume {stream} --assume-dead` continues from the last commit.",
    "fenced": "`streamstate status {stream}` shows the deployment that took over.",
}
_MAX_CHARACTERS = 100
_MOST_COLUMNS = 4
_TRACEBACK_LINES = 20
_LAUNCH_FOLDER = re.compile(
    r"""(?:(?<=")/[^"\n]*|(?<![^\s'(=])/[^\s"']*)/launches/[a-z0-9-]+/code/(?:py-files/|files/)?"""
)


def shown(value: object, style: str = "") -> Text:
    """The value as text without markup or control characters."""
    from rich.text import Text

    return Text(printable(str(value)), style)


def without_launch_folder(text: str) -> str:
    """The text with the pinned script's name instead of its path in the folder of a launch."""
    return _LAUNCH_FOLDER.sub("", text)


def is_told_by(traceback: object, log_tail: object) -> bool:
    """Whether the end of a log repeats the traceback's last line, or its cause."""
    told = str(traceback or "")
    *_, last = ("", *(line.strip() for line in told.splitlines() if line.strip()))
    said = (last, cause_of("", told))
    return any(words and words in str(log_tail) for words in said)


def deploying(console: Console, row: Row) -> None:
    """Before the wait of ``deploy``: how it starts."""
    start = row["start"]
    console.print(_head(row) + f" {_STARTS[start['mode']]} {start['snapshot_id'] or ''}".rstrip())
    for note in row["notes"]:
        console.print(shown(f"  {note}"))


def resuming(console: Console, row: Row) -> None:
    """Before the wait of ``resume``."""
    console.print(_head(row) + " continues on the checkpoints of its deployment")
    for note in row["notes"]:
        console.print(shown(f"  {note}"))


def standing(console: Console, row: Row, noted: Sequence[str] = ()) -> None:
    """After ``deploy`` and ``resume``: the state, what the driver noted, and the queries of which no batch was due."""
    console.print(_sentence(row))
    for note in noted:
        console.print(shown(f"  {note}"))
    for name, proof in (row.get("proofs") or {}).items():
        if proof.startswith("no batch was due"):
            console.print(shown(f"  query {name}: {proof}"))
    _no_queries(console, row)
    _queries(console, row)
    _remarks(console, row, noted)


def killed(console: Console, row: Row) -> None:
    """After ``kill``: the state, and how to continue."""
    standing(console, row)
    if row["state"] == "failed":
        resume, deploy = (f"`streamstate {verb} {row['stream_id']}`" for verb in ("resume", "deploy"))
        console.print(shown(f"-> {resume} continues where it was cut off, {deploy} with another version."))


def given_up(console: Console, row: Row) -> None:
    """After ``adopt --give-up``: the queries that can be started again as they were."""
    console.print(f"{row['stream_id']} is no longer adopted" + (", and is retired" if row["retired"] else ""))
    for name, uri in row["given_up"].items():
        console.print(shown(f"  {name} may be started again on {uri}"))
    for name, uri in row["missing"].items():
        console.print(
            shown(f"  {name}: there is no checkpoint at {uri}; if it is not mounted, mount it and repeat the command")
        )


def ordered(console: Console, row: Row, verb: str) -> None:
    """After ``stop``, ``drain``, ``snapshot create``: the end of the order, or that it is recorded."""
    if not row.get("outcome"):
        console.print(_head(row) + f": {verb} ordered")
        console.print(shown(f"  `streamstate status {row['stream_id']}` shows the result"))
        return
    console.print(_sentence(row))
    if row.get("reason"):
        console.print(shown(f"  {row['reason']}"))
    if row.get("snapshot_id"):
        console.print(shown(f"  snapshot {_snapshot(row)}"))
    _ends(console, row)
    for name, query in row["queries"].items():
        for left in query.get("state_left") or ():
            console.print(shown(f"  {name}: {left['rows']} rows are left in {left['operator']}: {left['reason']}"))


def answered(console: Console, row: Row) -> None:
    """After ``approve``, ``reject`` and ``cancel`` of an upgrade with ``--async``."""
    console.print(shown(f"{row['stream_id']} {row['upgrade_id']}: recorded"))
    console.print(shown(f"  `streamstate status {row['stream_id']}` shows the result"))


def moved(console: Printer, row: Row) -> None:
    """How a skip, or a start at other offsets, moves the position of each source."""
    skips = row.get("skipped", True)
    which = "batch {batch_id} of query {query} is skipped" if skips else "query {query} started elsewhere"
    console.print(shown(f"{which.format(**row)}:"))
    for words in describe([SourceMove(**move) for move in row["moves"]]):
        console.print(shown(f"  {words}"))


def skipped(console: Console, row: Row) -> None:
    """After ``skip``: that it is ordered, or done."""
    done = "is skipped" if row.get("outcome") else "will be skipped by the next attempt"
    console.print(_sentence(row))
    console.print(shown(f"  batch {row['batch_id']} {done}"))


def status(console: Console, row: Row, *, verbose: bool = False) -> None:
    """After ``status``; of a stream in trouble a short answer, unless ``verbose``."""
    answer, is_in_trouble = Answer(), row["state"] in _IN_TROUBLE
    answer.print(_sentence(row))
    for name, value in _status_facts(row).items():
        if value:
            part = (answer.main if name in _OF_TROUBLE else answer.more)(name.removesuffix(":"))
            part.print(shown(f"  {name:<11}{value}"))
    _orders(answer.main("orders"), row)
    _no_queries(answer.more("queries"), row)
    _queries(answer.more("queries"), row)
    _remarks(answer.more("remarks"), row)
    _moves(answer.more("skipped batches"), row)
    if verbose or is_in_trouble:
        answer.block("traceback", "\n".join(_words(row.get("traceback")).splitlines()[-_TRACEBACK_LINES:]))
    answer.show(console, _step_of(row), is_short=is_in_trouble and not verbose)


def _step_of(row: Row) -> str:
    """What to do about a stream, a full disk first; "" for nothing."""
    disks = full_disk_words(row["full_disks"]) if row.get("full_disks") else ""
    step = row.get("next_step") or _OTHER_STEPS.get(row["state"], "").format(stream=row["stream_id"])
    return f"{disks} {step}".strip()


def _status_facts(row: Row) -> dict[str, object]:
    """The facts of a stream by name; empty ones, too."""
    start = row.get("start") or {}
    is_news = row["state"] in ("launching", "lost", "silent", "fenced")
    error, cause = _words(row.get("error")), cause_of(row.get("error") or "", row.get("traceback") or "")
    return {
        "cause": cause if cause not in error else "",
        "error": error,
        "why": row.get("why") if is_news else "",
        "started": f"{start.get('mode')} {start.get('snapshot_id') or ''}".strip(),
        "script": row.get("application"),
        "driver": row.get("driver"),
        **{f"{name}:": url or "open it from Airflow's page" for name, url in (row.get("links") or {}).items()},
        "version": row.get("version_label"),
        "heartbeat": age(row.get("heartbeat_age_seconds")),
        "snapshot": f"{row.get('snapshot_id') or ''} {age(row.get('snapshot_age_seconds'))}".strip(),
        "last event": _last_event(row.get("last_event")),
        "reason": row.get("end_reason") if row["state"] in ("stopped", "drained") else row.get("attempt_reason"),
        "on failure": row.get("restarts"),
        "owner": row.get("owner"),
        "labels": " ".join(labels_of(row)),
        "retention": retention_words(row.get("retention")),
        "deploying": row.get("intent"),
        "upgrade": row.get("upgrade"),
        "rows": row.get("repeats"),
    }


def _moves(console: Printer, row: Row) -> None:
    for event in row.get("moves") or ():
        moved(console, event)
        if event["reason"]:
            console.print(shown(f"  at {event['at']}: {event['reason']}"))


def labels_of(row: Row) -> list[str]:
    """The labels of a stream as ``NAME=VALUE``."""
    return [f"{name}={value}" for name, value in (row.get("labels") or {}).items()]


def retention_words(row: Row | None) -> str:
    """A retention in one line; "" if not set."""
    return "" if row is None else RetentionPolicy(row["keep"], row["older_than_seconds"], row["at_mirrors"]).words


def full_disk_words(folders: Sequence[str]) -> str:
    """What a full disk means for the drivers on it."""
    which = " and ".join(folders)
    return f"The disk of {which} is full: drivers there can write neither data nor heartbeats. Free some space."


def _remarks(console: Printer, row: Row, noted: Sequence[str] = ()) -> None:
    for changed in row.get("changed_files") or ():
        console.print(shown(f"  {'changed':<11}{changed}", "yellow"))
    for name, remarks in (row.get("remarks") or {}).items():
        of_query = f"query {name}"
        for remark in remarks:
            if remark not in noted:
                words = remark if remark.startswith(f"{of_query} ") else f"{of_query}: {remark}"
                console.print(shown(f"  {words}", "yellow"))


def _orders(console: Printer, row: Row) -> None:
    """Pending orders, and unreadable objects."""
    for order in row.get("orders") or ():
        by = f"{order['verb']} of {order['requested_by']} at {order['requested_at']}"
        console.print(shown(f"  {'order':<11}{by}: {order['why']}"))
    for key, problem in (row.get("unreadable") or {}).items():
        console.print(shown(f"  {'unreadable':<11}{key}: {problem}", "red"))


def streams(console: Console, rows: Sequence[Row], where: str) -> None:
    """After ``list``: one row each; ``where``: the home, and what was asked for."""
    if not rows:
        console.print(shown(f"no streams in {where}"))
        return
    has_owners = any(row.get("owner") for row in rows)
    titles = ("stream", "state", "deployment", "attempt", "version", "heartbeat", "snapshot", "last event")
    table = plain_table(*titles, *(["owner"] if has_owners else []))
    for row in rows:
        table.add_row(
            shown(row["stream_id"]),
            _state(row["state"]),
            row["deployment_id"],
            str(row["attempt"] or ""),
            shown(row.get("version_label") or row.get("application") or ""),
            age(row.get("heartbeat_age_seconds")),
            age(row.get("snapshot_age_seconds")),
            shown(_last_event(row.get("last_event"))),
            *([shown(row.get("owner") or "")] if has_owners else []),
        )
    console.print(table)
    for row in rows:
        if row["state"] in ("lost", "silent", "degraded", "unreadable"):
            why = row.get("error") or row.get("why")
            console.print(shown(f"{row['stream_id']} is {row['state']}: {why}"))
        elif row["state"] == "failed" and row.get("restarts"):
            console.print(shown(f"{row['stream_id']} is failed: {row['restarts']}"))


def mirrored(console: Console, rows: Sequence[Row]) -> None:
    """After ``home mirror``: what was copied where."""
    table = plain_table("snapshot", "mirror", ">files", ">bytes")
    for row in rows:
        table.add_row(row["snapshot_id"], shown(row["mirror"]), str(row["files"]), f"{row['bytes']:,}")
    console.print(table)


def restored(console: Console, rows: Sequence[Row]) -> None:
    """After ``home restore``: the snapshot from which each stream starts next."""
    if not rows:
        console.print("this home has every stream of the mirrors")
        return
    table = plain_table("stream", "snapshot", "kind", ">files", ">bytes", "")
    for row in rows:
        since = "" if row["is_end"] else "later rows are written again"
        cells = (row["stream_id"], row["snapshot_id"], row["kind"], str(row["files"]), f"{row['bytes']:,}")
        table.add_row(*cells, shown(since))
    console.print(table)
    for one in {(gone["mirror"], gone["why"]) for row in rows for gone in row["dropped"]}:
        console.print(shown(f"{one[0]} was abandoned: {one[1]}"))


def verified(console: Console, row: Row) -> None:
    """After ``snapshot verify``: the problems, then what Spark loaded."""
    if row["ok"]:
        console.print(f"{row['snapshot_id']}: every file matches its manifest")
    else:
        table = plain_table("problem", "query", "path", "detail")
        for problem in row["problems"]:
            table.add_row(*(shown(problem.get(key, "")) for key in ("kind", "query", "path", "detail")))
        console.print(table)
    for name, query in (row["loaded"] or {}).items():
        for one in query["operators"]:
            rows = "Spark has no reader for it" if one["rows"] is None else f"{one['rows']:,} rows"
            console.print(shown(f"Spark looked at {name}, operator {one['operator_id']} {one['name']}: {rows}"))
        if not query["operators"]:
            console.print(shown(f"{name} has no state to load"))


def lineage(console: Console, row: Row) -> None:
    """After ``audit``: the chain, what breaks it, and when nothing ran."""
    chain = plain_table("deployment", "starts", "query", "started after", "ended with", "known by")
    for one in row["deployments"]:
        for name, query in one["queries"].items():
            ids = ("-" if query[key] is None else f"batch {query[key]}" for key in ("began_behind", "ended_with"))
            words = (one["deployment_id"], f"{one['mode']} {one['snapshot_id'] or ''}", name, *ids, query["evidence"])
            chain.add_row(*map(shown, words))
    console.print(chain)
    _settled_and_rewritten(console, row)
    for kind, key in (("gap", "gaps"), ("overlap", "overlaps"), ("undone", "undone"), ("backwards", "backwards")):
        for found in row[key]:
            place = f"{kind} at {found['deployment_id']}, {found['query']} {found['source']}".rstrip()
            style = "yellow" if found["accepted"] else "bold red"
            console.print(shown(f"{place}: {found['ended_at']} -> {found['began_at']}: {found['detail']}", style))
    _sources_and_repeats(console, row)
    for sentence in row["unread"]:
        console.print(shown(f"not read: {sentence}", "bold red"))
    downtimes(console, row["downtimes"])
    for period in row["not_running"]:
        most = "at most " if period["at_most"] else ""
        ends = f"{most}{period['seconds']} s until {period['before']}" if period["before"] else "until now"
        what = "between two runs, after" if period["between_runs"] else "no query ran after"
        console.print(shown(f"{what} {period['after']}: {ends}"))
    recorded = sum(query["evidence"] == "records" for one in row["deployments"] for query in one["queries"].values())
    if row["ok"]:
        but = f", as far as logs reach back ({recorded} by records alone)" if recorded else ""
        but += ", but for what was accepted by name" if any(row[key] for key in _BREAKS) else ""
        fact = "every deployment started exactly where its predecessor ended"
        if not any(one["queries"] for one in row["deployments"]) and not row["settled"]:
            fact = "no query has run yet, so there is nothing to compare"
        console.print(f"{fact}{but}", style="green")


def downtimes(console: Console, rows: Sequence[Row]) -> None:
    """From commit to commit over each handover, one line for each query."""
    for row in rows:
        console.print(shown(f"query {row['query']}: {_downtime(row)}"))


def _downtime(row: Row) -> str:
    before, after = row["from_deployment_id"], row["to_deployment_id"]
    if row["seconds"] is None:
        if row["has_ended"]:
            return f"downtime unknown: {after} has committed a batch since {before} ended, at an unknown time"
        return f"no new batch yet: the last one is by {before}, at {row['from_at']}; {after} has committed none"
    idle, until = "", f"the first of {after}"
    if row["has_found_nothing"]:
        until = f"the first trigger of {after}, which found nothing to commit"
    if row["idle_seconds"]:
        down = row["downtime_seconds"]
        idle = f": {down} s down, and {row['idle_seconds']} s in which it ran with nothing to commit"
    return f"{row['seconds']} s from the last commit of {before} to {until}{idle}"


def _settled_and_rewritten(console: Console, row: Row) -> None:
    for one in row["deployments"]:
        if one["rewritten"]:
            console.print(shown(f"{one['deployment_id']}: its state was {one['rewritten']}"))
    if row["settled"]:
        found = "beginnings were exact" if row["settled"]["ok"] else "not every beginning was exact"
        text = (
            f"up to {row['settled']['through']}: {found}, by an audit of {row['settled']['audited_at']}; pruned since"
        )
        console.print(shown(text, "" if row["settled"]["ok"] else "bold red"))


def _sources_and_repeats(console: Console, row: Row) -> None:
    for one in row["sent_once"]:
        console.print(shown(f"{one['source']} of {one['deployment_id']}, {one['query']}: {one['why']}", "yellow"))
    for found in (*row["may_be_doubled"], *row["not_doubled"]):
        console.print(_repeat(found))


def _repeat(row: Row) -> Text:
    which = f"{'the flush, ' if row['is_flush'] else ''}batch {row['batch_id']} ran again"
    rows = "" if row["rows_at_most"] is None else f", input of at most {row['rows_at_most']:,} rows"
    offsets = "".join(f", {move['source']} {move['from_offset']} -> {move['to_offset']}" for move in row["moves"])
    place = f"{row['deployment_id']} attempt {row['attempt']}, {row['query']}"
    if row["means"] == "skipped":
        return shown(f"not doubled in {row['sink']} at {place}: {which}{offsets}")
    sink = row["sink"] if row["means"] == "doubled" else f"{row['sink']} (only the script knows)"
    return shown(f"may be doubled in {sink} at {place}: {which}{rows}{offsets}", "yellow")


def checks(console: Console, rows: Sequence[Row]) -> None:
    """After ``home doctor``."""
    from rich.text import Text

    for row in rows:
        mark = Text("ok  ", "green") if row["ok"] else Text("FAIL", "bold red")
        console.print(mark + shown(f"  {row['name']}: {row['found']}"))
        if row["mend"]:
            console.print(shown(f"      -> {row['mend']}"))


def signatures(console: Console, answer: Row, rows: Sequence[Row]) -> None:
    """After ``home sign``: each record that the key has not signed, with all of its fields."""
    if not rows:
        console.print(f"every record is signed with the key {answer['key_id']}")
        return
    for row in rows:
        console.print(shown(f"{row['key']}: {row['kind']}, {row['reason'] or row['state']}{_done(row)}"))
        for name, value in _lines_of(row["record"]) if answer["is_dry"] else ():
            console.print(shown(f"    {name}: {json.dumps(value, ensure_ascii=False)}"), soft_wrap=True)
    if answer["is_dry"]:
        console.print(
            f"nothing is signed yet; the key {answer['key_id']} signs these {len(rows)}, as they are shown, by"
        )
        console.print(shown(f"    {answer['next_command']}"), soft_wrap=True)
    else:
        console.print(f"{answer['signed']} of {len(rows)} signed with the key {answer['key_id']}")


def _lines_of(record: Row) -> Iterator[tuple[str, object]]:
    """The fields of a record by name; those of a part that has parts itself, such as a version, one by one."""
    for name, value in record.items():
        if isinstance(value, Mapping) and any(isinstance(part, Mapping | list) for part in value.values()):
            yield from ((f"{name}.{each}", part) for each, part in value.items())
        else:
            yield name, value


def _done(row: Row) -> str:
    return f" -> {row['done']}" if row["done"] else ""


def error(console: Console, row: Row, *, verbose: bool = False) -> None:
    """An error: the cause, the next step, the sentence with its facts as key=value; ``verbose``: all, and its texts."""
    from rich.text import Text

    facts, blocks = _facts_and_blocks(row["context"])
    sentence = f"{str(row['message']).rstrip('.')}."
    words, cut = (" ".join((sentence, *facts)), 0) if verbose else facts_within(sentence, facts)
    answer, lead = Answer(), Text("streamstate: ", "bold red")
    cause = cause_of_failure(str(row.get("type")), row["context"])
    answer.print(lead + (shown(cause, "bold") if cause else shown(words)))
    if cause:
        answer.main("facts").print(shown(words))
    for name, text in blocks.items():
        answer.block(name.replace("_", " "), text)
    left = [f"{cut} fact{'s' * (cut > 1)}"] if cut else []
    answer.show(console, row["next_step"], is_short=not verbose, cut=left)


def _facts_and_blocks(context: Row) -> tuple[list[str], dict[str, str]]:
    """The facts of an error as key=value, and its texts of several lines by name."""
    facts, blocks = [], {}
    for key, value in context.items():
        if isinstance(value, Mapping | list | bool):
            facts.append(f"{key}={json.dumps(value, ensure_ascii=False)}")
            continue
        if key == "log_tail" and is_told_by(context.get("traceback"), value):
            continue  # the next step names the log
        text = without_query_report(str(value))
        if "\n" in text:
            blocks[key] = without_launch_folder(text)
        elif value not in (None, ""):
            facts.append(f'{key}="{text}"' if " " in text else f"{key}={text}")
    return facts, blocks


def _words(text: str | None) -> str:
    return without_launch_folder(without_query_report(text or ""))


def _head(row: Row) -> Text:
    attempt = f" attempt {row['attempt']}" if row.get("attempt") else ""
    return shown(f"{row['stream_id']} {row['deployment_id']}{attempt}")


def _sentence(row: Row) -> Text:
    return _head(row) + " is " + _state(row["state"])


def _no_queries(console: Printer, row: Row) -> None:
    if row["state"] == "finished" and not row.get("queries"):
        console.print("  the script has ended without starting a query")


def _ends(console: Console, row: Row) -> None:
    """Where each query ended: as a table if that fits on a screen, else one fact a line."""
    columns = _columns(row["queries"])
    if len(columns) <= _MOST_COLUMNS:
        _queries(console, row)
        return
    for name, query in row["queries"].items():
        console.print(shown(f"  query {name}"))
        for key in columns:
            if _has_news(key, query):
                console.print(shown(f"    {_QUERY_COLUMNS[key]:<21}{short(query[key])}"))


def _columns(queries: Mapping[str, Row]) -> list[str]:
    return [key for key in _QUERY_COLUMNS if any(_has_news(key, query) for query in queries.values())]


def _queries(console: Printer, row: Row) -> None:
    queries: Mapping[str, Row] = row.get("queries") or {}
    columns = _columns(queries)
    if not columns:
        return
    table = plain_table("query", *(f">{_QUERY_COLUMNS[key]}" for key in columns))
    for name, query in queries.items():
        table.add_row(
            shown(name), *(shown(_behind(query) if key == "behind" else short(query.get(key))) for key in columns)
        )
    console.print(table)


def _behind(query: Row) -> str:
    """The lag and its age, and why the query counts as caught up nevertheless."""
    behind, why = query.get("behind"), query.get("caught_up_why") or ""
    if behind is None:
        return "-"
    asked = f"{behind}, asked {age(query.get('behind_age_seconds'))}"
    return f"{asked}; {why}" if query.get("caught_up") and why != behind else asked


def _has_news(key: str, query: Row) -> bool:
    return bool(query.get(key)) if key == "skipped_batches" else query.get(key) is not None


def plain_table(*columns: str) -> Table:
    """A table without lines; a column whose name starts with ``>`` is flush right."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        right = column.startswith(">")
        table.add_column(column.removeprefix(">"), justify="right" if right else "left", overflow="fold")
    return table


def _state(state: str) -> Text:
    return shown(state, COLOURS.get(state, ""))


def _snapshot(row: Row) -> str:
    if row.get("kind") is None:
        return str(row["snapshot_id"])
    return f"{row['snapshot_id']} ({row['kind']}, {row['files']} files, {row['bytes']:,} bytes)"


_UNITS: tuple[tuple[float, str], ...] = ((172_800, "d"), (7_200, "h"), (120, "min"))
_SECONDS_OF: Mapping[str, float] = {"d": 86_400, "h": 3_600, "min": 60}


def age(seconds: float | None) -> str:
    """An age in a readable unit; "" for None."""
    if seconds is None:
        return ""
    unit = next((name for least, name in _UNITS if seconds >= least), "s")
    return f"{seconds / _SECONDS_OF.get(unit, 1.0):.0f} {unit} ago"


def _last_event(event: Row | None) -> str:
    return "" if not event else f"{event.get('kind')} {event.get('at', '')}".strip()


def short(value: object) -> str:
    """The value in one line for a table; "-" for None."""
    if value is None:
        return "-"
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[: _MAX_CHARACTERS - 1]}…"


def snapshots(console: Console, stream_id: str, rows: Sequence[Row], unreadable: Sequence[str]) -> None:
    """After ``snapshot list``, oldest first."""
    for snapshot_id in unreadable:
        words = f"{snapshot_id} cannot be read: `streamstate snapshot verify {stream_id} {snapshot_id}` shows why"
        console.print(shown(words, "red"))
    if not rows:
        console.print("no complete snapshots")
        return
    table = plain_table("snapshot", "kind", "taken at", ">files", ">bytes", ">shared", "batches", "kept for")
    for row in rows:
        batches = " ".join(f"{name}={_batch(query)}" for name, query in row["queries"].items())
        table.add_row(
            row["snapshot_id"],
            row["kind"],
            row["taken_at"],
            str(row["files"]),
            f"{row['bytes']:,}",
            f"{row['shared_bytes']:,}",
            shown(batches),
            shown(_kept_for(row)),
        )
    console.print(table)


def _batch(query: Row) -> str:
    return "-" if query["batch_id"] is None else str(query["batch_id"])


def _kept_for(row: Row) -> str:
    words = ["pinned"] * row["pinned"] + ["last known good"] * row["last_known_good"]
    return ", ".join((*words, *(f"leased by {reader}" for reader in row["leases"])))


def pruned(console: Console, row: Row) -> None:
    """After ``snapshot prune``: what is removed and kept, and why."""
    verb = "would be removed" if row["dry_run"] else "removed"
    policy = row["policy"]
    console.print(shown(f"policy, {_POLICY_SOURCES[policy['source']]}: {retention_words(policy)}"))
    for one in row["removed"]:
        console.print(shown(f"{one['snapshot_id']} {verb}, {one['freed_bytes']:,} bytes: {'; '.join(one['why'])}"))
    for one in row["leftovers"]:
        console.print(shown(f"{one['what']} {one['which']} {verb}: {one['why']}"))
    for one in row["abandoned"]:
        console.print(shown(f"{one} was never completed, and is removed"))
    for one in row["kept"]:
        console.print(shown(f"{one['snapshot_id']} is kept: {'; '.join(one['why'])}"))
    for note in row["notes"]:
        console.print(shown(note))
    if not row["removed"] and not row["leftovers"]:
        console.print("nothing to remove")
    for mirror in row["mirrors"]:
        _pruned_mirror(console, mirror, verb)


def _pruned_mirror(console: Console, row: Row, verb: str) -> None:
    for one in row["removed"]:
        why = "; ".join(one["why"])
        console.print(shown(f"at {row['mirror']}: {one['snapshot_id']} {verb}, {one['freed_bytes']:,} bytes: {why}"))
    for one in row["kept"]:
        console.print(shown(f"at {row['mirror']}: {one['snapshot_id']} is kept: {'; '.join(one['why'])}"))
    if row["problem"]:
        console.print(shown(f"at {row['mirror']}: {row['problem']}"))
    elif not row["removed"]:
        console.print(shown(f"at {row['mirror']}: nothing to remove"))


def pinned(console: Console, row: Row) -> None:
    """After ``snapshot pin`` and ``unpin``."""
    console.print(shown(f"{row['snapshot_id']} is {'pinned' if row['pinned'] else 'no longer pinned'}"))


def retired(console: Console, row: Row) -> None:
    """After ``retire``."""
    if row["deleted"]:
        console.print(shown(f"{row['stream_id']} is gone: {row['objects']:,} objects were removed"))
        return
    why = f": {row['reason']}" if row["reason"] else ""
    console.print(shown(f"{row['stream_id']} is retired since {row['retired_at']}, by {row['retired_by']}{why}"))


def values(console: Console, row: Row) -> None:
    """A restart policy or alert rules, a line for each value."""
    table = plain_table("name", "value")
    for name, value in row.items():
        if name != "stream_id":
            text = " ".join(map(str, value)) if isinstance(value, list) else value
            table.add_row(shown(name), shown("none" if text in (None, "") else str(text)))
    console.print(table)


def ownership(console: Console, row: Row) -> None:
    """After ``label``."""
    console.print(shown(f"owner: {row['owner'] or 'none'}"))
    for name, value in row["labels"].items():
        console.print(shown(f"{name}={value}"))


def retention(console: Console, row: Row) -> None:
    """After ``snapshot retention``."""
    words = retention_words(row["retention"]) or "has no retention: nothing is pruned without being asked"
    console.print(shown(f"{row['stream_id']} {words}"))
