// Pictures. Each is an SVG or a list whose words a screen reader can read.

import { h, put, putAttribute, s } from "./dom.js";
import { count, duration, millis, time } from "./format.js";

export function sparkPoints(values, width, height) {
  if (values.length < 2) return "";
  const most = Math.max(...values, 1e-9);
  return values.map((value, at) => `${((at * (width - 2)) / (values.length - 1) + 1).toFixed(1)},${(height - 2 - (value / most) * (height - 4)).toFixed(1)}`).join(" ");
}

const SIGNS = { snapshot: "●", drain: "▽", drained: "▼", failed: "✕", "drain failed": "✕", stopped: "■", "query failed": "✕", "batch skipped": "»", "offsets set": "»" };
const LANE = 30;
const LEFT = 96;
const HALF_TICK = 34; // of the widest words of a tick, which end within the picture

/** The life of a stream: a lane for each deployment, the downtime of each handover to scale, and zoom. */
export function timelineChart() {
  const svg = s("svg", { class: "timeline", role: "img", tabindex: "0", "aria-label": "Timeline of deployments",
    "aria-keyshortcuts": "+ - ArrowLeft ArrowRight 0" });
  const jumps = h("div", { class: "chips", role: "group", "aria-label": "Show" });
  const node = h("figure", {}, h("div", { class: "bar" },
    h("button", { type: "button", "aria-label": "Zoom in", onclick: () => zoom(0.5) }, "+"),
    h("button", { type: "button", "aria-label": "Zoom out", onclick: () => zoom(2) }, "−"),
    h("button", { type: "button", onclick: () => { view = null; draw(); } }, "All"), jumps),
    svg, h("figcaption", { class: "quiet" }, "Drag to move; + and − zoom, 0 shows all. ", h("span", { class: "swatch down" }), " no query ran  ", h("span", { class: "swatch uncommitted" }), " nothing committed  ",
      Object.entries(SIGNS).filter(([, sign], at, all) => all.findIndex(([, other]) => other === sign) === at).map(([word, sign]) => `${sign} ${word}`).join("  ")));
  let data = null;
  let view = null;
  let opened = "";

  const bounds = () => {
    const starts = data.deployments.flatMap((one) => [one.created_at, ...one.attempts.map((each) => each.from_at)]).map(millis);
    const from = starts.length ? Math.min(...starts) : millis(data.now) - 1000;
    const until = Math.max(millis(data.now), from + 1000);
    const margin = (until - from) * 0.02;
    return [from - margin, until + margin];
  };
  const shown = () => view ?? bounds();
  const width = () => Math.max(svg.clientWidth || 900, 320);

  function zoom(factor, at = 0.5) {
    const [from, until] = shown();
    const span = Math.max((until - from) * factor, 20);
    const middle = from + (until - from) * at;
    view = [middle - span * at, middle + span * (1 - at)];
    draw();
  }
  function move(part) {
    const [from, until] = shown();
    view = [from + (until - from) * part, until + (until - from) * part];
    draw();
  }

  function draw() {
    if (!data) return;
    const [from, until] = shown();
    const wide = width();
    const x = (at) => LEFT + ((at - from) / (until - from)) * (wide - LEFT - 8);
    const lanes = data.deployments.slice().reverse();
    const high = 26 + lanes.length * LANE;
    putAttribute(svg, "viewBox", `0 0 ${wide} ${high}`);
    putAttribute(svg, "height", high);
    const lane = new Map(lanes.map((one, at) => [one.deployment_id, 26 + at * LANE]));
    const parts = [s("defs", {}, s("clipPath", { id: "inside" }, s("rect", { x: LEFT, y: 0, width: wide - LEFT, height: high })))];
    for (const tick of ticks(from, until, Math.max(2, Math.floor((wide - LEFT) / 130)))) {
      parts.push(s("line", { class: "tick", x1: x(tick), x2: x(tick), y1: 20, y2: high }),
        s("text", { class: "tick", x: Math.min(x(tick), wide - HALF_TICK), y: 14, "text-anchor": "middle" }, tickText(tick, until - from)));
    }
    const inside = s("g", { "clip-path": "url(#inside)" });
    // Between two commits something may have run with nothing to commit; down is only when no query ran.
    const rowsOf = (...ids) => {
      const tops = ids.filter((id) => lane.has(id)).map((id) => lane.get(id));
      return tops.length ? [Math.min(...tops), Math.max(...tops) + LANE] : null;
    };
    const band = (kind, fromAt, untilAt, rows, title, words) => {
      if (rows === null) return;
      const [left, right] = [x(millis(fromAt)), x(untilAt === null ? millis(data.now) : millis(untilAt))];
      inside.append(s("g", {}, s("title", {}, title),
        s("rect", { class: kind, x: left, y: rows[0], width: Math.max(right - left, 1), height: rows[1] - rows[0] }),
        right - left > 8 * words.length + 6 && s("text", { class: kind, x: (left + right) / 2, y: rows[0] + 19, "text-anchor": "middle" }, words)));
    };
    for (const down of data.downtimes) {
      if (down.until_at === null && down.has_ended) continue;
      band("uncommitted", down.from_at, down.until_at, rowsOf(down.from_deployment_id, down.to_deployment_id), `${down.query}: ${downText(down)}`, "");
    }
    for (const gap of data.not_running) {
      const kind = gap.between_runs ? "uncommitted" : "down";
      const words = gap.between_runs ? "" : `down${gap.seconds === null ? "" : ` ${duration(gap.seconds)}`}`;
      band(kind, gap.from_at, gap.until_at, rowsOf(gap.after.split(" ")[0], gap.before.split(" ")[0]), gapText(gap), words);
    }
    for (const one of lanes) {
      const y = lane.get(one.deployment_id);
      parts.push(s("text", { class: "lane", "data-opened": one.deployment_id === opened || null, x: 0, y: y + 18 }, s("title", {}, one.version), one.deployment_id));
      for (const each of one.attempts) {
        const left = x(millis(each.from_at));
        const words = `${one.deployment_id} attempt ${each.attempt}, ${one.version}: ${time(each.from_at)} to ${each.is_running ? "now" : time(each.until_at)}${each.end ? `, ${each.end}` : ""}${each.why ? `: ${each.why}` : ""}`;
        inside.append(s("g", {}, s("title", {}, words),
          s("rect", { class: "attempt", "data-end": each.is_running ? "running" : each.end ?? "lost", x: left, y: y + 6, rx: 3, width: Math.max(x(millis(each.until_at)) - left, 2), height: LANE - 12 }),
          each.attempt > 1 && s("text", { class: "mark", x: left + 3, y: y + 19 }, `↻${each.attempt}`)));
      }
    }
    const last = new Map();
    for (const mark of data.marks) {
      const y = lane.get(mark.deployment_id);
      const at = x(millis(mark.at));
      if (y === undefined || at < LEFT || at > wide || at - (last.get(y) ?? -99) < 5) continue;
      last.set(y, at);
      inside.append(s("g", {}, s("title", {}, `${mark.word} ${mark.text} ${time(mark.at)}`), s("text", { class: "mark", "data-word": mark.word, x: at, y: y + 19, "text-anchor": "middle" }, SIGNS[mark.word] ?? "•")));
    }
    svg.replaceChildren(...parts, inside);
  }

  svg.addEventListener("keydown", (event) => {
    const act = { "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: () => { view = null; draw(); }, ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2) }[event.key];
    if (act) { event.preventDefault(); act(); }
  });
  svg.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const box = svg.getBoundingClientRect();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, Math.min(Math.max((event.clientX - box.left - LEFT) / (box.width - LEFT), 0), 1));
  }, { passive: false });
  let drag = null;
  svg.addEventListener("pointerdown", (event) => { drag = event.clientX; svg.setPointerCapture(event.pointerId); });
  svg.addEventListener("pointermove", (event) => {
    if (drag === null) return;
    move((drag - event.clientX) / (width() - LEFT));
    drag = event.clientX;
  });
  svg.addEventListener("pointerup", () => { drag = null; });
  new ResizeObserver(() => draw()).observe(node);

  return {
    node,
    /** `deployment`: which one is marked; "": not set. */
    show(found, deployment = "") {
      data = found;
      opened = deployment;
      const downs = found.downtimes.filter((down) => down.seconds !== null).slice(-6);
      jumps.replaceChildren(...downs.map((down) => h("button", { type: "button", class: "chip", title: downText(down), onclick: () => {
        const [from, until] = [millis(down.from_at), millis(down.until_at)];
        const margin = Math.max((until - from) * 0.6, 200);
        view = [from - margin, until + margin];
        draw();
      } }, `${down.from_deployment_id} → ${down.to_deployment_id} ${duration(down.downtime_seconds)}`)));
      putAttribute(svg, "aria-label", `Timeline: ${count(found.deployments.length)} deployments; ${downs.map(downText).join("; ") || "no handover yet"}`);
      draw();
    },
  };
}

