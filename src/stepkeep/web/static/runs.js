// Workflows, plans and scripts: what runs, what waits, what crashed; and the steps of one.

import { useState } from "preact/hooks";
import { Question, useDialog } from "stepkeep/actions";
import { useAnswer } from "stepkeep/data";
import {
  Age,
  Answered,
  Badge,
  Command,
  Empty,
  Text,
  Word,
  html,
  sessionAddress,
  useTitle,
} from "stepkeep/parts";
import { clean, cleanLines, command, count, duration } from "stepkeep/text";
import { Said } from "stepkeep/sessions";
import { SessionHead } from "stepkeep/timeline";

const MOST = 200;

export function Runs() {
  useTitle("Runs");
  const answer = useAnswer("sessions", { runs: "1", limit: MOST }, { live: true, every: 10 });
  const [dialog, open] = useDialog();
  return html`
    <header class="page-head"><h1 tabindex="-1">Runs</h1></header>
    <${Answered} answer=${answer}>
      ${({ sessions, next }) =>
        sessions.length === 0
          ? html`<${Empty} title="No runs">
            <p>Workflows, plans and scripts appear here: <code>stepkeep run FLOW</code>, <code>store.execute</code>, <code>store.run</code>.</p><//>`
          : html`<${Counts} sessions=${sessions} /><${Waiting} sessions=${sessions} open=${open} />
            <${Queues} sessions=${sessions} />
            <section><h2>${next ? `The ${MOST} runs used last` : "All runs"}</h2><${List} sessions=${sessions} /></section>`}
    <//>${dialog}`;
}

// What steps ask a person: nothing goes on there until it is answered.
function Waiting({ sessions, open }) {
  const waiting = sessions.filter((run) => run.waiting.length > 0);
  return (
    waiting.length > 0 &&
    html`
    <section>
      <h2>Waiting for a person</h2>
      <ul class="questions">${waiting.map(
        (run) => html`
        <li key=${run.uid}><a class="asker" href=${sessionAddress(run.key, "run")}><${Word}>${run.key}<//></a>
          ${run.waiting.map((each) => html`<${Question} key=${each.stepId + each.text} session=${run.key}
            question=${each} open=${open} />`)}</li>`,
      )}</ul>
    </section>`
  );
}

// The queues that these runs are in, and who works on them.
function Queues({ sessions }) {
  const queues = new Map();
  sessions
    .filter((run) => run.queue)
    .forEach((run) => {
      const of = queues.get(run.queue.queue) || { waiting: 0, workers: new Map() };
      queues.set(run.queue.queue, of);
      if (run.condition === "running")
        of.workers.set(run.holder, [...(of.workers.get(run.holder) || []), run]);
      else if (run.condition !== "waiting") of.waiting += 1;
    });
  return (
    queues.size > 0 &&
    html`
    <section>
      <h2>Queues</h2>
      <div class="table-box" tabindex="0" role="region" aria-label="Queues"><table>
        <thead><tr><th>queue</th><th class="number">waiting</th><th class="number">workers busy</th><th>with</th></tr>
          </thead>
        <tbody>${[...queues].map(
          ([name, { waiting, workers }]) => html`
          <tr key=${name}><td>${clean(name)}</td><td class="number">${waiting}</td>
            <td class="number">${workers.size}</td>
            <td>${[...workers].map(
              ([holder, runs]) => html`
              <div key=${holder}><span class="faint">${clean(holder)}</span> ${runs.map((run) => html`<a
                key=${run.uid} href=${sessionAddress(run.key, "run")}><${Word}>${run.key}<//></a> `)}</div>`,
            )}${waiting > 0 && workers.size === 0 && html`<${Command} text=${command("worker", "--queue", name)} />`}</td>
          </tr>`,
        )}</tbody>
      </table></div>
    </section>`
  );
}

function Counts({ sessions }) {
  const numbers = {};
  sessions.forEach(({ condition }) => {
    numbers[condition] = (numbers[condition] || 0) + 1;
  });
  return html`<p class="counts">${Object.entries(numbers).map(([kind, number]) => html`<${Badge} key=${kind}
    kind=${kind}>${number} ${kind}<//>`)}</p>`;
}

