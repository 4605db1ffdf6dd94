// What is shown of each kind of stage.
"use strict";

const fileName = (stage, part) => `${part}-step-${here.step}-${stage.at}`;
const columnsOf = (count) => range(count).map(String);

/** A matrix of a stage: a row per token of the step. */
function plain(step, stage, part, about, explain, value) {
  const reference = stage[part] ?? stage.pre_activation;  // what is made here has the shape of what it is made of
  return matrix({name: part, about, rows: tokensOf(walk(), step), columns: columnsOf(reference[2]), explain,
                 value: value ?? ((row, column) => at(reference, row, column)), file: fileName(stage, part)});
}

const sections = {
  embedding: (step, stage) => {
    const explain = (part) => (row, column) => explainEmbedding(walk(), step, stage, part, row, column);
    const parts = [plain(step, stage, "vectors", "the embeddings of the words", explain("vectors"))];
    if (stage.positions) {
      parts.push(matrix({name: "positions", about: "+ the encoding of their places", rows: tokensOf(walk(), step),
        columns: columnsOf(stage.positions[2]), explain: explain("positions"),
        value: (row, column) => at(stage.positions, row, column), file: fileName(stage, "positions")}),
      plain(step, stage, "output", "= what goes into the first layer", explain("output")));
    }
    return [make("div", {class: "equation"}, ...parts)];
  },
  residual: (step, stage) => {
    const names = {states: "on the line", update: `+ what the ${stage.at.startsWith("ff") ? "network" : "attention"} found`,
                   total: "= the line from here on"};
    const explain = (part) => (row, column) => (part === "total"
      ? explainSum(`“${tokensOf(walk(), step)[row]}”, number ${column}`,
                   {"on the line": at(stage.states, row, column), found: at(stage.update, row, column)})
      : {title: `“${tokensOf(walk(), step)[row]}”, number ${column}`, formula: [at(stage[part], row, column)],
         note: part === "states" ? "As the line was before this block." : "As the block left it; the place before this one takes it apart."});
    return [make("div", {class: "equation"}, ...Object.entries(names).map(([part, about]) => plain(step, stage, part, about, explain(part))))];
  },
  norm: (step, stage) => [make("div", {class: "equation"},
    plain(step, stage, "before", "", (row, column) => ({title: `Number ${column}`, formula: [at(stage.before, row, column)], note: "As it stood on the line."})),
    plain(step, stage, "after", "", (row, column) => explainNorm(walk(), step, stage, row, column)))],
  feed_forward: (step, stage) => {
    const explain = (part) => (row, column) => explainFeedForward(walk(), step, stage, part, row, column);
    return [make("div", {class: "equation"}, plain(step, stage, "pre_activation", "", explain("pre_activation")),
      plain(step, stage, "hidden", stage.activation, explain("hidden"), (row, column) => hiddenOf(stage, row, column)),
      plain(step, stage, "output", "", explain("output")))];
  },
  attention: drawAttention,
  gru: drawRecurrence,
  lstm: drawRecurrence,
  joined: drawJoined,
  narrowed: drawNarrowed,
  head: drawHead,
};

function drawAttention(step, stage) {
  const view = attentionOf(walk(), step, stage);
  const {names} = stage;
  const [weights, scores] = isByStates(stage) ? [names.weight, names.score] : ["weights", "raw scores"];
  const looks = {weight: weights, score: scores, ...(view.scale === 1 ? {} : {scaled: `scores / √${view.width}`})};
  const look = looks[here.look] ? here.look : "weight";
  const controls = attentionControls(view, looks, look);
  const ofHead = (head, name) => heatMap(view, look, name, `${look}-head-${head}`, (row, key) => view[look](head, row, key),
    (row, key) => explainAttention(view, look, head, row, key));
  if (here.head > view.heads) {
    const all = range(view.heads).map((head) => ofHead(head, `${looks[look]}, head ${head}`));
    return [controls, make("div", {class: "many"}, ...all)];
  }
  if (view.heads > 1 && here.head === view.heads) {
    const share = (head, row, key) => view[look](head, row, key) / view.heads;
    const mean = (row, key) => total(range(view.heads).map((head) => share(head, row, key)));
    return [controls, heatMap(view, look, looks[look], `${look}-mean`, mean, (row, key) =>
      explainSum(`Mean over ${view.heads} heads (each divided by ${view.heads})`,
                 Object.fromEntries(range(view.heads).map((head) => [`head ${head}`, share(head, row, key)]))))];
  }
  return [controls, ofHead(here.head, looks[look]), ...headMatrices(view, here.head)];
}

/** Which head, and what its cells show. */
function attentionControls(view, looks, look) {
  const button = (key, name, isPressed, change) => make("button", {type: "button", "data-key": key,
    "aria-pressed": isPressed ? "true" : "false", onclick: () => go(change)}, name);
  const names = [...range(view.heads).map((head) => `head ${head}`), "mean", "all"];
  const heads = names.map((name, head) => button(`head ${head}`, name, here.head === head, {head}));
  const kinds = Object.entries(looks).map(([each, name]) => button(`look ${each}`, name, look === each, {look: each}));
  return make("div", {class: "buttons"},
    view.heads > 1 ? make("div", {role: "group", "aria-label": "Head"}, ...heads) : null,
    make("div", {role: "group", "aria-label": "What the cells show"}, ...kinds));
}

/** Who looks at whom, with the rows of all steps so far. */
function heatMap(view, look, name, file, value, explain) {
  const rows = view.produced ? view.queries.map((query, row) => [query, view.produced[row]]) : view.queries;
  return matrix({name, rows, columns: view.keys, value, explain, now: view.isEncoder ? -1 : rows.length - 1,
    about: view.isCross ? "rows: fed in → produced; columns: source" : "rows: Q; columns: K",
    kind: look === "weight" ? "share" : "signed", isHidden: view.isHidden, file: fileName(view.stage, file), mostAtOnce: 3000});
}

