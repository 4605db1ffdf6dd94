// The numbers of the page, where they stand, and the sum that made each of them.
// H heads, T tokens, S tokens looked at, D width, K width of a head.
"use strict";

const page = JSON.parse(document.getElementById("page-data").textContent);
const floats = decodeFloats(document.getElementById("page-numbers").textContent.trim());

function decodeFloats(text) {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let place = 0; place < letters.length; place++) bytes[place] = letters.charCodeAt(place);
  return new Float32Array(bytes.buffer);
}

/** A number of a tensor; a reference is where it begins, then its shape. */
function at(reference, ...places) {
  let offset = 0;
  places.forEach((place, dimension) => { offset = offset * reference[dimension + 1] + place; });
  return floats[reference[0] + offset];
}

const range = (count) => Array.from({length: count}, (_, place) => place);
const total = (values) => values.reduce((sum, value) => sum + value, 0);

/** Every place of a walk-through in the order in which things happen; step 0 is the encoder. */
function placesOf(walk) {
  const places = walk.encoder.map((stage) => ({step: 0, stage}));
  for (const step of walk.steps) {
    for (const stage of [...step.stages, step.head]) places.push({step: step.number, stage});
  }
  return places;
}

function stageAt(walk, step, name) {
  const stages = step === 0 ? walk.encoder : walk.steps[step - 1].stages;
  return stages.find((stage) => stage.at === name);
}

/** The tokens that a step computes with: the whole source, or the one that is fed in. */
const tokensOf = (walk, step) => (step === 0 ? walk.source : [walk.steps[step - 1].fed]);

/** One attention with the rows of all steps so far. */
function attentionOf(walk, step, stage) {
  const isCross = stage.look === "cross-attention";
  const isEncoder = step === 0;
  const fed = walk.steps.slice(0, step).map((each) => each.fed);
  const queries = isEncoder ? walk.source : fed;
  const keys = isEncoder || isCross ? walk.source : fed;
  // Where a row of the decoder was computed: each token in a step of its own.
  const owner = (row) => (isEncoder ? stage : stageAt(walk, row + 1, stage.at));
  const inside = (row) => (isEncoder ? row : 0);
  const keyOwner = (key) => (isEncoder ? stage : stageAt(walk, isCross ? 1 : key + 1, stage.at));
  const keyInside = (key) => (isEncoder || isCross ? key : 0);
  const width = stage.query[3];
  const scale = stage.scale ? Math.sqrt(width) : 1;
  const score = (head, row, key) => at(owner(row).scores, head, inside(row), key);
  return {
    stage, queries, keys, width, scale, isCross, isEncoder, owner, inside, keyOwner, keyInside, score,
    heads: stage.query[1],
    produced: isCross ? walk.steps.slice(0, step).map((each) => each.produced) : null,
    query: (head, row, k) => at(owner(row).query, head, inside(row), k),
    key: (head, key, k) => at(keyOwner(key).key, head, keyInside(key), k),
    value: (head, key, k) => at(keyOwner(key).value, head, keyInside(key), k),
    scaled: (head, row, key) => score(head, row, key) / scale,
    weight: (head, row, key) => at(owner(row).weights, head, inside(row), key),
    context: (head, row, k) => at(owner(row).context, head, inside(row), k),
    output: (row, d) => at(owner(row).output, inside(row), d),
    isHidden: (row, key) => stage.hidden_keys.includes(key) || (!isEncoder && !isCross && key > row),
  };
}

const shifted = (largest) => `The largest score, ${largest.toFixed(3)}, is taken off all of them, which changes no share.`;
const TOO_MANY = "This model has more than 100,000 parameters. Its matrices are not in the page, "
  + "which would be too large with them, so that this product cannot be taken apart here.";

const summed = (title, terms, note) => ({title, terms, note, value: total(terms.map((term) => term.value))});
const product = (name, ...factors) => ({name, factors, value: factors[0] * factors[1]});