/** What a handover has cost, and the time in which there was nothing to commit. */
export function downtimeWords(down) {
  if (down.seconds === null) return down.has_ended ? "committed, at an unknown time" : "no new batch yet";
  const until = down.has_found_nothing ? "until there was nothing to commit" : "between two commits";
  return `${duration(down.seconds)} ${until}${down.idle_seconds > 0 ? `, ${duration(down.idle_seconds)} of it with nothing to commit, ${duration(down.downtime_seconds)} down` : ""}`;
}
const downText = (down) => `${down.from_deployment_id} to ${down.to_deployment_id}: ${downtimeWords(down)}`;
const gapText = (gap) => `${gap.between_runs ? "nothing was to run" : "no query ran"} after ${gap.after}${gap.before ? ` until ${gap.before}` : ""}${gap.seconds === null ? ", until now" : `: ${gap.at_most ? "at most " : ""}${duration(gap.seconds)}`}`;
const STEPS = [0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 10800, 43200, 86400, 604800, 2592000].map((seconds) => seconds * 1000);

function ticks(from, until, most) {
  const step = STEPS.find((one) => (until - from) / one <= most) ?? STEPS.at(-1);
  const found = [];
  for (let at = Math.ceil(from / step) * step; at < until; at += step) found.push(at);
  return found.slice(0, 40);
}

