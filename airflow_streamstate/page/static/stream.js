// The page of one stream: what it is doing, its life, and what can be done with it.

import { read, refresh } from "./api.js";
import { actButtons } from "./acts.js";
import { custodyChart, handoverWaterfall, planChart, timelineChart, waterfall } from "./charts.js";
import { badge, h, problem, put, putAttribute, table } from "./dom.js";
import { age, ageOf, bytes, count, duration, lag, rate, time } from "./format.js";

const REFRESH_SECONDS = 5;
const yes = (is) => (is ? "yes" : "");

export function showStream(place, connId, streamId, me) {
  place.name(`${streamId} · Streams`);
  const asked = { conn_id: connId, stream_id: streamId };
  const known = { status: null, timeline: null, upgrades: null, snapshots: null };

  const state = h("span", { class: "state" });
  const version = h("span", { class: "quiet" });
  const owned = h("span", { class: "owned" });
  const acts = h("div", { class: "acts", role: "group", "aria-label": "Act on this stream" });
  const notes = h("div", { class: "notes" });
  const tiles = h("dl", { class: "tiles" });
  const back = h("a", { href: place.streams }, "Streams");
  place.view.replaceChildren(h("nav", { "aria-label": "Place" }, back), h("header", { class: "top" }, h("h1", {}, streamId), state, version, owned, acts), notes, tiles);

  const tabs = [];
  const list = h("div", { class: "tabs", role: "tablist", "aria-label": "Parts of this stream" });
  const panels = h("div", { class: "panels" });
  function addTab(id, title, make) {
    const panel = h("section", { role: "tabpanel", id: `panel-${id}`, "aria-labelledby": `tab-${id}`, tabindex: "0", hidden: true });
    const tab = h("button", { type: "button", role: "tab", id: `tab-${id}`, "aria-controls": `panel-${id}`, "aria-selected": "false", tabindex: "-1", onclick: () => choose(id) }, title);
    list.append(tab);
    panels.append(panel);
    tabs.push({ id, tab, panel, look: make(panel) });
  }
  const shown = () => tabs.find((one) => one.id === window.location.hash.slice(1)) ?? tabs[0];
  function choose(id, focuses = false) {
    place.keep({ hash: id });
    for (const one of tabs) {
      const is = one === shown();
      one.panel.hidden = !is;
      putAttribute(one.tab, "aria-selected", is);
      putAttribute(one.tab, "tabindex", is ? "0" : "-1");
      if (is && focuses) one.tab.focus();
    }
    void lookAtTab();
  }
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) choose(tabs[(tabs.indexOf(shown()) + step + tabs.length) % tabs.length].id, true);
  });

  async function lookAtTab() {
    const { panel, look } = shown();
    try {
      await look();
      panel.querySelector(":scope > .problem")?.remove();
    } catch (error) {
      panel.querySelector(":scope > .problem")?.remove();
      panel.prepend(problem(error));
    }
  }

  /** Which deployment a panel shows; the current one where none is chosen. */
  function deploymentChoice(panel, what) {
    const choice = h("select", { "aria-label": `Deployment of the ${what}`, onchange: () => { void lookAtTab(); } });
    panel.append(h("p", {}, h("label", {}, "Deployment ", choice)));
    return async () => {
      known.timeline ??= await read("timeline", asked);
      const ids = known.timeline.deployments.map((one) => [one.deployment_id, one.version]).reverse();
      const text = JSON.stringify(ids);
      if (choice.dataset.of !== text) {
        const value = choice.value;
        choice.dataset.of = text;
        choice.replaceChildren(h("option", { value: "" }, "the current one"), ...ids.map(([id, name]) => h("option", { value: id }, `${id} ${name}`)));
        choice.value = ids.some(([id]) => id === value) ? value : "";
      }
      return choice.value ? { deployment_id: choice.value } : {};
    };
  }

  /** A panel that is drawn anew only where its data differ. */
  const drawn = (part, draw, what = null) => (panel) => {
    const more = what === null ? async () => ({}) : deploymentChoice(panel, what);
    const content = h("div", {});
    panel.append(content);
    let before = null;
    return async () => {
      const found = await read(part, { ...asked, ...await more() });
      const text = JSON.stringify(found);
      if (text === before) return;
      before = text;
      known[part] = found;
      content.replaceChildren(...draw(found).flat(Infinity).filter(Boolean));
    };
  };

  addTab("overview", "Overview", (panel) => {
    const queries = h("div", {});
    const chart = timelineChart();
    panel.append(h("h2", {}, "Timeline"), chart.node, h("h2", {}, "Queries"), queries);
    let before = "";
    return async () => {
      const found = await read("timeline", asked);
      if (known.timeline?.now !== found.now) chart.show(found);
      known.timeline = found;
      const text = JSON.stringify(known.status?.queries ?? null);
      if (text !== before) queries.replaceChildren(queriesTable(known.status));
      before = text;
    };
  });
  addTab("upgrades", "Upgrades", drawn("upgrades", (found) => upgradesView(found)));
  addTab("plan", "Plan", drawn("plan", (found) => planView(found), "plan"));
  addTab("snapshots", "Snapshots", drawn("snapshots", (found) => snapshotsView(found)));
  addTab("custody", "Custody", drawn("custody", (found) => custodyView(found)));
  addTab("replay", "Replay", drawn("replay", (found) => replayView(found)));
  addTab("log", "Driver log", (panel) => {
    const text = h("pre", { class: "log", tabindex: "0", "aria-label": "End of the driver's log" });
    const told = h("p", { class: "quiet" });
    const more = deploymentChoice(panel, "log");
    panel.append(told, text);
    return async () => {
      const found = await read("log", { ...asked, ...await more() });
      const isAtEnd = text.scrollTop + text.clientHeight >= text.scrollHeight - 20;
      put(told, `${found.deployment_id} attempt ${found.attempt}, its end; secrets are hidden`);
      put(text, found.log || "The driver has written nothing yet.");
      if (isAtEnd) text.scrollTop = text.scrollHeight;
    };
  });
  addTab("stream_events", "Events", drawn("stream_events", (found) => [found.events.length ? table("Stream events", [
    { title: "At", cell: (one) => (one.at ? time(one.at) : "now") },
    { title: "Event", isHead: true, cell: (one) => one.kind },
    { title: "Deployment", cell: (one) => one.deployment_id },
    { title: "What happened", cell: (one) => one.text },
  ], found.events) : h("p", { class: "empty" }, "Nothing has happened to this stream yet.")]));
  addTab("events", "Journal", drawn("events", (found) => [found.events.length ? table("Events", [
    { title: "#", number: true, cell: (one) => count(one.number) },
    { title: "At", cell: (one) => time(one.at) },
    { title: "Attempt", number: true, cell: (one) => count(one.attempt) },
    { title: "Event", isHead: true, cell: (one) => one.kind },
    { title: "Facts", cell: (one) => Object.entries(one.facts).map(([name, value]) => h("span", { class: "fact" }, h("b", {}, `${name} `), value)) },
  ], found.events) : h("p", { class: "empty" }, "No events yet.")], "events"));
  place.view.append(list, panels);

  const refreshed = refresh(async () => {
    try {
      const status = await read("stream", asked);
      known.status = status;
      put(state, status.state);
      putAttribute(state, "data-state", status.state);
      put(version, [status.version_label || status.application, status.deployment_id, `attempt ${status.attempt}`].filter(Boolean).join(" · "));
      showOwned(status);
      showNotes(status);
      showTiles(status);
      if (!acts.childElementCount) acts.replaceChildren(...await actButtons(place, connId, streamId, known, me, () => { void refreshed.now(); }));
      acts.dispatchEvent(new CustomEvent("known"));
      for (const button of acts.children) button.dispatchEvent(new CustomEvent("known"));
      list.hidden = panels.hidden = false;
      await lookAtTab();
    } catch (error) {
      notes.replaceChildren(problem(error), error.status === 404 || error.status === 400 ? h("p", {}, h("a", { href: place.streams }, "All streams")) : "");
      notes.dataset.of = "";
      place.say(error.message);
      if (!known.status) list.hidden = panels.hidden = true;
    }
  }, REFRESH_SECONDS, place.signal);
  place.moved(() => choose(shown().id));
  list.hidden = panels.hidden = true;
  choose(shown().id);

  function showOwned(status) {
    const text = JSON.stringify([status.owner, status.labels]);
    if (owned.dataset.of === text) return;
    owned.dataset.of = text;
    owned.replaceChildren(...[status.owner && h("span", {}, `owner ${status.owner}`),
      ...Object.entries(status.labels).map(([name, value]) => h("span", { class: "label" }, `${name}=${value}`))].filter(Boolean));
  }

  function showNotes(status) {
    const bad = ["failed", "degraded", "lost", "unreadable"].includes(status.state);
    const said = [
      status.upgrade && ["", status.upgrade],
      (status.error || bad) && ["bad", status.error || status.why],
      status.next_step && ["", status.next_step],
      status.restarts && ["", status.restarts],
      status.intent && ["", `deploying ${status.intent}`],
      status.repeats && ["", status.repeats],
      ...status.orders.map((order) => ["", `${order.verb} of ${order.requested_by}: ${order.why}`]),
      ...Object.entries(status.remarks).flatMap(([name, remarks]) => remarks.map((one) => ["", `query ${name}: ${one}`])),
    ].filter(Boolean);
    const text = JSON.stringify(said);
    if (notes.dataset.of === text) return;
    notes.dataset.of = text;
    notes.replaceChildren(...said.map(([kind, words]) => h("p", { class: `note ${kind}` }, words)));
  }

  const shownTiles = new Map();
  function showTiles(status) {
    const queries = Object.values(status.queries);
    const rows = queries.reduce((sum, one) => sum + (one.state_rows ?? 0), 0);
    const slowest = Math.max(...queries.map((one) => one.batch_seconds ?? -1));
    const tile = {
      Lag: lag(status.lags) || "-",
      "Watermark delay": duration(status.watermark_delay_seconds) || "-",
      "Batch time": slowest < 0 ? "-" : duration(slowest),
      "State rows": queries.some((one) => one.state_rows !== null) ? count(rows) : "-",
      "Last snapshot": age(status.snapshot_age_seconds) || "-",
      Heartbeat: age(status.heartbeat_age_seconds) || "-",
      Restarts: count(Math.max(status.attempt - 1, 0)),
    };
    for (const [name, value] of Object.entries(tile)) {
      if (!shownTiles.has(name)) {
        const cell = h("dd", {});
        shownTiles.set(name, cell);
        tiles.append(h("div", {}, h("dt", {}, name), cell));
      }
      put(shownTiles.get(name), value);
    }
    for (const [name, address] of Object.entries(status.links)) {
      if (shownTiles.has(name) || !/^https?:/.test(address)) continue;
      shownTiles.set(name, null);
      tiles.append(h("div", {}, h("dt", {}, name), h("dd", {}, h("a", { href: address, target: "_blank", rel: "noreferrer" }, "open"))));
    }
  }
}

