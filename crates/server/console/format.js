// Figures as people read them.

/** A number with few digits: 0.25, 3.4, 128. */
export function number(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 100) return Math.round(value).toLocaleString("en");
  return value.toFixed(size >= 10 ? 1 : size >= 1 ? 1 : 2).replace(/\.?0+$/, "") || "0";
}

export const count = (value) => (Number.isFinite(value) ? Math.round(value).toLocaleString("en") : "–");

/** A share, 0 to 1. */
export function percent(share) {
  if (!Number.isFinite(share)) return "–";
  const value = share * 100;
  return `${value > 0 && value < 9.95 ? value.toFixed(1).replace(/\.0$/, "") : Math.round(value)} %`;
}

export function millis(value) {
  if (!Number.isFinite(value)) return "–";
  return value < 1000 ? `${number(value)} ms` : seconds(value / 1000);
}

export function seconds(value) {
  if (!Number.isFinite(value)) return "–";
  if (value < 60) return `${value < 10 ? number(value) : Math.round(value)} s`;
  if (value < 3600)
    return `${Math.floor(value / 60)} min${Math.round(value % 60) > 0 ? ` ${Math.round(value % 60)} s` : ""}`;
  return `${Math.floor(value / 3600)} h ${Math.round((value % 3600) / 60)} min`;
}

export function bytes(value) {
  if (!Number.isFinite(value)) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  let left = value;
  while (left >= 1000 && unit < units.length - 1) {
    left /= 1000;
    unit += 1;
  }
  return `${unit === 0 ? Math.round(left) : number(left)} ${units[unit]}`;
}

/** Parameters of a model: 135 M, 70 B. */
export function parameters(value) {
  if (!value) return "";
  return value >= 1e9 ? `${number(value / 1e9)} B` : `${number(value / 1e6)} M`;
}

/** A time of day. */
export const clock = (unix) => new Date(unix * 1000).toLocaleTimeString("en-GB");

/** `part` of `whole`; NaN of nothing. */
export const share = (part, whole) => (whole > 0 ? part / whole : NaN);
