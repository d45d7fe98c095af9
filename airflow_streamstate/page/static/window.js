// The page in a window of its own, or in a frame.

import { ROOT } from "./api.js";
import { showPage, showStreamOfTask } from "./page.js";
import { Place } from "./place.js";

const router = window.parent === window ? null : window.parent;
const place = new Place(document.querySelector(".page"), { base: ROOT, router, signal: new AbortController().signal });

if (place.path === "task") {
  const asked = new URLSearchParams(window.location.search);
  showStreamOfTask(place, { dagId: asked.get("dag_id"), runId: asked.get("run_id"), taskId: asked.get("task_id"), mapIndex: asked.get("map_index") });
} else showPage(place);