/** The terms of input · weight + bias for one output, or why there are none; input(d) is a number. */
function projection(title, stage, name, input, out) {
  if (!stage.matrices) return {title, note: TOO_MANY};
  const [weight, bias] = stage.matrices[name];
  const terms = range(weight[2]).map((d) => product(`${d}`, input(d), at(weight, out, d)));
  if (bias) terms.push({name: "bias", factors: [], value: at(bias, out)});
  return summed(title, terms);
}

/** A query's, key's or value's number: a projection, with rotary positions then turned. */
function projected(letter, token, stage, name, input, head, k, width, position) {
  const column = head * width + k;
  const title = `${letter} of “${token}”, number ${k}: what comes in for it, times column ${column} of W_${letter}`;
  const plain = (place) => projection(title, stage, name, input, head * width + place);
  if (!stage.turns || name === "value" || !stage.matrices) return plain(k);
  const even = k - (k % 2);
  const angle = position / 10000 ** (even / width);
  const [cosine, sine] = [Math.cos(angle), Math.sin(angle)];
  const pairs = k % 2 ? [[even, sine], [even + 1, cosine]] : [[even, cosine], [even + 1, -sine]];
  const terms = pairs.map(([place, turn]) => product(`${place}, before turning`, plain(place).value, turn));
  return summed(`${letter} of “${token}”, number ${k}: two numbers of its projection, turned by its place`, terms,
                `The angle is ${position} / 10000^(${even}/${width}); the factors are its cosine and sine.`);
}

function explainAttention(view, part, head, row, column) {
  const {names} = view.stage;
  const query = view.queries[row];
  if (isByStates(view.stage) && ["query", "key", "value"].includes(part)) return explainCompared(view, part, row, column);
  const key = part === "context" || part === "query" || part === "output" ? null : view.keys[column];
  switch (part) {
    case "query": {
      const owner = view.owner(row);
      return projected("Q", query, owner, "query", (d) => at(owner.input, view.inside(row), d), head, column, view.width, row);
    }
    case "key":
    case "value": {
      const owner = view.keyOwner(row);
      const input = (d) => at(owner.memory || owner.input, view.keyInside(row), d);
      return projected(part === "key" ? "K" : "V", view.keys[row], owner, part, input, head, column, view.width, row);
    }
    case "score": {
      const terms = range(view.width).map((k) => product(`${k}`, view.query(head, row, k), view.key(head, column, k)));
      const name = isByStates(view.stage) ? names.score : "Score";
      return summed(`${name} of “${query}” and “${key}”: ${names.query} of the one times ${names.key} of the other`, terms);
    }
    case "scaled": {
      const score = view.score(head, row, column);
      return {title: `Scaled score of “${query}” and “${key}”`, value: score / view.scale,
              formula: [score, "/ √" + view.width]};
    }
    case "weight": {
      const seen = range(view.keys.length).filter((each) => !view.isHidden(row, each));
      const scaled = seen.map((each) => view.scaled(head, row, each));
      const shift = Math.max(...scaled);
      const terms = seen.map((each, place) => ({
        name: view.keys[each], power: scaled[place] - shift, value: Math.exp(scaled[place] - shift)}));
      const sum = total(terms.map((term) => term.value));
      const own = terms[seen.indexOf(column)].value;
      const name = isByStates(view.stage) ? names.weight : "Weight";
      return {title: `${name} of “${key}” for “${query}”: softmax of the row`, terms, value: sum,
              share: [own, sum], note: shifted(shift)};
    }
    case "context": {
      const seen = range(view.keys.length).filter((each) => !view.isHidden(row, each));
      const title = isByStates(view.stage) ? `Context of “${query}”, number ${column}: ${names.weight} times ${names.value}`
        : `What “${query}” takes, number ${column}: weights times V`;
      return summed(title,
        seen.map((each) => product(view.keys[each], view.weight(head, row, each), view.value(head, each, column))));
    }
    default: return explainOutput(view, row, column);
  }
}

/** What the heads found, side by side, and times W_O where there is such a matrix. */
function explainOutput(view, row, out) {
  const title = `Output for “${view.queries[row]}”, number ${out}`;
  const merged = (d) => view.context(Math.floor(d / view.width), row, d % view.width);
  const owner = view.owner(row);
  if (!owner.has_output) {
    return {title, value: merged(out), formula: [merged(out)],
            note: `Number ${out % view.width} of head ${Math.floor(out / view.width)}.`};
  }
  return projection(`${title}: the heads side by side, times W_O`, owner, "output", merged, out);
}

