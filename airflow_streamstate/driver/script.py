"""Runs the user's script as ``python script.py`` would: the same imports, the same ``__main__``, the same end."""

from __future__ import annotations

import builtins
import ctypes
import itertools
import linecache
import os
import signal
import sys
import threading
import traceback
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
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
from typing import Any

from airflow_streamstate.clock import Clock
from airflow_streamstate.control.artifacts import pin
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.shutdown.script_end import ScriptFailure, refusal_in
from airflow_streamstate.driver.start.claim import patiently
from airflow_streamstate.errors import ObjectExistsError
from airflow_streamstate.protocol.records import FoundModule

# Imports of the script from its own folder: the pinned bytes, under the paths that ``python script.py`` would show.
#
# A module that was not found before the script ran is pinned when it is loaded: this attempt, and each later one,
# runs the bytes that were loaded first (Law 15).

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
        script_path: where the script was when it was deployed.
        application: the pinned script; ``names`` of pinned modules are alongside it.
    """
    folder = Path(script_path).resolve().parent
    PinnedModules(Path(application).parent, folder, names, keep).install()


def show_source(path: str, source: bytes) -> None:
    """Let tracebacks show these lines for a path, whatever the file holds by now."""
    lines = source.decode("utf-8", "replace").splitlines(keepends=True)
    linecache.cache[path] = (len(source), None, lines, path)


class _PinnedLoader(SourceFileLoader):
    """Loads one module from its pinned bytes; ``path`` is where it was deployed from."""

    def __init__(self, fullname: str, path: str, source: bytes) -> None:
        super().__init__(fullname, path)
        self._source = source

    def get_data(self, path: str) -> bytes:
        """The pinned bytes of the module itself; any other file as it is."""
        return self._source if path == self.path else super().get_data(path)

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002 - as the loader's
        # Not the parent's, which would take a cached compilation of the file that is there now.
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

        An earlier one is replaced, and what it found is loaded again, as a run of the script in a new process would.
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
        """Where below the script's folder the module may be, by a path that Python looks along."""
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
        if spec is None or not spec.origin or not isinstance(spec.loader, (SourceFileLoader, ExtensionFileLoader)):
            return None
        name = _below(Path(spec.origin), self._folder)
        if name is None or name in self._names or any(part in _INSTALLED for part in Path(name).parts):
            return None
        if _below(Path(spec.origin), self._launch_folder) is not None:
            return None  # a home alongside the script: what Spark was given with this launch
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
    """The path below the folder, by its name or by what links lead to; None where it is elsewhere."""
    for one in (path, path.resolve()):
        if one.is_relative_to(folder):
            return one.relative_to(folder).as_posix()
    return None


# Ends a run of a script from another thread, as if each of its threads had called ``sys.exit()``.
#
# A rehearsal ends so a script that waits for ever; its process can then run the script again.

END_SIGNAL = signal.SIGRTMIN + 7 if sys.platform == "linux" else signal.SIGUSR2
"""Wakes the main thread from a sleep; a number that scripts and Spark do not use."""
OWN_THREADS = "streamstate"
"""How the names of this package's threads start."""
LEFT_SECONDS = 1.0
"""How long one daemon thread is waited for; it ends later, where it sleeps."""
_IN_A_CALL = "py4j"


class ScriptEnd:
    """Ends one run of a script after another. Made in the main thread, which runs the scripts."""

    def __init__(self) -> None:
        self._older: set[threading.Thread] = set()
        self._namespace: dict[str, Any] | None = None
        signal.signal(END_SIGNAL, self._leave_lines)

    @contextmanager
    def run(self, namespace: dict[str, Any]) -> Iterator[None]:
        """Around a run of the script with these global names: its lines, and the wait for its threads."""
        self._older, self._namespace = set(threading.enumerate()), namespace
        try:
            yield
        finally:
            self._namespace = None

    def ask(self) -> None:
        """Raise SystemExit in the threads of the run; nothing between two runs.

        The main thread gets it at once, even while it sleeps; another thread when it runs Python code next. A script
        may catch it, so ask again while the run is not over.
        """
        main = threading.main_thread().ident
        if self._namespace is not None and main is not None:
            signal.pthread_kill(main, END_SIGNAL)
        for thread in self.threads():
            if thread.ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))

    def leave_no_thread(self) -> None:
        """Ask the daemon threads of the run to end, and wait a little: another run of the script may follow."""
        for thread in self.threads():
            self.ask()
            thread.join(LEFT_SECONDS)

    def threads(self) -> list[threading.Thread]:
        """The living threads of the run, without the main one.

        These are the threads that python waits for before it exits, and daemon threads that run functions of the
        script itself.
        """
        if self._namespace is None:
            return []
        return [thread for thread in script_threads() if thread not in self._older and self._is_of_run(thread)]

    def _is_of_run(self, thread: threading.Thread) -> bool:
        return not thread.daemon or self._runs_lines_in(_frame_of(thread))

    def _leave_lines(self, _number: int, frame: types.FrameType | None) -> None:
        own = next((each for each in _frames(frame) if each.f_globals is self._namespace), None)
        if own is None:
            return
        if any(str(each.f_globals.get("__name__", "")).startswith(_IN_A_CALL) for each in _frames(frame)):
            # The answer of the JVM would be taken for that of the main thread's next call: end it behind this one.
            own.f_trace = _leave_line
            sys.settrace(lambda *_: None)
            return
        raise SystemExit(0)

    def _runs_lines_in(self, frame: types.FrameType | None) -> bool:
        """Whether functions of the script itself are running, or its last line has not been reached."""
        return self._namespace is not None and any(each.f_globals is self._namespace for each in _frames(frame))


