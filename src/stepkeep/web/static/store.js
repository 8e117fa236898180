// The store as a whole: what it takes, how it grew, what goes next, whether it is well.

import { useState } from "preact/hooks";
import { useAnswer } from "stepkeep/data";
import { Answered, Badge, Command, StorageMeter, When, Word, html, sessionAddress, useTitle } from "stepkeep/parts";
import { clean, command, count, size } from "stepkeep/text";

export function Store() {
  useTitle("Store");
  const answer = useAnswer("store", {}, { live: true });
  const stats = useAnswer("stats", {}, { live: true });
  return html`
    <header class="page-head"><h1 tabindex="-1">Store</h1>${answer.data && html`<p class="under-head">
      <code>${clean(answer.data.store)}</code></p>`}</header>
    <${Answered} answer=${answer}>
      ${(store) => html`
        <${StorageMeter} of=${store}>
          ${store.oldest && html`<span>since <${When} time=${store.oldest} /></span>`}
        <//>
        <p class="counts">${Object.entries(store.statuses)
          .filter(([, number]) => number)
          .map(
            ([kind, number]) =>
              html`<${Badge} key=${kind} kind=${kind}>${number.toLocaleString("en")} ${kind.replace("_", " ")}<//>`,
          )}</p>
        <${Answered} answer=${stats}>${(found) => html`<${Growth} stats=${found} />`}<//>
        <${Largest} sessions=${store.sessions} />
        <${Next} />
        <${Doctor} />
        <section><h2>Backup</h2>
          <p>${store.last_backup
            ? html`The last one is of <${When} time=${store.last_backup.time} /> UTC: <code>${clean(store.last_backup.path)}</code>, ${count(store.last_backup.checkpoints, "checkpoint")}, ${size(store.last_backup.size_bytes)}.`
            : "None is known of. One has everything that was saved before, and is made while the store is in use."}</p>
            <${Command} text=${`mkdir -p backups && ${command("backup", "backups", "--keep-last", "7")}`} /></section>`}
    <//>`;
}

function Growth({ stats }) {
  const days = byDay(stats.hours);
  const most = Math.max(1, ...days.map((day) => day.stored));
  const { metrics } = stats;
  const slow = metrics.checkpoint_save_latency_p95_ms;
  return html`
    <section>
      <h2>Growth</h2>
      <div class="growth">
        <ol class="bars" aria-label="Stored in the last seven days">${days.map(
          (day) => html`
          <li key=${day.name}><span class="bar-amount">${day.stored ? size(day.stored) : ""}</span>
            <span class="bar-fill ${day.stored ? "" : "is-nothing"}"
              style=${{ height: `${(day.stored / most) * 100}%` }} aria-hidden="true" />
                <span class="bar-name">${day.name}<span class="visually-hidden">: ${count(day.saves, "save")}</span>
                  </span></li>`,
        )}</ol>
        <dl class="facts">
          <div><dt>saves</dt><dd>${metrics.checkpoint_save_count.toLocaleString("en")}</dd></div>
          <div><dt>saved by deltas</dt><dd>${size(metrics.spared_bytes)}</dd></div>
          <div><dt>average save</dt><dd>${metrics.checkpoint_save_latency_ms.toFixed(1)} ms</dd></div>
          <div><dt>95 % within</dt><dd>${slow === null ? "–" : `${slow} ms`}</dd></div>
          <div><dt>resumes</dt><dd>${metrics.checkpoint_resume_count}</dd></div>
          <div><dt>failed saves</dt><dd>${metrics.checkpoint_failure_count}</dd></div>
          <div><dt>fallbacks</dt><dd>${metrics.checkpoint_fallback_count}</dd></div>
          <div><dt>removed</dt><dd>${stats.checkpoint_removed_count.toLocaleString("en")}</dd></div>
        </dl>
      </div>
    </section>`;
}

function byDay(hours) {
  const days = new Map();
  hours.forEach((hour) => {
    const name = hour.time.slice(5, 10);
    const day = days.get(name) || { name, stored: 0, saves: 0 };
    days.set(name, { name, stored: day.stored + hour.stored_bytes, saves: day.saves + hour.saves });
  });
  return [...days.values()].slice(-7);
}

