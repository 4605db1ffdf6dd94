// What the page shows of each kind of stage.
"use strict";

const fileName = (stage, part) => `${part}-step-${selected.step}-${stage.anchor}`;
const columnsOf = (count) => range(count).map(String);

/** Matrices of a stage with a row per token of the step; parts: {part: [name, about]}. */
function tokenMatrices(step, stage, parts, explain, options = {}) {
  const shapeOf = (part) => stage[part] ?? stage.pre_activation;  // that of a ReLU's hidden layer, which is not stored
  return [create("div", {class: "equation"}, ...Object.entries(parts).map(([part, [name, about]]) => matrixFigure({
    name, about, rows: tokensOf(walk(), step), columns: columnsOf(shapeOf(part)[2]), file: fileName(stage, part),
    value: (row, column) => (part === "hidden" ? hiddenOf(stage, row, column) : valueAt(stage[part], row, column)),
    explain: (row, column) => explain(part, row, column),
    isMasked: (row) => options.isMasked?.(part, row) ?? false, maskedText: options.maskedText})))];
}

const sections = {
  embedding: (step, stage) => tokenMatrices(step, stage, {
    vectors: ["vectors", "the embeddings of the words"],
    ...(stage.positions && {positions: ["positions", "+ the encoding of their positions"], output: ["output", "= the input of the first layer"]}),
  }, (part, row, column) => explainEmbedding(walk(), step, stage, part, row, column)),
  residual: (step, stage) => tokenMatrices(step, stage, {
    states: ["states", "the residual stream"],
    update: ["update", `+ the output of the ${stage.anchor.startsWith("ff") ? "network" : "attention"}`],
    total: ["total", "= the residual stream from here on"],
  }, (part, row, column) => {
    const title = `“${tokensOf(walk(), step)[row]}”, number ${column}`;
    if (part === "total") return plainSum(title, {"residual stream": valueAt(stage.states, row, column), update: valueAt(stage.update, row, column)});
    return {title, formula: [valueAt(stage[part], row, column)],
            note: part === "states" ? "The residual stream before this block." : "The output of the block: see the stage before this one."};
  }),
  norm: (step, stage) => tokenMatrices(step, stage, {before: ["before", ""], after: ["after", ""]},
    (part, row, column) => (part === "after" ? explainNorm(walk(), step, stage, row, column)
      : {title: `Number ${column}`, formula: [valueAt(stage.before, row, column)], note: "The residual stream."})),
  feed_forward: (step, stage) => tokenMatrices(step, stage,
    {pre_activation: ["pre_activation", ""], hidden: ["hidden", stage.activation], output: ["output", ""]},
    (part, row, column) => explainFeedForward(walk(), step, stage, part, row, column)),
  attention: attentionSection,
  gru: recurrenceSection,
  lstm: recurrenceSection,
  joined: joinedSection,
  output_projection: outputProjectionSection,
  head: headSection,
};

function attentionSection(step, stage) {
  const view = attentionOf(walk(), step, stage);
  const {names} = stage;
  const [weights, scores] = isRecurrentAttention(stage) ? [names.weight, names.score] : ["weights", "raw scores"];
  const quantities = {weight: weights, score: scores, ...(view.scale === 1 ? {} : {scaled: `scores / √${view.width}`})};
  const quantity = quantities[selected.quantity] ? selected.quantity : "weight";
  const controls = attentionControls(view, quantities, quantity);
  const ofHead = (head, name) => attentionMap(view, quantity, name, `${quantity}-head-${head}`,
    (row, key) => view[quantity](head, row, key), (row, key) => explainAttention(view, quantity, head, row, key));
  if (selected.head > view.heads) {
    const all = range(view.heads).map((head) => ofHead(head, `${quantities[quantity]}, head ${head}`));
    return [controls, create("div", {class: "many"}, ...all)];
  }
  if (view.heads > 1 && selected.head === view.heads) {
    const share = (head, row, key) => view[quantity](head, row, key) / view.heads;
    const mean = (row, key) => sumOf(range(view.heads).map((head) => share(head, row, key)));
    return [controls, attentionMap(view, quantity, quantities[quantity], `${quantity}-mean`, mean, (row, key) =>
      plainSum(`Mean over ${view.heads} heads (each divided by ${view.heads})`,
               Object.fromEntries(range(view.heads).map((head) => [`head ${head}`, share(head, row, key)]))))];
  }
  return [controls, ofHead(selected.head, quantities[quantity]), ...headMatrices(view, selected.head)];
}

