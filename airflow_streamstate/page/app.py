"""The FastAPI app of the page, and who may see which home. Every route only reads, for a signed-in user."""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable, Mapping
from importlib import resources
from typing import TYPE_CHECKING, Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import (
    AccessView,
    ConnectionDetails,
    DagAccessEntity,
    DagDetails,
)
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view
from airflow.models.connection import Connection
from airflow.models.dag import DagModel
from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse
from starlette.exceptions import HTTPException

from airflow_streamstate.clock import SYSTEM_CLOCK, Clock
from airflow_streamstate.controller.home import of_one_stream
from airflow_streamstate.errors import (
    ConflictError,
    DeploymentNotFoundError,
    HomeNotFoundError,
    InvalidRequestError,
    SnapshotNotFoundError,
    StreamNotFoundError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.hooks.configuration import page_conn_ids, page_dag_ids
from airflow_streamstate.page.content import PARTS, Asked, PagePart
from airflow_streamstate.page.homes import HomeOnPage, HomesOnPage, error_json
from airflow_streamstate.protocol.ids import check_id, check_stream_id

if TYPE_CHECKING:
    from airflow.api_fastapi.auth.managers.models.base_user import BaseUser


# Which homes a user of Airflow may see on the page.
#
# Airflow's auth manager decides, for each home by one right: that to read the home's connection, or to read the DAG
# that ``page_dag_ids`` names for it. What holds rows and logs also needs the right for task logs. Without the right
# there is nothing to see, and no answer shows whether the page has such a home.


class NoRightError(HTTPException):
    """Airflow's auth manager gives the user no right to this; states which one is asked for."""

    def __init__(self, message: str, right: str) -> None:
        super().__init__(403, message)
        self.next_step = f"Ask an administrator of Airflow for {right}."


def homes_of(user: BaseUser) -> tuple[str, ...]:
    """The connections of the homes that the user sees, in the order of the configuration."""
    return tuple(conn_id for conn_id in page_conn_ids() if _may_see(user, conn_id))


def need_home(user: BaseUser, conn_id: str) -> None:
    """The user may see the home of this connection, if the page shows it.

    Raises:
        NoRightError: the user may not.
    """
    if not _may_see(user, conn_id):  # the same words for a home that the page does not have
        right = "the right to read the connection of this home, or the DAG that page_dag_ids names for it"
        raise NoRightError("you may not see this home", right)


def _may_see(user: BaseUser, conn_id: str) -> bool:
    dag_id = page_dag_ids().get(conn_id)
    if dag_id is not None:
        return may_read_dag(user, dag_id)
    details = ConnectionDetails(conn_id=conn_id, team_name=Connection.get_team_name(conn_id))
    return bool(get_auth_manager().is_authorized_connection(method="GET", details=details, user=user))


def need_task_logs(user: BaseUser, conn_id: str) -> None:
    """The user may read the logs of tasks: of the DAG of this home, or in general where it has none.

    Raises:
        NoRightError: the user may not.
    """
    dag_id = page_dag_ids().get(conn_id)
    if not (may_read_dag(user, dag_id) and may_read_dag(user, dag_id, DagAccessEntity.TASK_LOGS)):
        of = "of this home's DAG" if dag_id else "of DAGs"
        raise NoRightError("you may not read logs, journals and rows of this home", f"the right to read task logs {of}")


def may_read_dag(user: BaseUser, dag_id: str | None, entity: DagAccessEntity | None = None) -> bool:
    """Whether the user may read a DAG, or that entity of it; None for DAGs in general."""
    details = None if dag_id is None else DagDetails(id=dag_id, team_name=team_of_dag(dag_id))
    return bool(get_auth_manager().is_authorized_dag(method="GET", access_entity=entity, details=details, user=user))


def may_run_dag(user: BaseUser, dag_id: str) -> bool:
    """Whether the user may trigger a DAG."""
    details = DagDetails(id=dag_id, team_name=team_of_dag(dag_id))
    return bool(
        get_auth_manager().is_authorized_dag(
            method="POST", access_entity=DagAccessEntity.RUN, details=details, user=user
        )
    )


def team_of_dag(dag_id: str) -> str | None:
    """The team of a DAG; None if there are no teams."""
    team: str | None = DagModel.get_team_name(dag_id)
    return team


log = logging.getLogger(__name__)
ACTS: Mapping[str, str] = {
    "stop": "streamstate_stop",
    "drain": "streamstate_drain",
    "snapshot": "streamstate_snapshot",
    "resume": "streamstate_resume",
    "rollback": "streamstate_rollback",
    "answer": "streamstate_answer_upgrade",
    "continue": "streamstate_continue_upgrade",
    "cancel": "streamstate_cancel_upgrade",
}
"""The DAG of each act (``dags/act_on_stream.py``). A right to act is the right to run that DAG."""

STATIC_TYPES: Mapping[str, str] = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; frame-ancestors 'self'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_NOT_FOUND = (StreamNotFoundError, DeploymentNotFoundError, SnapshotNotFoundError, HomeNotFoundError)


def status_of(error: StreamStateError) -> int:
    """The HTTP status for an error, by what the reader of the page can do about it."""
    if isinstance(error, _NOT_FOUND):
        return 404
    if isinstance(error, InvalidRequestError):
        return 400
    if isinstance(error, ConflictError):
        return 409
    return 503 if isinstance(error, UnavailableError) else 500


def page_app(clock: Clock = SYSTEM_CLOCK) -> FastAPI:
    """The app; Airflow mounts it under ``/streamstate``."""
    app = FastAPI(
        title="Stream State",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(requires_access_view(AccessView.WEBSITE))],
    )
    app.middleware("http")(_with_headers)
    app.exception_handler(StreamStateError)(_told)
    app.exception_handler(HTTPException)(_told_by_fastapi)
    app.exception_handler(RequestValidationError)(_told_of_parameter)
    _add_files(app)
    _add_reads(app, HomesOnPage(clock))
    return app