function tickText(at, span) {
  const text = new Date(at).toISOString();
  if (span > 3 * 86400000) return text.slice(5, 10);
  if (span > 600000) return `${span > 86400000 ? `${text.slice(5, 10)} ` : ""}${text.slice(11, 16)}`;
  return span > 10000 ? text.slice(11, 19) : text.slice(14, 23);
}

/** Bars one after the other; each starts where the one before ended. */
export function waterfall(label, bars) {
  const whole = Math.max(...bars.map((bar) => bar.from + bar.seconds), 1e-9);
  return h("ol", { class: "waterfall", "aria-label": label }, bars.map((bar) => {
    const fill = h("span", { class: "fill", "data-kind": bar.kind });
    fill.style.marginLeft = `${(100 * bar.from) / whole}%`;
    fill.style.width = `${Math.max((100 * bar.seconds) / whole, 0.4)}%`;
    return h("li", { title: bar.title ?? null }, h("span", { class: "name" }, bar.name), h("span", { class: "track", "aria-hidden": "true" }, fill), h("span", { class: "number" }, duration(bar.seconds)));
  }));
}

/** From moment to moment between the last commit of one deployment and the first of the next. */
export function handoverWaterfall(down, phases) {
  const marks = down.waterfall;
  const bars = marks.slice(1).map((mark, at) => {
    const from = Math.max(marks[at].after_seconds, 0);
    return { name: phases[mark.phase] ?? mark.phase, from, seconds: Math.max(mark.after_seconds - from, 0), title: `${time(mark.at)}, by the clock of the ${mark.clock}`, kind: mark.phase };
  });
  return waterfall(`Handover of ${down.query}`, bars.filter((bar) => Number.isFinite(bar.seconds)));
}

const BOX = { width: 250, height: 46, gapX: 22, gapY: 26 };
const CHANGES = { same: "", added: "+ ", removed: "− ", changed: "~ " };

