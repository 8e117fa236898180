// What pages ask for: from the server, or from the answers that a file holds.

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { derived } from "stepkeep/derived";

const embedded = JSON.parse(document.getElementById("embedded").textContent);

export const isFile = "answers" in embedded;
export const startPage = embedded.start || "#/";

// A file may have the timeline only.
export const hasStates = !isFile || Object.keys(embedded.answers).some((question) => question.startsWith("outline\n"));

// Whether pages may change something, and what a command adds to name the store.
export const { allows_changes: allowsChanges = false, store: storeOption = "" } = embedded.about || {};

export class Failure extends Error {
  constructor(error, status) {
    super(error.message);
    Object.assign(this, { code: error.code, fixes: error.fixes || [], status });
  }
}

const given = (params) =>
  Object.entries(params).filter(([, value]) => value !== undefined && value !== null && value !== "");

function written(name, params) {
  const query = new URLSearchParams(given(params)).toString();
  return query ? `${name}?${query}` : name;
}

// Under which name a file holds an answer.
const recorded = (name, params) =>
  [
    name,
    ...given(params)
      .map(([key, value]) => `${key}=${value}`)
      .sort(),
  ].join("\n");

const LEFT_OUT = {
  code: "not_in_this_file",
  message: "This is not part of the file: open the store with stepkeep ui.",
};

export async function ask(name, params = {}, signal = undefined) {
  if (isFile) {
    const found = embedded.answers[recorded(name, params)] || derived(embedded.answers, name, params);
    if (found === undefined) throw new Failure(LEFT_OUT, 404);
    if (found.$error) throw new Failure(found.$error, 422);
    return found;
  }
  return read(await fetch(`./api/${written(name, params)}`, { signal }).catch(unreachable));
}

export async function act(name, body) {
  const headers = { "Content-Type": "application/json", "X-Stepkeep": "1" };
  const request = { method: "POST", headers, body: JSON.stringify(body) };
  return read(await fetch(`./api/do/${name}`, request).catch(unreachable));
}

function unreachable(error) {
  if (error.name === "AbortError") throw error;
  throw new Failure(
    { code: "unreachable", message: "The server does not answer: is stepkeep ui still running?" },
    0,
  );
}

// A question that is given up, or a server that ends, may stop an answer in the middle.
async function read(response) {
  const text = await response.text().catch(unreachable);
  if (response.ok) return JSON.parse(text);
  throw new Failure(errorIn(text), response.status);
}

function errorIn(text) {
  try {
    return JSON.parse(text).error;
  } catch {
    return { code: "internal_error", message: "The server failed: its terminal says why." };
  }
}

export const downloadOf = (body, params) => (isFile ? null : `./download/${written(body, params)}`);

// --- live

const listeners = new Set();
let source = null;

// Tell a listener which sessions changed: a set of keys, empty when anything may have, null while the store is away.
export function watch(listener) {
  listeners.add(listener);
  connect();
  return () => listeners.delete(listener);
}

// A page in the background listens to nothing: browsers allow a server few connections for all its tabs together.
function connect() {
  if (isFile || document.hidden) {
    source?.close();
    source = null;
  } else if (source === null) {
    source = new EventSource("./api/changes");
    source.onmessage = ({ data }) => {
      const { sessions, error } = JSON.parse(data);
      listeners.forEach((each) => each(error ? null : new Set(sessions)));
    };
    source.onerror = () => listeners.forEach((each) => each(null));
  }
}

document.addEventListener("visibilitychange", connect);

// Calls that come while one is under way are one more call after it: what is shown last was asked for last, and a
// store that never rests is followed too.
export function inTurn(call) {
  let isBusy = false;
  let isWanted = false;
  return async function run() {
    isWanted = isBusy;
    if (isBusy) return;
    isBusy = true;
    await call();
    isBusy = false;
    if (isWanted) run();
  };
}

// The answer to a question, asked again when the session that it is about changes (`live`: its key, or true for all).
// `every` so many seconds it is asked again anyway: that a process died changes nothing in the store. The answer before
// stays until the next one is there.
export function useAnswer(name, params, { live = false, every = 0, skip = false } = {}) {
  const question = skip ? null : written(name, params);
  const [state, setState] = useState({});
  const shown = useRef(null);
  const load = useRef(() => {});
  const again = useCallback(() => load.current(), []);
  useEffect(() => {
    if (question === null) return undefined;
    const controller = new AbortController();
    if (shown.current !== question) setState({ isLoading: true });
    load.current = inTurn(() =>
      ask(name, params, controller.signal).then(
        (data) => {
          if (controller.signal.aborted) return;
          shown.current = question;
          setState({ data });
        },
        (error) => {
          if (!controller.signal.aborted) setState((before) => ({ ...before, isLoading: false, error }));
        },
      ),
    );
    load.current();
    return () => controller.abort();
  }, [question]);
  useEffect(() => {
    if (!live) return undefined;
    return watch((keys) => {
      if (keys !== null && (live === true || keys.size === 0 || keys.has(live))) again();
    });
  }, [live]);
  useEffect(() => {
    if (!every || isFile) return undefined;
    const timer = setInterval(() => document.hidden || again(), every * 1000);
    return () => clearInterval(timer);
  }, [every]);
  return { ...state, again };
}
