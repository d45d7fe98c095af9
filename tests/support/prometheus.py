"""A real Prometheus on loopback: the installed one, else Debian's package, unpacked into the user's cache."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.debian import find_or_unpack
from support.launches import wait_until
from support.loopback import free_port


def prometheus_program() -> Path | None:
    """The program; None where it is neither installed nor to be had."""
    installed = shutil.which("prometheus")
    return Path(installed) if installed is not None else find_or_unpack("usr/bin/prometheus", "prometheus")


class Prometheus:
    """One server that scrapes one target every second."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def query(self, text: str) -> list[dict[str, Any]]:
        """The vector of a query; fails where Prometheus does not take it."""
        address = f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': text})}"
        with urllib.request.urlopen(address, timeout=30) as answer:  # noqa: S310 - our own, on loopback
            found = json.loads(answer.read())
        assert found["status"] == "success", found
        result: list[dict[str, Any]] = found["data"]["result"]
        return result


@contextmanager
def scraping(program: Path, folder: Path, target_port: int) -> Iterator[Prometheus]:
    """A server that is ended afterwards."""
    port = free_port()
    config = folder / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 1s}\n"
        "scrape_configs:\n"
        "  - job_name: streamstate\n"
        f"    static_configs: [{{targets: ['127.0.0.1:{target_port}']}}]\n"
    )
    log = (folder / "prometheus.log").open("w")
    command = [
        str(program), f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    made = Prometheus(port)
    try:
        wait_until(lambda: _has_scraped(made), lambda: (folder / "prometheus.log").read_text()[-2_000:], 60)
        yield made
    finally:
        process.terminate()
        process.wait(30)
        log.close()


def _has_scraped(made: Prometheus) -> bool:
    try:
        return any(one["value"][1] == "1" for one in made.query('up{job="streamstate"}'))
    except OSError:
        return False
