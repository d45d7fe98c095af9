"""``airflow_streamstate.driver.attempt.read_recorder``: what a real script in its own process is seen to read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[4]
RUNNER = """
import json, sys
from airflow_streamstate.driver.attempt.read_recorder import OpenedFiles
from airflow_streamstate.driver.script import run_script

opened = OpenedFiles()
opened.begin(sys.argv[1], ["pinned.py"], sys.argv[2:], ["given.yaml"])
failure = run_script(sys.argv[1], sys.argv[2:])
files = [[file.place, file.name, file.size_bytes, bool(file.sha256)] for file in opened.files()]
given = {"TZ": "UTC", "DB_PASSWORD": "secret://airflow-connection/db#password", "API_TOKEN": "hunter22"}
variables = opened.variables(given, lambda text: text.replace("swordfish", "***"))
open("SEEN", "w").write(json.dumps([files, opened.others, variables, failure and failure.traceback]))
"""


def seen(tmp_path: Path, script: str, *arguments: str, **environment: str) -> tuple[list[Any], int, dict[str, str]]:
    """The files, the number of others, and the variables that a script in ``tmp_path/app`` was seen to read."""
    app = tmp_path / "app"
    app.mkdir(exist_ok=True)
    (app / "job.py").write_text(textwrap.dedent(script))
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    subprocess.run(
        [sys.executable, "-c", RUNNER, str(app / "job.py"), *arguments],
        cwd=work,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **environment},
        timeout=60,
        check=True,
    )
    files, others, variables, traceback = json.loads((work / "SEEN").read_text())
    assert traceback is None
    return files, others, variables


def test_what_the_script_opens_is_seen_however_it_opens_it(tmp_path: Path) -> None:
    """By ``open``, ``os.open``, pathlib, configparser, and by its own modules; next to it, in the current folder, by
    an argument, or of ``--files``; not what it writes, what is pinned, and what others open."""
    (tmp_path / "app" / "conf").mkdir(parents=True)
    (tmp_path / "work").mkdir()
    for name in ("feeds.json", "conf/a.ini", "raw.bin", "pinned.py", ".env"):
        (tmp_path / "app" / name).write_text("")
    (tmp_path / "app" / "large.csv").write_bytes(b"x" * ((1 << 20) + 1))
    (tmp_path / "app" / "loads.py").write_text(
        "from pathlib import Path\nTEXT = Path(__file__).with_name('feeds.json').read_text()\n"
    )
    (tmp_path / "work" / "rules.yaml").write_text("a: 1")
    (tmp_path / "elsewhere.ini").write_text("b")
    (tmp_path / "unknown.ini").write_text("c")
    (tmp_path / "temporary").mkdir()
    (tmp_path / "temporary" / "given.yaml").write_text("d")
    script = """
        import configparser, os, sys, threading
        from pathlib import Path
        import loads

        HERE = Path(__file__).parent
        configparser.ConfigParser().read([HERE / "conf" / "a.ini", HERE / "conf" / "missing.ini"])
        os.close(os.open(HERE / "raw.bin", os.O_RDONLY))
        (HERE / "pinned.py").read_text()
        (HERE / ".env").read_text()
        thread = threading.Thread(target=lambda: (HERE / "large.csv").read_bytes())
        thread.start()
        thread.join()
        open("rules.yaml").read()
        open("rules.yaml").read()
        open(sys.argv[1].partition("=")[2]).read()
        open("../unknown.ini").read()
        open("../temporary/given.yaml").read()
        (HERE / "written.txt").write_text("x")
        with open(HERE / "log.txt", "a") as file:
            file.write("x")
    """
    files, others, _ = seen(tmp_path, script, f"--conf={tmp_path}/elsewhere.ini")
    assert files == [
        ["script", "feeds.json", 0, True],
        ["script", "conf/a.ini", 0, True],
        ["script", "raw.bin", 0, True],
        ["script", ".env", 0, False],
        ["script", "large.csv", (1 << 20) + 1, False],
        ["working", "rules.yaml", 4, True],
        ["argument", f"{tmp_path}/elsewhere.ini", 1, True],
        ["files", "given.yaml", 1, True],
    ]
    assert others == 0


def test_of_ten_thousand_files_the_first_are_recorded(tmp_path: Path) -> None:
    """The number of the others is known."""
    script = """
        from pathlib import Path

        folder = Path(__file__).parent / "many"
        folder.mkdir()
        for number in range(1_000):
            (folder / f"{number:05d}.json").write_text("1")
        for _ in range(2):
            for path in sorted(folder.iterdir()):
                path.read_text()
    """
    files, others, _ = seen(tmp_path, script)
    assert (len(files), files[0][1], files[-1][1], others) == (200, "many/00000.json", "many/00199.json", 800)


def test_variables_are_seen_by_name_and_secrets_have_no_mark(tmp_path: Path) -> None:
    """Those that the deployment was given, and those that the script asks for; not those of a walk through all, nor
    what the standard library looks up."""
    script = """
        import os, subprocess, tempfile

        bucket = os.environ["BUCKET"]
        os.getenv("LATE", "10 minutes")
        os.environ.get("SMTP_PASSWORD")
        os.environ["DSN"]
        copied = dict(os.environ)
        names = {name: value for name, value in os.environ.items() if name.startswith("X")}
        {**os.environ}
        os.environ.copy()
        tempfile.gettempdir()
        assert "TMPDIR" not in names and copied["BUCKET"] == bucket
    """
    given = {"BUCKET": "1 hour", "SMTP_PASSWORD": "hunter2", "DSN": "db:swordfish", "XX": "1", "TMPDIR": "/tmp"}
    variables = seen(tmp_path, script, **given)[2]
    assert variables == {
        "API_TOKEN": "secret",
        "BUCKET": variables["BUCKET"],
        "DB_PASSWORD": "secret://airflow-connection/db#password",
        "DSN": "secret",
        "LATE": "unset",
        "SMTP_PASSWORD": "secret",
        "TZ": variables["TZ"],
    }
    assert [len(variables[name]) for name in ("BUCKET", "TZ")] == [4, 4]
    again = seen(tmp_path, script, **{**given, "BUCKET": "2 hours"})[2]
    assert [name for name in variables if variables[name] != again[name]] == ["BUCKET"]
