"""Every command that the pages name is known here, and starts. Those of ``streamstate`` have tests of their own."""

from __future__ import annotations

import ast
import functools
import re
import runpy
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import tomllib

from support.docs_commands import ROOT, other_commands, tox_commands
from support.scratch_copy import ScratchCopy
from support.tox_environments import ToxEnvironment, started, tox_environments, tox_ini

AS_WRITTEN = (r"^export \w", r"^openssl rand ", r"^python -c ", r"^python docs/laws\.py", r"^python tests/mutation/")
"""What changes nothing outside of its own process, and ends at once."""
WITH_MORE = {
    r"^python tests/net/record\.py \w+$": "--check",
    r"^python3 -m venv \S+$": "--without-pip",
}
"""What does little with one more argument."""
IN_A_COPY = r"^python docs/(compatibility|rewrites|rooms|sinks|upgrades)\.py$"
NEEDS = {
    "the registry; test_installable.py resolves all extras": r"^(\S+/)?pip install ",
    "a cluster of Kubernetes": r"^kubectl ",
    "a broker of Kafka": r"^kafka-consumer-groups\.sh ",
    "a script of the reader, or a cluster": r"^spark-submit ",
    "a disk that two machines share": r"^rsync ",
    "a receiver, and an end by Ctrl-C": r"^STREAMSTATE_WEBHOOK=\S+ streamstate watch ",
    "Airflow (test_provider.py)": r"^airflow ",
    "half a minute; test_traces.py and test_surfaces.py compare the same": r"^python tests/net/record\.py$",
    "seconds that test_terms.py spends on it, in a copy with an edit": r"^python docs/refresh\.py$",
    "what the lines of the tutorial before it made (test_tutorial.py)": r"^(source|mkdir|echo|mv) .*~/flights/",
}
"""What is not started here."""
ENTRIES = (*AS_WRITTEN, *WITH_MORE, IN_A_COPY, *NEEDS.values())
OURS = ("benchmarks", "demo", "tests/mutation/break_laws.py")
CHEAP = {
    "pytest": ("--collect-only", "-q"),
    "pip-audit": ("--dry-run",),
    **dict.fromkeys(OURS, ("--dry-run",)),
    **dict.fromkeys(("ruff", "lint-imports", "mypy", "mkdocs", "mutmut"), ("--help",)),
}
"""By the program of an environment of tox: what follows its arguments so that it starts and does little."""
SMALL_TEST = "tests/structure/test_tiers.py"
ENDS_OF_PYTEST = (0, 5)
"""5: no test was selected: the file has none of the tier, or needs what is missing here."""
ENV_LIST = tuple(tox_ini()["tox"]["env_list"].split(", "))
OTHERS = [command for command in other_commands() if command not in tox_commands()]
IMPORTS = "import importlib; [getattr(importlib.import_module(module), name) for module, name in {}]"


def program_of(words: Sequence[str]) -> str:
    """What a command line of tox.ini runs, wherever it is in the line."""
    return next((word for word in words if word in CHEAP), words[0])


def test_every_command_is_started_or_its_need_is_named() -> None:
    """A new command of a page needs an entry above, and each entry has a command."""
    assert [command for command in OTHERS if sum(bool(re.search(one, command)) for one in ENTRIES) != 1] == []
    assert [one for one in ENTRIES if not any(re.search(one, command) for command in OTHERS)] == []


def test_every_program_of_an_environment_is_known() -> None:
    """A new one needs a cheap argument."""
    ini = tox_ini()
    lines = [line for one in ini.sections() for line in ini[one].get("commands", "").splitlines() if line]
    assert [line for line in lines if program_of(line.split()) not in CHEAP] == []


def test_every_environment_and_variable_of_a_command_is_in_tox_ini() -> None:
    """``airflow31`` has its section with others; a variable that is not passed would change nothing."""
    ini, commands = tox_ini(), tox_commands().values()
    sections = re.sub(r"(\w+)\{(\w+),(\w+),(\w+)\}", r"\1\2 testenv:\1\3 testenv:\1\4", " ".join(ini.sections()))
    assert {name for one in commands for name in one.names} - set(ENV_LIST) <= {
        name.removeprefix("testenv:") for name in sections.split()
    }
    assert {name for one in commands for name in one.environ} <= set(ini["testenv"]["pass_env"].split())


def test_every_extra_that_pages_install_is_there() -> None:
    """``pip`` only warns of another one."""
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    named = {extra for command in OTHERS for extra in re.findall(r"pip install .*\[(\w+)\]", command)}
    assert "spark" in named
    assert named - known.keys() == set()


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ToxEnvironment]:
    """All that the pages name."""
    names = {name for command in tox_commands().values() for name in command.names}
    return tox_environments(names.union(ENV_LIST), tmp_path_factory.mktemp("tox"))


@functools.cache
def ended(words: tuple[str, ...], variables: tuple[tuple[str, str], ...] = ()) -> None:
    """Starts a command once, however many pages name it; it must end well."""
    done = started(words, dict(variables))
    good = ENDS_OF_PYTEST if program_of(words) == "pytest" else (0,)
    assert done.returncode in good, f"{shlex.join(words)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


