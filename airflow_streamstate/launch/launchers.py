"""The installed launchers as one: each request and each handle goes to the launcher that it names.

Launchers are found by the entry points ``airflow_streamstate.launchers``, so that another package can bring one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, cast

from airflow_streamstate.clock import Clock
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.launch.interface import (
    LOCAL,
    Connect,
    Launcher,
    LaunchHandle,
    LaunchPlace,
    LaunchRequest,
    LaunchStatus,
    OpensPages,
    check_launch,
    no_page,
)

if TYPE_CHECKING:
    from typing_extensions import Self

GROUP = "airflow_streamstate.launchers"
_EXTRAS = ("kubernetes", "ssh")
NewLauncher = Callable[[Clock, Connect | None], Launcher]


class Launchers:
    """A ``Launcher`` that is all of them.

    Args:
        connect: by launcher, what gives it the client of an Airflow connection; {} outside of Airflow.
        environ: what drivers on this machine inherit; None for what ``inherited`` keeps at each launch.
    """

    name = "any"
    limits: ClassVar[Mapping[str, str]] = {}
    reaching: ClassVar[Collection[str]] = ()
    default_master = ""

    def __init__(
        self, clock: Clock, connect: Mapping[str, Connect] | None = None, environ: Mapping[str, str] | None = None
    ) -> None:
        self._clock = clock
        self._connect = dict(connect or {})
        self._environ = environ
        self._known: dict[str, Launcher] = {}
        self._only: Launcher | None = None
        self._guard = threading.Lock()

    @classmethod
    def of(cls, launcher: Launcher, clock: Clock) -> Self:
        """This one launcher for every driver."""
        if isinstance(launcher, cls):
            return launcher
        one = cls(clock)
        one._only = launcher
        one._known = {launcher.name: launcher}
        return one

    def named(self, name: str) -> Launcher:
        """The launcher of this name.

        Raises:
            InvalidRequestError: none is installed, or it lacks a package.
        """
        if self._only is not None:
            return self._only
        with self._guard:
            if name not in self._known:
                self._known[name] = self._load(name)
            return self._known[name]

    def knows(self, handle: LaunchHandle) -> bool:
        """Whether the launcher of this driver is installed here, and the handle states where the driver is."""
        if handle.refused:
            return False
        if self._only is not None:
            return handle.launcher == self._only.name
        if not handle.data:
            return False
        try:
            self.named(handle.launcher)
        except InvalidRequestError:
            return False
        return True

    def check(self, request: LaunchRequest) -> None:
        self.named(request.launcher).check(request)

    def spark_version(self, request: LaunchRequest) -> str:
        return self.named(request.launcher).spark_version(request)

    def launch(self, request: LaunchRequest) -> LaunchHandle:
        return self.named(request.launcher).launch(request)

    def find(self, place: LaunchPlace) -> LaunchHandle | None:
        return self.named(place.launcher).find(place)

    def handle_at(self, place: LaunchPlace, recorded: LaunchHandle) -> LaunchHandle:
        launcher = self.named(place.launcher)
        place = replace(place, launcher=launcher.name)
        check_launch(place, recorded)
        return launcher.handle_at(place, recorded)

    def reaching_of(self, name: str) -> Collection[str]:
        """The reaching options of this launcher; raises as ``named``."""
        return self.named(name).reaching

    def status(self, handle: LaunchHandle) -> LaunchStatus:
        if not self.knows(handle):
            reason = handle.refused or f"it was launched by {handle.launcher!r}, which cannot look for it from here"
            return LaunchStatus(state="unknown", exit_code=None, reason=reason, observed_at=self._clock.now())
        return self.named(handle.launcher).status(handle)

    def kill(self, handle: LaunchHandle, grace_seconds: float) -> LaunchStatus:
        if not self.knows(handle):
            return self.status(handle)
        return self.named(handle.launcher).kill(handle, grace_seconds)

    def logs(self, handle: LaunchHandle, tail_bytes: int) -> str:
        return self.named(handle.launcher).logs(handle, tail_bytes) if self.knows(handle) else ""

    def links(self, handle: LaunchHandle) -> Mapping[str, str]:
        return self.named(handle.launcher).links(handle) if self.knows(handle) else {}

    def opened(self, handle: LaunchHandle, page: str) -> str:
        """As ``OpensPages.opened``."""
        launcher = self.named(handle.launcher) if self.knows(handle) else None
        if not isinstance(launcher, OpensPages):
            raise no_page(handle, page)
        return launcher.opened(handle, page)

    def forget(self, handle: LaunchHandle) -> None:
        if self.knows(handle):
            self.named(handle.launcher).forget(handle)

    def _load(self, name: str) -> Launcher:
        """Import a launcher: a home whose drivers are all elsewhere needs none of this machine."""
        if name == LOCAL:
            from airflow_streamstate.launch.local import LocalLauncher

            return LocalLauncher(self._clock, environ=self._environ)
        import difflib
        import importlib.metadata

        points = {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}
        if name not in points:
            near = difflib.get_close_matches(name, installed_launchers(), 1)
            raise InvalidRequestError(
                "no launcher of this name is installed",
                launcher=name,
                installed=", ".join(installed_launchers()),
                next_step=f"Did you mean {near[0]}?" if near else "Use one of these, or install the one that you mean.",
            )
        try:
            new = cast(NewLauncher, points[name].load())
        except (ImportError, AttributeError) as error:
            extra = f"'airflow-streamstate[{name}]'" if name in _EXTRAS else "the package that it names"
            raise InvalidRequestError(
                "this launcher cannot be loaded: it lacks a package, or a part",
                launcher=name,
                missing=str(getattr(error, "name", None) or error),
                next_step=f"Install it: pip install {extra}.",
            ) from None
        return new(self._clock, self._connect.get(name))


def installed_launchers() -> tuple[str, ...]:
    """The names of all launchers here, sorted."""
    import importlib.metadata

    return tuple(sorted({LOCAL, *(point.name for point in importlib.metadata.entry_points(group=GROUP))}))
