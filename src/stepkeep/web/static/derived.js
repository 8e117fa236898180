// What a file was given no answer to, found in the answers that it has: a text, how one value came to be, what differs
// between any two checkpoints, and the header of one whose contents were left out.

import { HOLDERS, fileDifferences, stateDifferences, textMarks } from "stepkeep/differences";

const AROUND = 60;
const MOST = 1000;

export function derived(answers, name, params) {
  if (name === "find") return find(recorded(answers), params);
  if (name === "log") return log(recorded(answers), params);
  if (name === "checkpoint") return drawn(answers, params.ref);
  if (name === "diff" || name === "files_diff") {
    const found = recorded(answers);
    const [older, newer] = [found.get(params.older), found.get(params.newer)];
    if (name === "diff") return older && newer && stateDifferences(older, newer);
    return older?.files && newer?.files && fileDifferences(older, newer, params.path);
  }
  return undefined;
}

function drawn(answers, id) {
  const timelines = Object.entries(answers).filter(([question]) => question.startsWith("timeline\n"));
  const nodes = timelines.flatMap(([, page]) => (page.drawn || []).map((row) => row.node.checkpoint));
  return nodes.find((checkpoint) => checkpoint?.id === id);
}

// Each checkpoint by its id, with the values of its state by path and the texts of its project files. A value that was
// opened has its `entries`.
function recorded(answers) {
  const found = new Map();
  const of = (id) => found.get(id) || found.set(id, { values: new Map(), texts: new Map() }).get(id);
  Object.entries(answers).forEach(([question, answer]) => {
    const [name, ...params] = question.split("\n");
    if (answer.$error) return;
    if (name === "checkpoint") of(answer.id).checkpoint = answer;
    if (name === "files") of(answer.checkpoint.id).files = answer;
    if (name === "file") of(answer.checkpoint).texts.set(answer.path, answer);
    if (name === "outline" && !params.some((each) => each.startsWith("body="))) {
      const { values } = of(answer.checkpoint);
      answer.entries.forEach((each) => values.has(each.path) || values.set(each.path, each));
      values.set(answer.path, answer);
    }
  });
  return new Map([...found].filter(([, { checkpoint }]) => checkpoint));
}

// Each place where the text appeared, oldest first, as the search of a store tells it.
function find(found, { key, text }) {
  const seen = new Set();
  const matches = [];
  const look = (checkpoint, where, path, value) => {
    const at = value.toLowerCase().indexOf(text.toLowerCase());
    const place = `${where}\n${path}\n${value}`;
    if (at < 0 || seen.has(place)) return;
    seen.add(place);
    matches.push({
      checkpoint,
      where,
      path,
      before: value.slice(Math.max(0, at - AROUND), at),
      text: value.slice(at, at + text.length),
      after: value.slice(at + text.length, at + text.length + AROUND),
    });
  };
  [...found.values()]
    .sort((one, other) => one.checkpoint.seq - other.checkpoint.seq)
    .forEach(({ checkpoint, values }) => {
      look(checkpoint, "message", null, checkpoint.message);
      checkpoint.tags.forEach((tag) => look(checkpoint, "tag", null, tag));
      look(checkpoint, "metadata", null, JSON.stringify(checkpoint.metadata));
      values.forEach((each, path) => HOLDERS.includes(each.kind) || look(checkpoint, "state", path, each.text));
    });
  return { session: key, text, matches: matches.slice(0, MOST), has_more: matches.length > MOST };
}

// How the value at a path changed on the way to a checkpoint, oldest first.
function log(found, { key, path, ref }) {
  const way = [];
  for (let at = found.get(ref); at; at = found.get(at.checkpoint.parents[0])) way.unshift(at);
  const changes = [];
  let old = null;
  way.forEach(({ checkpoint, values }) => {
    const now = values.get(path)?.text ?? null;
    if (now === old) return;
    const kind = old === null ? "added" : now === null ? "removed" : "changed";
    const marks = kind === "changed" && values.get(path).kind === "str" ? textMarks(old, now) : [];
    changes.push({ checkpoint, change: { kind, path, old, new: now, marks } });
    old = now;
  });
  return { session: key, path, changes };
}
