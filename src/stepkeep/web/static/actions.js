// What can be done: always as a command to copy; and at once, where the server allows changes.

import { useEffect, useRef, useState } from "preact/hooks";
import { act, allowsChanges, isFile } from "stepkeep/data";
import {
  Age,
  Command,
  Dialog,
  Problem,
  Text,
  When,
  Word,
  checkpointAddress,
  html,
  sessionAddress,
} from "stepkeep/parts";
import { clean, command, count } from "stepkeep/text";

// Each: what it is called and does, the fields it takes, its command, the request, and what is said when it is done.
const OF_SESSION = {
  create: {
    title: "Checkpoint now",
    about: "Saves the latest state once more, with a note and tags.",
    fields: ["message", "tags"],
    command: ({ key }, { message, tags }) =>
      command("create", message || "note", "--session", key, ...(tags ? ["--tags", tags] : [])),
    request: ({ key }, { message, tags }) => ({
      key,
      message,
      tags: tags
        .split(",")
        .map((tag) => tag.trim())
        .filter(Boolean),
    }),
    done: (found) => html`Saved as <a href=${checkpointAddress(found.session, found.id)}>checkpoint ${found.seq}</a>.`,
  },
  undo: {
    title: "Undo the last restore",
    about: "Returns to where the session, or its project files, were before. Nothing is deleted.",
    fields: [],
    command: ({ key }) => command("restore", key, "--undo"),
    request: ({ key }) => ({ key }),
    done: (found) =>
      "root" in found
        ? html`${count(found.total, "file")} as before.`
        : html`The session is on <${Word} class="strong">${found.branch}<//> at checkpoint ${found.checkpoint.seq} again.`,
  },
  complete: {
    title: "Mark as completed",
    about: "The session is not offered for resuming any more. Saving opens it again.",
    fields: [],
    command: ({ key }) => command("complete", key),
    request: ({ key }) => ({ key }),
    done: () => "Marked as completed.",
  },
  prune: {
    title: "Prune",
    about: "Removes the checkpoints that the rules of the session do not keep.",
    fields: [],
    hasPreview: true,
    command: ({ key }) => command("prune", key),
    request: ({ key }) => ({ key }),
    preview: (found) =>
      html`${count(found.deleted, "checkpoint")} would go, ${count(found.kept, "checkpoint")} would stay.`,
    done: (found) => html`${count(found.deleted, "checkpoint")} removed.`,
  },
  delete: {
    title: "Delete the session",
    about: "Removes all its checkpoints for good: their bytes are overwritten.",
    fields: ["confirm"],
    isBad: true,
    command: ({ key }) => command("delete", key, "--whole-session"),
    request: ({ key }, { confirm }) => ({ key, confirm }),
    done: () => html`Deleted. <a href="#/">All sessions</a>`,
  },
};

const OF_CHECKPOINT = {
  restore: {
    title: "Restore",
    about: "The session goes on from here, on a branch. What came after stays, and can be returned to.",
    fields: ["name"],
    hasPreview: true,
    preview: (found) =>
      found.total === 0
        ? "The state is the same as now."
        : html`From the state as it is now: <${Word}>${found.summary}<//>.
          <ul class="files">${found.changes.map((change, at) => html`<li key=${at}>${change.kind} <code><bdi>${clean(change.path)}</bdi></code></li>`)}</ul>
          ${found.total > found.changes.length && html`<p class="faint">and ${count(found.total - found.changes.length, "more change")}</p>`}`,
    command: ({ key, checkpoint }, { name }) =>
      command("restore", key, checkpoint.id, ...(name ? ["--branch", name] : [])),
    request: ({ key, checkpoint }, { name }) => ({ key, ref: checkpoint.id, name: name || null }),
    done: (found) =>
      html`The session goes on from checkpoint ${found.checkpoint.seq} on <${Word} class="strong">${found.branch}<//>. <a
        href=${sessionAddress(found.session)}>Timeline</a>`,
  },
  fork: {
    title: "Fork",
    about: "Begins a branch here and goes on with it.",
    fields: ["name"],
    command: ({ key, checkpoint }, { name }) =>
      command("branch", "fork", key, checkpoint.id, ...(name ? ["--name", name] : [])),
    request: ({ key, checkpoint }, { name }) => ({ key, ref: checkpoint.id, name: name || null }),
    done: (found) => html`The session is on the new branch <${Word} class="strong">${found.name}<//>.`,
  },
  restore_files: {
    title: "Restore files",
    about:
      "Makes the project files what they were here. A safety checkpoint is taken first, which undo returns to.",
    fields: [],
    hasPreview: true,
    needsFiles: true,
    command: ({ key, checkpoint }) => command("restore", key, checkpoint.id, "--files"),
    request: ({ key, checkpoint }) => ({ key, ref: checkpoint.id }),
    preview: (found) => html`${count(found.total, "file")} would change in <code>${clean(found.root)}</code>:
      <ul class="files">${found.changes.slice(0, 100).map((file) => html`<li
        key=${file.path}>${file.kind} <bdi>${clean(file.path)}</bdi></li>`)}</ul>`,
    done: (found) =>
      html`${count(found.total, "file")} restored.${found.safety
        && html` What was there before is in <code>${found.safety}</code>.`}`,
  },
  delete: {
    title: "Delete",
    about: "Removes this checkpoint for good: its bytes are overwritten.",
    fields: [],
    isBad: true,
    command: ({ key, checkpoint }) => command("delete", key, checkpoint.id),
    request: ({ key, checkpoint }) => ({ key, ref: checkpoint.id }),
    done: (found) => html`Deleted. <a href=${sessionAddress(found.session)}>Timeline</a>`,
  },
};

