// The numbers of the page, and the sum that gives each of them.
"use strict";

const page = JSON.parse(document.getElementById("page-data").textContent);
const floats = decodeFloats(document.getElementById("page-numbers").textContent.trim());

function decodeFloats(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Float32Array(bytes.buffer);
}

/** Return a number of a tensor; a reference is its offset, then its shape. */
function valueAt(reference, ...indices) {
  let offset = 0;
  indices.forEach((index, dimension) => { offset = offset * reference[dimension + 1] + index; });
  return floats[reference[0] + offset];
}

const range = (count) => Array.from({length: count}, (_, index) => index);
const sumOf = (values) => values.reduce((sum, value) => sum + value, 0);

/** Return every stage of a walk-through with its step, in the order of computation; step 0 is the encoder. */
function stagesOf(walk) {
  return [...walk.encoder.map((stage) => ({step: 0, stage})),
          ...walk.steps.flatMap((step) => [...step.stages, step.head].map((stage) => ({step: step.number, stage})))];
}

/** The input tokens of a step: the whole source, or the one that is fed in. */
const tokensOf = (walk, step) => (step === 0 ? walk.source : [walk.steps[step - 1].fed]);

/** One attention with the rows of all steps so far. */
function attentionOf(walk, step, stage) {
  const isCross = stage.attention_type === "cross-attention";
  const isEncoder = step === 0;
  const fed = walk.steps.slice(0, step).map((each) => each.fed);
  const queries = isEncoder ? walk.source : fed;
  const keys = isEncoder || isCross ? walk.source : fed;
  // Each row of the decoder is in the stage of its own step, as row 0.
  const stageOfStep = (number) => walk.steps[number - 1].stages.find((each) => each.anchor === stage.anchor);
  const rowStage = (row) => (isEncoder ? stage : stageOfStep(row + 1));
  const rowIndex = (row) => (isEncoder ? row : 0);
  const keyStage = (key) => (isEncoder ? stage : stageOfStep(isCross ? 1 : key + 1));
  const keyIndex = (key) => (isEncoder || isCross ? key : 0);
  const width = stage.query[3];
  const scale = stage.scale ? Math.sqrt(width) : 1;
  const score = (head, row, key) => valueAt(rowStage(row).scores, head, rowIndex(row), key);
  return {
    stage, queries, keys, width, scale, isCross, isEncoder, rowStage, rowIndex, keyStage, keyIndex, score,
    heads: stage.query[1],
    produced: isCross ? walk.steps.slice(0, step).map((each) => each.produced) : null,
    query: (head, row, k) => valueAt(rowStage(row).query, head, rowIndex(row), k),
    key: (head, key, k) => valueAt(keyStage(key).key, head, keyIndex(key), k),
    value: (head, key, k) => valueAt(keyStage(key).value, head, keyIndex(key), k),
    scaled: (head, row, key) => score(head, row, key) / scale,
    weight: (head, row, key) => valueAt(rowStage(row).weights, head, rowIndex(row), key),
    context: (head, row, k) => valueAt(rowStage(row).context, head, rowIndex(row), k),
    output: (row, d) => valueAt(rowStage(row).output, rowIndex(row), d),
    isMasked: (row, key) => stage.masked_keys.includes(key) || (!isEncoder && !isCross && key > row),
  };
}

// An explanation of a number has a title and any of: note, formula, facts (pairs of name and number), and
// terms with their sum as value; with share, of a softmax: [numerator, denominator]; with activation: the
// number is the activation of the sum; inner is another sum, of one of the terms.

const softmaxNote = (largest) => `The largest score, ${largest.toFixed(3)}, is subtracted from all of them, which does not change the softmax.`;
const NO_MATRICES = "This model has more than 100,000 parameters, so the page does not contain its matrices: "
  + "the terms of this product are not shown.";

const termSum = (title, terms, note) => ({title, terms, note, value: sumOf(terms.map((term) => term.value))});
const product = (name, ...factors) => ({name, factors, value: factors[0] * factors[1]});
const plainSum = (title, parts) =>
  termSum(title, Object.entries(parts).map(([name, value]) => ({name, factors: [], value})));

