// How things read: sizes, ages, durations, and stored texts that cannot hide or turn anything on a page.

const HARMFUL =
  /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff]/g;

function escaped(char) {
  const code = char.codePointAt(0);
  const named = { "\n": "\\n", "\r": "\\r", "\t": "\\t" }[char];
  if (named) return named;
  return code < 0x80
    ? `\\x${code.toString(16).padStart(2, "0")}`
    : `\\u${code.toString(16).padStart(4, "0")}`;
}

// One line of stored text: what a page would act upon or hide is written as an escape.
export const clean = (text) => String(text).replace(HARMFUL, escaped);

// The same over several lines.
export const cleanLines = (text) =>
  String(text).replace(HARMFUL, (char) => (char === "\n" || char === "\t" ? char : escaped(char)));

export const shortened = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);

const UNITS = [
  ["MB", 1e6],
  ["GB", 1e9],
  ["TB", 1e12],
];

// As commands write it: in decimal units, but a whole number of GiB as it was set.
export function size(bytes) {
  if (bytes && bytes % 2 ** 30 === 0) return `${(bytes / 2 ** 30).toLocaleString("en")}GiB`;
  if (bytes < 1000) return `${bytes}B`;
  if (bytes < 999_500) return `${(bytes / 1e3).toFixed(bytes < 9950 ? 1 : 0)}KB`;
  const [unit, length] = UNITS.find(([, each]) => bytes < each * 999.95) || UNITS.at(-1);
  return `${(bytes / length).toFixed(1)}${unit}`;
}

export const count = (number, noun, plural) =>
  `${number.toLocaleString("en")} ${number === 1 ? noun : plural || noun + "s"}`;

export function age(seconds) {
  for (const [unit, length] of [
    ["d", 86400],
    ["h", 3600],
    ["min", 60],
  ]) {
    if (seconds >= length) return `${Math.floor(seconds / length)} ${unit}`;
  }
  return `${Math.max(0, Math.floor(seconds))} s`;
}

export function duration(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60
    ? `${minutes} min ${Math.round(seconds % 60)} s`
    : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export const moment = (text) =>
  String(text)
    .replace("T", " ")
    .replace(/(\.\d+)?(Z|\+00:00)$/, "");

// Why a checkpoint was saved.
export const why = ({ kind, event }) => (event ? `${kind}, ${spaced(event)}` : kind);

export const spaced = (name) => clean(name).replaceAll("_", " ");

// A word of a command line. What a terminal would act upon is written as an escape, so that the command that is copied
// is the one that is shown.
export function quoted(word) {
  if (/^[A-Za-z0-9_@%+=:,./~-]+$/.test(word) && !word.startsWith("~")) return word;
  if (clean(word) === word) return `'${word.replace(/'/g, "'\\''")}'`;
  return `$'${clean(word.replace(/[\\']/g, "\\$&"))}'`;
}

export const command = (...words) => ["stepkeep", ...words].map(quoted).join(" ");
