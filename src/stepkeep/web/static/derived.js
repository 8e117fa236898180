// What a file was given no answer to, found in the answers that it has: a text, and how one value came to be.

const HOLDERS = ["dict", "list", "tuple", "set", "frozenset"];
const AROUND = 60;
const MOST = 1000;

export function derived(answers, name, params) {
  if (name === "find") return find(recorded(answers), params);
  if (name === "log") return log(recorded(answers), params);
  return undefined;
}

// Each checkpoint by its id, with the values of its state by path.
function recorded(answers) {
  const found = new Map();
  const of = (id) => found.get(id) || found.set(id, { values: new Map() }).get(id);
  Object.entries(answers).forEach(([question, answer]) => {
    const [name, ...params] = question.split("\n");
    if (answer.$error) return;
    if (name === "checkpoint") of(answer.id).checkpoint = answer;
    if (name === "outline" && !params.some((each) => each.startsWith("body="))) {
      [...answer.entries, answer].forEach((each) => of(answer.checkpoint).values.set(each.path, each));
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
    changes.push({ checkpoint, change: { kind, path, old, new: now, marks: [] } });
    old = now;
  });
  return { session: key, path, changes };
}