function queriesTable(status) {
  const rows = Object.entries(status?.queries ?? {});
  if (!rows.length) return h("p", { class: "empty" }, "No query has started yet.");
  return table("Queries", [
    { title: "Query", isHead: true, cell: ([name]) => name },
    { title: "", cell: ([, one]) => (one.error ? badge("failed") : one.is_active ? badge("running") : "") },
    { title: "Batch", number: true, cell: ([, one]) => count(one.batch_id) },
    { title: "Input", number: true, cell: ([, one]) => rate(one.input_rows_per_second) },
    { title: "Processed", number: true, cell: ([, one]) => rate(one.processed_rows_per_second) },
    { title: "Batch time", number: true, cell: ([, one]) => duration(one.batch_seconds) },
    { title: "Behind", cell: ([, one]) => one.behind ?? "" },
    { title: "Watermark", cell: ([, one]) => (one.watermark_at?.startsWith("1970") ? "none yet" : time(one.watermark_at)) },
    { title: "State rows", number: true, cell: ([, one]) => count(one.state_rows) },
    { title: "Since the snapshot", cell: ([, one]) => one.since_snapshot ?? "" },
    { title: "Problem", cell: ([, one]) => one.error },
  ], rows);
}

function snapshotsView(found) {
  const most = Math.max(...found.snapshots.map((one) => one.bytes), 1);
  const sized = (one) => {
    const bar = h("span", { class: "size" });
    bar.style.width = `${(72 * one.bytes) / most}px`;
    return [bar, bytes(one.bytes)];
  };
  return [
    found.unreadable.map((id) => h("p", { class: "note bad" }, `${id} cannot be read; streamstate snapshot verify tells why.`)),
    found.snapshots.length ? table("Snapshots", [
      { title: "Snapshot", isHead: true, cell: (one) => one.snapshot_id },
      { title: "Kind", cell: (one) => one.kind },
      { title: "Taken", cell: (one) => h("time", { datetime: one.taken_at, title: time(one.taken_at) }, ageOf(one.taken_at)) },
      { title: "Size", number: true, cell: sized },
      { title: "Shared", number: true, cell: (one) => bytes(one.shared_bytes) },
      { title: "Files", number: true, cell: (one) => count(one.files) },
      { title: "Batches", cell: (one) => Object.entries(one.batches).map(([name, batch]) => `${name} ${batch ?? "-"}`).join(", ") },
      { title: "Pinned", cell: (one) => yes(one.is_pinned) },
      { title: "Known good", cell: (one) => yes(one.is_known_good) },
    ], found.snapshots) : h("p", { class: "empty" }, "No complete snapshot yet."),
  ];
}

