"""One self-contained HTML page: the timeline as a picture, the comparison and the gaps as tables."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from html import escape
from pathlib import Path

from airflow_streamstate.protocol.terms.version import Version
from demo.compare import Verdict
from demo.timeline import Lane, Move, own_commits
from demo.waterfall import waterfall

WIDTH = 1120
LEFT = 150
LANE_HEIGHT = 96
MARKS = {
    "Claimed": ("#8a94a6", "driver up"),
    "QueryStarted": ("#2f6fde", "query started"),
    "SnapshotReady": ("#0a8f5b", "snapshot"),
    "Draining": ("#c77700", "draining"),
    "Drained": ("#7a3fd1", "drained"),
    "Stopped": ("#b3261e", "stopped"),
}
STORY = (
    "20,000 real flights, read as files arrive by an unmodified PySpark script; upgraded with its state by one verb,"
    " and then, after a drain, to a version that the state could not survive, by an example DAG in Airflow."
)
MEASURED = (
    "From the last commit of one version to the first commit of the next, and the part of it in which no query ran;"
    " once each, on this machine."
)
ABOUT_DOWNTIME = (
    f"{MEASURED} The last row is the first upgrade once more, on a copy of the input, as it is done without us: the"
    " plain job is stopped by a signal and submitted again. What it cannot do: know before the stop whether the new"
    " version works."
)
STYLE = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")


def page(
    stream_id: str,
    lanes: list[Lane],
    moves: list[Move],
    verdicts: list[Verdict],
    facts: dict[str, str],
    commit_note: str = "",
    story: str = STORY,
    about_downtime: str = ABOUT_DOWNTIME,
) -> str:
    """The page as one HTML text without anything from outside.

    Args:
        story, about_downtime: HTML of what happened, and of how its downtime is measured.
    """
    exact = all(verdict.exact for verdict in verdicts)
    headline = "Every row in is a row out: nothing lost, nothing doubled." if exact else "Rows differ: see below."
    return f"""<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1"><title>{escape(stream_id)}: a whole life</title>
