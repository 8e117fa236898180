// Two checkpoints: what changed in the state, by path and word by word, and in the project files.

import { useState } from "preact/hooks";
import { isFile, useAnswer } from "stepkeep/data";
import {
  Answered,
  Empty,
  Text,
  When,
  Word,
  checkpointAddress,
  html,
  sessionAddress,
  useTitle,
} from "stepkeep/parts";
import { age, clean, cleanLines, count } from "stepkeep/text";

export function Compare({ session, older, newer }) {
  useTitle(`Compare in ${session}`);
  const answer = useAnswer("diff", { key: session, older, newer });
  return html`
    <header class="page-head">
      <nav class="crumbs" aria-label="Where this is">${!isFile && html`<a href="#/">Sessions</a>`}<a
        href=${sessionAddress(session)}><${Word}>${session}<//></a></nav>
      <h1 tabindex="-1">${answer.data ? `${answer.data.older.seq} → ${answer.data.newer.seq}` : "Compare"}</h1>
    </header>
    <${Answered} answer=${answer}>
      ${(found) => html`
        <div class="sides"><${Side} session=${session} of=${found.older} name="from" />
          <${Side} session=${session} of=${found.newer} name="to" /></div>
        <section>
          <h2>State</h2>
          <p>${found.total === 0 && !found.is_partial ? "No differences." : html`<${Word}>${found.summary}<//>`} <span
            class="faint">${Math.abs(seconds(found)) > 1 && `${age(Math.abs(seconds(found)))} between them`}</span>
              </p>
          <ul class="changes">${found.changes.map((change, at) => html`<${Change} key=${at}
            change=${change} />`)}</ul>
          ${found.total > found.changes.length && html`<p
            class="faint">${count(found.total - found.changes.length, "more change")} not shown</p>`}
        </section>
        ${found.older.contents.files && found.newer.contents.files && html`<${Files} session=${session} older=${older}
          newer=${newer} />`}`}
    <//>`;
}

const seconds = ({ older, newer }) => (Date.parse(newer.time) - Date.parse(older.time)) / 1000;

const Side = ({ session, of, name }) => html`
  <div class="side"><span class="faint">${name}</span> <a
    href=${checkpointAddress(session, of.id)}>${of.seq}</a> <${When} time=${of.time} /> <${Word}
      class="faint">${of.branch}<//>
    ${of.message && html`<p><${Word}>${of.message}<//></p>`}</div>`;

const SIGNS = { added: "+", removed: "−", changed: "~", moved: "→" };

const Change = ({ change }) => html`
  <li class="is-${change.kind}">
    <p class="change-path"><span class="sign" role="img" aria-label=${change.kind}>${SIGNS[change.kind]}</span> <code>
      <bdi>${clean(change.path)}</bdi></code>
      ${change.old_type && html`<span class="faint">${change.old_type} → ${change.new_type}</span>`}</p>
    <${Values} change=${change} />
  </li>`;

// What a change leads from and to: word by word for texts, else one below the other.
export function Values({ change }) {
  if (change.kind === "moved")
    return html`<p class="faint">moved from [${change.old}] to [${change.new}]</p>`;
  if (change.marks.length > 0) {
    return html`<pre class="marked" tabindex="0">${change.marks.map((mark, at) => html`<${Mark} key=${at}
      mark=${mark} />`)}</pre>`;
  }
  return html`
    ${change.old !== null && html`<pre class="old" tabindex="0"><${Text}>${change.old}<//></pre>`}
    ${change.new !== null && html`<pre class="new" tabindex="0"><${Text}>${change.new}<//></pre>`}`;
}

function Mark({ mark }) {
  const text = cleanLines(mark.text);
  if (mark.kind === "removed") return html`<del>${text}</del>`;
  if (mark.kind === "added") return html`<ins>${text}</ins>`;
  return mark.kind === "left_out"
    ? html`<span class="faint"> … ${text} … </span>`
    : html`<span>${text}</span>`;
}

// --- files

function Files({ session, older, newer }) {
  const answer = useAnswer("files_diff", { key: session, older, newer });
  const [open, setOpen] = useState(null);
  return html`
    <section>
      <h2>Files</h2>
      <${Answered} answer=${answer}>
        ${(found) =>
          found.total === 0
            ? html`<${Empty} title="No file differs" />`
            : html`<ul class="files">${found.changes.map(
                (file) => html`
              <li key=${file.path}>
                <span class="sign is-${file.kind}" role="img"
                  aria-label=${file.kind}>${SIGNS[file.kind] || "~"}</span>
                <button type="button" class="link" aria-expanded=${open === file.path}
                  onClick=${() => setOpen(open === file.path ? null : file.path)}><bdi>${clean(file.path)}</bdi>
                    </button>
                ${file.added_lines !== null && html`<span class="is-added">+${file.added_lines}</span> <span
                  class="is-removed">−${file.removed_lines}</span>`}
                ${open === file.path && html`<${Patch} asked=${{ key: session, older, newer, path: file.path }} />`}
              </li>`,
              )}</ul>`}
      <//>
    </section>`;
}

function Patch({ asked }) {
  const answer = useAnswer("files_diff", asked);
  return html`
    <${Answered} answer=${answer}>
      ${(found) =>
        html`<pre class="code patch" tabindex="0">${(found.patch || "")
          .trimEnd()
          .split("\n")
          .map(
            (line, at) => html`<span key=${at} class=${kindOf(line)}>${cleanLines(line)}${"\n"}</span>`,
          )}</pre>`}
    <//>`;
}

function kindOf(line) {
  if (line.startsWith("@@")) return "is-place";
  if (/^(diff|index|---|\+\+\+|new file|deleted file|old mode|new mode)/.test(line)) return "faint";
  if (line.startsWith("+")) return "is-added";
  return line.startsWith("-") ? "is-removed" : "";
}