/** Buttons for the head, and for what the cells show. */
function attentionControls(view, quantities, quantity) {
  const button = (key, name, isPressed, change) => create("button", {type: "button", "data-key": key,
    "aria-pressed": isPressed ? "true" : "false", onclick: () => navigate(change)}, name);
  const names = [...range(view.heads).map((head) => `head ${head}`), "mean", "all"];
  const heads = names.map((name, head) => button(`head ${head}`, name, selected.head === head, {head}));
  const kinds = Object.entries(quantities).map(([each, name]) => button(`show ${each}`, name, quantity === each, {quantity: each}));
  return create("div", {class: "buttons"},
    view.heads > 1 ? create("div", {role: "group", "aria-label": "Head"}, ...heads) : null,
    create("div", {role: "group", "aria-label": "What the cells show"}, ...kinds));
}

/** The weights or scores of queries and keys, with the rows of all steps so far. */
function attentionMap(view, quantity, name, file, value, explain) {
  const rows = view.produced ? view.queries.map((query, row) => [query, view.produced[row]]) : view.queries;
  return matrixFigure({name, rows, columns: view.keys, value, explain, currentRow: view.isEncoder ? -1 : rows.length - 1,
    about: view.isCross ? "rows: fed in → produced; columns: source" : "rows: Q; columns: K",
    kind: quantity === "weight" ? "share" : "signed", isMasked: view.isMasked, file: fileName(view.stage, file), maxCells: 3000});
}

/** The queries, keys and values of a head, and its context; then the output of all heads. */
function headMatrices(view, head) {
  const {stage} = view;
  const {names} = stage;
  const isOfRecurrent = isRecurrentAttention(stage);
  const newRows = view.isEncoder ? range(view.queries.length) : [view.queries.length - 1];  // computed in this step
  const ofQueries = (name, about, part, file, width = view.width) => matrixFigure({name, about,
    rows: newRows.map((row) => view.queries[row]), columns: columnsOf(width), file: fileName(stage, file),
    value: (row, column) => (part === "output" ? view.output(newRows[row], column) : view[part](head, newRows[row], column)),
    explain: (row, column) => explainAttention(view, part, head, newRows[row], column)});
  const ofKeys = (name, about, part) => matrixFigure({name, about, rows: view.keys, columns: columnsOf(view.width),
    file: fileName(stage, `${name}-head-${head}`), value: (key, k) => view[part](head, key, k),
    explain: (key, k) => explainAttention(view, part, head, key, k)});
  const matrices = [ofQueries(names.query, "queries", "query", `${names.query}-head-${head}`)];
  if (names.key !== names.value) matrices.push(ofKeys(names.key, "keys", "key"));
  matrices.push(ofKeys(names.value, names.key === names.value ? "keys and values" : "values", "value"),
    ofQueries(isOfRecurrent ? "context" : "weights · V", isOfRecurrent ? "the sum of α·h" : "the context", "context", `context-head-${head}`));
  const parts = [create("div", {class: "equation"}, ...matrices)];
  if (view.heads > 1 || stage.has_output) {
    const about = `heads concatenated${stage.has_output ? ", times W_O" : ""}`;
    parts.push(ofQueries("output", about, "output", "output", stage.output[2]));
  }
  return parts;
}

