// A state as a tree that is loaded level by level: only what is opened is sent.

import { useState } from "preact/hooks";
import { ask } from "stepkeep/data";
import { Problem, Text, address, html } from "stepkeep/parts";
import { clean, count, size } from "stepkeep/text";

const PAGE = 100;
const NOUNS = { dict: "key", list: "item", tuple: "item", set: "member", frozenset: "member" };
const BRACKETS = {
  dict: ["{", "}"],
  list: ["[", "]"],
  tuple: ["(", ")"],
  set: ["{", "}"],
  frozenset: ["{", "}"],
};

export function Tree({ of, first }) {
  if (!(first.kind in NOUNS)) return html`<ul class="tree"><${Leaf} of=${of} entry=${first} /></ul>`;
  if (first.count === 0)
    return html`<p class="faint">The ${of.body || "state"} is empty: <code>${BRACKETS[first.kind].join("")}</code>
      </p>`;
  return html`<${Level} of=${of} path=${first.path} first=${first} isRoot />`;
}

function Level({ of, path, first, isRoot }) {
  const [entries, setEntries] = useState(first.entries);
  const [error, setError] = useState(null);
  const more = async () => {
    try {
      const next = await ask("outline", { ...of, path, start: entries.length });
      setEntries([...entries, ...next.entries]);
    } catch (problem) {
      setError(problem);
    }
  };
  const left = first.count - entries.length;
  return html`
    <ul class="tree ${isRoot ? "is-root" : ""}">
      ${entries.map((entry) =>
        entry.kind in NOUNS
          ? html`<${Branch} key=${entry.path || entry.name} of=${of} entry=${entry} />`
          : html`<${Leaf} key=${entry.path || entry.name} of=${of} entry=${entry} />`,
      )}
      ${left > 0 && html`<li>
        <button type="button" class="link"
          onClick=${more}>${Math.min(left, PAGE)} more of ${left.toLocaleString("en")}</button></li>`}
    </ul>
    <${Problem} error=${error} />`;
}

function Branch({ of, entry }) {
  const [level, setLevel] = useState(null);
  const [isOpen, setOpen] = useState(false);
  const [error, setError] = useState(null);
  const toggle = async () => {
    setError(null);
    if (!isOpen && level === null) {
      try {
        setLevel(await ask("outline", { ...of, path: entry.path }));
      } catch (problem) {
        setError(problem);
        return;
      }
    }
    setOpen(!isOpen);
  };
  const [open, close] = BRACKETS[entry.kind];
  const amount = entry.count === null ? "" : count(entry.count, NOUNS[entry.kind]);
  return html`
    <li>
      <span class="node">
        <button type="button" class="twist" aria-expanded=${isOpen} onClick=${toggle}
          disabled=${entry.count === 0 || !entry.path}>
          <span class="arrow" aria-hidden="true">▸</span><${Name} entry=${entry} />
          <span class="faint">${open}${amount && ` ${amount} `}${close}</span>
          ${!isOpen && entry.text && html`<span class="peek"><bdi>${clean(entry.text)}</bdi></span>`}
        </button>
        <${Aside} of=${of} entry=${entry} />
      </span>
      <${Problem} error=${error} />
      ${isOpen && level && html`<${Level} of=${of} path=${entry.path} first=${level} />`}
    </li>`;
}

function Leaf({ of, entry }) {
  const [whole, setWhole] = useState(null);
  const [error, setError] = useState(null);
  const load = async () => {
    try {
      setWhole(await ask("outline", { ...of, path: entry.path }));
    } catch (problem) {
      setError(problem);
    }
  };
  const shown = whole || entry;
  return html`
    <li>
      <span class="node">
        <span class="twist is-leaf"><${Name} entry=${entry} /></span>
        <span class="value kind-${entry.kind}"><${Text}>${shown.text}<//>${!shown.is_whole && "…"}</span>
        ${!shown.is_whole && !whole && entry.path && html`<button type="button" class="link"
          onClick=${load}>show more</button>`}
        <${Aside} of=${of} entry=${entry} />
      </span>
      <${Problem} error=${error} />
    </li>`;
}

const Name = ({ entry }) => html`<span class="name"><bdi>${clean(entry.name)}</bdi>:</span>`;

// What stands at the end of a line: how large it is, of which kind, and how it came to be.
const Aside = ({ of, entry }) => html`
  <span class="aside">
    <span class="faint">${entry.kind}${entry.size_bytes > 200 ? `, ${size(entry.size_bytes)}` : ""}</span>
    ${!of.body && entry.path && html`<a class="faint"
      href=${address(["s", of.key, "log"], { path: entry.path, ref: of.ref })}
        aria-label="History of ${clean(entry.path)}">history</a>`}
  </span>`;
