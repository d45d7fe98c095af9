// Numbers and times for people.

const UNITS = [[172800, 86400, "d"], [7200, 3600, "h"], [120, 60, "min"]];

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const [, size, unit] = UNITS.find(([least]) => Math.abs(seconds) >= least) ?? [0, 1, "s"];
  const value = seconds / size;
  return `${unit === "s" && Math.abs(value) < 10 ? Number(value.toFixed(value < 1 ? 2 : 1)) : Math.round(value)} ${unit}`;
}

export const age = (seconds) => (seconds === null || seconds === undefined ? "" : `${duration(seconds)} ago`);
export const count = (value) => (value === null || value === undefined ? "" : Number(value).toLocaleString("en"));
/** `3 files`, `1 file`, `1 batch`. */
export const counted = (value, unit) => `${count(value)} ${value === 1 ? unit.replace(/batches$/, "batch").replace(/s$/, "") : unit}`.trim();
export const rate = (value) => (value === null || value === undefined ? "" : `${count(Number(value.toFixed(1)))}/s`);

export function bytes(value) {
  if (value === null || value === undefined) return "";
  const at = Math.min(Math.floor(Math.log(Math.max(value, 1)) / Math.log(1024)), 4);
  return `${Number((value / 1024 ** at).toFixed(at ? 1 : 0))} ${["B", "KiB", "MiB", "GiB", "TiB"][at]}`;
}

export const lag = (lags) => Object.entries(lags ?? {}).map(([unit, value]) => counted(value, unit)).join(", ");
export const time = (text) => (text ? text.replace("T", " ").replace(/\.\d+/, "").replace(/(Z|\+00:00)$/, " UTC") : "");
export const millis = (text) => Date.parse(text);
export const ageOf = (text) => age((Date.now() - millis(text)) / 1000);
