// The page as views of Airflow's interface: React apps, which draw it into a shadow tree, so that no style of the one
// reaches the other. Airflow takes an app by its name from `globalThis`, and shares its React there.

import { AIRFLOW } from "./api.js";
import { h, problem } from "./dom.js";
import { showPage, showStreamOfTask } from "./page.js";
import { Place } from "./place.js";

const { React } = globalThis;
const BASE = new URL("plugin/streamstate/streamstate/", AIRFLOW);

let styles = null;
function readStyles() {
  const read = async () => new CSSStyleSheet().replace(await (await fetch(new URL("page.css", import.meta.url))).text());
  styles ??= read().catch((error) => { styles = null; throw error; });
  return styles;
}

/** Draw into the element until the end, a function that this gives. */
function drawInto(host, show) {
  const ended = new AbortController();
  const { signal } = ended;
  const root = host.shadowRoot ?? host.attachShadow({ mode: "open" });
  const page = h("div", { class: "page" }, h("div", { class: "view" }), h("div", { class: "unseen", role: "status", "aria-live": "polite" }));
  const look = document.documentElement;
  const paint = () => { page.dataset.theme = look.classList.contains("dark") || look.dataset.theme === "dark" ? "dark" : "light"; };
  const painted = new MutationObserver(paint);
  painted.observe(look, { attributes: true, attributeFilter: ["class", "data-theme"] });
  paint();
  readStyles().then((sheet) => {
    if (signal.aborted) return;
    root.adoptedStyleSheets = [sheet];
    root.replaceChildren(page);
    show(new Place(page, { base: BASE, router: window, signal }));
  }).catch((error) => { if (!signal.aborted) root.replaceChildren(problem(error)); });
  return () => { ended.abort(); painted.disconnect(); root.replaceChildren(); };
}

function viewOf(show) {
  return function StreamStateView({ dagId, runId, taskId, mapIndex }) {
    const host = React.useRef(null);
    React.useEffect(() => drawInto(host.current, (place) => show(place, { dagId, runId, taskId, mapIndex })), [dagId, runId, taskId, mapIndex]);
    return React.createElement("div", { ref: host, style: { height: "100%" } });
  };
}

Object.assign(globalThis, { Streams: viewOf(showPage), Stream: viewOf(showStreamOfTask) });
