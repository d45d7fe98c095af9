// The table of streams. Only the rows in sight are elements, so that a thousand streams stay quick.

import { eachSecond, read, refresh } from "./api.js";
import { choice } from "./choice.js";
import { h, problem, put, putAttribute, s } from "./dom.js";
import { everything, fromQuery, labelParts, passing, toQuery } from "./filter.js";
import { age, count, duration, lag } from "./format.js";
import { sparkPoints } from "./charts.js";

const ROW_PIXELS = 36;
const SPARE_ROWS = 8;
const REFRESH_SECONDS = 5;
const OLD_SECONDS = 2 * REFRESH_SECONDS;
const AGAIN_MILLIS = 500;
const KEEP_MILLIS = 250;
const BAD = ["degraded", "failed", "lost", "silent", "unreadable"];
const total = (lags) => (lags ? Object.values(lags).reduce((sum, value) => sum + value, 0) : null);

const COLUMNS = [
  { key: "stream", title: "Stream", of: (row) => row.stream_id },
  { key: "state", title: "State", of: (row) => row.state, order: (row) => `${BAD.includes(row.state) ? 0 : 1}${row.state}` },
  { key: "version", title: "Version", of: (row) => row.version ?? "" },
  { key: "lag", title: "Lag", number: true, of: (row) => lag(row.lags), order: (row) => total(row.lags) },
  { key: "delay", title: "Watermark delay", number: true, of: (row) => duration(row.watermark_delay_seconds), order: (row) => row.watermark_delay_seconds },
  { key: "batch", title: "Batch time", number: true, of: (row) => duration(row.batch_seconds), order: (row) => row.batch_seconds },
  { key: "snapshot", title: "Last snapshot", number: true, of: (row) => age(row.snapshot_age_seconds), order: (row) => row.snapshot_age_seconds },
  { key: "event", title: "Last event", of: (row) => row.last_event?.kind ?? "", order: (row) => row.last_event?.at ?? "" },
  { key: "restarts", title: "Restarts", number: true, of: (row) => count(row.restarts), order: (row) => row.restarts },
  { key: "age", title: "As of", number: true, of: (row) => age(ageOfRow(row)), order: (row) => ageOfRow(row) },
];
const BATCH = COLUMNS.findIndex((one) => one.key === "batch");
const AGE = COLUMNS.length - 1;
const EVENT = COLUMNS.findIndex((one) => one.key === "event");

/** Whole seconds since the stream of a row was read, by this browser's clock alone after its arrival; null before that. */
function ageOfRow(row) {
  return row.read_at === null ? null : Math.max(0, Math.floor((Date.now() - row.read_at) / 1000));
}
const isOld = (row) => ageOfRow(row) > OLD_SECONDS;

function remembered() {
  try { return sessionStorage.getItem("streamstate.filter") ?? ""; } catch { return ""; }
}

