// Small pieces that several pages are made of.

import { h } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import htm from "htm";
import { isFile, storeOption } from "stepkeep/data";
import { age, clean, cleanLines, count, moment, size } from "stepkeep/text";

export const html = htm.bind(h);

// --- addresses

export function address(segments, params = {}) {
  const path = segments.map(encodeURIComponent).join("/");
  const entries = Object.entries(params).filter(
    ([, value]) => value !== undefined && value !== null && value !== "",
  );
  const query = new URLSearchParams(entries).toString();
  return `#/${path}${query ? `?${query}` : ""}`;
}

export const sessionAddress = (key, ...more) => address(["s", key, ...more]);
export const checkpointAddress = (key, ref, params) => address(["s", key, "c", ref], params);

export const go = (where) => {
  window.location.hash = where.slice(1);
};

export function useTitle(text) {
  useEffect(() => {
    document.title = text ? `${clean(text)} · Stepkeep` : "Stepkeep";
  }, [text]);
}

// --- words

const CONDITIONS = {
  running: "running",
  crashed: "crashed",
  queued: "queued",
  open: "open",
  waiting: "waiting",
  paused: "paused",
  completed: "completed",
  failed: "failed",
  cancelled: "cancelled",
  in_progress: "in progress",
  pending: "pending",
  skipped: "skipped",
};

export const Badge = ({ kind, children }) =>
  html`<span class="badge is-${kind}">
    <span class="dot" aria-hidden="true" />${children || CONDITIONS[kind] || kind}</span>`;

export const Tag = ({ children }) => html`<span class="tag"><bdi>${clean(children)}</bdi></span>`;

export const Word = ({ children, class: name }) => html`<bdi class=${name}>${clean(children)}</bdi>`;

export const Text = ({ children, class: name }) =>
  html`<bdi class="lines ${name || ""}">${cleanLines(children)}</bdi>`;

export function Age({ time }) {
  const seconds = (Date.now() - Date.parse(time)) / 1000;
  return html`<time datetime=${time} title="${moment(time)} UTC">${age(seconds)} ago</time>`;
}

export const When = ({ time }) => html`<time datetime=${time}>${moment(time)}</time>`;

export const Facts = ({ of }) => html`
  <dl class="facts">
    ${Object.entries(of)
      .filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false)
      .map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl>`;

export const Empty = ({ title, children }) => html`<div class="empty"><h2>${title}</h2>${children}</div>`;

export const Loading = () => html`<p class="loading" role="status">Loading …</p>`;

// Some fixes are a command as it is typed, others have to be filled in.
const isCommand = (fix) => /^stepkeep [a-z]/.test(fix) && !/ [A-Z]+\b/.test(fix) && clean(fix) === fix;

export function Problem({ error, again }) {
  if (!error) return null;
  return html`
    <div class="problem" role="alert">
      <p><strong><${Text}>${error.message}<//></strong> <code>${error.code}</code></p>
      ${
        error.fixes &&
        error.fixes.length > 0 &&
        html`<ul class="fixes">${error.fixes.map((fix) => html`<li key=${fix}>${isCommand(fix)
          ? html`<${Command} text=${fix} />` : html`<${Word}>${fix}<//>`}</li>`)}</ul>`
      }
      ${again && !isFile && html`<button type="button" onClick=${again}>Try again</button>`}
    </div>`;
}

// --- a command to copy

// A command of the store that is shown here.
export function Command({ text: words }) {
  const text = words + storeOption;
  const [isCopied, setCopied] = useState(false);
  const code = useRef(null);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setCopied(true);
    } catch {
      window.getSelection().selectAllChildren(code.current); // where a page may not copy, it selects
    }
  };
  useEffect(() => setCopied(false), [text]);
  return html`
    <div class="command">
      <code ref=${code} tabindex="0" aria-label="Command">${clean(text)}</code>
      <button type="button" onClick=${copy}>${isCopied ? "Copied" : "Copy"}</button>
    </div>`;
}

// --- a dialog

export function Dialog({ title, onClose, children }) {
  const dialog = useRef(null);
  useEffect(() => {
    const element = dialog.current;
    element.showModal();
    element.querySelector("input")?.focus();
    return () => element.close();
  }, []);
  return html`
    <dialog ref=${dialog} aria-label=${title} onClose=${onClose}>
      <header>
        <h2>${title}</h2>
        <button type="button" class="plain" onClick=${() => dialog.current.close()} aria-label="Close">✕</button>
      </header>
      ${children}
    </dialog>`;
}

// --- how full something is

export function Meter({ label, used, of, children }) {
  const share = of ? Math.min(100, (used / of) * 100) : 0;
  const level = share > 90 ? "bad" : share > 75 ? "warn" : "good";
  return html`
    <div class="meter">
      <div class="meter-words">${children}</div>
      ${
        of &&
        html`
        <div class="bar" role="meter" aria-label=${label} aria-valuenow=${Math.round(share)} aria-valuemin="0"
          aria-valuemax="100"><div class="is-${level}" style=${{ width: `${Math.max(share, 0.5)}%` }} /></div>`
      }
    </div>`;
}

// What a store takes, of what it may take: the hard limit, or the budget from which on history is thinned.
export function StorageMeter({ of, children }) {
  const { usage, max_bytes: most, budget_bytes: budget } = of;
  const limits = [
    [most, "limits.max_bytes"],
    [budget, "limits.budget_bytes"],
  ].filter(([bytes]) => bytes);
  limits.sort(([one], [other]) => one - other);
  const [bytes, name] = limits[0] || [];
  return html`
    <${Meter} label="Storage used" used=${usage.store_bytes} of=${bytes}>
      <span title=${name}><strong>${size(usage.store_bytes)}</strong>${bytes ? ` of ${size(bytes)}` : ", without a limit"}</span>
      <span>${count(usage.sessions, "session")}</span>
      <span>${count(usage.checkpoints, "checkpoint")}</span>
      ${children}
      ${budget && usage.store_bytes > budget && html`<strong class="is-bad">over its budget: history is thinned, saves go on</strong>`}
    <//>`;
}

export const Tabs = ({ label, tabs, current }) => html`
  <nav class="tabs" aria-label=${label}>
    ${tabs
      .filter(Boolean)
      .map(
        ([name, text, where]) =>
          html`<a key=${name} href=${where} aria-current=${name === current ? "page" : undefined}>${text}</a>`,
      )}
  </nav>`;

// A word for what one answer is still missing, has failed with, or has.
export function Answered({ answer, children }) {
  if (answer.data)
    return html`<${Problem} error=${answer.error} again=${answer.again} />${children(answer.data)}`;
  if (answer.error) return html`<${Problem} error=${answer.error} again=${answer.again} />`;
  return html`<${Loading} />`;
}
