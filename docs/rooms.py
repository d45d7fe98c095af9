"""The table and the picture of the rooms, in docs/project/contributing.md: ``python docs/rooms.py`` writes both."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "airflow_streamstate"
PAGE = ROOT / "docs" / "project" / "contributing.md"
PICTURE = ROOT / "docs" / "assets" / "rooms.svg"
START, END = "<!-- rooms -->", "<!-- end of rooms -->"


@dataclass(frozen=True)
class Room:
    """One row of the table, and one box of the picture.

    Attributes:
        holds: folders and modules of the package.
        row: of the picture, from the top; a row imports only rows below it.
    """

    name: str
    holds: tuple[str, ...]
    purpose: str
    row: int

    def files(self) -> list[Path]:
        """The Python files of the room."""
        found: list[Path] = []
        for name in self.holds:
            module = PACKAGE / f"{name}.py"
            found += [module] if module.exists() else sorted((PACKAGE / name).rglob("*.py"))
        return found

    def size(self) -> str:
        """Its lines in thousands, so that few changes change the page."""
        lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in self.files())
        return f"{max(1, round(lines / 1000))}k"


AIRFLOW = ("operators", "sensors", "triggers", "hooks", "notifications", "page", "assets", "streams_dag")
ROOMS = (
    Room(
        "Airflow",
        (*AIRFLOW, "provider_info", "example_dags"),
        "what a DAG author writes, the connection, the page in Airflow, the example DAGs",
        0,
    ),
    Room("Shell", ("cli",), "the command `streamstate`: one module for each group of verbs", 0),
    Room("Files of streams", ("declarations",), "`validate`, `diff`, `apply`, `export`", 1),
    Room("Alerts", ("alerts",), "rules over what was observed, the webhook, the metrics", 1),
    Room(
        "Controller",
        ("controller", "allowed"),
        "observe, decide (pure), record, act: every verb; no Airflow, no Spark",
        2,
    ),
    Room("Driver", ("driver",), "inside the Spark driver; only `driver/spark` imports pyspark", 2),
    Room("Launchers", ("launch",), "start, find and end drivers: here, YARN, Kubernetes, EMR, SSH", 3),
    Room("Plans", ("plan",), "what a query does, and what a change of it means; needs no Spark", 3),
    Room(
        "Snapshots and checkpoints",
        ("snapshot", "checkpoint"),
        "copies of state, and Spark's checkpoint folder, which no other room knows",
        3,
    ),
    Room(
        "Connectors and sources",
        ("connectors", "sources", "migration"),
        "what is known of single sources and sinks; public interfaces",
        3,
    ),
    Room(
        "Records",
        ("control", "protocol"),
        "the objects of a home: ids, terms, codec, journals, compare-and-swap registers",
        4,
    ),
    Room(
        "Stores",
        ("store", "retry", "clock", "errors", "frozen", "older_python"),
        "bytes under keys: disk, S3, GCS, Azure; time; errors",
        5,
    ),
)

WIDTH, HEIGHT, GAP, MARGIN = 960, 58, 10, 10


def table() -> str:
    """The Markdown table, in the order of the picture."""
    rows = ["| room | folders | purpose | files | lines |", "|---|---|---|---|---|"]
    for room in ROOMS:
        folders = " ".join(f"`{name}`" for name in room.holds)
        rows.append(f"| {room.name} | {folders} | {room.purpose} | {len(room.files())} | {room.size()} |")
    return "\n".join(rows)


def picture() -> str:
    """The SVG: a box for each room; what is drawn above imports what is drawn below."""
    last = max(room.row for room in ROOMS)
    height = MARGIN * 2 + (last + 1) * HEIGHT + last * GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'aria-label="The rooms of the package: what is above imports what is below">',
        "<style>rect{fill:#e8eaf6;stroke:#3f51b5}text{font-family:sans-serif;fill:#1a237e;text-anchor:middle}"
        ".name{font-size:16px;font-weight:bold}.size{font-size:12px}</style>",
    ]
    for row in range(last + 1):
        boxes = [room for room in ROOMS if room.row == row]
        width = (WIDTH - 2 * MARGIN - GAP * (len(boxes) - 1)) / len(boxes)
        top = MARGIN + row * (HEIGHT + GAP)
        for at, room in enumerate(boxes):
            left = MARGIN + at * (width + GAP)
            middle = left + width / 2
            size = f"{len(room.files())} files, {room.size()} lines"
            parts += [
                f'<rect x="{left:.0f}" y="{top}" width="{width:.0f}" height="{HEIGHT}" rx="6"/>',
                f'<text class="name" x="{middle:.0f}" y="{top + 25}">{room.name}</text>',
                f'<text class="size" x="{middle:.0f}" y="{top + 44}">{size}</text>',
            ]
    return "\n".join([*parts, "</svg>", ""])


def refreshed(page: str) -> str:
    """The page with the table of today; raises ValueError where the page has no place for it."""
    before, start, rest = page.partition(START)
    _, end, after = rest.partition(END)
    if not (start and end):
        raise ValueError(f"{PAGE.name} has no place for the rooms: {START} … {END}")
    image = "![The rooms: what is above imports what is below](../assets/rooms.svg)"
    return f"{before}{START}\n\n{table()}\n\n{image}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(refreshed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    PICTURE.write_text(picture(), encoding="utf-8")
