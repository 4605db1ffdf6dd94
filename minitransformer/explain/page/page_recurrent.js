// What is shown of a recurrent model: gates, states, what is joined, and the sum behind each number.
"use strict";

const SKIPPED = "This word was taken out: it is not read, and the state stays as it was.";
const READS_FROM = {false: "left to right", true: "right to left"};
// Parts in the order in which they are computed.
const PARTS = {
  gru: {
    before: ["state before", "what earlier words have left"],
    reset: ["reset r", "how much of it the candidate sees"],
    update: ["update z", "how much of it stays"],
    candidate: ["candidate n", "what the word would put in its place"],
    state: ["state", "= (1 − z) × n + z × state before"],
  },
  lstm: {
    before: ["state before", "what earlier words have left"],
    cell_before: ["cell before", "and what they have left to be remembered"],
    input: ["input i", "how much of the candidate enters the cell"],
    forget: ["forget f", "how much of the cell stays"],
    candidate: ["candidate g", "what the word would put there"],
    output: ["output o", "how much of the cell is shown"],
    cell: ["cell c", "= f × cell before + i × g"],
    state: ["state", "= o × tanh(c)"],
  },
};
// In the order in which their rows stand in the matrices.
const GATES = {gru: ["reset", "update", "candidate"], lstm: ["input", "forget", "candidate", "output"]};

const isRecurrent = (stage) => stage.kind in PARTS;
const isInEncoder = (stage) => stage.path.startsWith("encoder");
const isByStates = (stage) => stage.names?.query === "s";
const capital = (text) => (text.length > 1 ? text[0].toUpperCase() + text.slice(1) : text);  // s and h stay as they are

/** The title of a stage that only recurrent models have. */
function recurrentTitle(stage) {
  if (isRecurrent(stage)) return stage.kind.toUpperCase() + (isInEncoder(stage) ? `, ${READS_FROM[stage.is_backward]}` : "");
  if (stage.kind === "joined") return isInEncoder(stage) ? "Both ways side by side" : "[context ; s]";
  return {attention: isByStates(stage) ? "Attention" : undefined, narrowed: "Narrow"}[stage.kind];
}

function recurrentExplanation(stage) {
  if (stage.kind === "joined") {
    return isInEncoder(stage) ? "The one way knows the words before, the other those after; together they are h."
      : "What was found in the source, and the decoder's own state: what comes next reads both.";
  }
  return {
    gru: "Each word changes the state that earlier ones have left: z says how much of it stays, r how much of it the candidate n sees.",
    lstm: "Each word changes the cell, in which things are remembered: f says how much of it stays, i how much of the candidate g enters, "
      + "o how much of it is shown as the state.",
    attention: isByStates(stage) ? "The decoder's state s is compared with every state h of the encoder; the softmax of the scores e is α, "
      + "and the sum of α·h is the context: this is where the translation looks at the source." : undefined,
    narrowed: "As wide as a state again: the matrix W_O mixes both, and tanh keeps each number between −1 and 1.",
  }[stage.kind];
}

/** Matrices of a stage, a row per token; parts: names and what is said about them. */
function tokenMatrices(step, stage, parts, explain, isHidden) {
  return [make("div", {class: "equation"}, ...Object.entries(parts).map(([part, [name, about]]) => matrix({
    name, about, rows: tokensOf(walk(), step), columns: columnsOf(stage[part][2]), file: fileName(stage, part),
    value: (row, k) => at(stage[part], row, k), explain: (row, k) => explain(part, row, k),
    isHidden: (row) => isHidden?.(part, row) ?? false, hiddenText: SKIPPED})))];
}

function drawRecurrence(step, stage) {
  return tokenMatrices(step, stage, PARTS[stage.kind],
    (part, row, k) => explainRecurrence(walk(), step, stage, part, row, k),
    (part, row) => GATES[stage.kind].includes(part) && stage.skipped.includes(row));
}

function explainRecurrence(walk, step, stage, part, row, k) {
  const token = tokensOf(walk, step)[row];
  const name = capital(PARTS[stage.kind][part][0]);
  const value = (of) => at(stage[of], row, k);
  if (part === "before" || part === "cell_before") {
    return {title: `${name} “${token}”, number ${k}`, formula: [value(part)], note: originOf(walk, step, stage, part, row, k)};
  }
  const title = `${name} of “${token}”, number ${k}`;
  if (GATES[stage.kind].includes(part)) return explainGate(stage, title, part, row, k);
  if (stage.skipped.includes(row)) return {title, formula: [value(part)], note: SKIPPED};
  if (part === "cell") {
    return summed(`${title}: f × cell before + i × g`,
      [product("stays", value("forget"), value("cell_before")), product("enters", value("input"), value("candidate"))]);
  }
  if (stage.kind === "lstm") {
    return {title: `${title}: o × tanh(c)`, formula: [value("output"), `× tanh(${shown(value("cell"), digits + 2)})`]};
  }
  return summed(`${title}: (1 − z) × n + z × state before`,
    [product("enters", 1 - value("update"), value("candidate")), product("stays", value("update"), value("before"))]);
}