/** The terms of input · weight + bias for one output; input(d) is a number. */
function explainProjection(title, stage, name, input, out) {
  if (!stage.matrices) return {title, note: NO_MATRICES};
  const [weight, bias] = stage.matrices[name];
  const terms = range(weight[2]).map((d) => product(`${d}`, input(d), valueAt(weight, out, d)));
  if (bias) terms.push({name: "bias", factors: [], value: valueAt(bias, out)});
  return termSum(title, terms);
}

/** A number of a query, key or value: a projection, rotated if positions are rotary. */
function explainHeadProjection(letter, token, stage, name, input, head, k, width, position) {
  const column = head * width + k;
  const title = `${letter} of “${token}”, number ${k}: the block's input times column ${column} of W_${letter}`;
  const unrotated = (index) => explainProjection(title, stage, name, input, head * width + index);
  if (!stage.is_rotary || name === "value" || !stage.matrices) return unrotated(k);
  const even = k - (k % 2);
  const angle = position / 10000 ** (even / width);
  const [cosine, sine] = [Math.cos(angle), Math.sin(angle)];
  const pairs = k % 2 ? [[even, sine], [even + 1, cosine]] : [[even, cosine], [even + 1, -sine]];
  const terms = pairs.map(([index, factor]) => product(`${index}, before rotation`, unrotated(index).value, factor));
  return termSum(`${letter} of “${token}”, number ${k}: two numbers of its projection, rotated by its position`, terms,
                 `The angle is ${position} / 10000^(${even}/${width}); the factors are its cosine and sine.`);
}

function explainAttention(view, part, head, row, column) {
  const {names} = view.stage;
  const isOfRecurrent = isRecurrentAttention(view.stage);
  const [query, key] = [view.queries[row], view.keys[column]];
  const keys = range(view.keys.length).filter((each) => !view.isMasked(row, each));
  if (isOfRecurrent && ["query", "key", "value"].includes(part)) return explainRecurrentAttention(view, part, row, column);
  switch (part) {
    case "query": {
      const stage = view.rowStage(row);
      return explainHeadProjection("Q", query, stage, "query", (d) => valueAt(stage.block_input, view.rowIndex(row), d),
                                   head, column, view.width, row);
    }
    case "key":
    case "value": {
      const stage = view.keyStage(row);
      const input = (d) => valueAt(stage.memory || stage.block_input, view.keyIndex(row), d);
      return explainHeadProjection(part === "key" ? "K" : "V", view.keys[row], stage, part, input, head, column, view.width, row);
    }
    case "score": {
      const terms = range(view.width).map((k) => product(`${k}`, view.query(head, row, k), view.key(head, column, k)));
      return termSum(`${isOfRecurrent ? names.score : "Score"} of “${query}” and “${key}”: ${names.query} of “${query}” times ${names.key} of “${key}”`, terms);
    }
    case "scaled": {
      const score = view.score(head, row, column);
      return {title: `Scaled score of “${query}” and “${key}”`, value: score / view.scale, formula: [score, "/ √" + view.width]};
    }
    case "weight": {
      const scaled = keys.map((each) => view.scaled(head, row, each));
      const largest = Math.max(...scaled);
      const terms = keys.map((each, n) => ({name: view.keys[each], power: scaled[n] - largest, value: Math.exp(scaled[n] - largest)}));
      const denominator = sumOf(terms.map((term) => term.value));
      return {title: `${isOfRecurrent ? names.weight : "Weight"} of “${key}” for “${query}”: softmax of the row`, terms, value: denominator,
              share: [terms[keys.indexOf(column)].value, denominator], note: softmaxNote(largest)};
    }
    case "context": {
      const formula = isOfRecurrent ? `${names.weight} times ${names.value}` : "weights times V";
      return termSum(`Context of “${query}”, number ${column}: ${formula}`,
        keys.map((each) => product(view.keys[each], view.weight(head, row, each), view.value(head, each, column))));
    }
    default: return explainAttentionOutput(view, row, column);
  }
}