// What is said to a step that waits: the answer is JSON, or a text where it is none.
function answerOf(text) {
  try {
    return text ? JSON.parse(text) : null;
  } catch {
    return text;
  }
}

const answering = (title, about, more) => ({
  title,
  about,
  fields: ["answer"],
  isBad: more.length > 0,
  command: ({ key, question }, { answer }) =>
    command(
      ...["approve", key, ...more, "--step", question.stepId],
      ...(answer ? ["--with", JSON.stringify(answerOf(answer))] : []),
    ),
  request: ({ key, question }, { answer }) => ({ key, name: question.stepId, answer: answerOf(answer) }),
  done: (found) =>
    html`${found.is_approved ? "Approved" : "Refused"}, saved as <a
      href=${checkpointAddress(found.session, found.checkpoint)}>a checkpoint</a>. Resume the run to go on.`,
});

const OF_QUESTION = {
  approve: answering(
    "Approve",
    "Says yes. The answer is saved, and the step goes on with it when the run is resumed.",
    [],
  ),
  refuse: answering("Refuse", "Says no. Resumed, the step fails; approving takes it back.", ["--refuse"]),
};

// What a step asks a person, with yes and no.
export const Question = ({ session, question, open }) => html`
  <div class="question">
    <p class="asked"><${Text}>${question.text}<//></p>
    <p class="faint">step <${Word}>${question.stepId}<//>${question.askedAt && html`, asked <${Age}
      time=${question.askedAt} />`}${question.expiresAt && html`, refused unless answered by <${When}
        time=${question.expiresAt} /> UTC`}</p>
    ${!isFile && html`<${Buttons} actions=${OF_QUESTION} target=${{ key: session, question }} open=${open} />`}
  </div>`;

export function Actions({ session }) {
  const menu = useRef(null);
  useEffect(() => {
    const outside = ({ target }) => {
      if (!menu.current.contains(target)) menu.current.open = false;
    };
    document.addEventListener("pointerdown", outside);
    return () => document.removeEventListener("pointerdown", outside);
  }, []);
  const keys = ({ key, target }) => {
    if (key !== "Escape" || target.closest("dialog")) return;
    menu.current.open = false;
    menu.current.querySelector("summary").focus();
  };
  return html`
    <details class="menu" ref=${menu} onKeyDown=${keys}><summary>Actions</summary><${Menu} actions=${OF_SESSION}
      target=${{ key: session.key }} /></details>`;
}

export const CheckpointActions = ({ session, checkpoint }) => html`
  <${Menu} actions=${OF_CHECKPOINT} target=${{ key: session, checkpoint }} />`;

function Menu({ actions, target }) {
  const [dialog, open] = useDialog();
  return html`<${Buttons} actions=${actions} target=${target} open=${open} />${dialog}`;
}

function Buttons({ actions, target, open }) {
  const names = Object.keys(actions).filter(
    (name) => !actions[name].needsFiles || target.checkpoint.contents.files,
  );
  return html`
    <div class="actions" role="group" aria-label="Actions">
      ${names.map((name) => html`<button key=${name} type="button" class=${actions[name].isBad ? "bad" : ""}
        onClick=${() => open({ name, action: actions[name], target })}>${actions[name].title}</button>`)}
    </div>`;
}

// The dialog of an action, and what opens it. It may outlive its button: a question that was answered is gone.
export function useDialog() {
  const [chosen, setChosen] = useState(null);
  return [chosen && html`<${ActionDialog} ...${chosen} onClose=${() => setChosen(null)} />`, setChosen];
}

const FIELDS = {
  message: ["Note", "what this checkpoint is"],
  tags: ["Tags", "separated by commas"],
  name: ["Name of the branch", "like from-12, unless given"],
  confirm: ["Key of the session, to confirm", ""],
  answer: ["Answer for the step, if it wants one", "a text, or JSON"],
};

function ActionDialog({ name, action, target, onClose }) {
  const [values, setValues] = useState({ message: "", tags: "", name: "", confirm: "", answer: "" });
  const [state, setState] = useState({});
  const needsPreview = action.hasPreview && !state.preview;
  const run = async (event) => {
    event.preventDefault();
    setState({ ...state, error: null, isBusy: true });
    const typed = Object.fromEntries(new FormData(event.currentTarget)); // what was typed last may not be in `values` yet
    const request = action.request(target, { ...values, ...typed });
    try {
      if (needsPreview) setState({ preview: await act(name, { ...request, dry_run: true }) });
      else setState({ done: await act(name, request) });
    } catch (error) {
      setState({ ...state, error, isBusy: false });
    }
  };
  return html`
    <${Dialog} title=${action.title} onClose=${onClose}>
      ${target.question && html`<blockquote><${Text}>${target.question.text}<//></blockquote>`}
      <p>${action.about}</p>
      ${
        state.done
          ? html`<p class="done" role="status">✓ ${action.done(state.done)}</p>`
          : html`
          <form onSubmit=${run}>
            ${
              allowsChanges &&
              action.fields.map(
                (field) => html`
              <label key=${field}>${FIELDS[field][0]}
                <input name=${field} value=${values[field]} placeholder=${FIELDS[field][1]} autocomplete="off"
                  onInput=${(event) => setValues({ ...values, [field]: event.currentTarget.value })} /></label>`,
              )
            }
            ${state.preview && html`<div class="preview" role="status">${action.preview(state.preview)}</div>`}
            <${Problem} error=${state.error} />
            ${allowsChanges && html`<button type="submit" class="${action.isBad ? "bad" : "primary"}"
              disabled=${state.isBusy}>${needsPreview ? "Show what would change" : action.title}</button>`}
          </form>
          <p class="faint">${allowsChanges ? "The command that does the same:"
            : "These pages only show. The command that does it:"}</p>
          <${Command} text=${action.command(target, values)} />`
      }
    <//>`;
}
