"""A downtime as a picture: each phase a bar from the moment before it, on one axis of seconds since the last commit."""

from __future__ import annotations

import math
from html import escape

from airflow_streamstate.cli.upgrade import state_words, steps_of
from airflow_streamstate.protocol.positions import PHASES, Downtime

WIDTH = 1120
LEFT = 330
RIGHT = 70
TOP = 10
ROW_HEIGHT = 24
CLOCKS = {"store": "#2f6fde", "driver": "#0a8f5b", "controller": "#c77700"}
STEPS_SECONDS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 300, 3_600)
LEAST_SECONDS = 0.005
"""What took less gets no number next to its bar."""


def waterfall(downtime: Downtime) -> str:
    """The picture as HTML without anything from outside."""
    steps = steps_of(downtime)
    begin, end = min(step[1] for step in steps), max(step[2] for step in steps)
    span = max(end - begin, STEPS_SECONDS[0])
    height = ROW_HEIGHT * len(steps) + 34

    def x(seconds: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (seconds - begin) / span

    title = f"{downtime.query_name}: {downtime.from_deployment_id} to {downtime.to_deployment_id}"
    parts = [
        f"<h3>{escape(title)}: {downtime.seconds or 0.0:.2f} s</h3>",
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}, phase by phase">',
    ]
    step_seconds = next(step for step in STEPS_SECONDS if span / step <= 12)
    for number in range(math.ceil(begin / step_seconds), math.floor(end / step_seconds) + 1):
        at = x(number * step_seconds)
        parts.append(f'<line x1="{at:.1f}" y1="8" x2="{at:.1f}" y2="{height - 22}" stroke="var(--line)"/>')
        label = f"{number * step_seconds:g} s"
        parts.append(f'<text class="soft" x="{at:.1f}" y="{height - 7}" text-anchor="middle">{label}</text>')
    for row, (phase, before, at_seconds, clock) in enumerate(steps):
        middle = TOP + ROW_HEIGHT * (row + 0.5)
        words, width = PHASES.get(phase, phase), max(x(at_seconds) - x(before), 2.0)
        right = x(at_seconds)
        parts.append(f'<text x="{LEFT - 12}" y="{middle + 4:.1f}" text-anchor="end">{escape(words)}</text>')
        parts.append(
            f'<rect x="{right - width:.1f}" y="{middle - 7:.1f}" width="{width:.1f}" height="14" rx="3"'
            f' fill="{CLOCKS.get(clock, "#8a94a6")}"><title>{escape(words)}: {at_seconds:.3f} s after the last commit,'
            f" by the clock of the {escape(clock)}</title></rect>"
        )
        if at_seconds - before >= LEAST_SECONDS:
            took = f"{at_seconds - before:.2f} s"
            parts.append(f'<text class="soft" x="{right + 6:.1f}" y="{middle + 4:.1f}">{took}</text>')
    keys = (
        f'<span><i style="background:{colour}"></i>by the clock of the {name}</span>' for name, colour in CLOCKS.items()
    )
    state = f'<p class="soft">{escape(words)}</p>' if (words := state_words(downtime)) else ""
    return f'{"".join(parts)}</svg>{state}<p class="key">{"".join(keys)}</p>'
