// One checkpoint: what it is, what it holds, and how one of its values came to be.

import { useState } from "preact/hooks";
import { CheckpointActions } from "stepkeep/actions";
import { Values } from "stepkeep/compare";
import { ask, downloadOf, isFile, useAnswer } from "stepkeep/data";
import {
  Answered,
  Badge,
  Empty,
  Facts,
  Problem,
  Tabs,
  Text,
  When,
  Word,
  address,
  checkpointAddress,
  html,
  sessionAddress,
  useTitle,
} from "stepkeep/parts";
import { clean, cleanLines, count, size, why } from "stepkeep/text";
import { EventList } from "stepkeep/timeline";
import { Tree } from "stepkeep/tree";

export function Checkpoint({ session, checkpoint, params }) {
  const of = { key: session, ref: checkpoint };
  const header = useAnswer("checkpoint", of);
  useTitle(header.data ? `Checkpoint ${header.data.seq} of ${session}` : session);
  return html`
    <header class="page-head">
      <nav class="crumbs" aria-label="Where this is">${!isFile && html`<a href="#/">Sessions</a>`}<a
        href=${sessionAddress(session)}><${Word}>${session}<//></a></nav>
      <div class="head-line">
        <h1 tabindex="-1">${header.data ? `Checkpoint ${header.data.seq}` : "Checkpoint"} ${header.data?.message
          && html`<${Word} class="head-message">${header.data.message}<//>`}</h1>
        <span class="spring" />
        ${header.data && !isFile && html`<${CheckpointActions} session=${session} checkpoint=${header.data} />`}
      </div>
    </header>
    <${Answered} answer=${header}>${(found) => html`<${Found} of=${of} found=${found} params=${params} />`}<//>`;
}

function Found({ of, found, params }) {
  const where = (name) => checkpointAddress(of.key, of.ref, { tab: name === "state" ? "" : name });
  const talk = useAnswer("conversation", of, { skip: !found.contents.state });
  const happened = useAnswer("events", of, { live: of.key });
  const tabs = [
    ["state", "State", where("state")],
    talk.data?.path && [
      "conversation",
      `Conversation (${talk.data.total.toLocaleString("en")})`,
      where("conversation"),
    ],
    found.contents.details && ["details", "Details", where("details")],
    found.contents.files && ["files", "Files", where("files")],
    happened.data?.length > 0 && ["events", `Events (${happened.data.length})`, where("events")],
    ["header", "Header", where("header")],
  ].filter(Boolean);
  const asked = params.get("tab");
  const isLoading = !talk.data && !talk.error && found.contents.state;
  const tab = isLoading || tabs.some(([name]) => name === asked) ? asked || "state" : "state";
  return html`
    <${Facts} of=${{
      "saved (UTC)": html`<${When} time=${found.time} />`,
      status: found.status === "in_progress" ? "" : html`<${Badge} kind=${found.status} />`,
      step: found.step === null ? "" : String(found.step),
      branch: html`<${Word}>${found.branch}<//>`,
      why: why(found.trigger),
      tags: found.tags.length
        ? html`${found.tags.map((tag) => html`<a key=${tag} class="tag"
          href=${isFile ? undefined : address(["s", of.key], { tag })}><${Word}>${tag}<//></a> `)}`
        : "",
      size: size(found.size_bytes),
      stored: `${size(found.stored_bytes)}${found.ratio ? ` (${found.ratio}× smaller)` : ""}`,
      before: found.parents.length
        ? html`${found.parents.map((id) => html`<a key=${id} href=${checkpointAddress(of.key, id)}>open</a>, `)}<a
          href=${sessionAddress(of.key, "compare", found.parents[0], of.ref)}>what changed</a>`
        : "",
    }} />
    <${Tabs} label="Of this checkpoint" tabs=${tabs} current=${tab} />
    ${tab === "state" && html`<${Body} of=${of} body="state" />`}
    ${tab === "details" && html`<${Body} of=${of} body="details" />`}
    ${tab === "conversation" && html`<${Answered} answer=${talk}>${(page) => html`<${Conversation} of=${of}
      first=${page} />`}<//>`}
    ${tab === "files" && html`<${Files} of=${of} />`}
    ${tab === "events" && html`<${Answered} answer=${happened}>${(events) => html`<${EventList} session=${of.key}
      events=${events} />`}<//>`}
    ${tab === "header" && html`<${Header} found=${found} />`}`;
}

function Body({ of, body }) {
  const asked = { ...of, body: body === "state" ? "" : body };
  const answer = useAnswer("outline", asked);
  const download = downloadOf(body, of);
  return html`
    <${Answered} answer=${answer}>
      ${(outline) => html`
        <p class="verified"><span class="is-good">✓ verified</span> ${size(outline.size_bytes)}, ${outline.encoding}
          ${download && html`<a href=${download} download>Download</a>`}</p>
        <${Tree} key=${`${of.ref}/${body}`} of=${asked} first=${outline} />`}
    <//>`;
}

// --- the conversation

function Conversation({ of, first }) {
  const [pages, setPages] = useState(first);
  const [error, setError] = useState(null);
  const earlier = async () => {
    try {
      const start = Math.max(0, pages.start - 50);
      const page = await ask("conversation", { ...of, start: String(start), limit: pages.start - start });
      setPages({ ...pages, start: page.start, messages: [...page.messages, ...pages.messages] });
    } catch (problem) {
      setError(problem);
    }
  };
  return html`
    <p class="faint">${count(pages.total, "message")} at <code>${clean(pages.path)}</code></p>
    ${pages.start > 0 && html`<p class="more">
      <button type="button" onClick=${earlier}>${pages.start.toLocaleString("en")} earlier</button></p>`}
    <${Problem} error=${error} />
    <ol class="talk" start=${pages.start + 1}>${pages.messages.map((message) => html`<${Message} key=${message.path}
      message=${message} />`)}</ol>`;
}