function explainEmbedding(walk, step, stage, part, row, column) {
  const token = tokensOf(walk, step)[row];
  if (part === "vectors") {
    return {title: `Embedding of “${token}”, number ${column}`, value: at(stage.vectors, row, column),
            formula: [at(stage.vectors, row, column)],
            note: `Row ${stage.ids[row]} of the embedding table${page.scaled_embeddings ? ", times √d_model" : ""}.`};
  }
  const place = step === 0 ? row : step - 1;
  if (part === "positions") {
    const pair = column - (column % 2);
    const wave = column % 2 ? "cos" : "sin";
    const width = stage.vectors[2];
    return {title: `Position ${place}, number ${column}`, value: at(stage.positions, row, column),
            formula: [at(stage.positions, row, column)],
            note: page.position === "sinusoidal" ? `${wave}(${place} / 10000^(${pair}/${width}))`
              : `Learnt: row ${place} of the table of positions.`};
  }
  return explainSum(`“${token}” at its place, number ${column}`,
                    {embedding: at(stage.vectors, row, column), position: at(stage.positions, row, column)});
}

const explainSum = (title, parts) =>
  summed(title, Object.entries(parts).map(([name, value]) => ({name, factors: [], value})));

function explainNorm(walk, step, stage, row, column) {
  const token = tokensOf(walk, step)[row];
  const values = range(stage.before[2]).map((d) => at(stage.before, row, d));
  const mean = total(values) / values.length;
  const variance = total(values.map((value) => (value - mean) ** 2)) / values.length;
  const normed = (values[column] - mean) / Math.sqrt(variance + stage.epsilon);
  const title = `Norm of “${token}”, number ${column}`;
  const facts = [["number", values[column]], ["mean of the row", mean], ["variance of the row", variance],
                 ["(number − mean) / √(variance + ε)", normed]];
  const [gain, bias] = stage.matrices.own;
  facts.push(["times its gain", at(gain, column)]);
  if (bias) facts.push(["plus its bias", at(bias, column)]);
  return {title, facts};
}

/** The hidden layer of a feed-forward block; that of a ReLU is not stored but made here. */
const hiddenOf = (stage, row, f) =>
  (stage.hidden ? at(stage.hidden, row, f) : Math.max(at(stage.pre_activation, row, f), 0));

function explainFeedForward(walk, step, stage, part, row, column) {
  const token = tokensOf(walk, step)[row];
  if (part === "pre_activation") {
    return projection(`Widened “${token}”, number ${column}: what comes in, times a matrix`, stage, "widen",
                      (d) => at(stage.input, row, d), column);
  }
  if (part === "hidden") {
    const before = at(stage.pre_activation, row, column);
    return {title: `Hidden “${token}”, number ${column}`, value: hiddenOf(stage, row, column),
            formula: [before], note: `${stage.activation} of it`};
  }
  return projection(`Output of “${token}”, number ${column}: the hidden numbers times a matrix`, stage, "narrow",
                    (f) => hiddenOf(stage, row, f), column);
}

function explainHead(step, head, part, place) {
  const token = head.tokens[place];
  if (part === "logits") {
    const title = `Logit of “${token}”: ${head.reads} of “${step.fed}” times its row of the head`;
    return projection(title, head, "own", (d) => at(head.state, d), head.ids[place]);
  }
  const power = (each) => at(head.logits, each) - head.shift;
  const own = Math.exp(power(place));
  const best = range(Math.min(head.tokens.length, 8));
  const terms = best.map((each) => ({name: head.tokens[each], power: power(each), value: Math.exp(power(each))}));
  const rest = head.total - total(terms.map((term) => term.value));
  if (head.vocabulary > best.length) {
    terms.push({name: `${head.vocabulary - best.length} more together`, factors: [], value: rest});
  }
  return {title: `Probability of “${token}”: softmax of all logits`, terms, value: head.total,
          share: [own, head.total], note: shifted(head.shift)};
}