/** The tree of a plan, the sink's end on top; what differs from the version before is marked. */
export function planChart(name, nodes) {
  const detail = h("pre", { class: "detail", "aria-live": "polite" }, "Choose a node to read it whole.");
  const children = nodes.map(() => []);
  nodes.forEach((node, at) => { if (node.parent !== null) children[node.parent].push(at); });
  let leaves = 0;
  const column = new Array(nodes.length).fill(0);
  const place = (at) => {
    const below = children[at];
    below.forEach(place);
    column[at] = below.length ? below.reduce((sum, one) => sum + column[one], 0) / below.length : leaves++;
  };
  nodes.forEach((node, at) => { if (node.parent === null) place(at); });
  const levels = [];
  nodes.forEach((node, at) => { levels[at] = node.parent === null ? 0 : levels[node.parent] + 1; });
  const x = (at) => column[at] * (BOX.width + BOX.gapX) + 2;
  const y = (at) => levels[at] * (BOX.height + BOX.gapY) + 2;
  const wide = Math.max(leaves, 1) * (BOX.width + BOX.gapX);
  const high = (Math.max(...levels, 0) + 1) * (BOX.height + BOX.gapY);
  const svg = s("svg", { class: "plan", width: wide, height: high, viewBox: `0 0 ${wide} ${high}`, role: "group", "aria-label": `Plan of ${name}` });
  nodes.forEach((node, at) => {
    if (node.parent !== null) svg.append(s("path", { class: "edge", d: `M${x(at) + BOX.width / 2},${y(at)} L${x(node.parent) + BOX.width / 2},${y(node.parent) + BOX.height}` }));
  });
  nodes.forEach((node, at) => {
    const words = `${node.kind}${node.operator_id === null ? "" : ` (state ${node.operator_id})`}${node.change === "same" ? "" : `, ${node.change}`}`;
    const tell = () => put(detail, `${words}\n${node.text}${node.was ? `\n\nbefore:\n${node.was}` : ""}`);
    svg.append(s("g", { class: "node", "data-change": node.change, "data-stateful": node.operator_id !== null, tabindex: "0", role: "button", "aria-label": `${words}: ${node.text}`, transform: `translate(${x(at)},${y(at)})`, onclick: tell, onfocus: tell },
      s("title", {}, `${words}\n${node.text}`),
      s("rect", { width: BOX.width, height: BOX.height, rx: 5 }),
      s("text", { class: "kind", x: 9, y: 18 }, `${CHANGES[node.change]}${node.kind}${node.operator_id === null ? "" : ` · state ${node.operator_id}`}`),
      s("text", { x: 9, y: 36 }, node.text.length > 34 ? `${node.text.slice(0, 33)}…` : node.text)));
  });
  return h("div", { class: "planned" }, h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": `Graph of ${name}` }, svg), detail);
}

/** The lineage: each deployment, and whether it started exactly where the one before ended. */
export function lineageChart(found) {
  const breaks = [...found.gaps, ...found.overlaps, ...found.undone, ...found.backwards];
  const kinds = [["gap", found.gaps], ["overlap", found.overlaps], ["undone", found.undone], ["backwards", found.backwards]];
  const kindOf = (one) => kinds.find(([, all]) => all.includes(one))[0];
  return h("ol", { class: "chain", "aria-label": "Lineage" }, found.deployments.map((one, at) => {
    const own = breaks.filter((each) => each.deployment_id === one.deployment_id);
    const isSettled = !Object.keys(one.queries).length;
    const is = own.some((each) => !each.accepted) ? "broken" : own.length ? "accepted" : "exact";
    const words = { broken: "does not start where the one before ended", accepted: "starts elsewhere, as was accepted", exact: "starts exactly where the one before ended" }[is];
    return h("li", {},
      at > 0 && h("div", { class: "link-between", "data-is": is }, h("span", { "aria-hidden": "true" }, { broken: "✕", accepted: "!", exact: "✓" }[is]), " ", words,
        own.map((each) => h("p", {}, `${kindOf(each)} of ${each.query} ${each.source}: ${each.ended_at} → ${each.began_at}. ${each.detail}`))),
      h("div", { class: "box" }, h("strong", {}, one.deployment_id), ` ${one.mode}${one.snapshot_id ? ` from ${one.snapshot_id}` : ""}${one.rewritten ? `; its state was ${one.rewritten}` : ""}`,
        isSettled ? h("p", { class: "quiet" }, "audited before its logs were removed, or it started no query") : h("ul", {}, Object.entries(one.queries).map(([name, query]) =>
          h("li", {}, `${name}: ${query.began_behind === null ? "started with nothing" : `started after batch ${query.began_behind}`}, ${query.ended_with === null ? "committed none" : `ended with batch ${query.ended_with}`}`, h("span", { class: "quiet" }, query.evidence === "logs" ? " by Spark's logs" : " by records"))))));
  }));
}