function planView(found) {
  if (!found.queries.length) return [h("p", { class: "empty" }, "No plan is recorded yet: a driver records it when it starts a query.")];
  return [
    h("p", {}, found.before ? [`${found.deployment_id} beside ${found.before}: `, h("strong", {}, found.verdict ?? "not comparable")] : `${found.deployment_id}, the first version`),
    found.queries.map((one) => [
      h("h2", {}, one.query, " ", one.verdict && h("span", { class: "verdict", "data-verdict": one.verdict }, one.verdict)),
      h("p", { class: "quiet" }, one.is_gone ? "not started any more" : `${one.output_mode}, trigger ${one.trigger}, into ${one.sink}`),
      one.differences.length > 0 && h("ul", { class: "differences" }, one.differences.map((each) => h("li", {},
        h("span", { class: "verdict", "data-verdict": each.verdict }, each.verdict), " ", h("code", {}, each.code), ` ${each.reason}. `, h("span", { class: "quiet" }, each.remedy)))),
      one.nodes.length > 0 && planChart(one.query, one.nodes),
    ]),
  ];
}

function custodyView(found) {
  return [
    h("p", { class: `note ${found.ok ? "good" : "bad"}` }, found.ok ? "Every deployment began exactly where its predecessor ended." : "The chain is not whole."),
    found.unread.map((words) => h("p", { class: "note bad" }, `not read: ${words}`)),
    custodyChart(found),
    found.not_running.length > 0 && [h("h2", {}, "No query ran"), table("No query ran", [
      { title: "After", isHead: true, cell: (one) => one.after },
      { title: "Until", cell: (one) => one.before || "now" },
      { title: "For", number: true, cell: (one) => (one.seconds === null ? "" : `${one.at_most ? "at most " : ""}${duration(one.seconds)}`) },
      { title: "", cell: (one) => (one.between_runs ? "between two runs of its trigger" : "") },
    ], found.not_running.slice().reverse())],
  ];
}

