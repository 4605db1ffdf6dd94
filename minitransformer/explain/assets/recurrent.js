// What the page shows of a recurrent model: gates, states, concatenations, and the sum behind each number.
"use strict";

const HIDDEN_WORD = "This word is hidden: it is not read, and the state is unchanged.";
const directionOf = (stage) => (stage.is_backward ? "right to left" : "left to right");
// Parts in the order of computation.
const RECURRENT_PARTS = {
  gru: {
    before: ["state before", "the state that this word starts from"],
    reset: ["reset r", "scales the previous state in the candidate"],
    update: ["update z", "the share of the previous state that is kept"],
    candidate: ["candidate n", "what the word adds"],
    state: ["state", "= (1 − z) × n + z × state before"],
  },
  lstm: {
    before: ["state before", "the state that this word starts from"],
    cell_before: ["cell before", "the cell that this word starts from"],
    input: ["input i", "the share of the candidate that is added"],
    forget: ["forget f", "the share of the cell that is kept"],
    candidate: ["candidate g", "what the word adds"],
    output: ["output o", "the share of tanh(c) in the state"],
    cell: ["cell c", "= f × cell before + i × g"],
    state: ["state", "= o × tanh(c)"],
  },
};
// In the order of their rows in the matrices.
const GATES = {gru: ["reset", "update", "candidate"], lstm: ["input", "forget", "candidate", "output"]};

const isRecurrent = (stage) => stage.kind in RECURRENT_PARTS;
const isInEncoder = (stage) => stage.path.startsWith("encoder");
const isRecurrentAttention = (stage) => stage.names?.query === "s";
const capitalized = (text) => (text.length > 1 ? text[0].toUpperCase() + text.slice(1) : text);  // not s and h

/** Return the title of a stage that only recurrent models have. */
function recurrentTitle(stage) {
  if (isRecurrent(stage)) return stage.kind.toUpperCase() + (isInEncoder(stage) ? `, ${directionOf(stage)}` : "");
  if (stage.kind === "joined") return isInEncoder(stage) ? "Both directions concatenated" : "[context ; s]";
  return {attention: isRecurrentAttention(stage) ? "Attention" : undefined, output_projection: "Output projection"}[stage.kind];
}

function recurrentExplanation(stage) {
  if (stage.kind === "joined") {
    return isInEncoder(stage) ? "One direction has read the words before, the other the words after; together they are h."
      : "The context and the decoder's own state: the next stage reads both.";
  }
  return {
    gru: "Each word changes the state: z is the share of the previous state that is kept, r scales the previous state in the candidate n.",
    lstm: "Each word changes the cell: f is the share of the cell that is kept, i the share of the candidate g that is added; "
      + "o is the share of tanh(c) that becomes the state.",
    attention: isRecurrentAttention(stage) ? "The decoder's state s is compared with every state h of the encoder; the softmax of the scores e is α, "
      + "and the sum of α·h is the context: here the translation attends to the source." : undefined,
    output_projection: "The matrix W_O projects both to the width of a state, and tanh keeps each number between −1 and 1.",
  }[stage.kind];
}

function recurrenceSection(step, stage) {
  return tokenMatrices(step, stage, RECURRENT_PARTS[stage.kind],
    (part, row, k) => explainRecurrence(walk(), step, stage, part, row, k),
    {isMasked: (part, row) => GATES[stage.kind].includes(part) && stage.masked.includes(row), maskedText: HIDDEN_WORD});
}

function explainRecurrence(walk, step, stage, part, row, k) {
  const name = capitalized(RECURRENT_PARTS[stage.kind][part][0]);
  const token = tokensOf(walk, step)[row];
  const value = (of) => valueAt(stage[of], row, k);
  if (part === "before" || part === "cell_before") {
    return {title: `${name} “${token}”, number ${k}`, formula: [value(part)], note: originOf(walk, step, stage, part, row, k)};
  }
  const title = `${name} of “${token}”, number ${k}`;
  if (GATES[stage.kind].includes(part)) return explainGate(stage, title, part, row, k);
  if (stage.masked.includes(row)) return {title, formula: [value(part)], note: HIDDEN_WORD};
  if (part === "cell") {
    return termSum(`${title}: f × cell before + i × g`,
      [product("kept", value("forget"), value("cell_before")), product("added", value("input"), value("candidate"))]);
  }
  if (stage.kind === "lstm") {
    return {title: `${title}: o × tanh(c)`, formula: [value("output"), `× tanh(${formatNumber(value("cell"), digits + 2)})`]};
  }
  return termSum(`${title}: (1 − z) × n + z × state before`,
    [product("added", 1 - value("update"), value("candidate")), product("kept", value("update"), value("before"))]);
}