def script_threads() -> list[threading.Thread]:
    """The living threads that are neither the main one, nor the current one, nor this package's."""
    own = (threading.current_thread(), threading.main_thread())
    return [thread for thread in threading.enumerate() if thread not in own and not thread.name.startswith(OWN_THREADS)]


def _leave_line(_frame: types.FrameType, _event: str, _argument: object) -> None:
    sys.settrace(None)
    raise SystemExit(0)


def _frame_of(thread: threading.Thread) -> types.FrameType | None:
    return None if thread.ident is None else sys._current_frames().get(thread.ident)


def _frames(frame: types.FrameType | None) -> Iterator[types.FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


_PACKAGE = str(Path(__file__).resolve().parents[1])
_GROUP: type | tuple[()] = getattr(builtins, "BaseExceptionGroup", ())  # from Python 3.11 on
_STARTERS: list[types.ModuleType | None] = []
MISSING_STATUS = 2
INTERRUPTED_STATUS = 130


def run_script(
    application: str,
    arguments: Sequence[str],
    before_report: Callable[[BaseException], None] = lambda _error: None,
    redacted: Callable[[str], str] = lambda text: text,
    script_path: str | None = None,
    end: ScriptEnd | None = None,
) -> ScriptFailure | None:
    """Run a script until its last line and its threads have ended; None where python would exit with 0.

    A failure is printed as python would print it, without secrets.

    Args:
        before_report: called with an error before it is printed; need not return.
        script_path: the ``__file__`` of the script, where it was when it was deployed; None for ``application``.
        end: what another thread ends this run by.
    """
    shown = application if script_path is None else script_path
    try:
        source = Path(application).read_bytes()
    except OSError as error:
        text = f"can't open file '{application}': [Errno {error.errno}] {error.strerror}"
        print(f"{sys.executable}: {text}", file=sys.stderr)
        return ScriptFailure(error=text, traceback="", exit_status=MISSING_STATUS)
    show_source(shown, source)
    module = _become_main(shown, arguments)
    with nullcontext() if end is None else end.run(module.__dict__):
        failure = _run_lines(source, shown, module, before_report, redacted)
        join_threads()
        if end is not None:
            end.leave_no_thread()
    return failure


def _run_lines(
    source: bytes,
    shown: str,
    module: types.ModuleType,
    before_report: Callable[[BaseException], None],
    redacted: Callable[[str], str],
) -> ScriptFailure | None:
    failure: ScriptFailure | None = None
    try:
        # dont_inherit: the `from __future__` of this file must not apply to the script.
        code = compile(source, shown, "exec", dont_inherit=True)
        exec(code, module.__dict__)  # noqa: S102  running the script is the purpose
    except SystemExit as error:
        failure = _exit_failure(error, redacted)
    except BaseException as error:
        before_report(error)
        failure = _print_failure(error, redacted)
    return failure


def keep_surroundings() -> Callable[[], None]:
    """Remember the current folder and the environment, but for Spark's own variables; returns what restores them."""
    folder = Path.cwd()
    variables = {name: value for name, value in os.environ.items() if not _is_sparks(name)}

    def put_back() -> None:
        os.chdir(folder)
        for name in [name for name in os.environ if not _is_sparks(name) and name not in variables]:
            del os.environ[name]
        os.environ.update(variables)

    return put_back


def _is_sparks(variable: str) -> bool:
    return variable.startswith(("SPARK", "PYSPARK"))


def _become_main(application: str, arguments: Sequence[str]) -> types.ModuleType:
    module = types.ModuleType("__main__")
    module.__file__ = application
    module.__loader__ = SourceFileLoader("__main__", application)
    module.__dict__.update({"__builtins__": builtins, "__cached__": None, "__annotations__": {}})
    # The module that started this process must stay alive: functions that are running use its globals.
    _STARTERS.append(sys.modules.get("__main__"))
    sys.modules["__main__"] = module
    sys.argv = [application, *arguments]
    _put_first_on_path(str(Path(application).resolve().parent))
    return module


def _put_first_on_path(folder: str) -> None:
    """In place of the folder of the script that started this process, which is not there in Python's safe path."""
    if getattr(sys.flags, "safe_path", False) and len(_STARTERS) == 1:
        sys.path.insert(0, folder)
    else:
        sys.path[0] = folder


def _exit_failure(error: SystemExit, redacted: Callable[[str], str]) -> ScriptFailure | None:
    """As ``sys.exit``: None and 0 are success, a number is the status, anything else is printed with status 1."""
    code = error.code
    if code is None or code == 0:
        return None
    if isinstance(code, int):
        return ScriptFailure(error=f"SystemExit: {code}", traceback="", exit_status=code & 0xFF)
    print(redacted(str(code)), file=sys.stderr)
    return ScriptFailure(error=str(code), traceback="", exit_status=1)


def _print_failure(error: BaseException, redacted: Callable[[str], str]) -> ScriptFailure:
    refusal = refusal_in(error, redacted)
    if refusal is not None:
        print_refusal(error, refusal)
        return refusal
    take_out_own_frames(error)
    text = _traceback_of(error)
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except Exception as in_hook:
        print("Error in sys.excepthook:", file=sys.stderr)
        if in_hook.__context__ is error:
            in_hook.__context__ = None  # python calls the hook outside of any handler
        take_out_own_frames(in_hook)
        both = _traceback_of(in_hook) + "\nOriginal exception was:\n" + text
        print(redacted(both), file=sys.stderr, end="")
    summary = "".join(traceback.format_exception_only(type(error), error)).strip()
    status = INTERRUPTED_STATUS if isinstance(error, KeyboardInterrupt) else 1
    return ScriptFailure(error=summary, traceback=text, exit_status=status)


def _traceback_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


def print_refusal(error: BaseException, refusal: ScriptFailure) -> None:
    """One line on stderr instead of a traceback: the place in the script, and what was refused."""
    print(f"{_place_of(error)}: {refusal.error} {refusal.next_step}".rstrip(), file=sys.stderr)


def _place_of(error: BaseException) -> str:
    """The last line of the script itself that led to an error, as ``FILE, line N``."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_PACKAGE)]
    return f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else "streamstate"


def take_out_own_frames(error: BaseException) -> None:
    """Remove the frames of this package from the tracebacks of an exception and of its causes.

    With them those of Python's import system next to them: Python takes these out itself where the loader is its own.
    """
    for part in origins_of(error):
        part.__traceback__ = _without_own_frames(part.__traceback__)


def origins_of(error: BaseException) -> list[BaseException]:
    """The exception, its causes, its contexts and the members of groups, each once."""
    found: dict[int, BaseException] = {}
    waiting: list[BaseException | None] = [error]
    while waiting:
        current = waiting.pop()
        if current is None or id(current) in found:
            continue
        found[id(current)] = current
        waiting += [current.__cause__, current.__context__]
        waiting += getattr(current, "exceptions", ()) if isinstance(current, _GROUP) else ()
    return list(found.values())


def _without_own_frames(trace: types.TracebackType | None) -> types.TracebackType | None:
    frames: list[types.TracebackType] = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    kept: list[types.TracebackType] = []
    for is_machinery, run in itertools.groupby(frames, _is_machinery):
        of_run = list(run)
        kept += [] if is_machinery and any(map(_is_own, of_run)) else of_run
    rebuilt: types.TracebackType | None = None
    for part in reversed(kept):
        rebuilt = types.TracebackType(rebuilt, part.tb_frame, part.tb_lasti, part.tb_lineno)
    return rebuilt


def _is_machinery(trace: types.TracebackType) -> bool:
    return _is_own(trace) or trace.tb_frame.f_code.co_filename.startswith("<frozen importlib")


def _is_own(trace: types.TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename.startswith(_PACKAGE + os.sep)


def join_threads() -> None:
    """Wait for the script's non-daemon threads, as python does before it exits."""
    while others := [thread for thread in script_threads() if not thread.daemon]:
        _shut_down_pools(others)
        for thread in others:
            thread.join()


def _shut_down_pools(threads: Sequence[threading.Thread]) -> None:
    """Let the workers among these threads end after their last work. Python does it for all pools at once, but those of
    this package still have work."""
    for thread in threads:
        arguments = getattr(thread, "_args", ())
        pool = arguments[0]() if arguments and isinstance(arguments[0], weakref.ref) else None
        if isinstance(pool, ThreadPoolExecutor):
            pool.shutdown(wait=False)
