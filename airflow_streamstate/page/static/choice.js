// A list of values of which several can be chosen: a button, and below it a box to tick for each.

import { h, put, putAttribute } from "./dom.js";
import { count } from "./format.js";

const MANY = 12;

/**
 * @param name     what is chosen, e.g. "label"
 * @param groupOf  the heading under which a value is, and the words for it there; null: not set
 * @param change   called with what is chosen now
 */
export function choice(place, { name, groupOf = null, change }) {
  const title = `${name[0].toUpperCase()}${name.slice(1)}`;
  const boxes = new Map();
  let chosen = [];
  let listed = "";
  let isFilling = false;

  const button = h("button", { type: "button", class: "pick", "aria-expanded": "false", "aria-controls": `choice-${name}`,
    onmousedown: (event) => event.preventDefault(), onclick: () => (panel.hidden ? open() : close(true)) });
  const find = h("input", { type: "search", placeholder: "Find…", "aria-label": `Find a value of ${name}`, autocomplete: "off", oninput: () => showFound() });
  const list = h("div", { class: "options" });
  const none = h("button", { type: "button", class: "link", onclick: () => { choose([]); visible()[0]?.focus(); } }, "Choose none");
  const panel = h("div", { class: "panel", id: `choice-${name}`, role: "group", "aria-label": `Filter by ${name}`, tabindex: "-1", hidden: true }, find, list, none);
  const node = h("div", { class: "choice" }, button, panel);

  const visible = () => [...panel.querySelectorAll("input, button")].filter((one) => one.checkVisibility());
  function open() {
    panel.hidden = false;
    putAttribute(button, "aria-expanded", true);
    visible()[0]?.focus();
  }
  function close(focuses) {
    panel.hidden = true;
    putAttribute(button, "aria-expanded", false);
    find.value = "";
    showFound();
    if (focuses) button.focus();
  }
  node.addEventListener("focusout", (event) => { if (!isFilling && !node.contains(event.relatedTarget)) close(false); });
  panel.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") close(true);
    else if (step) {
      const all = visible();
      all[(all.indexOf(place.focused) + step + all.length) % all.length]?.focus();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  });

  function showFound() {
    const words = find.value.toLowerCase();
    for (const [value, one] of boxes) one.node.hidden = !value.toLowerCase().includes(words);
    for (const group of list.querySelectorAll("fieldset")) group.hidden = ![...group.querySelectorAll(".option")].some((one) => !one.hidden);
  }

  function choose(values) {
    mark(values);
    change(values);
  }

  /** Show these as chosen. */
  function mark(values) {
    chosen = values;
    for (const [value, one] of boxes) one.box.checked = values.includes(value);
    put(button, values.length ? `${title}: ${values.join(", ")}` : title);
    putAttribute(button, "aria-label", `Filter by ${name}${values.length ? `: ${values.join(", ")}` : ""}`);
    putAttribute(button, "title", values.length ? values.join(", ") : null);
    putAttribute(button, "data-chosen", values.length || null);
    none.hidden = !values.length;
  }

  /** Show the values, with how many streams have each; one that is chosen stays, though none has it now. */
  function fill(counts) {
    const values = [...new Set([...counts.keys(), ...chosen])].sort();
    node.hidden = !values.length;
    if (values.join("\n") !== listed) {
      listed = values.join("\n");
      const focused = place.focused;
      isFilling = true;
      arrange(values);
      if (panel.contains(focused)) focused.focus();
      isFilling = false;
      find.hidden = values.length <= MANY;
      mark(chosen);
      showFound();
    }
    for (const [value, one] of boxes) put(one.count, count(counts.get(value) ?? 0));
  }

  function arrange(values) {
    for (const value of boxes.keys()) if (!values.includes(value)) boxes.delete(value);
    const groups = new Map();
    for (const value of values) {
      const [group, words] = groupOf ? groupOf(value) : ["", value];
      if (!boxes.has(value)) boxes.set(value, option(value, words));
      groups.set(group, [...groups.get(group) ?? [], boxes.get(value).node]);
    }
    list.replaceChildren(...[...groups].flatMap(([group, nodes]) => (group ? [h("fieldset", {}, h("legend", {}, group), nodes)] : nodes)));
  }

  function option(value, words) {
    const box = h("input", { type: "checkbox", "aria-label": value, onchange: () => choose(box.checked ? [...chosen, value] : chosen.filter((one) => one !== value)) });
    const counted = h("span", { class: "quiet number" });
    return { box, count: counted, node: h("label", { class: "option" }, box, h("span", {}, words), counted) };
  }

  mark([]);
  return { node, fill, mark };
}