function upgradesView(found) {
  if (!found.upgrades.length) return [h("p", { class: "empty" }, "This stream was never upgraded or rolled back.")];
  return found.upgrades.map((one, at) => h("details", { class: "upgrade", open: at === 0 },
    h("summary", {}, h("strong", {}, `${one.asked} `), badge(one.outcome ?? one.phase), ` ${time(one.created_at)} by ${one.requested_by}`,
      one.seconds !== null && h("span", { class: "quiet" }, ` · ${duration(one.seconds)} down`)),
    h("p", {}, [one.old_deployment_id, one.new_deployment_id, one.returned_deployment_id].filter(Boolean).join(" → "), one.mode && ` · ${one.mode}`, one.verdict && [" · ", h("span", { class: "verdict", "data-verdict": one.verdict }, one.verdict)]),
    one.asked_reason && h("p", { class: "quiet" }, one.asked_reason),
    one.reason && h("p", { class: "note" }, one.reason),
    one.warnings.map((words) => h("p", { class: "note" }, words)),
    one.differences.length > 0 && h("ul", { class: "differences" }, one.differences.map((each) => h("li", {}, h("code", {}, each.code), ` ${each.query}: ${each.reason}. `, h("span", { class: "quiet" }, each.remedy)))),
    h("h3", {}, "Phases"),
    waterfall("Phases of the upgrade", phaseBars(one.steps)),
    one.downtimes.filter((down) => down.waterfall.length > 1).map((down) => [h("h3", {}, `Handover of ${down.query}: ${down.seconds === null ? "no commit yet" : `${duration(down.seconds)} between two commits`}`), handoverWaterfall(down, found.phases)])));
}

function phaseBars(steps) {
  let from = 0;
  return steps.map((step) => {
    const bar = { name: step.words, from, seconds: step.seconds, kind: step.phase, title: [step.phase, time(step.at), step.text].filter(Boolean).join(", ") };
    from += step.seconds;
    return bar;
  });
}

function replayView(found) {
  if (!found.replay) return [h("p", { class: "empty" }, "No batch of this stream was replayed; a plan with replay_batches, or streamstate replay, does.")];
  const { replay } = found;
  return [
    h("p", {}, `${replay.replay_id} of ${replay.deployment_id}: `, badge(replay.outcome), ` in ${duration(replay.seconds)}`, found.speed && h("span", { class: "quiet" }, ` · ${found.speed}`)),
    replay.error && h("p", { class: "note bad" }, replay.error),
    replay.notes.map((words) => h("p", { class: "note" }, words)),
    found.rows.length > 0
      ? table("Batches in both versions", found.columns.map((title, at) => ({ title, isHead: at === 0, number: at > 0, cell: (row) => row[at] })), found.rows)
      : table("Batches", [
        { title: "Query", isHead: true, cell: ([name]) => name },
        { title: "Batch", number: true, cell: ([, one]) => count(one.batch_id) },
        { title: "Rows in", number: true, cell: ([, one]) => count(one.rows_in) },
        { title: "Rows out", number: true, cell: ([, one]) => count(one.rows_out) },
        { title: "Took", number: true, cell: ([, one]) => duration(one.seconds) },
        { title: "Problem", cell: ([, one]) => one.error },
      ], Object.entries(replay.queries).flatMap(([name, query]) => query.batches.map((one) => [name, one]))),
    Object.entries(found.samples).map(([title, rows]) => [h("h3", {}, title), h("pre", { class: "log" }, rows)]),
  ];
}