<style>{STYLE}</style></head><body>
<h1>The life of <code>{escape(stream_id)}</code></h1>
<p>{story}</p>
<div class="verdict{"" if exact else " bad"}">{headline}</div>
<h2>What happened</h2>{_picture(lanes)}{_key()}
<h2>Rows in, rows out</h2>
<p>Each output row against a plain batch computation over the files that the snapshots say were read.</p>
{_verdicts(verdicts)}
<h2>Downtime</h2>
<p>{about_downtime} {escape(commit_note)}</p>
{_moves(moves)}
{"".join(waterfall(move.downtime) for move in moves if move.downtime is not None)}
<h2>Facts</h2>{_facts(facts)}
</body></html>
"""


def _picture(lanes: list[Lane]) -> str:
    times = [commit.at for lane in lanes for commit in lane.commits] + [m.at for lane in lanes for m in lane.moments]
    begin, end = min(times), max(times)
    span = max((end - begin).total_seconds(), 1.0)
    height = LANE_HEIGHT * len(lanes) + 44

    def x(at: datetime) -> float:
        return LEFT + (WIDTH - LEFT - 30) * (at - begin).total_seconds() / span

    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="timeline of all deployments">']
    step = next(s for s in (5, 10, 20, 30, 60, 120, 300, 600, 3600) if span / s <= 14)
    for seconds in range(0, int(span) + 1, step):
        at = x(begin + timedelta(seconds=seconds))
        parts.append(f'<line x1="{at:.1f}" y1="14" x2="{at:.1f}" y2="{height - 26}" stroke="var(--line)"/>')
        parts.append(f'<text class="soft" x="{at:.1f}" y="{height - 9}" text-anchor="middle">{seconds} s</text>')
    for number, lane in enumerate(lanes):
        parts.append(_lane(lane, LANE_HEIGHT * number + 20, x, lanes[number - 1] if number else None))
    parts.append("</svg>")
    return "".join(parts)


def _name_of(version: Version) -> str:
    return version.version_label or version.application.name


def _lane(lane: Lane, top: int, place: Callable[[datetime], float], before: Lane | None) -> str:
    middle = top + 44
    own = own_commits(before, lane)
    spec = lane.spec
    parts = [
        f'<text x="12" y="{middle - 6}" font-weight="600">{escape(spec.deployment_id)}</text>',
        f'<text class="soft" x="12" y="{middle + 10}">{escape(_name_of(spec.version))}</text>',
        f'<text class="soft" x="12" y="{middle + 25}">{escape(spec.start.mode)}</text>',
    ]
    if own:
        first, last = place(own[0].at), place(own[-1].at)
        parts.append(
            f'<rect x="{first:.1f}" y="{middle - 9}" width="{max(last - first, 2):.1f}" height="18" rx="4" '
            'fill="#2f6fde" opacity=".16"/>'
        )
    for commit in own:
        parts.append(
            f'<circle cx="{place(commit.at):.1f}" cy="{middle}" r="3.2" fill="#2f6fde">'
            f"<title>batch {commit.batch_id} committed {commit.at:%H:%M:%S}</title></circle>"
        )
    level = 0
    for moment in lane.moments:
        if moment.kind not in MARKS:
            continue
        colour, word = MARKS[moment.kind]
        at = place(moment.at)
        y = middle - 34 if level % 2 == 0 else middle + 40
        level += 1
        anchor = "end" if at > WIDTH - 120 else "start"
        shift = -4 if anchor == "end" else 4
        parts.append(
            f'<line x1="{at:.1f}" y1="{middle - 38}" x2="{at:.1f}" y2="{middle + 40}" stroke="{colour}" '
            f'stroke-width="1.6"><title>{escape(moment.kind)} {moment.at:%H:%M:%S} {escape(moment.text)}</title></line>'
        )
        parts.append(f'<text class="soft" x="{at + shift:.1f}" y="{y + 4}" text-anchor="{anchor}">{word}</text>')
    return "".join(parts)


def _key() -> str:
    items = "".join(f'<span><i style="background:{colour}"></i>{word}</span>' for colour, word in MARKS.values())
    return (
        f'<p class="key"><span><i style="background:#2f6fde;border-radius:50%"></i>a committed batch</span>{items}</p>'
    )


def _verdicts(verdicts: list[Verdict]) -> str:
    rows = "".join(
        f"<tr><td>{escape(v.title)}</td><td class=n>{v.input_rows:,}</td><td class=n>{v.output_rows:,}</td>"
        f"<td class=n>{v.keys:,}</td><td class={'ok' if v.exact else 'no'}>"
        f"{'exact' if v.exact else escape(f'{len(v.wrong)} keys differ: ' + '; '.join(v.wrong[:5]))}</td></tr>"
        for v in verdicts
    )
    return (
        "<table><tr><th>compared</th><th class=n>flights in</th><th class=n>rows out</th><th class=n>keys</th>"
        f"<th>verdict</th></tr>{rows}</table>"
    )


def _moves(moves: list[Move]) -> str:
    rows = "".join(
        f"<tr><td>{escape(move.before)} → {escape(move.after)}</td><td>{escape(move.how)}</td>"
        f"<td class=n>{move.downtime_seconds:.1f} s</td>"
        f"<td class=n>{'' if move.not_running_seconds is None else f'{move.not_running_seconds:.1f} s'}</td></tr>"
        for move in moves
    )
    head = "<tr><th>upgrade</th><th>how</th><th class=n>downtime</th><th class=n>no query ran</th></tr>"
    return f"<table>{head}{rows}</table>"


def _facts(facts: dict[str, str]) -> str:
    rows = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in facts.items())
    return f"<table>{rows}</table>"