const Largest = ({ sessions }) => {
  const most = Math.max(1, ...sessions.map((each) => each.stored_bytes));
  return (
    sessions.length > 0 &&
    html`
    <section>
      <h2>Largest sessions</h2>
      <div class="table-box" tabindex="0" role="region" aria-label="Largest sessions"><table>
        <thead><tr><th>session</th><th>status</th><th class="number">checkpoints</th><th class="number">stored</th>
          <th class="number">smaller by</th><th class="wide"><span class="visually-hidden">share</span></th></tr>
            </thead>
        <tbody>${sessions.map(
          (each) => html`
          <tr key=${each.session}><td><a href=${sessionAddress(each.session)}><${Word}>${each.session}<//></a></td>
            <td><${Badge} kind=${each.status} /></td>
            <td class="number">${each.checkpoints.toLocaleString("en")}</td>
              <td class="number">${size(each.stored_bytes)}</td>
                <td class="number">${each.ratio ? `${each.ratio}×` : "–"}</td>
            <td class="wide"><span class="share" aria-hidden="true">
              <span style=${{ width: `${(each.stored_bytes / most) * 100}%` }} /></span></td></tr>`,
        )}</tbody>
      </table></div>
    </section>`
  );
};

function Next() {
  const [isAsked, setAsked] = useState(false);
  const plan = useAnswer("prune", {}, { skip: !isAsked });
  const clean = useAnswer("clean", {});
  return html`
    <section>
      <h2>What goes next</h2>
      <${Answered} answer=${clean}>
        ${({ cleaned, sessions }) =>
          cleaned === 0
            ? html`<p>The next clean removes no session.</p>`
            : html`<p>The next clean removes <strong>${count(cleaned, "session")}</strong>:</p>
              <ul class="rules">${sessions.map((each) => html`<li key=${each.session}><a
                href=${sessionAddress(each.session)}><${Word}>${each.session}<//></a>: ${each.reason}</li>`)}</ul>
              <${Command} text=${command("clean")} />`}
      <//>
      ${
        isAsked
          ? html`<${Answered} answer=${plan}>
            ${(found) => html`
              <p>The next prune ${found.deleted
                ? html`removes <strong>${count(found.deleted, "checkpoint")}</strong> (${size(found.stored_bytes)})`
                  : "removes nothing"} and keeps ${count(found.kept, "checkpoint")}.</p>
              <ul class="rules">${found.sessions.map((each) => html`<li key=${each.session}>
                <a href=${sessionAddress(each.session, "retention")}><${Word}>${each.session}<//>
                  </a>: ${count(each.deleted, "checkpoint")}, ${size(each.stored_bytes)}</li>`)}</ul>
              <${Command} text=${command("prune", "--all")} />`}
          <//>`
          : html`<button type="button" onClick=${() => setAsked(true)}>Plan a prune</button>`
      }
    </section>`;
}

const VERDICTS = ["problem", "warning", "note", "ok"];

const worstFirst = (symptoms) =>
  [...symptoms].sort((one, other) => VERDICTS.indexOf(one.verdict) - VERDICTS.indexOf(other.verdict));

function Doctor() {
  const [isAsked, setAsked] = useState(false);
  const answer = useAnswer("doctor", {}, { skip: !isAsked });
  return html`
    <section>
      <h2>Health</h2>
      ${
        isAsked
          ? html`<${Answered} answer=${answer}>
            ${(found) => html`
              <p>${found.is_healthy ? html`<span class="is-good">✓ healthy</span>` : html`<span
                class="is-bad">not in order</span>`}</p>
              <ul class="symptoms">${worstFirst(found.symptoms).map((each, at) => html`<li key=${at} class="is-${each.verdict}">
                <strong>${each.verdict}</strong> ${clean(each.name)}: <${Word}>${each.message}<//>${each.advice
                  && html`<p class="faint"><${Word}>${each.advice}<//></p>`}</li>`)}</ul>`}
          <//>`
          : html`<button type="button" onClick=${() => setAsked(true)}>Look it over</button>`
      }
    </section>`;
}
