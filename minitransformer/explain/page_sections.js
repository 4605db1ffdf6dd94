// What is shown of each kind of stage.
"use strict";

const fileName = (stage, part) => `${part}-step-${here.step}-${stage.at}`;
const columnsOf = (count) => range(count).map(String);

/** A matrix of a stage: a row per token of the step. */
function plain(step, stage, part, about, explain, value) {
  const reference = stage[part] ?? stage.widened;
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
    const names = {states: "on the line", update: `+ what the ${stage.path.includes("feed_forward") ? "network" : "attention"} found`,
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
    return [make("div", {class: "equation"}, plain(step, stage, "widened", "", explain("widened")),
      plain(step, stage, "hidden", stage.activation, explain("hidden"), (row, column) => hiddenOf(stage, row, column)),
      plain(step, stage, "output", "", explain("output")))];
  },
  attention: drawAttention,
  head: drawHead,
};

function drawAttention(step, stage) {
  const view = attentionOf(walk(), step, stage);
  const now = view.isEncoder ? -1 : view.queries.length - 1;
  const rows = view.produced ? view.queries.map((query, row) => `${query} → ${view.produced[row]}`) : view.queries;
  const pressed = (is) => (is ? "true" : "false");
  const heads = range(view.heads).map((head) => make("button", {type: "button", "data-key": `head ${head}`, "aria-pressed": pressed(here.head === head),
    onclick: () => go({head})}, `head ${head}`));
  if (view.heads > 1) {
    for (const [head, name] of [[view.heads, "mean"], [view.heads + 1, "all"]]) {
      heads.push(make("button", {type: "button", "data-key": `head ${head}`, "aria-pressed": pressed(here.head === head), onclick: () => go({head})}, name));
    }
  }
  const looks = {weight: "weights", score: "raw scores", ...(view.scale === 1 ? {} : {scaled: `scores / √${view.width}`})};
  if (!looks[here.look]) here.look = "weight";
  const isMean = here.head === view.heads && view.heads > 1;
  const isAll = here.head > view.heads;
  const choose = Object.entries(looks).map(([look, name]) => make("button", {type: "button", "data-key": `look ${look}`, "aria-pressed": pressed(here.look === look),
    onclick: () => go({look})}, name));
  const mean = (row, key) => total(range(view.heads).map((head) => view[here.look](head, row, key))) / view.heads;
  const explainMean = (row, key) => explainSum(`Mean over ${view.heads} heads (each divided by ${view.heads})`,
    Object.fromEntries(range(view.heads).map((head) => [`head ${head}`, view[here.look](head, row, key) / view.heads])));
  const heatMap = (name, value, explain, file) => matrix({name, rows, columns: view.keys, value, explain, now,
    about: view.isCross ? "rows: fed in → produced; columns: source" : "rows: Q; columns: K",
    kind: here.look === "weight" ? "share" : "signed", isHidden: view.isHidden, file: fileName(stage, file), mostAtOnce: 3000});
  const ofHead = (head, name) => heatMap(name, (row, key) => view[here.look](head, row, key),
    (row, key) => explainAttention(view, here.look, head, row, key), `${here.look}-head-${head}`);
  const parts = [make("div", {class: "buttons"},
    view.heads > 1 ? make("div", {role: "group", "aria-label": "Head"}, ...heads) : null,
    make("div", {role: "group", "aria-label": "What the cells show"}, ...choose))];
  if (isAll) return [...parts, make("div", {class: "many"}, ...range(view.heads).map((head) => ofHead(head, `${looks[here.look]}, head ${head}`)))];
  parts.push(isMean ? heatMap(looks[here.look], mean, explainMean, `${here.look}-mean`) : ofHead(here.head, looks[here.look]));
  if (isMean) return parts;
  const head = here.head;
  const own = view.isEncoder ? range(view.queries.length) : [now];  // the rows that are computed here
  const asked = (part) => (row, column) => explainAttention(view, part, head, own[row], column);
  const queries = own.map((row) => view.queries[row]);
  const columns = columnsOf(view.width);
  parts.push(make("div", {class: "equation"},
    matrix({name: "Q", about: "what is asked", rows: queries, columns, value: (row, k) => view.query(head, own[row], k), explain: asked("query"), file: fileName(stage, `Q-head-${head}`)}),
    matrix({name: "K", about: "what answers", rows: view.keys, columns, value: (key, k) => view.key(head, key, k), file: fileName(stage, `K-head-${head}`),
            explain: (row, column) => explainAttention(view, "key", head, row, column)}),
    matrix({name: "V", about: "what is taken", rows: view.keys, columns, value: (key, k) => view.value(head, key, k), file: fileName(stage, `V-head-${head}`),
            explain: (row, column) => explainAttention(view, "value", head, row, column)}),
    matrix({name: "weights · V", about: "what each token takes", rows: queries, columns, value: (row, k) => view.context(head, own[row], k), explain: asked("context"), file: fileName(stage, `context-head-${head}`)})));
  if (view.heads > 1 || stage.has_output) {
    parts.push(matrix({name: "output", about: stage.has_output ? "the heads side by side, times W_O" : "the heads side by side",
      rows: queries, columns: columnsOf(stage.output[2]), value: (row, d) => view.output(own[row], d), explain: asked("output"), file: fileName(stage, "output")}));
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
  const cross = [...step.stages].reverse().find((each) => each.look === "cross-attention");
  const view = attentionOf(walk(), number, cross);
  const last = view.queries.length - 1;
  const mean = (key) => total(range(view.heads).map((head) => view.weight(head, last, key))) / view.heads;
  const parts = [
    make("h3", {}, "Candidates: probability and logit"), make("div", {class: "bars"}, ...bars),
    matrix({name: `why ${step.produced}?`, about: "attention to each source word, and the change of the log-probability without it",
      rows: ["attention", "without it"], columns: walk().source, file: fileName(stage, "why"),
      value: (row, key) => (row === 0 ? mean(key) : step.why[key]), isHidden: (row, key) => row === 1 && step.why[key] === null,
      explain: (row, key) => (row === 0 ? explainSum(`Attention to “${walk().source[key]}” in the last layer${view.heads > 1 ? `: mean of its heads, each divided by ${view.heads}` : ""}`,
        Object.fromEntries(range(view.heads).map((head) => [`head ${head}`, view.weight(head, last, key) / view.heads])))
        : {title: `Without “${walk().source[key]}”`, formula: [step.why[key]],
           note: "The change of the log-probability (natural logarithm) of what was produced when nobody may look at this word. Below zero, the word was a reason."})}),
    matrix({name: "state", about: "the latest embedding", rows: [step.fed], columns: columnsOf(stage.state[1]),
      value: (_, d) => at(stage.state, d), file: fileName(stage, "state"),
      explain: (_, d) => ({title: `Number ${d} on the line`, formula: [at(stage.state, d)]})})];
  if (stage.tokens.length > order.length) {
    parts.push(matrix({name: "logits", about: "of every word, best first", rows: [step.fed], columns: stage.tokens,
      value: (_, place) => at(stage.logits, place), file: fileName(stage, "logits"),
      explain: (_, place) => explainHead(step, stage, "logits", place)}));
  }
  return parts;
}