export function showStreams(place) {
  place.name("Streams");
  const chosen = fromQuery(window.location.search) ?? fromQuery(remembered()) ?? everything();
  let rows = [];
  let listed = null;
  let seen = [];

  const text = h("input", {
    type: "search", id: "text", placeholder: "Filter by name, version, error…", "aria-label": "Filter by text", autocomplete: "off",
    "aria-keyshortcuts": "/", oninput: () => { chosen.text = text.value; show(); },
  });
  const choices = [["versions", "version", (row) => [row.version]], ["owners", "owner", (row) => [row.owner]], ["labels", "label", (row) => row.labelled]]
    .map(([key, name, of]) => ({
      key, of,
      ...choice(place, { name, groupOf: name === "label" ? labelParts : null, change: (values) => { chosen[key] = values; show(); } }),
    }));
  const states = h("div", { class: "chips", role: "group", "aria-label": "Filter by state" });
  const told = h("p", { class: "quiet", id: "told" });
  const problems = h("div", { id: "problems" });
  const heads = COLUMNS.map((column) => h("th", { scope: "col", role: "columnheader", class: `of-${column.key}${column.number ? " number" : ""}` },
    h("button", { type: "button", onclick: () => { chosen.isDown = chosen.sort === column.key && !chosen.isDown; chosen.sort = column.key; show(); } }, column.title)));
  const body = h("tbody");
  const above = h("div", { class: "spacer" });
  const below = h("div", { class: "spacer" });
  const grid = h("table", { class: "streams", "aria-label": "Streams" }, h("thead", {}, h("tr", {}, heads)), body);
  const scroller = h("div", { class: "scroller", onscroll: () => draw() }, above, grid, below);
  const empty = h("div", { class: "empty", hidden: true });
  place.view.replaceChildren(h("header", { class: "top" }, h("h1", {}, "Streams"), told), problems,
    h("div", { class: "filters", role: "search" }, text, choices.map((one) => one.node), states), scroller, empty);

  function showChosen() {
    text.value = chosen.text;
    for (const one of choices) one.mark(chosen[one.key]);
  }

  let keeping = null;
  function keep() {
    const query = toQuery(chosen);
    try { sessionStorage.setItem("streamstate.filter", query); } catch { /* not kept */ }
    clearTimeout(keeping);
    keeping = setTimeout(() => { if (!place.signal.aborted) place.keep({ search: query }); }, KEEP_MILLIS);
  }

  function show() {
    keep();
    const passes = passing(chosen);
    const column = COLUMNS.find((one) => one.key === chosen.sort) ?? COLUMNS[0];
    const order = column.order ?? column.of;
    seen = rows.filter(passes).map((row) => [order(row), row]);
    const sign = chosen.isDown ? -1 : 1;
    seen.sort(([one, first], [other, second]) => {
      if (one === other) return first.stream_id < second.stream_id ? -1 : 1;
      if (one === null || one === undefined) return 1;
      if (other === null || other === undefined) return -1;
      return (one < other ? -1 : 1) * sign;
    });
    seen = seen.map(([, row]) => row);
    COLUMNS.forEach((each, at) => putAttribute(heads[at], "aria-sort", each !== column ? null : chosen.isDown ? "descending" : "ascending"));
    putAttribute(grid, "aria-rowcount", seen.length + 1);
    showChips();
    showEmpty();
    showCount();
    draw();
  }

  function showChips() {
    const counts = new Map();
    for (const row of rows) if (row.state) counts.set(row.state, (counts.get(row.state) ?? 0) + 1);
    for (const state of chosen.states) if (!counts.has(state)) counts.set(state, 0);
    const names = [...counts.keys()].sort();
    const known = new Map([...states.children].map((chip) => [chip.dataset.state, chip]));
    for (const name of names) {
      const chip = known.get(name) ?? h("button", {
        type: "button", class: "chip", "data-state": name,
        onclick: () => { chosen.states = chosen.states.includes(name) ? chosen.states.filter((one) => one !== name) : [...chosen.states, name]; show(); },
      });
      known.delete(name);
      put(chip, `${name} ${count(counts.get(name))}`);
      putAttribute(chip, "aria-pressed", chosen.states.includes(name));
      if (!chip.isConnected) states.insertBefore(chip, [...states.children].find((one) => one.dataset.state > name) ?? null);
    }
    for (const chip of known.values()) chip.remove();
    if (listed === rows) return; // a key of a filter changes no list
    listed = rows;
    for (const { of, fill } of choices) {
      const counts = new Map();
      for (const row of rows) for (const value of of(row)) if (value) counts.set(value, (counts.get(value) ?? 0) + 1);
      fill(counts);
    }
  }

  function showEmpty() {
    const isEmpty = !seen.length && !isFirst && (rows.length > 0 || !problems.childElementCount);
    scroller.hidden = !seen.length;
    empty.hidden = !isEmpty;
    if (!isEmpty) return;
    empty.replaceChildren(rows.length
      ? h("p", {}, "No stream passes this filter. ", h("button", { type: "button", class: "link", onclick: () => { Object.assign(chosen, everything(), { sort: chosen.sort, isDown: chosen.isDown }); showChosen(); show(); } }, "Show all"))
      : isRefused
      ? h("p", {}, "You may see no home of streams. Ask an administrator of Airflow for the right to read the connection of a home, or the DAG that page_dag_ids names for it.")
      : h("p", {}, "There is no stream in the home yet. ", h("code", {}, "streamstate deploy STREAM --app job.py"), " deploys one, or a DAG with DeployStreamOperator."));
  }

  const pool = [];
  function newRow() {
    const link = h("a", {});
    const state = h("span", { class: "state" });
    const upgrading = h("small", { class: "quiet" });
    const line = s("polyline", { class: "spark" });
    const spark = s("svg", { class: "spark", width: 72, height: 20, viewBox: "0 0 72 20", "aria-hidden": "true" }, line);
    const cells = COLUMNS.map((column, at) => h(at ? "td" : "th", { scope: at ? null : "row", class: `of-${column.key}${column.number ? " number" : ""}` }));
    cells[0].append(link);
    cells[1].append(state, upgrading);
    const seconds = h("span", {});
    cells[BATCH].append(spark, seconds);
    const node = h("tr", {}, cells);
    return { node, cells, link, state, upgrading, line, spark, seconds };
  }

  function fill(one, row, at) {
    putAttribute(one.node, "aria-rowindex", at + 2);
    put(one.link, row.stream_id);
    putAttribute(one.link, "href", place.stream(row.conn_id, row.stream_id));
    const said = [row.hasManyHomes && `in ${row.conn_id}`, row.owner && `owner ${row.owner}`, row.labelled.join(" ")].filter(Boolean);
    putAttribute(one.link, "title", said.length ? said.join("; ") : null);
    const since = row.state === "silent" ? ` ${duration(row.heartbeat_age_seconds)}` : "";
    put(one.state, row.state ? `${row.state}${since}` : "…");
    put(one.upgrading, row.upgrade ? "upgrading" : "");
    putAttribute(one.state, "data-state", row.state);
    putAttribute(one.state, "title", [row.why, row.upgrade, row.restart_policy].filter(Boolean).join("; "));
    COLUMNS.forEach((column, index) => { if (index > 1 && index !== BATCH && index !== AGE) put(one.cells[index], column.of(row)); });
    fillAge(one, row);
    put(one.seconds, duration(row.batch_seconds));
    const times = row.batch_times ?? [];
    putAttribute(one.spark, "visibility", times.length > 1 ? null : "hidden");
    putAttribute(one.line, "points", sparkPoints(times, 72, 20));
    putAttribute(one.cells[EVENT], "title", row.last_event ? `${row.last_event.kind} ${row.last_event.at}` : null);
    putAttribute(one.cells[2], "title", row.deployment_id ? `${row.version}, ${row.deployment_id} attempt ${row.attempt}` : null);
  }

  function fillAge(one, row) {
    put(one.cells[AGE], age(ageOfRow(row)));
    putAttribute(one.node, "data-old", isOld(row) || null);
    putAttribute(one.node, "title", isOld(row) ? `this was read ${age(ageOfRow(row))}: it may be different now` : null);
  }

  /** What is shown ages from second to second, also where no answer comes. */
  function showAges() {
    const from = firstShown();
    pool.forEach((one, index) => { if (one.node.isConnected && seen[from + index]) fillAge(one, seen[from + index]); });
    showCount();
  }

  function showCount() {
    const old = rows.filter(isOld).length;
    const left = rows.filter((row) => !row.state).length;
    if (isFirst) put(told, "Reading the streams…");
    else if (left) put(told, `${count(rows.length - left)} of ${count(rows.length)} streams are read…`);
    else put(told, `${count(seen.length)} of ${count(rows.length)}${old ? ` · ${count(old)} read more than ${OLD_SECONDS} s ago, shown in grey` : ""}`);
  }

  const firstShown = () => Math.max(0, Math.floor(scroller.scrollTop / ROW_PIXELS) - SPARE_ROWS);
  function draw() {
    const from = firstShown();
    const to = Math.min(seen.length, from + Math.ceil((scroller.clientHeight || 600) / ROW_PIXELS) + 2 * SPARE_ROWS);
    while (pool.length < to - from) pool.push(newRow());
    pool.forEach((one, index) => {
      const isUsed = index < to - from;
      if (isUsed) fill(one, seen[from + index], from + index);
      if (isUsed && !one.node.isConnected) body.append(one.node);
      if (!isUsed && one.node.isConnected) one.node.remove();
    });
    above.style.height = `${from * ROW_PIXELS}px`;
    below.style.height = `${(seen.length - to) * ROW_PIXELS}px`;
  }

  let isFirst = true;
  let isRefused = false;
  async function look() {
    try {
      const { homes, is_refused: isNoHomeMine } = await read("streams");
      isRefused = isNoHomeMine;
      isFirst = homes.length > 0 && homes.every((home) => home.looked_at === null && !home.error);
      const now = Date.now();
      rows = homes.flatMap((home) => home.streams.map((row) => {
        const labelled = Object.entries(row.labels ?? {}).map(([name, value]) => `${name}=${value}`);
        const found = [row.stream_id, row.version, row.state, row.why, row.deployment_id, row.last_event?.kind, row.upgrade, row.owner, ...labelled, home.conn_id];
        const readAt = typeof row.read_age_seconds === "number" ? now - 1000 * row.read_age_seconds : null;
        return { ...row, read_at: readAt, labelled, conn_id: home.conn_id, hasManyHomes: homes.length > 1, found: found.join(" ").toLowerCase() };
      }));
      problems.replaceChildren(...homes.filter((home) => home.error).map((home) => problem(home.error)));
      show();
      // What the server has is old where nobody has looked for a while: its answer has then begun a new look.
      if (isFirst || homes.some((home) => home.is_looking && (home.looked_at === null || rows.some(isOld)))) setTimeout(() => polled.now(), AGAIN_MILLIS);
    } catch (error) {
      problems.replaceChildren(problem(error));
      place.say(error.message);
    }
  }
  showChosen();
  eachSecond(showAges, place.signal);
  const polled = refresh(look, REFRESH_SECONDS, place.signal);

  place.moved(() => { Object.assign(chosen, fromQuery(window.location.search) ?? everything()); showChosen(); show(); });
  new ResizeObserver(draw).observe(scroller);
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || place.isTyping(event)) return;
    event.preventDefault();
    text.focus();
  }, { signal: place.signal });
  body.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const used = pool.filter((one) => one.node.isConnected);
    const next = step && used[used.findIndex((one) => one.link === place.focused) + step];
    if (next) { event.preventDefault(); next.link.focus(); }
  });
}
