// Which part of the page is shown.

import { airflow, read, refresh } from "./api.js";
import { h, problem } from "./dom.js";
import { openedBy, showStream } from "./stream.js";
import { showStreams } from "./streams.js";

const TASK_SECONDS = 5;

/** What the address asks for: the table, or a stream. */
export function showPage(place) {
  const stream = /^streams\/([^/]+)\/(.+)$/.exec(place.path);
  if (stream) showStream(place, decodeURIComponent(stream[1]), decodeURIComponent(stream[2]), read("me"));
  else showStreams(place);
}

/** The stream that a task instance acts on, as soon as the task has begun. */
export function showStreamOfTask(place, { dagId, runId, taskId, mapIndex }) {
  const part = (name) => encodeURIComponent(name ?? "");
  const index = /^\d+$/.test(mapIndex ?? "") ? `/${mapIndex}` : "";
  const told = (...words) => place.view.replaceChildren(h("p", { class: "empty" }, ...words));
  told("Looking for the stream of this task…");
  const looked = refresh(async () => {
    try {
      const task = await airflow("GET", `dags/${part(dagId)}/dagRuns/${part(runId)}/taskInstances/${part(taskId)}${index}`);
      const { stream_id: streamId, streamstate_conn_id: connId } = task.rendered_fields ?? {};
      if (typeof streamId === "string" && typeof connId === "string") {
        looked.end();
        showStream(place, connId, streamId, read("me"), await openedByTask(dagId, runId, taskId, mapIndex));
      } else told("This task acts on no stream, or has not started yet.");
    } catch (error) {
      place.view.replaceChildren(problem(error));
    }
  }, TASK_SECONDS, place.signal);
}

/** What a task has acted on: by the link that it has pushed; nothing where it has pushed none. */
async function openedByTask(dagId, runId, taskId, mapIndex) {
  const part = (name) => encodeURIComponent(name);
  const index = /^\d+$/.test(mapIndex ?? "") ? mapIndex : "-1";
  const address = `dags/${part(dagId)}/dagRuns/${part(runId)}/taskInstances/${part(taskId)}/xcomEntries/_link_StreamPageLink?map_index=${index}`;
  try {
    const { value } = await airflow("GET", address);
    return openedBy(new URL(value, window.location.href).search);
  } catch {
    return {};
  }
}
