// A session: its branches as lanes, newest first; what happened to it; and what its rules let go.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { Actions } from "stepkeep/actions";
import { ask, hasStates, inTurn, isFile, useAnswer, watch } from "stepkeep/data";
import {
  Age,
  Answered,
  Badge,
  Empty,
  Facts,
  Loading,
  Problem,
  Tabs,
  Tag,
  When,
  Word,
  address,
  checkpointAddress,
  go,
  html,
  sessionAddress,
  useTitle,
} from "stepkeep/parts";
import { clean, count, moment, shortened, size, spaced, why } from "stepkeep/text";

const ROW = 34;
const LANE = 18;
const EDGE = 12;
const SPARE_ROWS = 12;
const CARD_DELAY = 350;
const OLD_PAGES = 8;
const FOLDED = ["fold", "older"];

// --- what every page of a session begins with

export function SessionHead({ session, tab, children }) {
  const answer = useAnswer("session", { key: session }, { live: session, every: 10 });
  const found = answer.data;
  const tabs = [
    ["timeline", "Timeline", sessionAddress(session)],
    found?.is_run && ["run", "Steps", sessionAddress(session, "run")],
    ["find", "Find", sessionAddress(session, "find")],
    ["events", "Events", sessionAddress(session, "events")],
    ["retention", "Retention", sessionAddress(session, "retention")],
  ];
  return html`
    <header class="page-head">
      <nav class="crumbs" aria-label="Where this is">${!isFile && html`<a href="#/">Sessions</a>`}</nav>
      <div class="head-line">
        <h1 tabindex="-1"><${Word}>${session}<//></h1>
        ${found && html`<${Badge} kind=${found.condition} />`}
        <span class="spring" />
        ${found && !isFile && html`<${Actions} session=${found} />`}
      </div>
      ${
        found &&
        html`<p class="under-head">
        <span>${count(found.checkpoints, "checkpoint")}</span><span>${size(found.stored_bytes)}</span>
        <span>on <${Word} class="strong">${found.branch}<//></span>
        ${found.project && html`<span>project <${Word} class="strong">${found.project}<//></span>`}
        ${found.condition === "running" && html`<span>${found.holder}</span>`}
        <span>used <${Age} time=${found.updated} /></span>
      </p>`
      }
      ${found?.task && html`<p><${Word}>${shortened(found.task, 300)}<//></p>`}
      ${found?.error && html`<p class="problem"><${Word}>${found.error}<//></p>`}
      <${Problem} error=${answer.error} again=${answer.again} />
      ${children}
    </header>
    <${Tabs} label="Of this session" tabs=${tabs} current=${tab} />`;
}

// --- the timeline

export function SessionTimeline({ session, params }) {
  useTitle(session);
  const isFolded = params.get("all") !== "1";
  const [picked, setPicked] = useState([]);
  const options = {
    key: session,
    fold: isFolded ? "1" : "",
    branch: params.get("branch"),
    tag: params.get("tag"),
    since: params.get("since"),
  };
  const pages = usePages(options, session);
  const toggle = (node) =>
    setPicked((before) =>
      before.some((each) => each.id === node.id)
        ? before.filter((each) => each.id !== node.id)
        : [...before, node].slice(-2),
    );
  return html`
    <${SessionHead} session=${session} tab="timeline" />
    <${Problem} error=${pages.error} again=${pages.again} />
    ${
      pages.first
        ? html`
        <${Toolbar} session=${session} page=${pages.first} params=${params} picked=${picked} isFolded=${isFolded} />
        ${
          pages.first.rows === 0
            ? html`<${Empty} title="No checkpoint yet"><p>What is saved into this session appears here at once.</p>
              <//>`
            : html`<${Graph} session=${session} pages=${pages} picked=${picked} toggle=${toggle} params=${params} />`
        }`
        : !pages.error && html`<${Loading} />`
    }`;
}