/** What a head computes with: Q, K, V, and what comes of them. */
function headMatrices(view, head) {
  const {stage} = view;
  const {names} = stage;
  const own = view.isEncoder ? range(view.queries.length) : [view.queries.length - 1];  // the rows that are computed here
  const queries = own.map((row) => view.queries[row]);
  const columns = columnsOf(view.width);
  const ofQueries = (name, about, part, file, shape = columns) => matrix({name, about, rows: queries, columns: shape, file: fileName(stage, file),
    value: (row, column) => (part === "output" ? view.output(own[row], column) : view[part](head, own[row], column)),
    explain: (row, column) => explainAttention(view, part, head, own[row], column)});
  const ofKeys = (name, about, part) => matrix({name, about, rows: view.keys, columns, file: fileName(stage, `${name}-head-${head}`),
    value: (key, k) => view[part](head, key, k), explain: (key, k) => explainAttention(view, part, head, key, k)});
  const parts = [make("div", {class: "equation"}, ofQueries(names.query, "what is asked", "query", `${names.query}-head-${head}`),
    names.key === names.value ? null : ofKeys(names.key, "what answers", "key"),
    ofKeys(names.value, names.key === names.value ? "what answers, and what is taken" : "what is taken", "value"),
    ofQueries(isByStates(stage) ? "context" : "weights · V", isByStates(stage) ? "the sum of α·h" : "what each token takes",
              "context", `context-head-${head}`))];
  if (view.heads > 1 || stage.has_output) {
    parts.push(ofQueries("output", stage.has_output ? "the heads side by side, times W_O" : "the heads side by side", "output",
                         "output", columnsOf(stage.output[2])));
  }
  return parts;
}

function drawHead(number, stage) {
  const step = walk().steps[number - 1];
  const order = stage.candidates.map((id) => stage.ids.indexOf(id));
  const ask = (part, place) => make("button", {type: "button", "data-part": part, onclick: () =>
    showSum(explainHead(step, stage, part, place), at(stage[part], place))},
    part === "logits" ? shown(at(stage.logits, place)) : `${(100 * at(stage.probabilities, place)).toFixed(2)} %`);
  const bars = order.flatMap((place) => [
    make("span", {class: "word", dir: "auto"}, stage.tokens[place]),
    make("span", {class: "bar"}, make("span", {style: `width: ${100 * at(stage.probabilities, place)}%`})),
    ask("probabilities", place), ask("logits", place)]);
  const isOnLine = stage.reads === "the latest embedding";
  const parts = [
    make("h3", {}, `Candidates: probability and logit${step.is_forced ? " (what was produced was forced)" : ""}`), make("div", {class: "bars"}, ...bars),
    drawReasons(step, stage),
    matrix({name: isOnLine ? "state" : stage.reads.replace("the ", ""), about: isOnLine ? stage.reads : "what comes in",
      rows: [step.fed], columns: columnsOf(stage.state[1]), value: (_, d) => at(stage.state, d), file: fileName(stage, "state"),
      explain: (_, d) => ({title: isOnLine ? `Number ${d} on the line` : `Number ${d} of ${stage.reads}`, formula: [at(stage.state, d)],
                           note: isOnLine ? null : "As the place before this one has left it."})})];
  if (stage.tokens.length > order.length) {
    parts.push(matrix({name: "logits", about: "of every word, best first", rows: [step.fed], columns: stage.tokens,
      value: (_, place) => at(stage.logits, place), file: fileName(stage, "logits"),
      explain: (_, place) => explainHead(step, stage, "logits", place)}));
  }
  return parts;
}

/** Where a word looked, if the model has attention, and what it is worth without each source word. */
function drawReasons(step, stage) {
  const cross = [...step.stages].reverse().find((each) => each.look === "cross-attention");
  const view = cross && attentionOf(walk(), step.number, cross);
  const last = step.number - 1;
  const share = (head, key) => view.weight(head, last, key) / view.heads;
  const rows = cross ? ["attention", "without it"] : ["without it"];
  const isShare = (row) => rows[row] === "attention";
  const unread = walk().encoder.some(isRecurrent) ? "this word is not read" : "nobody may look at this word";
  const explainShare = (key) => {
    const layer = isByStates(cross) ? "" : " in the last layer";
    const heads = view.heads > 1 ? `: mean of its heads, each divided by ${view.heads}` : "";
    const name = (head) => (isByStates(cross) ? cross.names.weight : `head ${head}`);
    return explainSum(`Attention to “${walk().source[key]}”${layer}${heads}`,
                      Object.fromEntries(range(view.heads).map((head) => [name(head), share(head, key)])));
  };
  return matrix({name: `why ${step.produced}?`, rows, columns: walk().source, file: fileName(stage, "why"),
    about: `${cross ? "attention to each source word, and " : ""}the change of the log-probability without ${cross ? "it" : "each source word"}`,
    value: (row, key) => (isShare(row) ? total(range(view.heads).map((head) => share(head, key))) : step.why[key]),
    isHidden: (row, key) => !isShare(row) && step.why[key] === null,
    hiddenText: "Without this word nothing would be left to translate.",
    explain: (row, key) => (isShare(row) ? explainShare(key) : {title: `Without “${walk().source[key]}”`, formula: [step.why[key]],
      note: `The change of the log-probability (natural logarithm) of what was produced when ${unread}. Below zero, the word was a reason.`})});
}
