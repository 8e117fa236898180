// What differs between two checkpoints of a file: states by path, texts word by word, project files line by line.

export const HOLDERS = ["dict", "list", "tuple", "set", "frozenset"];

const MOST_CHANGES = 500;
const MOST_STEPS = 4_000_000;
const CONTEXT = 3;
const WORDS = /\w+|\s+|[^\w\s]/gu;

// What leads from one list of texts to another: pieces that are the same, removed or added, in order.
function pieces(old, fresh) {
  const most = Math.min(old.length, fresh.length);
  let start = 0;
  while (start < most && old[start] === fresh[start]) start += 1;
  let end = 0;
  while (end < most - start && old[old.length - 1 - end] === fresh[fresh.length - 1 - end]) end += 1;
  const same = (texts) => texts.map((text) => ({ kind: "same", text }));
  return [
    ...same(old.slice(0, start)),
    ...middle(old.slice(start, old.length - end), fresh.slice(start, fresh.length - end)),
    ...same(old.slice(old.length - end)),
  ];
}

// By the longest common subsequence, where that is not too long to look for.
function middle(old, fresh) {
  if (old.length * fresh.length > MOST_STEPS)
    return [
      ...old.map((text) => ({ kind: "removed", text })),
      ...fresh.map((text) => ({ kind: "added", text })),
    ];
  const width = fresh.length + 1;
  const lengths = new Uint32Array((old.length + 1) * width);
  for (let i = old.length - 1; i >= 0; i -= 1)
    for (let j = fresh.length - 1; j >= 0; j -= 1)
      lengths[i * width + j] =
        old[i] === fresh[j]
          ? lengths[(i + 1) * width + j + 1] + 1
          : Math.max(lengths[(i + 1) * width + j], lengths[i * width + j + 1]);
  const found = [];
  let [i, j] = [0, 0];
  while (i < old.length || j < fresh.length) {
    const isSame = i < old.length && j < fresh.length && old[i] === fresh[j];
    const isRemoved =
      i < old.length && (j === fresh.length || lengths[(i + 1) * width + j] >= lengths[i * width + j + 1]);
    if (isSame) found.push({ kind: "same", text: old[i] });
    else if (isRemoved) found.push({ kind: "removed", text: old[i] });
    else found.push({ kind: "added", text: fresh[j] });
    if (isSame || isRemoved) i += 1;
    if (isSame || !isRemoved) j += 1;
  }
  return found;
}

export const textMarks = (old, fresh) => {
  const marks = [];
  pieces(old.match(WORDS) || [], fresh.match(WORDS) || []).forEach(({ kind, text }) => {
    if (marks.at(-1)?.kind === kind) marks.at(-1).text += text;
    else marks.push({ kind, text });
  });
  return marks;
};

// --- states

const shown = (value) => (value.kind === "str" ? JSON.stringify(value.text) : value.text) + (value.is_whole ? "" : "…");

const changeOf = (kind, path, old, fresh) => ({
  kind,
  path,
  old: old ? shown(old) : null,
  new: fresh ? shown(fresh) : null,
  old_type: old && fresh && old.kind !== fresh.kind ? old.kind : null,
  new_type: old && fresh && old.kind !== fresh.kind ? fresh.kind : null,
  marks: old?.kind === "str" && fresh?.kind === "str" ? textMarks(old.text, fresh.text) : [],
});

// One side of a comparison: its values by path, and a text for each that is another one where anything below it is.
class Side {
  constructor({ checkpoint, values }) {
    this.checkpoint = checkpoint;
    this.values = values;
    this.prints = new Map();
    this.isWhole = true;
  }

  at(path) {
    return this.values.get(path);
  }

  below(path) {
    const { entries, count } = this.at(path);
    if (!entries || entries.length < count) this.isWhole = false;
    return (entries || []).filter((each) => each.path);
  }

  print(path) {
    if (!this.prints.has(path)) this.prints.set(path, this.printed(path));
    return this.prints.get(path);
  }

  printed(path) {
    const { kind, text, size_bytes: size, count, entries } = this.at(path);
    const own = [kind, size, count, text];
    return JSON.stringify(entries ? [...own, this.below(path).map((each) => [each.name, this.print(each.path)])] : own);
  }
}

