// Elements. Text only ever becomes text nodes and attributes: nothing that a stream says is parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

function filled(node, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : String(child))));
  return node;
}

export const h = (tag, properties, ...children) => filled(document.createElement(tag), properties, children);
export const s = (tag, properties, ...children) => filled(document.createElementNS(SVG, tag), properties, children);

/** Write the text where it differs, so that a refresh moves nothing. */
export function put(node, text) {
  const words = text ?? "";
  if (node.textContent !== words) node.textContent = words;
}

export function putAttribute(node, name, value) {
  if (value === null || value === undefined) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, String(value));
}

export function table(caption, columns, rows) {
  const head = h("tr", {}, columns.map((column) => h("th", { scope: "col", class: column.number ? "number" : null }, column.title)));
  const body = rows.map((row) => h("tr", {}, columns.map((column) => {
    const found = column.cell(row);
    return h(column.isHead ? "th" : "td", { scope: column.isHead ? "row" : null, class: column.number ? "number" : null }, found ?? "");
  })));
  return h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("caption", { class: "unseen" }, caption), h("thead", {}, head), h("tbody", {}, body)));
}

export const badge = (state) => h("span", { class: "state", "data-state": state }, state);

/** What went wrong, and what to do about it. */
export function problem(error) {
  const facts = Object.entries(error.context ?? {}).filter(([, value]) => value !== null && value !== "")
    .map(([name, value]) => `${name}=${typeof value === "object" ? JSON.stringify(value) : value}`).join(" ");
  return h("div", { class: "problem", role: "alert" },
    h("strong", {}, sentence(error.message)), facts && h("code", {}, facts), error.next_step && h("p", {}, error.next_step));
}

const sentence = (text) => (text ? `${text[0].toUpperCase()}${ended(text.slice(1))}` : "");
/** With a full stop, unless it ends already. */
export const ended = (text) => `${text}${/[.!?]$/.test(text) ? "" : "."}`;