const SPEAKERS = ["user", "assistant", "system", "tool"];

const Message = ({ message }) => html`
  <li class="message is-${SPEAKERS.includes(message.role) ? message.role : "other"}">
    <p class="speaker"><strong><${Word}>${message.role || "message"}<//>
      </strong>${message.name && html` <${Word} class="faint">${message.name}<//>`} <span
        class="faint">${size(message.size_bytes)}</span></p>
    ${message.text && html`<div class="said"><${Text}>${message.text}<//>${message.is_cut && "…"}</div>`}
    ${message.tools.map((tool, at) => html`<div key=${at} class="tool-call"><strong><${Word}>${tool.name}<//>
      </strong> <code><${Word}>${tool.arguments}<//></code></div>`)}
    ${!message.text && message.tools.length === 0 && html`<p
      class="faint">${message.is_cut ? "too large to show here" : "no text"}</p>`}
  </li>`;

// --- files

function notCaptured(list) {
  const left = Object.keys(list.skipped).length;
  return left > 0 && `, ${left} not captured`;
}

function Files({ of }) {
  const answer = useAnswer("files", of);
  const [open, setOpen] = useState(null);
  return html`
    <${Answered} answer=${answer}>
      ${(list) => html`
        <p class="faint">${count(list.total, "file")}, ${size(list.size_bytes)}, of <code>${clean(list.root)}</code>${list.git?.commit && html` at commit <code>${list.git.commit.slice(0, 12)}</code>${list.git.is_dirty ? " with changes" : ""}`}${notCaptured(list)}</p>
        <ul class="files">${list.files.map(
          (file) => html`
          <li key=${file.path}>
            <button type="button" class="link" aria-expanded=${open === file.path}
              onClick=${() => setOpen(open === file.path ? null : file.path)}><bdi>${clean(file.path)}</bdi></button>
            <span class="faint">${file.target !== null ? "link" : file.mode.slice(-3)}, ${size(file.size_bytes)}</span>
            ${open === file.path && html`<${FileText} of=${of} path=${file.path} />`}
          </li>`,
        )}</ul>`}
    <//>`;
}

function FileText({ of, path }) {
  const answer = useAnswer("file", { ...of, path });
  return html`
    <${Answered} answer=${answer}>
      ${(file) =>
        file.text === null
          ? html`<p class="faint">not a text</p>`
          : html`<pre class="code" tabindex="0">${cleanLines(file.text)}</pre>${file.is_cut && html`<p
            class="faint">only the beginning is shown</p>`}`}
    <//>`;
}

const Header = ({ found }) => html`
  <div class="header-tab">
    <${Facts} of=${{
      id: html`<code>${found.id}</code>`,
      chain: html`<code>${found.chain}</code>`,
      parents: found.parents.length ? html`<code>${found.parents.join(" ")}</code>` : "",
      requires: found.requires.join(" "),
      "external id": found.external_id && html`<${Word}>${found.external_id}<//>`,
      "idempotency key": found.idempotency_key && html`<${Word}>${found.idempotency_key}<//>`,
      message: found.message && html`<${Text}>${found.message}<//>`,
    }} />
    <h2>Bodies</h2>
    <div class="table-box" tabindex="0" role="region" aria-label="Bodies"><table>
      <thead><tr><th>name</th><th class="number">size</th><th>encoding</th><th>SHA-256</th></tr></thead>
      <tbody>${Object.entries(found.contents).map(([name, body]) => html`<tr key=${name}><td>${clean(name)}</td>
        <td class="number">${size(body.size)}</td><td>${body.encoding}</td><td><code>${body.digest}</code></td>
          </tr>`)}</tbody>
    </table></div>
    ${Object.keys(found.metadata).length > 0 && html`<h2>Metadata</h2>
      <pre class="code" tabindex="0">${cleanLines(JSON.stringify(found.metadata, null, 2))}</pre>`}
  </div>`;

// --- how one value changed

export function ValueLog({ session, params }) {
  const path = params.get("path") || "$";
  const ref = params.get("ref") || "latest";
  useTitle(`${path} in ${session}`);
  const answer = useAnswer("log", { key: session, path, ref });
  return html`
    <header class="page-head">
      <nav class="crumbs" aria-label="Where this is">${!isFile && html`<a href="#/">Sessions</a>`}<a
        href=${sessionAddress(session)}><${Word}>${session}<//></a><a href=${checkpointAddress(session, ref)}>checkpoint</a></nav>
      <h1 tabindex="-1">History of <code>${clean(path)}</code></h1>
    </header>
    <${Answered} answer=${answer}>
      ${(log) =>
        log.changes.length === 0
          ? html`<${Empty} title="It never had a value">
            <p>No checkpoint on the way here has something at this path.</p><//>`
          : html`<ol class="changes">${log.changes.map(
              ({ checkpoint, change }) => html`
            <li key=${checkpoint.id} class="is-${change.kind}">
              <p class="change-path">
                <a href=${checkpointAddress(session, checkpoint.id)}>${checkpoint.seq}</a> <span
                  class="faint">${change.kind}</span> <${When} time=${checkpoint.time} /> <${Word}
                    class="faint">${checkpoint.message}<//></p>
              <${Values} change=${change} />
            </li>`,
            )}</ol>`}
    <//>`;
}