def of_environments() -> dict[tuple[str, bool], tuple[list[str] | None, dict[str, str]]]:
    """What all pages add to an environment of tox, at once: words, variables; apart from it where they add nothing."""
    found: dict[tuple[str, bool], tuple[list[str] | None, dict[str, str]]] = {}
    for command in tox_commands().values():
        for name in command.names or ENV_LIST:
            bare = command.words is None
            words, variables = found.setdefault((name, bare), (None if bare else [], {}))
            variables.update(command.environ)
            if words is not None:
                words.extend(command.words or ())
    return found


def with_little(words: Sequence[str]) -> list[str]:
    """A command line of pytest with one small file for all that it names, as its tier collects the others.

    A folder whose conftest.py adds an option stays, for that option.
    """
    places = [word for word in words if word.startswith("tests/")]
    assert [place for place in places if not (ROOT / place).exists()] == []
    kept = [word for word in words if word not in places or has_options(ROOT / word)]
    return [*kept, SMALL_TEST]


def has_options(folder: Path) -> bool:
    conftest = folder / "conftest.py"
    return conftest.exists() and "pytest_addoption" in conftest.read_text(encoding="utf-8")


@pytest.mark.full
@pytest.mark.parametrize(("name", "bare"), of_environments())
def test_every_environment_starts(name: str, bare: bool, environments: dict[str, ToxEnvironment]) -> None:
    """Each command line of tox.ini with what the pages add to it, as tox puts it together, in this interpreter."""
    added, variables = of_environments()[name, bare]
    environment = environments[name]
    for words in environment.commands(added):
        program = program_of(words)
        line = [*(with_little(words) if program == "pytest" else words), *CHEAP[program]]
        if program not in OURS:
            place = line.index(program)
            line[place:place] = environment.fetched(program)
        ended(tuple(line), tuple({**environment.variables, **variables}.items()))


@pytest.mark.full
@pytest.mark.parametrize("text", [text for text in OTHERS if any(re.search(one, text) for one in AS_WRITTEN)])
def test_what_changes_nothing_runs_as_written(text: str) -> None:
    """In a shell; ``[N]`` is an argument that may be left out."""
    ended(("bash", "-c", text.replace("[N]", "3")))


@pytest.mark.full
@pytest.mark.parametrize("text", [text for text in OTHERS if any(re.search(one, text) for one in WITH_MORE)])
def test_what_does_little_with_one_more_argument_starts(text: str, tmp_path: Path) -> None:
    """A folder that is made is one of this test."""
    more = next(argument for one, argument in WITH_MORE.items() if re.search(one, text))
    ended(tuple(shlex.split(re.sub(r"(-m venv) \S+", rf"\1 {tmp_path}/venv", text) + f" {more}")))


@pytest.mark.full
def test_what_writes_pages_leaves_them_as_they_are(tmp_path: Path) -> None:
    """In a copy: each script runs, and every page is fresh."""
    copy = ScratchCopy(tmp_path)
    (tmp_path / "docs" / "assets").mkdir(exist_ok=True)
    for text in OTHERS:
        if re.search(IN_A_COPY, text):
            copy.run(*text.split()[1:])
    assert copy.changed() == []


@pytest.mark.full
def test_every_folder_that_a_command_names_has_tests_of_its_tier() -> None:
    """Otherwise nothing would run, and that would be no failure."""
    of_tier = runpy.run_path(str(ROOT / "docs" / "laws.py"))["tests_of_tier"]
    empty = []
    for text, command in tox_commands().items():
        words = command.words or ()
        tier = words[words.index("--tier") + 1] if "--tier" in words else None
        for place in [word for word in words if word.startswith("tests/")] if tier else ():
            if not any(f"tests/{test}".startswith(place) for test in of_tier(tier)):
                empty.append((text, place))
    assert empty == []


def deferred_imports(folder: Path) -> Iterator[tuple[str, str]]:
    """What the functions of its modules import from this repository, which no start imports."""
    for path in sorted(folder.rglob("*.py")):
        if "jobs" not in path.parts:  # scripts of drivers
            tree = ast.parse(path.read_text(encoding="utf-8"))
            functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
            for node in (inner for one in functions for inner in ast.walk(one)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in {"support", folder.name}:
                    yield from ((str(node.module), alias.name) for alias in node.names)


@pytest.mark.full
@pytest.mark.parametrize("name", ["benchmarks", "demo"])
def test_what_a_benchmark_or_the_demo_imports_later_is_there(name: str) -> None:
    """By the path that the start makes, for each benchmark, also for those that run by name alone."""
    found = [pair for pair in deferred_imports(ROOT / name) if pair[0] != name]
    modules = [(module, named) for module, named in found if not (ROOT / "tests" / module.replace(".", "/")).is_dir()]
    packages = [(f"{module}.{named}", "__file__") for module, named in found if (module, named) not in modules]
    assert modules
    assert packages
    ended(("python", "-c", f"import {name}; " + IMPORTS.format(sorted({*modules, *packages}))))