// Which values below two that hold others belong together: those of one name, in lists those between what is the same.
function pairs(older, newer, oldPath, newPath) {
  const [old, fresh] = [older.below(oldPath), newer.below(newPath)];
  if (!["list", "tuple"].includes(older.at(oldPath).kind)) {
    const names = new Map([...old, ...fresh].map((each) => [each.name, [undefined, undefined]]));
    old.forEach((each) => (names.get(each.name)[0] = each.path));
    fresh.forEach((each) => (names.get(each.name)[1] = each.path));
    return [...names.values()];
  }
  const isSame = (one, other) => older.print(one.path) === newer.print(other.path);
  const most = Math.min(old.length, fresh.length);
  let end = 0;
  let start = 0;
  while (start < most && isSame(old[start], fresh[start])) start += 1;
  while (end < most - start && isSame(old.at(-1 - end), fresh.at(-1 - end))) end += 1;
  const length = Math.max(old.length, fresh.length) - end;
  return Array.from({ length: length - start }, (_, at) => [
    start + at < old.length - end ? old[start + at].path : undefined,
    start + at < fresh.length - end ? fresh[start + at].path : undefined,
  ]);
}

function* changes(older, newer, oldPath, newPath) {
  const [old, fresh] = [older.at(oldPath), newer.at(newPath)];
  if (oldPath === undefined || newPath === undefined) {
    yield changeOf(old ? "removed" : "added", oldPath ?? newPath, old, fresh);
  } else if (older.print(oldPath) !== newer.print(newPath)) {
    if (old.kind === fresh.kind && HOLDERS.includes(old.kind) && old.entries && fresh.entries) {
      const below = pairs(older, newer, oldPath, newPath);
      for (const [one, other] of below) yield* changes(older, newer, one, other);
    } else yield changeOf("changed", newPath, old, fresh);
  }
}

// What leads from the state of one checkpoint to that of another, as the store tells it.
export function stateDifferences(one, other) {
  const [older, newer] = [new Side(one), new Side(other)];
  const found = older.at("$") && newer.at("$") ? [...changes(older, newer, "$", "$")] : [];
  const number = (kind) => found.filter((each) => each.kind === kind).length;
  const counts = { added: number("added"), removed: number("removed"), changed: number("changed"), moved: 0 };
  const words = Object.entries(counts).filter(([, count]) => count);
  const left = older.isWhole && newer.isWhole ? [] : ["of what has many entries, the first ones were compared"];
  return {
    ...counts,
    older: one.checkpoint,
    newer: other.checkpoint,
    total: found.length,
    summary: [...words.map(([kind, count]) => `${count} ${kind}`), ...left].join(", "),
    changes: found.slice(0, MOST_CHANGES),
    is_partial: left.length > 0,
  };
}

// --- project files

const lines = (text) => text.split("\n").slice(0, text.endsWith("\n") ? -1 : undefined);

// The lines around what changed, each change with its place in both files.
function unified(parts) {
  const near = new Set();
  parts.forEach(({ kind }, at) => {
    if (kind !== "same") for (let by = -CONTEXT; by <= CONTEXT; by += 1) near.add(at + by);
  });
  const out = [];
  let [oldLine, newLine] = [0, 0];
  parts.forEach(({ kind, text }, at) => {
    if (kind !== "added") oldLine += 1;
    if (kind !== "removed") newLine += 1;
    if (!near.has(at)) return;
    if (!near.has(at - 1) || at === 0) out.push(`@@ -${oldLine || 1} +${newLine || 1} @@`);
    out.push({ same: " ", removed: "-", added: "+" }[kind] + text);
  });
  return out;
}

const fileLines = (file) => (file && file.text !== null && !file.is_cut ? lines(file.text) : null);

// Which files differ, from what each checkpoint has: its list of files, and their texts by path.
export function fileDifferences(one, other, wanted) {
  const [before, after] = [one, other].map(({ files }) => new Map(files.files.map((each) => [each.path, each])));
  const paths = [...new Set([...before.keys(), ...after.keys()])].sort();
  const found = [];
  const patch = [];
  paths.forEach((path) => {
    const [old, fresh] = [before.get(path), after.get(path)];
    const isSame = old && fresh && old.digest === fresh.digest && old.target === fresh.target;
    if ((wanted && path !== wanted) || (isSame && old.mode === fresh.mode)) return;
    const [olds, news] = [old ? fileLines(one.texts.get(path)) : [], fresh ? fileLines(other.texts.get(path)) : []];
    const parts = olds && news && pieces(olds, news);
    const number = (kind) => (parts ? parts.filter((each) => each.kind === kind).length : null);
    const kind = !old ? "added" : !fresh ? "removed" : isSame ? "mode" : "changed";
    found.push({ kind, path, added_lines: number("added"), removed_lines: number("removed") });
    if (wanted)
      patch.push(`--- ${old ? path : "nothing"}`, `+++ ${fresh ? path : "nothing"}`, ...(parts ? unified(parts) : ["not a text, or too long for this file"]));
  });
  return { total: found.length, changes: found, patch: wanted ? patch.join("\n") : null };
}
