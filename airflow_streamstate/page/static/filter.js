// What the table of streams shows: by text, states, versions, owners and labels; as words of an address, to be shared.

const LISTS = { states: "state", versions: "version", owners: "owner", labels: "label" };

/** Every stream, by its name. */
export const everything = () => ({ text: "", states: [], versions: [], owners: [], labels: [], sort: "stream", isDown: false });

/** A label's name and its value. */
export const labelParts = (label) => [label.slice(0, label.indexOf("=")), label.slice(label.indexOf("=") + 1)];

/** The filter and the order as a query; "" for every stream by its name. */
export function toQuery(chosen) {
  const query = new URLSearchParams();
  if (chosen.text) query.set("text", chosen.text);
  for (const [key, name] of Object.entries(LISTS)) for (const value of chosen[key]) query.append(name, value);
  if (chosen.sort !== "stream" || chosen.isDown) query.set("sort", `${chosen.isDown ? "-" : ""}${chosen.sort}`);
  const words = query.toString();
  return words && `?${words}`;
}

/** What a query asks for; null where it asks for nothing. */
export function fromQuery(text) {
  const query = new URLSearchParams(text);
  const lists = Object.entries(LISTS).map(([key, name]) => [key, [...new Set(query.getAll(name).filter(Boolean))]]);
  const sort = query.get("sort");
  const words = query.get("text") ?? "";
  if (!words && !sort && lists.every(([, values]) => !values.length)) return null;
  return { text: words, ...Object.fromEntries(lists), sort: (sort ?? "stream").replace(/^-/, ""), isDown: sort?.startsWith("-") ?? false };
}

/** Does a row pass? One of the chosen values of each kind is enough; of labels, one of each name. */
export function passing({ text, states, versions, owners, labels }) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const names = [...new Set(labels.map((label) => labelParts(label)[0]))];
  const byName = names.map((name) => labels.filter((label) => labelParts(label)[0] === name));
  const isOf = (values, value) => !values.length || values.includes(value);
  return (row) => isOf(states, row.state) && isOf(versions, row.version) && isOf(owners, row.owner)
    && byName.every((some) => some.some((label) => row.labelled.includes(label))) && words.every((word) => row.found.includes(word));
}