/** Return where the state or the cell before a word comes from. */
function originOf(walk, step, stage, part, row, k) {
  const what = part === "before" ? "state" : "cell";
  if (step > 1) return `The ${what} after “${walk.steps[step - 2].fed}”, from step ${step - 1}.`;
  if (step === 0) {
    const earlier = walk.source[stage.is_backward ? row + 1 : row - 1];
    return earlier === undefined ? `The initial ${what}: zeros.` : `The ${what} after “${earlier}”.`;
  }
  const directions = walk.encoder.filter((each) => isRecurrent(each) && layerOf(each) === layerOf(stage));
  const width = directions[0].state[2];
  const direction = directions[Math.floor(k / width)];
  const last = walk.source[direction.is_backward ? 0 : walk.source.length - 1];
  return `The decoder's initial ${what}: number ${k % width} of the encoder's ${what} after “${last}”, the last word that it read from ${directionOf(direction)}.`;
}

/** σ or tanh of W · word + U · state; in the candidate of a GRU, reset scales U · state. */
function explainGate(stage, title, part, row, k) {
  if (!stage.matrices) return {title, note: NO_MATRICES};
  const out = GATES[stage.kind].indexOf(part) * stage.state[2] + k;
  const termsOf = (matrix, input, name, letter) => explainProjection("", stage, matrix, (d) => valueAt(input, row, d), out).terms
    .map((term) => ({...term, name: term.name === "bias" ? `bias ${letter}` : `${name} ${term.name}`}));
  const ofWord = termsOf("input_proj", stage.block_input, "word", "W");
  const ofState = termsOf("hidden_proj", stage.before, "state", "U");
  const activation = part === "candidate" ? "tanh" : "σ";
  if (part !== "candidate" || stage.kind === "lstm") {
    return {...termSum(`${title}: ${activation} of W times the word plus U times the state before`, [...ofWord, ...ofState]), activation};
  }
  const inner = termSum("u, which is U times the state before", ofState);
  const scaled = product("r × u", valueAt(stage.reset, row, k), inner.value);
  return {...termSum(`${title}: tanh of W times the word plus r × u`, [...ofWord, scaled]), activation, inner};
}

/** s, h and W h of an attention: states from other stages, and the product with the matrix W. */
function explainRecurrentAttention(view, part, row, k) {
  const {names} = view.stage;
  if (part === "query") {
    return {title: `s of “${view.queries[row]}”, number ${k}`, formula: [view.query(0, row, k)],
            note: "The decoder's state after this word: see the stage before this one."};
  }
  const token = view.keys[row];
  if (part === "value" || names.key === names.value) {
    return {title: `h of “${token}”, number ${k}`, formula: [view.value(0, row, k)], note: "The encoder's state at this word."};
  }
  const stage = view.keyStage(row);
  return explainProjection(`W h of “${token}”, number ${k}: row ${k} of W times h`, stage, "key", (d) => valueAt(stage.memory, row, d), k);
}

function joinedSection(step, stage) {
  const [first, second] = stage.parts;
  const formula = `[${first} ; ${second}]`;
  const [joined, about] = isInEncoder(stage) ? ["h", `= ${formula}`] : [formula, "concatenated"];
  const width = stage.first[2];
  const notes = {context: "The sum of α·h: see the stage before this one.", s: "The decoder's state after this word."};
  return tokenMatrices(step, stage, {first: [first, ""], second: [second, ""], output: [joined, about]}, (part, row, k) => {
    const name = {first, second, output: joined}[part];
    const note = part === "output" ? `Number ${k % width} of ${k < width ? first : second}.`
      : notes[name] ?? `The state after this word, read from ${name}.`;
    return {title: `${capitalized(name)} of “${tokensOf(walk(), step)[row]}”, number ${k}`, formula: [valueAt(stage[part], row, k)], note};
  });
}

function outputProjectionSection(step, stage) {
  const joined = "[context ; s]";
  return tokenMatrices(step, stage, {joined: [joined, "the input"], output: ["output", `tanh(W_O ${joined})`]}, (part, row, k) => {
    const title = `of “${tokensOf(walk(), step)[row]}”, number ${k}`;
    const input = (d) => valueAt(stage.joined, row, d);
    if (part === "joined") return {title: `${joined} ${title}`, formula: [input(k)], note: "From the stage before this one."};
    const sum = explainProjection(`Output ${title}: tanh of row ${k} of W_O times ${joined}`, stage, "own", input, k);
    return sum.terms ? {...sum, activation: "tanh"} : sum;
  });
}