function Toolbar({ session, page, params, picked, isFolded }) {
  const change = (changes) => address(["s", session], { ...Object.fromEntries(params), at: "", ...changes });
  const [older, newer] = [...picked].sort((one, other) => one.seq - other.seq);
  return html`
    <div class="toolbar">
      <span class="faint">${summary(page)}</span>
      <span class="spring" />
      ${
        page.branches.length > 1 &&
        !isFile &&
        html`
        <label>Branch
          <select onChange=${(event) => go(change({ branch: event.currentTarget.value }))}>
            <option value="">all</option>
            ${page.branches.map((branch) => html`<option key=${branch.name} value=${branch.name}
              selected=${params.get("branch") === branch.name}>${clean(branch.name)}</option>`)}
          </select>
        </label>`
      }
      ${params.get("tag") && html`<a class="chip"
        href=${change({ tag: "" })}>tag <${Word}>${params.get("tag")}<//> ✕</a>`}
      ${
        (!isFolded || page.drawn.some(({ node }) => FOLDED.includes(node.kind))) &&
        html`<a class="chip" href=${change({ all: isFolded ? "1" : "" })}
        aria-label=${isFolded ? "Show every checkpoint" : "Fold long runs"}>${isFolded ? "Show all" : "Fold"}</a>`
      }
      ${
        newer
          ? html`<a class="button"
            href=${sessionAddress(session, "compare", older.id, newer.id)}>Compare ${older.seq} and ${newer.seq}</a>`
          : hasStates && html`<span class="faint hint">${picked.length ? "pick one more to compare" : "tick two to compare"}</span>`
      }
    </div>`;
}

function summary(page) {
  const facts = [
    page.branches.length > 1 && count(page.branches.length, "branch", "branches"),
    page.pruned > 0 && `${page.pruned.toLocaleString("en")} pruned`,
    page.damaged.length > 0 && `${page.damaged.length.toLocaleString("en")} damaged`,
    page.left_out > 0 && `${page.left_out.toLocaleString("en")} left out`,
    `${size(page.size_bytes)} of states in ${size(page.stored_bytes)}`,
  ];
  return facts.filter(Boolean).join(", ");
}

// The pages of a timeline, loaded as they come into view, and anew when the session changes; those before are shown until
// the new ones are there.
function usePages(options, session) {
  const [state, setState] = useState({ pages: {} });
  const question = JSON.stringify(options);
  const loading = useRef(new Set());
  const current = useRef(question);
  current.current = question;
  const load = async (at, isFresh) => {
    if (loading.current.has(at) && !isFresh) return;
    loading.current.add(at);
    try {
      const page = await ask("timeline", { ...options, page: at || "" });
      if (current.current !== question) return;
      setState((before) => {
        const old = [...Object.values(before.pages), ...(before.old || [])].slice(0, OLD_PAGES);
        if (isFresh) return { first: page, rows: page.rows, pages: { 0: page }, old };
        // One that is of another moment than the first comes again with the next change.
        return page.rows === before.rows ? { ...before, pages: { ...before.pages, [at]: page } } : before;
      });
    } catch (error) {
      if (current.current === question) setState((before) => ({ ...before, error }));
    } finally {
      loading.current.delete(at);
    }
  };
  const fresh = useRef(() => {});
  useEffect(() => {
    setState({ pages: {} });
    fresh.current = inTurn(() => load(0, true));
    fresh.current();
    return watch((keys) => {
      if (keys !== null && (keys.size === 0 || keys.has(session))) fresh.current();
    });
  }, [question]);
  const size = state.first?.drawn.length || 1;
  const rowAt = (index) => {
    const page = state.pages[Math.floor(index / size)];
    if (page) return page.drawn[index - page.start];
    // What is new is above: a row from before has moved down by so many.
    const found = (state.old || []).map(({ start, drawn, rows }) => drawn[index - (state.rows - rows) - start]);
    return found.find(Boolean);
  };
  const need = (first, last) => {
    for (let at = Math.floor(first / size); at <= Math.floor(last / size); at += 1) {
      if (!state.pages[at]) load(at, false);
    }
  };
  return { ...state, rowAt, need, again: () => fresh.current() };
}

function Graph({ session, pages, picked, toggle, params }) {
  const box = useRef(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const [card, setCard] = useState(null);
  const [cursor, setCursor] = useState(0);
  const toFocus = useRef(null);
  const rows = pages.rows;
  const before = useRef(rows);
  const first = Math.max(0, Math.floor(view.top / ROW) - SPARE_ROWS);
  const last = Math.min(rows - 1, Math.ceil((view.top + view.height) / ROW) + SPARE_ROWS);
  useEffect(() => pages.need(first, last), [first, last, pages.pages]);
  useLayoutEffect(() => {
    const measure = () => setView({ top: box.current.scrollTop, height: box.current.clientHeight });
    measure();
    window.addEventListener("resize", measure);
    return () => window.removeEventListener("resize", measure);
  }, []);
  useLayoutEffect(() => {
    // What is in view stays in view, and what has the focus keeps it, while new rows come in above.
    const more = rows - before.current;
    if (more !== 0 && box.current.scrollTop > 0) box.current.scrollTop += more * ROW;
    if (more !== 0 && box.current.contains(document.activeElement))
      setCursor((index) => Math.min(rows - 1, Math.max(0, index + more)));
    before.current = rows;
  }, [rows]);
  const lookFor = params.get("at");
  useEffect(() => {
    const page = pages.first;
    if (lookFor && page?.drawn.length) {
      const top = page.drawn.find((row) => row.node.checkpoint)?.node.checkpoint.seq || rows;
      box.current.scrollTop = Math.max(0, (top - Number(lookFor)) * ROW - view.height / 2);
    }
  }, [lookFor, rows]);
  useEffect(() => {
    const link = toFocus.current !== null && box.current.querySelector(`[data-row="${toFocus.current}"]`);
    if (link) {
      toFocus.current = null;
      link.focus({ preventScroll: true });
    }
  });
  const move = (to) => {
    const next = Math.min(rows - 1, Math.max(0, to));
    toFocus.current = next;
    setCursor(next);
    const top = next * ROW;
    if (top < box.current.scrollTop) box.current.scrollTop = top;
    if (top + ROW > box.current.scrollTop + box.current.clientHeight)
      box.current.scrollTop = top + ROW - box.current.clientHeight;
  };
  const keys = (event) => {
    const page = Math.max(1, Math.floor(view.height / ROW) - 1);
    const steps = {
      ArrowDown: 1,
      j: 1,
      ArrowUp: -1,
      k: -1,
      PageDown: page,
      PageUp: -page,
      Home: -rows,
      End: rows,
    };
    if (event.key in steps && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      move(cursor + steps[event.key]);
    } else if (event.key === "x" || event.key === " ") {
      const node = pages.rowAt(cursor)?.node;
      if (hasStates && node?.checkpoint && event.target.dataset.row) {
        event.preventDefault();
        toggle(node.checkpoint);
      }
    } else if (event.key === "Escape") {
      setCard(null);
    }
  };
  const width = pages.first.lanes * LANE + EDGE;
  const shown = [];
  for (let index = first; index <= last; index += 1) {
    const row = pages.rowAt(index);
    shown.push(html`<${Row} key=${row?.node.checkpoint?.id || index} index=${index} rows=${rows} row=${row} width=${width}
      session=${session}
      isCursor=${index === cursor} picked=${picked} toggle=${toggle} setCard=${setCard} setCursor=${setCursor}
        params=${params} />`);
  }
  return html`
    <p class="visually-hidden" id="timeline-keys">Arrow keys move, Enter opens, x picks a checkpoint to compare.</p>
    <div class="timeline" ref=${box} onScroll=${(event) => {
      setCard(null);
      setView({ top: event.currentTarget.scrollTop, height: event.currentTarget.clientHeight });
    }} onKeyDown=${keys} style=${{ maxHeight: `max(320px, min(${rows * ROW + 2}px, calc(100dvh - 270px)))` }}>
      <div role="list" aria-label="Checkpoints, newest first" aria-describedby="timeline-keys" class="rows"
        style=${{ height: `${rows * ROW}px` }}>${shown}</div>
    </div>
    ${card && html`<${Card} ...${card} />`}`;
}

function Row({ index, rows, row, width, session, isCursor, picked, toggle, setCard, setCursor, params }) {
  const timer = useRef(null);
  const hide = () => {
    clearTimeout(timer.current);
    setCard(null);
  };
  useEffect(() => () => clearTimeout(timer.current), []);
  const place = { top: `${index * ROW}px` };
  const item = {
    role: "listitem",
    "aria-setsize": rows,
    "aria-posinset": index + 1,
    class: "row",
    style: place,
  };
  if (!row) return html`<div ...${item}><span class="faint">…</span></div>`;
  const { checkpoint } = row.node;
  const show = (event, delay) => {
    const box = event.currentTarget.getBoundingClientRect();
    clearTimeout(timer.current);
    timer.current = setTimeout(
      () => setCard({ row, left: box.left, top: box.bottom, above: box.top }),
      delay,
    );
  };
  const focus = {
    tabindex: isCursor ? 0 : -1,
    "data-row": index,
    onFocus: (event) => {
      setCursor(index);
      if (checkpoint && event.currentTarget.matches(":focus-visible")) show(event, CARD_DELAY);
    },
    onBlur: hide,
  };
  if (!checkpoint) {
    const seq = row.node.last_seq || row.node.seq;
    const where =
      FOLDED.includes(row.node.kind)
        ? address(["s", session], { ...Object.fromEntries(params), all: "1", at: seq })
        : null;
    return html`
      <div ...${item} class="row is-${row.mark}">
        <${Lanes} row=${row} width=${width} /><span class="row-pick" />
        ${
          where && !isFile
            ? html`<a class="row-fold" href=${where} ...${focus}>${row.text}</a>`
            : html`<span class="row-fold" ...${focus}>${row.text}</span>`
        }
      </div>`;
  }
  const isPicked = picked.some((each) => each.id === checkpoint.id);
  return html`
    <div ...${item} class="row is-${row.mark} ${row.node.is_match ? "" : "is-faint"} ${isPicked ? "is-picked" : ""}"
      onMouseEnter=${(event) => show(event, CARD_DELAY)} onMouseLeave=${hide}>
      <${Lanes} row=${row} width=${width} />
      <span class="row-pick">
        ${hasStates && html`<input type="checkbox" tabindex="-1" checked=${isPicked} onChange=${() => toggle(checkpoint)}
          aria-label="Pick checkpoint ${checkpoint.seq} to compare" />`}</span>
      <a class="row-main" href=${checkpointAddress(session, checkpoint.id)} ...${focus}>
        <span class="row-seq">${checkpoint.seq}</span>
        <span class="row-message">${checkpoint.message ? html`<${Word}>${shortened(checkpoint.message, 300)}<//>`
          : html`<span class="faint">${spaced(checkpoint.trigger.event || checkpoint.trigger.kind)}</span>`}</span>
      </a>
      <span class="row-labels">
        ${checkpoint.message && checkpoint.trigger.event && checkpoint.tags.length === 0 && html`<span class="row-event">${spaced(checkpoint.trigger.event)}</span>`}
        ${row.node.heads.map((name) => html`<span key=${name}
          class="branch lane${row.lane % 6} ${row.node.is_current ? "is-current" : ""}">
            <${Word}>${shortened(name, 40)}<//></span>`)}
        ${checkpoint.tags.slice(0, 3).map((tag) => html`<${Tag} key=${tag}>${shortened(tag, 40)}<//>`)}
        ${checkpoint.status !== "in_progress" && html`<${Badge} kind=${checkpoint.status} />`}
        ${checkpoint.contents.files && html`<span class="mark-files" role="img" aria-label="holds project files"
          title="holds project files">▤</span>`}
      </span>
      <span class="row-step">${checkpoint.step === null ? "" : `step ${checkpoint.step}`}</span>
      <span class="row-size">${size(checkpoint.stored_bytes)}</span>
      <span class="row-time"><${When} time=${checkpoint.time} />
        <span class="row-short" aria-hidden="true">${moment(checkpoint.time).slice(5, 16)}</span></span>
    </div>`;
}

// The lines of a row and its mark. Lines come from above, go on below, or change their lane on the way.
function Lanes({ row, width }) {
  const x = (lane) => EDGE + lane * LANE;
  const middle = ROW / 2;
  const above = new Map(row.above);
  const line = (key, path, lane, isBroken) =>
    html`<path key=${key} class="line lane${lane % 6} ${isBroken ? "is-broken" : ""}" d=${path} />`;
  const lines = row.above.map(([lane, isBroken]) =>
    line(`a${lane}`, `M${x(lane)} 0V${middle}`, lane, isBroken),
  );
  row.below.forEach(([lane, isBroken]) => {
    if (above.has(lane) || lane === row.lane)
      lines.push(line(`b${lane}`, `M${x(lane)} ${middle}V${ROW}`, lane, isBroken));
  });
  row.moves.forEach(({ source, target, is_broken: isBroken }, at) => {
    const [from, to] = [x(source), x(target)];
    lines.push(
      line(
        `m${at}`,
        `M${from} ${middle}C${from} ${ROW} ${to} ${middle} ${to} ${ROW}`,
        Math.max(source, target),
        isBroken,
      ),
    );
  });
  return html`
    <svg class="lanes" width=${width} height=${ROW} viewBox="0 0 ${width} ${ROW}" aria-hidden="true">
      ${lines}<${Mark} mark=${row.mark} x=${x(row.lane)} y=${middle} lane=${row.lane}
        isCurrent=${row.node.is_current} />
    </svg>`;
}

function Mark({ mark, x, y, lane, isCurrent }) {
  const name = `mark lane${lane % 6}`;
  const ring = isCurrent && html`<circle class="ring lane${lane % 6}" cx=${x} cy=${y} r="8.5" />`;
  const circle = (kind, inner) =>
    html`${ring}<circle class="${name} ${kind}" cx=${x} cy=${y} r="5" />${inner}`;
  if (mark === "automatic") return circle("is-hollow");
  if (mark === "manual") return circle("");
  if (mark === "merge")
    return html`${ring}<path class=${name} d="M${x - 6} ${y}L${x} ${y - 6}L${x + 6} ${y}L${x} ${y + 6}Z" />`;
  if (mark === "completed")
    return circle("is-good", html`<path class="sign" d="M${x - 2.5} ${y}l2 2l3.2 -4" />`);
  if (mark === "failed")
    return circle("is-bad", html`<path class="sign" d="M${x - 2} ${y - 2}l4 4m0 -4l-4 4" />`);
  if (mark === "paused")
    return circle("", html`<path class="sign" d="M${x - 1.5} ${y - 2.2}v4.4m3 -4.4v4.4" />`);
  if (mark === "damaged")
    return circle("is-bad", html`<path class="sign" d="M${x} ${y - 2.8}v3.2m0 1.6v.8" />`);
  if (mark === "gap") return circle("is-hollow is-dashed");
  return html`<rect class="back" x=${x - 4} y=${y - 9} width="8" height="18" />${[-5, 0, 5].map((at) => html`<circle
    key=${at} class=${name} cx=${x} cy=${y + at} r="1.4" />`)}`;
}

function Card({ row, left, top, above }) {
  const { checkpoint, heads, forks } = row.node;
  const isBelow = top + 260 < window.innerHeight;
  const place = {
    left: `${Math.min(left + 60, window.innerWidth - 380)}px`,
    ...(isBelow ? { top: `${top}px` } : { bottom: `${window.innerHeight - above}px` }),
  };
  return html`
    <div class="card" role="tooltip" style=${place}>
      <p><strong>Checkpoint ${checkpoint.seq}</strong> ${moment(checkpoint.time)} UTC</p>
      ${checkpoint.message && html`<p><${Word}>${shortened(checkpoint.message, 400)}<//></p>`}
      <${Facts} of=${{
        why: why(checkpoint.trigger),
        step: checkpoint.step,
        status: checkpoint.status.replace("_", " "),
        size: `${size(checkpoint.size_bytes)}, ${size(checkpoint.stored_bytes)} stored`,
        heads: heads.length ? clean(heads.join(", ")) : "",
        forks: forks.length ? clean(forks.join(", ")) : "",
        tags: clean(checkpoint.tags.join(", ")),
      }} />
    </div>`;
}

// --- events and retention

export function Events({ session }) {
  useTitle(`Events of ${session}`);
  const answer = useAnswer("events", { key: session }, { live: session });
  return html`
    <${SessionHead} session=${session} tab="events" />
    <${Answered} answer=${answer}>
      ${(events) => html`<${EventList} session=${session} events=${events} />`}
    <//>`;
}