const List = ({ sessions }) => html`
  <ul class="sessions" aria-label="Runs">${sessions.map(
    (run) => html`
    <li key=${run.uid}>
      <${Badge} kind=${run.condition} />
      <div class="session-main">
        <a class="session-key" href=${sessionAddress(run.key, "run")}><${Word}>${run.key}<//></a>
        <${Said} session=${run} />
      </div>
      <div class="session-labels">
        ${run.queue && html`<span
          class="tag">queue ${clean(run.queue.queue)}${run.queue.attempts
            ? `, ${count(run.queue.attempts, "attempt")}` : ""}</span>`}
        ${run.condition === "running" && html`<span class="tag">${clean(run.holder)}</span>`}
      </div>
      <span class="session-count">${run.step === null ? "" : `step ${run.step}`}</span>
      <span class="session-size">${run.workflow && html`<${Word}>${run.workflow}<//>`}</span>
      <span class="session-age"><${Age} time=${run.updated} /></span>
    </li>`,
  )}</ul>`;

export function Run({ session }) {
  useTitle(`Steps of ${session}`);
  const answer = useAnswer("run", { key: session }, { live: session });
  const [dialog, open] = useDialog();
  return html`
    <${SessionHead} session=${session} tab="run" />
    <${Answered} answer=${answer}>
      ${(run) =>
        run.steps.length === 0
          ? html`<${Empty} title="No steps"><p>The latest checkpoint of this session tells of no steps.</p><//>`
          : html`
          <p class="faint">${run.kind}, ${count(run.steps.length, "step")}, ${run.steps.filter((step) => step.status === "completed").length} completed</p>
          <ol class="steps">${run.steps.map((step) => html`<${Step} key=${step.id} session=${session} step=${step}
            kind=${run.kind} longest=${longest(run.steps)} open=${open}
              questions=${run.session.waiting.filter((each) => each.stepId === step.id)} />`)}</ol>
          ${run.kind === "workflow" && ["crashed", "failed", "paused"].includes(run.session.condition)
            && html`<h2>Go on</h2><${Command} text=${command("resume", session)} />`}`}
    <//>${dialog}`;
}

const longest = (steps) => Math.max(1, ...steps.map((step) => step.duration_ms || 0));

function Step({ session, step, kind, longest: most, questions, open }) {
  const [isOpen, setOpen] = useState(false);
  const canOpen = step.has_output;
  return html`
    <li class="step is-${step.status}">
      <div class="step-line">
        <${Badge} kind=${questions.length ? "waiting" : step.status} />
        ${
          canOpen
            ? html`<button type="button" class="link step-name" aria-expanded=${isOpen}
              onClick=${() => setOpen(!isOpen)}><${Word}>${step.id}<//></button>`
            : html`<span class="step-name"><${Word}>${step.id}<//></span>`
        }
        <span class="faint step-about"><${Word}>${step.name || step.kind}<//></span>
        ${step.attempts > 1 && html`<span class="tag">${count(step.attempts, "attempt")}</span>`}
        <span class="step-bar" aria-hidden="true">
          <span style=${{ width: `${((step.duration_ms || 0) / most) * 100}%` }} /></span>
        <span class="step-time">${step.duration_ms === null ? "" : duration(step.duration_ms)}</span>
      </div>
      ${step.error && html`<p class="is-bad"><${Text}>${step.error}<//></p>`}
      ${questions.map((each) => html`<${Question} key=${each.text} session=${session} question=${each}
        open=${open} />`)}
      ${isOpen && html`<${Output} session=${session} step=${step.id}
        stream="stdout" />${kind === "workflow" && html`<${Output} session=${session} step=${step.id}
          stream="stderr" />`}`}
    </li>`;
}

function Output({ session, step, stream }) {
  const answer = useAnswer("output", { key: session, step, stream: stream === "stderr" ? stream : "" });
  if (stream === "stderr" && !answer.data?.text) return null;
  return html`
    <${Answered} answer=${answer}>
      ${(output) => html`
        <pre class="code ${stream === "stderr" ? "old" : ""}" tabindex="0"
          aria-label=${stream}>${cleanLines(output.text.slice(0, 100000)) || "nothing was printed"}</pre>
        ${output.is_cut && html`<p class="faint">it gave more than is stored</p>`}`}
    <//>`;
}
