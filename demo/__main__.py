"""``python -m demo [--chapter NAME] [--s3] [--out DIR]``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from demo import life, rescale, site
from demo.acts import LifeError

CHAPTERS = {"life": life.live, "rescale": rescale.live}


def main() -> int:
    """Run the life; 0 if every row in is a row out."""
    parser = argparse.ArgumentParser(prog="python -m demo", description="A whole life of a stream on real flights.")
    parser.add_argument(
        "--out", type=Path, default=Path("demo-out"), help="folder that is made anew (default: demo-out)"
    )
    parser.add_argument(
        "--s3", action="store_true", help="checkpoints too on a real S3 server: versitygw, without Go moto's"
    )
    parser.add_argument(
        "--chapter",
        choices=sorted(CHAPTERS),
        default="life",
        help="life: upgraded and drained (default); rescale: state in another number of partitions, and migrated",
    )
    parser.add_argument("--site", action="store_true", help="instead: Airflow with three streams, until Ctrl-C")
    options = parser.parse_args()
    console = Console(soft_wrap=True)
    try:
        if options.site:
            site.show(options.out.resolve(), console, on_s3=options.s3)
            return 0
        live = CHAPTERS[options.chapter]
        exact = live(options.out.resolve(), console, checkpoints_on_s3=options.s3)
    except LifeError as error:
        console.print(f"[red]{error}[/]")
        return 1
    console.print("[green]nothing lost, nothing doubled[/]" if exact else "[red]rows differ[/]")
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