async def _with_headers(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    response = await call_next(request)
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    return response


def _told(_request: Request, error: Exception) -> Response:
    """An error of the package, as JSON; a script of the page writes its words as text."""
    assert isinstance(error, StreamStateError)  # noqa: S101 - for its type
    return JSONResponse({"error": error_json(error)}, status_of(error))


def _told_by_fastapi(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - for its type
    words = {
        401: "you are not signed in",
        403: "you may not see this",
        404: "there is nothing at this address",
        405: "this address can only be read",
    }
    steps = {
        401: "Sign in to Airflow, and open the page again.",
        403: "Ask an administrator of Airflow for the right.",
        405: "Use GET; to act on a stream, trigger its DAG by Airflow's API.",
    }
    message, next_step = words.get(error.status_code, "this request is wrong"), steps.get(error.status_code, "")
    if isinstance(error, NoRightError):
        message, next_step = error.detail, error.next_step
    told = {"type": "Refused", "message": message, "context": {}, "next_step": next_step}
    return JSONResponse({"error": told}, error.status_code, dict(error.headers or {}))


def _told_of_parameter(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - for its type
    names = ", ".join(sorted({str(each["loc"][-1]) for each in error.errors()}))
    told = {"type": "Refused", "message": f"this is not a valid {names}", "context": {}, "next_step": ""}
    return JSONResponse({"error": told}, 400)


@functools.cache
def static_files() -> Mapping[str, bytes]:
    """The files of the page by their names; nothing else can be asked for."""
    folder = resources.files("airflow_streamstate.page") / "static"
    return {each.name: each.read_bytes() for each in folder.iterdir() if each.is_file()}


def _add_files(app: FastAPI) -> None:
    def html(root: str = "./", status_code: int = 200) -> Response:
        # Addresses are relative, so that the page works under any base path and behind any proxy.
        body = static_files()["index.html"].replace(b"{{root}}", root.encode())
        return Response(body, status_code, media_type="text/html; charset=utf-8")

    @app.get("/")
    def streams() -> Response:
        return html()

    @app.get("/task")
    def task() -> Response:
        return html()

    @app.get("/streams/{conn_id}/{stream_id:path}")
    def one_stream(request: Request, stream_id: str) -> Response:
        """The same file: its script asks for the parts, and reports what is wrong with the id."""
        sent = request.scope.get("raw_path") or request.scope["path"].encode()  # a browser counts no encoded slash
        root = "../" * (1 + sent.rpartition(b"/streams/")[2].count(b"/"))
        try:
            check_stream_id(stream_id)
        except InvalidRequestError:
            return html(root, 400)
        return html(root)

    @app.get("/static/{name}")
    def static(name: str) -> Response:
        body, suffix = static_files().get(name), f".{name.rpartition('.')[2]}"
        if body is None or suffix not in STATIC_TYPES:
            raise HTTPException(404)
        return Response(body, media_type=STATIC_TYPES[suffix], headers={"Cache-Control": "no-cache"})


def _add_reads(app: FastAPI, homes: HomesOnPage) -> None:
    # Plain functions: FastAPI runs them in its pool of threads, as they read stores.

    @app.get("/api/me")
    def me(user: GetUserDep) -> dict[str, Any]:
        """The user, and which acts are allowed; Airflow decides again when one is asked for."""
        acts = {act: {"dag_id": dag_id, "is_allowed": may_run_dag(user, dag_id)} for act, dag_id in ACTS.items()}
        return {"user": user.get_name(), "acts": acts}

    @app.get("/api/streams")
    def streams(user: GetUserDep) -> dict[str, Any]:
        """The streams of each home that the user may see; ``is_refused``: there are homes, and none for this user."""
        conn_ids = homes_of(user)
        seen = [homes.home(conn_id).seen().to_json() for conn_id in conn_ids]
        return {"homes": seen, "is_refused": not conn_ids and bool(page_conn_ids())}

    @app.get("/api/open")
    def opened(
        user: GetUserDep,
        conn_id: str = "",
        stream_id: str = "",
        page: Annotated[str, Query(max_length=100)] = "",
        deployment_id: str | None = None,
    ) -> Response:
        """Leads to a page about the driver whose address lets in whoever has it: made for this user, kept nowhere."""
        need_home(user, conn_id)
        need_task_logs(user, conn_id)
        wanted = deployment_id and check_id(deployment_id, "deployment id")
        url = homes.home(conn_id).client().opened_page(check_stream_id(stream_id), page, wanted)
        return RedirectResponse(url, 303, {"Referrer-Policy": "no-referrer"})

    @app.get("/api/{name}")
    def part(
        name: str,
        user: GetUserDep,
        conn_id: str = "",
        stream_id: str = "",
        deployment_id: str | None = None,
        attempt: Annotated[int | None, Query(ge=1, le=1_000_000)] = None,
        rehearsal_id: str | None = None,
        upgrade_id: str | None = None,
    ) -> dict[str, Any]:
        """A part of the page of one stream."""
        found = PARTS.get(name)
        if found is None:
            raise HTTPException(404)
        need_home(user, conn_id)
        if found.has_rows:
            need_task_logs(user, conn_id)
        home = homes.home(conn_id)
        asked = Asked(
            check_stream_id(stream_id),
            deployment_id and check_id(deployment_id, "deployment id"),
            attempt,
            rehearsal_id and check_id(rehearsal_id, "rehearsal id"),
            upgrade_id and check_id(upgrade_id, "upgrade id"),
        )
        key = (name, conn_id, stream_id, *(str(one or "") for one in vars(asked).values()))
        return home.parts.get(key, lambda: _read(home, found, asked), found.seconds)


def _read(home: HomeOnPage, part: PagePart, asked: Asked) -> dict[str, Any]:
    client = home.client()
    try:
        return part.read(client, asked)
    except StreamStateError:
        raise
    except Exception as error:
        log.exception("A part of the page of %s cannot be made", asked.stream_id)
        raise of_one_stream(client.home, error) from error