export function EventList({ session, events }) {
  if (events.length === 0)
    return html`<${Empty} title="Nothing happened yet">
      <p>Restores, prunes, changes of status and other events appear here.</p><//>`;
  return html`
    <ol class="events" reversed>${[...events].reverse().map(
      (event) => html`
      <li key=${`${event.type}${event.number}/${event.time_us}`}>
        <${When} time=${new Date(event.time_us / 1000).toISOString()} />
        <strong>${spaced(event.type)}</strong>
        <${EventData} session=${session} data=${event.data} />
      </li>`,
    )}</ol>`;
}

const EventData = ({ session, data }) => html`
  <dl class="event-data">${Object.entries(data).map(
    ([name, value]) => html`<div key=${name}><dt>${spaced(name)}</dt>
      <dd><${EventValue} session=${session} value=${value} /></dd></div>`,
  )}</dl>`;

const MOST_ENTRIES = 20;

function EventValue({ session, value }) {
  if (/^cp_\w+$/.test(value))
    return html`<a href=${checkpointAddress(session, value)}><code>${value}</code></a>`;
  if (Array.isArray(value) && value.length > 0 && value.every((each) => each && typeof each === "object" && !Array.isArray(each)))
    return html`<ul class="event-list">${value.slice(0, MOST_ENTRIES).map((each, at) => html`<li key=${at}><${EventData}
      session=${session} data=${each} /></li>`)}${value.length > MOST_ENTRIES && html`<li
        class="faint">and ${value.length - MOST_ENTRIES} more</li>`}</ul>`;
  return html`<${Word}>${shortened(typeof value === "string" ? value : JSON.stringify(value), 600)}<//>`;
}

