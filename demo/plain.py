"""The same upgrade without this package: the plain job is stopped by a signal, and submitted again."""

from __future__ import annotations

from pathlib import Path

from benchmarks.grounds import commits_in
from benchmarks.jobs_at_work import BareRun
from benchmarks.results import BenchmarkError
from demo.acts import LifeError
from demo.feed import Feed

WARM_BATCH_ID = 6
WAIT_SECONDS = 240.0


def downtime_seconds(feed: Feed, old: Path, new: Path, folder: Path) -> float:
    """From the last commit of one version to the first of the other, on the same checkpoint, while files arrive.

    Args:
        feed: not started yet; its files arrive at the pace of those that the supervised stream reads.
        old, new: the two versions of the script.

    Raises:
        LifeError: one of them did not run.
    """
    checkpoint = folder / "delays.checkpoint"
    arguments = ("--input", str(feed.folder), "--output", str(folder / "delays"), "--max-files-per-trigger", "2")
    feed.let_arrive(1.0)
    feed.start()
    try:
        with BareRun(str(old), arguments, folder / "old.log") as before:
            before.wait((checkpoint / "commits" / str(WARM_BATCH_ID)).exists, "a warm batch", WAIT_SECONDS)
            before.stop(WAIT_SECONDS)
        last_id = max(commits_in(checkpoint))
        with BareRun(str(new), arguments, folder / "new.log") as after:
            after.wait((checkpoint / "commits" / str(last_id + 1)).exists, "a batch of the new one", WAIT_SECONDS)
        commits = commits_in(checkpoint)
        return commits[last_id + 1] - commits[last_id]
    except BenchmarkError as error:
        raise LifeError(f"the same upgrade without us could not be measured: {error}") from error
    finally:
        feed.stop()
