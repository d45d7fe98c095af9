"""Imports of the script from its own folder: the pinned bytes, under the paths that ``python script.py`` would show.

A module that was not found before the script ran is pinned when it is loaded: this attempt, and each later one, runs
the bytes that were loaded first (Law 15).
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    ModuleSpec,
    PathFinder,
    SourceFileLoader,
)
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

from airflow_streamstate.clock import Clock
from airflow_streamstate.control.artifacts import pin
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.start.claiming import patiently
from airflow_streamstate.errors import ObjectExistsError
from airflow_streamstate.protocol.records import FoundModule

Keep = Callable[[str, bytes], None]
"""Pins a module that was just found; gets its path below the script's folder, and its bytes."""
_INSTALLED = ("site-packages", "dist-packages")


class FoundModules:
    """What the finder of this process found; pinned for the attempt, or the rehearsal, that this process is by then."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._bodies: dict[str, bytes] = {}
        self._attempt: Attempt | None = None

    def belong_to(self, attempt: Attempt) -> None:
        """Pin for this attempt what was found, and what will be."""
        self._attempt = attempt
        for name, body in list(self._bodies.items()):
            self._pin(attempt, name, body)

    def keep(self, name: str, body: bytes) -> None:
        """As ``Keep``. Waits while the home does not answer."""
        self._bodies[name] = body
        if self._attempt is not None:
            self._pin(self._attempt, name, body)

    def _pin(self, attempt: Attempt, name: str, body: bytes) -> None:
        control = attempt.control
        module = patiently(self._clock, lambda: pin(control.home, control.stream_id, name, body))
        found = FoundModule(
            stream_id=control.stream_id,
            deployment_id=attempt.deployment_id,
            module=module,
            found_at=self._clock.now(),
            write_id=self._clock.new_uuid(),
        )
        with suppress(ObjectExistsError):
            patiently(self._clock, lambda: control.create_found_module(found))
        attempt.reporter.note(f"the script loaded {name} from its folder while it ran; it is pinned from now on")


def find_beside(script_path: str, application: str, names: Sequence[str], keep: Keep) -> None:
    """Let imports find the modules of a script's folder.

    Args:
        script_path: where the script lay when it was deployed.
        application: the pinned script; ``names`` of pinned modules lie beside it.
    """
    folder = Path(script_path).resolve().parent
    PinnedModules(Path(application).parent, folder, names, keep).install()


def show_source(path: str, source: bytes) -> None:
    """Let tracebacks show these lines for a path, whatever the file holds by now."""
    lines = source.decode("utf-8", "replace").splitlines(keepends=True)
    linecache.cache[path] = (len(source), None, lines, path)


class _PinnedLoader(SourceFileLoader):
    """Loads one module from its pinned bytes; ``path`` is where it lay."""

    def __init__(self, fullname: str, path: str, source: bytes) -> None:
        super().__init__(fullname, path)
        self._source = source

    def get_data(self, path: str) -> bytes:
        """The pinned bytes of the module itself; any other file as it is."""
        return self._source if path == self.path else super().get_data(path)

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002 - as the loader's
        # Not the parent's, which would take a cached compilation of the file that lies there now.
        code: CodeType = self.source_to_code(self._source, self.path)
        return code

    def exec_module(self, module: ModuleType) -> None:
        show_source(self.path, self._source)
        super().exec_module(module)


class PinnedModules(MetaPathFinder):
    """Finds the modules of a script's folder.

    Args:
        placed: folder with the pinned files.
        folder: the script's own folder, where it was deployed from.
        names: of the pinned files, below both.
        keep: see ``Keep``.
    """

    def __init__(self, placed: Path, folder: Path, names: Sequence[str], keep: Keep) -> None:
        self._placed = placed
        self._folder = folder
        self._launch_folder = placed.parent
        self._names = set(names)
        self._keep = keep
        self._packages = {parent.as_posix() for name in names for parent in Path(name).parents} - {"."}
        self._loaded: set[str] = set()

    def install(self) -> None:
        """Ask this finder before Python looks along its path, behind built-in modules.

        An earlier one is replaced, and what it found is loaded anew, as a run of the script in a new process would.
        """
        for earlier in [finder for finder in sys.meta_path if isinstance(finder, PinnedModules)]:
            sys.meta_path.remove(earlier)
            for fullname in earlier._loaded:
                sys.modules.pop(fullname, None)
        along_path = next((at for at, finder in enumerate(sys.meta_path) if finder is PathFinder), len(sys.meta_path))
        sys.meta_path.insert(along_path, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        along = sys.path if path is None else path
        spec = self._pinned(fullname, along) or self._namespace(fullname, path) or self._new(fullname, path, target)
        if spec is not None:
            self._loaded.add(fullname)
        return spec

    def _pinned(self, fullname: str, along: Sequence[str]) -> ModuleSpec | None:
        for below in self._places(fullname, along):
            for suffixes, loads in ((EXTENSION_SUFFIXES, self._compiled), (SOURCE_SUFFIXES, self._source)):
                for suffix in suffixes:
                    for name, is_package in ((f"{below}/__init__{suffix}", True), (f"{below}{suffix}", False)):
                        if name in self._names:
                            return loads(fullname, name, is_package)
        return None

    def _namespace(self, fullname: str, path: Sequence[str] | None) -> ModuleSpec | None:
        """A folder without ``__init__``: a package only where no module of that name is found along the whole path."""
        places = self._places(fullname, sys.path if path is None else path)
        mine = [below for below in places if below in self._packages]
        if not mine:
            return None
        other = PathFinder.find_spec(fullname, path)
        if other is not None and other.origin:
            return None
        spec = ModuleSpec(fullname, None, is_package=True)
        spec.submodule_search_locations = [str(self._folder / below) for below in mine]
        return spec

    def _places(self, fullname: str, along: Sequence[str]) -> Iterator[str]:
        """Where below the script's folder the module may lie, by a path that Python looks along."""
        last = fullname.rpartition(".")[2]
        for entry in along:
            below = _below(Path(entry), self._folder)
            if below is not None:
                yield last if below == "." else f"{below}/{last}"

    def _source(self, fullname: str, name: str, is_package: bool) -> ModuleSpec | None:
        where = self._folder / name
        loader = _PinnedLoader(fullname, str(where), (self._placed / name).read_bytes())
        search = [str(where.parent)] if is_package else None
        return spec_from_file_location(fullname, str(where), loader=loader, submodule_search_locations=search)

    def _compiled(self, fullname: str, name: str, is_package: bool) -> ModuleSpec | None:
        where = str(self._placed / name)
        search = [str((self._folder / name).parent)] if is_package else None
        loader = ExtensionFileLoader(fullname, where)
        return spec_from_file_location(fullname, where, loader=loader, submodule_search_locations=search)

    def _new(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        """A module of the folder that is not pinned yet."""
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or not spec.origin or not isinstance(spec.loader, SourceFileLoader | ExtensionFileLoader):
            return None
        name = _below(Path(spec.origin), self._folder)
        if name is None or name in self._names or any(part in _INSTALLED for part in Path(name).parts):
            return None
        if _below(Path(spec.origin), self._launch_folder) is not None:
            return None  # a home beside the script: what Spark was given with this launch
        body = Path(spec.origin).read_bytes()
        self._keep(name, body)
        placed = self._placed / name
        placed.parent.mkdir(parents=True, exist_ok=True)
        placed.write_bytes(body)  # for the Python processes of executors, too
        self._names.add(name)
        self._packages |= {parent.as_posix() for parent in Path(name).parents} - {"."}
        is_package = spec.submodule_search_locations is not None
        loads = self._source if isinstance(spec.loader, SourceFileLoader) else self._compiled
        return loads(fullname, name, is_package)


def _below(path: Path, folder: Path) -> str | None:
    """The path below the folder, by its name or by what links lead to; None where it lies elsewhere."""
    for one in (path, path.resolve()):
        if one.is_relative_to(folder):
            return one.relative_to(folder).as_posix()
    return None
