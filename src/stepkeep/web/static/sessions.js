// All sessions of the store, most recently used first: found by text, live.

import { useEffect, useState } from "preact/hooks";
import { ask, useAnswer } from "stepkeep/data";
import {
  Age,
  Answered,
  Badge,
  Empty,
  Problem,
  StorageMeter,
  Tag,
  Word,
  address,
  go,
  html,
  sessionAddress,
  useTitle,
} from "stepkeep/parts";
import { count, shortened, size } from "stepkeep/text";

const CHOICES = [
  ["All", {}],
  ["Running", { condition: "running" }],
  ["Waiting", { condition: "waiting" }],
  ["Crashed", { condition: "crashed" }],
  ["Queued", { condition: "queued" }],
  ["Open", { condition: "open" }],
  ["Paused", { status: "paused" }],
  ["Completed", { status: "completed" }],
  ["Failed", { status: "failed" }],
  ["Cancelled", { status: "cancelled" }],
];

export function Sessions({ params }) {
  useTitle("Sessions");
  const wanted = {
    text: params.get("text"),
    status: params.get("status"),
    condition: params.get("condition"),
    project: params.get("project"),
  };
  const answer = useAnswer("sessions", wanted, { live: true, every: 10 });
  return html`
    <header class="page-head"><h1 tabindex="-1">Sessions</h1></header>
    <${Filters} wanted=${wanted} />
    <${Answered} answer=${answer}>
      ${(page) => html`
        <${StorageMeter} of=${page}><${Next} /><//>
        <${List} page=${page} wanted=${wanted} />`}
    <//>`;
}

function Filters({ wanted }) {
  const [text, setText] = useState(wanted.text || "");
  useEffect(() => setText(wanted.text || ""), [wanted.text]);
  const submit = (event) => {
    event.preventDefault();
    go(address([], { ...wanted, text: event.currentTarget.elements.text.value }));
  };
  return html`
    <form class="filters" role="search" onSubmit=${submit}>
      <input type="search" name="text" aria-label="Search keys, tasks, messages and tags" value=${text}
        placeholder="Search keys, tasks, messages, tags" onInput=${(event) => setText(event.currentTarget.value)} />
      <button type="submit">Search</button>
      <nav class="chips" aria-label="Status">
        ${CHOICES.map(
          ([label, { status, condition }]) => html`
          <a key=${label} href=${address([], { ...wanted, status, condition })}
            aria-current=${(wanted.status || "") === (status || "") && (wanted.condition || "") === (condition || "")
              ? "true" : undefined}>${label}</a>`,
        )}
        ${
          wanted.project &&
          html`
          <a href=${address([], { ...wanted, project: "" })}
            aria-current="true">project <${Word}>${wanted.project}<//> ✕</a>`
        }
      </nav>
    </form>`;
}

// What the next clean removes, and why: asked for once, because it looks at every session.
function Next() {
  const { data } = useAnswer("clean", {});
  const first = data?.sessions[0];
  return html`<a href="#/store">${
    !first
      ? data
        ? "Nothing goes next"
        : "Storage"
      : html`Next to go: ${count(data.cleaned, "session")}, such as <${Word}>${shortened(first.session, 40)}<//>
        (${first.reason})`
  }</a>`;
}

function List({ page, wanted }) {
  const [more, setMore] = useState({ sessions: [], next: null });
  useEffect(() => setMore({ sessions: [], next: null }), [JSON.stringify(wanted)]);
  const next = more.sessions.length ? more.next : page.next;
  const load = async () => {
    try {
      const found = await ask("sessions", { ...wanted, after: next });
      setMore({ sessions: [...more.sessions, ...found.sessions], next: found.next });
    } catch (error) {
      setMore({ ...more, error });
    }
  };
  // One that was used meanwhile is on the first page now.
  const sessions = [
    ...new Map([...more.sessions, ...page.sessions].map((each) => [each.uid, each])).values(),
  ];
  sessions.sort((one, other) => (one.updated < other.updated ? 1 : -1));
  if (sessions.length === 0) return html`<${Nothing} isFiltered=${Object.values(wanted).some(Boolean)} />`;
  return html`
    <ul class="sessions" aria-label="Sessions">${sessions.map((each) => html`<${Row} key=${each.uid}
      session=${each} />`)}</ul>
    <${Problem} error=${more.error} />
    ${next && html`<p class="more"><button type="button" onClick=${load}>Show more</button></p>`}`;
}

const Nothing = ({ isFiltered }) =>
  isFiltered
    ? html`<${Empty} title="Nothing matches"><p>No session has this text and status. <a href="#/">Show all</a></p>
      <//>`
    : html`<${Empty} title="No sessions yet">
      <p>What is saved into this store appears here at once. Try <code>stepkeep save my-first '{"n": 1}'</code>.</p>
        <//>`;

// What went wrong with a session, else what was said when it was saved last.
export const Said = ({ session: { error, message, task } }) => html`
  <span class="session-message">${
    error
      ? html`<${Word} class="is-bad">${error}<//>`
      : html`<${Word}>${message || (task ? "" : "no message")}<//>`
  }</span>`;

const Row = ({ session }) => html`
  <li>
    <${Badge} kind=${session.condition} />
    <div class="session-main">
      <a class="session-key" href=${sessionAddress(session.key)}><${Word}>${session.key}<//></a>
      ${session.task && session.task !== session.message && html`<span class="session-task"><${Word}>${session.task}<//></span>`}
      <${Said} session=${session} />
    </div>
    <div class="session-labels">
      ${session.project && html`<a class="tag" href=${address([], { project: session.project })}>
        <${Word}>${session.project}<//></a>`}
      ${session.workflow && session.workflow !== session.project && html`<${Tag}>${session.workflow}<//>`}
      ${session.tags.slice(0, 3).map((tag) => html`<${Tag} key=${tag}>${tag}<//>`)}
    </div>
    <span class="session-count">${session.checkpoints.toLocaleString("en")}<span class="unit"> ckpt</span></span>
    <span class="session-size">${size(session.stored_bytes)}</span>
    <span class="session-age"><${Age} time=${session.updated} /></span>
  </li>`;