// Checkpoints that follow each other and stay or go for the same reasons are one line.
function alike(decisions) {
  const lines = [];
  decisions.forEach((each) => {
    const last = lines.at(-1);
    if (last && last.oldest.stays === each.stays && String(last.oldest.reasons) === String(each.reasons)) {
      last.oldest = each;
      last.stored += each.stored_bytes;
    } else lines.push({ newest: each, oldest: each, stored: each.stored_bytes });
  });
  return lines;
}

const Numbered = ({ session, of }) => html`<a href=${checkpointAddress(session, of.checkpoint)}>${of.seq}</a>`;

export function Retention({ session }) {
  useTitle(`Retention of ${session}`);
  const answer = useAnswer("plan", { key: session });
  return html`
    <${SessionHead} session=${session} tab="retention" />
    <${Answered} answer=${answer}>
      ${(plan) => html`
        <section>
          <h2>What the rules keep</h2>
          <ul class="rules">${plan.rules.map((rule) => html`<li key=${rule}>${rule}</li>`)}</ul>
          <p>The next prune ${plan.deleted
            ? html`removes <strong>${count(plan.deleted, "checkpoint")}</strong> (${size(plan.stored_bytes)}) and`
              : "removes nothing and"} keeps ${count(plan.kept, "checkpoint")}.</p>
        </section>
        <div class="table-box" tabindex="0" role="region" aria-label="Decisions"><table>
          <thead><tr><th>checkpoint</th><th>decision</th><th>why</th><th class="number">stored</th><th>time (UTC)</th>
            </tr></thead>
          <tbody>${alike(plan.decisions).map(
            ({ newest, oldest, stored }) => html`
            <tr key=${newest.checkpoint} class=${newest.stays ? "" : "is-going"}>
              <td>${oldest !== newest && html`<${Numbered} session=${session} of=${oldest} />–`}<${Numbered}
                session=${session} of=${newest} /></td>
              <td>${newest.stays ? "stays" : html`<strong>goes</strong>`}</td>
              <td class="reasons">${newest.reasons.map((reason) => html`<span key=${reason}>${clean(reason)}</span>`)}</td>
              <td class="number">${size(stored)}</td><td><${When} time=${newest.time} /></td>
            </tr>`,
          )}</tbody>
        </table></div>`}
    <//>
    ${!isFile && html`<${Integrity} session=${session} />`}`;
}

function Integrity({ session }) {
  const [isAsked, setAsked] = useState(false);
  const answer = useAnswer("verify", { key: session }, { skip: !isAsked });
  return html`
    <section>
      <h2>Integrity</h2>
      ${
        isAsked
          ? html`<${Answered} answer=${answer}>
            ${(report) => html`
              <p role="status">${report.is_intact ? html`<span
                class="is-good">✓ every byte is as it was written</span>` : html`<span
                  class="is-bad">${count(report.findings.length, "finding")}</span>`} in ${count(report.checkpoints, "checkpoint")}</p>
              <ul class="rules">${report.findings.map((each, at) => html`<li key=${at}>${each.seq ? html`<a
                href=${checkpointAddress(session, each.checkpoint)}>${each.seq}</a> `
                  : ""}<${Word}>${each.message}<//> <code>${each.code}</code></li>`)}</ul>`}
          <//>`
          : html`<button type="button" onClick=${() => setAsked(true)}>Verify every byte</button>`
      }
    </section>`;
}