function headSection(number, stage) {
  const step = walk().steps[number - 1];
  const candidates = stage.candidates.map((id) => stage.ids.indexOf(id));
  const numberButton = (part, index) => create("button", {type: "button", "data-part": part, onclick: () =>
    showSum(explainHead(step, stage, part, index), valueAt(stage[part], index))},
    part === "logits" ? formatNumber(valueAt(stage.logits, index)) : `${(100 * valueAt(stage.probabilities, index)).toFixed(2)} %`);
  const bars = candidates.flatMap((index) => [
    create("span", {class: "word", dir: "auto"}, stage.tokens[index]),
    create("span", {class: "bar"}, create("span", {style: `width: ${100 * valueAt(stage.probabilities, index)}%`})),
    numberButton("probabilities", index), numberButton("logits", index)]);
  const isStream = stage.input_name === "the latest embedding";
  const stateTitle = isStream ? "the residual stream" : stage.input_name;
  const parts = [
    create("h3", {}, `Candidates: probability and logit${step.is_forced ? " (what was produced was forced)" : ""}`),
    create("div", {class: "bars"}, ...bars),
    sourceMatrix(step, stage),
    matrixFigure({name: isStream ? "state" : stage.input_name.replace("the ", ""), about: isStream ? stage.input_name : "the input of the head",
      rows: [step.fed], columns: columnsOf(stage.state[1]), value: (_, d) => valueAt(stage.state, d), file: fileName(stage, "state"),
      explain: (_, d) => ({title: `Number ${d} of ${stateTitle}`, formula: [valueAt(stage.state, d)], note: "From the stage before this one."})})];
  if (stage.tokens.length > candidates.length) {
    parts.push(matrixFigure({name: "logits", about: "of all tokens, best first", rows: [step.fed], columns: stage.tokens,
      value: (_, index) => valueAt(stage.logits, index), file: fileName(stage, "logits"),
      explain: (_, index) => explainHead(step, stage, "logits", index)}));
  }
  return parts;
}

/** A token's attention to the source words, if the model has attention, and its change without each of them. */
function sourceMatrix(step, stage) {
  const cross = [...step.stages].reverse().find((each) => each.attention_type === "cross-attention");
  const view = cross && attentionOf(walk(), step.number, cross);
  const share = (head, key) => view.weight(head, step.number - 1, key) / view.heads;
  const rows = cross ? ["attention", "without it"] : ["without it"];
  const isAttention = (row) => rows[row] === "attention";
  const explainShare = (key) => {
    const isOfRecurrent = isRecurrentAttention(cross);
    const heads = view.heads > 1 ? `: mean of its heads, each divided by ${view.heads}` : "";
    return plainSum(`Attention to “${walk().source[key]}”${isOfRecurrent ? "" : " in the last layer"}${heads}`,
      Object.fromEntries(range(view.heads).map((head) => [isOfRecurrent ? cross.names.weight : `head ${head}`, share(head, key)])));
  };
  const hidden = walk().encoder.some(isRecurrent) ? "this word is not read" : "no token may attend to this word";
  return matrixFigure({name: `why ${step.produced}?`, rows, columns: walk().source, file: fileName(stage, "why"),
    about: `${cross ? "attention to each source word, and " : ""}the change of the log-probability without ${cross ? "it" : "each source word"}`,
    value: (row, key) => (isAttention(row) ? sumOf(range(view.heads).map((head) => share(head, key))) : step.why[key]),
    isMasked: (row, key) => !isAttention(row) && step.why[key] === null,
    maskedText: "Without this word nothing would be left to translate.",
    explain: (row, key) => (isAttention(row) ? explainShare(key) : {title: `Without “${walk().source[key]}”`, formula: [step.why[key]],
      note: `The change of the log-probability (natural logarithm) of the produced token when ${hidden}. Below zero: the word makes the token more probable.`})});
}
