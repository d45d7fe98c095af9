"""``python -m demo [--chapter NAME] [--s3] [--out DIR] [--dry-run]``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from demo import life, rescale, site, versions
from demo.acts import LifeError
from demo.ending import Ending
from support.run_folder import FolderError, run_folder

INTERRUPTED = 130
CHAPTERS = {"life": life.live, "rescale": rescale.live, "versions": versions.live}


def main() -> int:
    """Run the life; 0 if every row in is a row out."""
    parser = argparse.ArgumentParser(prog="python -m demo", description="A whole life of a stream on real flights.")
    parser.add_argument(
        "--out", type=Path, default=Path("demo-out"), help="folder that is recreated (default: demo-out)"
    )
    parser.add_argument(
        "--s3", action="store_true", help="checkpoints too on a real S3 server: versitygw, without Go moto's"
    )
    parser.add_argument(
        "--chapter",
        choices=sorted(CHAPTERS),
        default="life",
        help="life: upgraded and drained (default); rescale: state in another number of partitions, and migrated;"
        " versions: from Spark 3.5 to 4.3 and back",
    )
    parser.add_argument("--site", action="store_true", help="instead: Airflow with three streams, until Ctrl-C")
    parser.add_argument("--dry-run", action="store_true", help="only name what would run")
    options = parser.parse_args()
    console = Console(soft_wrap=True)
    if options.dry_run:
        console.print("site" if options.site else options.chapter)
        return 0
    ending = Ending()
    ending.on_signals()
    try:
        return _run(options, console)
    except (KeyboardInterrupt, LifeError, FolderError) as error:
        if ending.is_asked:
            return 0 if options.site else INTERRUPTED
        console.print(f"[red]{error}[/]", highlight=False)
        return 1
    except Exception as error:
        if not ending.is_asked:
            raise
        console.print(f"[red]while it ended: {error}[/]", highlight=False)
        return 1


def _run(options: argparse.Namespace, console: Console) -> int:
    out = options.out.resolve()
    with run_folder(out) as ended:
        if ended:
            console.print(f"ended what a run before had left in {out}: pids {', '.join(map(str, ended))}")
        if options.site:
            site.show(out, console, on_s3=options.s3)
            return 0
        exact = CHAPTERS[options.chapter](out, console, checkpoints_on_s3=options.s3)
    console.print("[green]nothing lost, nothing doubled[/]" if exact else "[red]rows differ[/]")
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
