// Which view an address asks for.

import { ROOT, airflow, read, streamPage } from "./api.js";
import { h, problem } from "./dom.js";
import { showStream } from "./stream.js";
import { showStreams } from "./streams.js";

const main = document.getElementById("main");
const path = window.location.pathname.slice(ROOT.pathname.length);

async function showStreamOfTask() {
  const asked = new URLSearchParams(window.location.search);
  const part = (name) => encodeURIComponent(asked.get(name) ?? "");
  main.replaceChildren(h("p", { class: "quiet" }, "Looking for the stream of this task…"));
  try {
    const index = /^\d+$/.test(asked.get("map_index") ?? "") ? `/${asked.get("map_index")}` : "";
    const task = await airflow("GET", `dags/${part("dag_id")}/dagRuns/${part("run_id")}/taskInstances/${part("task_id")}${index}`);
    const { stream_id: streamId, streamstate_conn_id: connId } = task.rendered_fields ?? {};
    if (typeof streamId === "string" && typeof connId === "string") window.location.replace(streamPage(connId, streamId));
    else main.replaceChildren(h("p", { class: "quiet" }, "This task acts on no stream, or has not begun yet."));
  } catch (error) {
    main.replaceChildren(problem(error));
  }
}

const stream = /^streams\/([^/]+)\/(.+)$/.exec(path);
if (path === "task") void showStreamOfTask();
else if (stream) showStream(main, decodeURIComponent(stream[1]), decodeURIComponent(stream[2]), read("me"));
else showStreams(main);