/** The heads concatenated, and times W_O if there is such a matrix. */
function explainAttentionOutput(view, row, out) {
  const title = `Output for “${view.queries[row]}”, number ${out}`;
  const merged = (d) => view.context(Math.floor(d / view.width), row, d % view.width);
  const stage = view.rowStage(row);
  if (stage.has_output) return explainProjection(`${title}: heads concatenated, times W_O`, stage, "output", merged, out);
  return {title, value: merged(out), formula: [merged(out)], note: `Number ${out % view.width} of head ${Math.floor(out / view.width)}.`};
}

function explainEmbedding(walk, step, stage, part, row, column) {
  const token = tokensOf(walk, step)[row];
  const value = valueAt(stage[part], row, column);
  if (part === "vectors") {
    return {title: `Embedding of “${token}”, number ${column}`, value, formula: [value],
            note: `Row ${stage.ids[row]} of the embedding table${page.scaled_embeddings ? ", times √d_model" : ""}.`};
  }
  if (part === "positions") {
    const position = step === 0 ? row : step - 1;
    const wave = column % 2 ? "cos" : "sin";
    return {title: `Position ${position}, number ${column}`, value, formula: [value],
            note: page.positional_encoding === "sinusoidal"
              ? `${wave}(${position} / 10000^(${column - (column % 2)}/${stage.vectors[2]}))`
              : `Learned: row ${position} of the table of positions.`};
  }
  return plainSum(`“${token}” with its position, number ${column}`,
                  {embedding: valueAt(stage.vectors, row, column), position: valueAt(stage.positions, row, column)});
}

function explainNorm(walk, step, stage, row, column) {
  const values = range(stage.before[2]).map((d) => valueAt(stage.before, row, d));
  const mean = sumOf(values) / values.length;
  const variance = sumOf(values.map((value) => (value - mean) ** 2)) / values.length;
  const [gain, bias] = stage.matrices.own;
  const facts = [["number", values[column]], ["mean of the row", mean], ["variance of the row", variance],
                 ["(number − mean) / √(variance + ε)", (values[column] - mean) / Math.sqrt(variance + stage.epsilon)],
                 ["times its gain", valueAt(gain, column)]];
  if (bias) facts.push(["plus its bias", valueAt(bias, column)]);
  return {title: `Norm of “${tokensOf(walk, step)[row]}”, number ${column}`, facts};
}

/** A number of the hidden layer of a feed-forward network; that of a ReLU is computed here. */
const hiddenOf = (stage, row, f) =>
  (stage.hidden ? valueAt(stage.hidden, row, f) : Math.max(valueAt(stage.pre_activation, row, f), 0));

function explainFeedForward(walk, step, stage, part, row, column) {
  const title = `of “${tokensOf(walk, step)[row]}”, number ${column}`;
  if (part === "pre_activation") {
    return explainProjection(`Pre-activation ${title}: the block's input times a matrix`, stage, "fc1",
                             (d) => valueAt(stage.block_input, row, d), column);
  }
  if (part === "output") {
    return explainProjection(`Output ${title}: the hidden numbers times a matrix`, stage, "fc2", (f) => hiddenOf(stage, row, f), column);
  }
  return {title: `Hidden number ${column} of “${tokensOf(walk, step)[row]}”`, value: hiddenOf(stage, row, column),
          formula: [valueAt(stage.pre_activation, row, column)], note: `${stage.activation} of it`};
}

function explainHead(step, head, part, index) {
  const token = head.tokens[index];
  if (part === "logits") {
    const title = `Logit of “${token}”: ${head.input_name} of “${step.fed}” times its row of the head`;
    return explainProjection(title, head, "own", (d) => valueAt(head.state, d), head.ids[index]);
  }
  const power = (each) => valueAt(head.logits, each) - head.largest_logit;
  const best = range(Math.min(head.tokens.length, 8));
  const terms = best.map((each) => ({name: head.tokens[each], power: power(each), value: Math.exp(power(each))}));
  if (head.vocab_size > best.length) {
    const rest = head.denominator - sumOf(terms.map((term) => term.value));
    terms.push({name: `${head.vocab_size - best.length} more together`, factors: [], value: rest});
  }
  return {title: `Probability of “${token}”: softmax of all logits`, terms, value: head.denominator,
          share: [Math.exp(power(index)), head.denominator], note: softmaxNote(head.largest_logit)};
}