/** Whose state, or cell, a word meets. */
function originOf(walk, step, stage, part, row, k) {
  const what = part === "before" ? "state" : "cell";
  if (step > 1) return `The ${what} after “${walk.steps[step - 2].fed}”, as step ${step - 1} has left it.`;
  if (step === 0) {
    const earlier = walk.source[stage.is_backward ? row + 1 : row - 1];
    return earlier === undefined ? "No word was read yet: every number is 0." : `The ${what} after “${earlier}”.`;
  }
  const ways = walk.encoder.filter((each) => isRecurrent(each) && layerOf(each) === layerOf(stage));
  const width = ways[0].state[2];
  const way = ways[Math.floor(k / width)];
  const last = walk.source[way.is_backward ? 0 : walk.source.length - 1];
  return `Here the decoder begins: number ${k % width} of the encoder's ${what} after “${last}”, the last that it read from ${READS_FROM[way.is_backward]}.`;
}

/** σ or tanh of W · word + U · state; what a GRU's candidate sees of the state, reset decides. */
function explainGate(stage, title, part, row, k) {
  if (!stage.matrices) return {title, note: TOO_MANY};
  const out = GATES[stage.kind].indexOf(part) * stage.state[2] + k;
  const termsOf = (name, input) => projection("", stage, name, (d) => at(input, row, d), out).terms.map((term) => (
    {...term, name: term.name === "bias" ? `bias ${name === "input_proj" ? "W" : "U"}` : `${name === "input_proj" ? "word" : "state"} ${term.name}`}));
  const isNew = part === "candidate";
  const how = isNew ? "tanh" : "σ";
  const fromWord = termsOf("input_proj", stage.words);
  const fromState = termsOf("hidden_proj", stage.before);
  if (!isNew || stage.kind === "lstm") {
    return bent(how, summed(`${title}: ${how} of W times the word plus U times the state before`, [...fromWord, ...fromState]));
  }
  const reset = at(stage.reset, row, k);
  const within = summed("u, which is U times the state before", fromState);
  return {...bent(how, summed(`${title}: tanh of W times the word plus r × u`, [...fromWord, product("r × u", reset, within.value)])), within};
}

/** A sum of which not itself but σ or tanh is the number. */
const bent = (how, sum) => (sum.terms ? {...sum, bent: how} : sum);

/** s, h and W h: states that were computed elsewhere, and the matrix between them. */
function explainCompared(view, part, row, k) {
  const {names} = view.stage;
  if (part === "query") {
    return {title: `s of “${view.queries[row]}”, number ${k}`, formula: [view.query(0, row, k)],
            note: "The decoder's state after this word; the place before this one takes it apart."};
  }
  const token = view.keys[row];
  if (part === "value" || names.key === names.value) {
    return {title: `h of “${token}”, number ${k}`, formula: [view.value(0, row, k)], note: "The encoder's state at this word."};
  }
  const owner = view.keyOwner(row);
  return projection(`W h of “${token}”, number ${k}: row ${k} of W times h`, owner, "key", (d) => at(owner.memory, row, d), k);
}

function drawJoined(step, stage) {
  const [first, second] = stage.parts;
  const formula = `[${first} ; ${second}]`;
  const [both, about] = isInEncoder(stage) ? ["h", `= ${formula}`] : [formula, "side by side"];
  const width = stage.first[2];
  const notes = {context: "The sum of α·h; the place before this one takes it apart.", s: "The decoder's state after this word."};
  return tokenMatrices(step, stage, {first: [first, ""], second: [second, ""], output: [both, about]}, (part, row, k) => {
    const name = {first, second, output: both}[part];
    const note = part === "output" ? `Number ${k % width} of ${k < width ? first : second}.`
      : notes[name] ?? `The state after this word, read from ${name}.`;
    return {title: `${capital(name)} of “${tokensOf(walk(), step)[row]}”, number ${k}`, formula: [at(stage[part], row, k)], note};
  });
}

function drawNarrowed(step, stage) {
  const joined = "[context ; s]";
  return tokenMatrices(step, stage, {joined: [joined, "what comes in"], output: ["output", "tanh(W_O [context ; s])"]}, (part, row, k) => {
    const title = `of “${tokensOf(walk(), step)[row]}”, number ${k}`;
    if (part === "joined") return {title: `${joined} ${title}`, formula: [at(stage.joined, row, k)], note: "As the place before this one has put it together."};
    return bent("tanh", projection(`Output ${title}: tanh of row ${k} of W_O times ${joined}`, stage, "own", (d) => at(stage.joined, row, d), k));
  });
}
