// What is selected, its address, and the page that shows it.
"use strict";

// wanted: the stage that was chosen last, also while a step without it is shown; quantity: what attention cells show.
const selected = {sentence: 0, checkpoint: 0, step: 0, anchor: "embedding", wanted: "embedding", head: 0, quantity: "weight"};
const walk = () => page.walks[selected.checkpoint][selected.sentence];
const currentStage = () => stagesOf(walk()).find(({step, stage}) => step === selected.step && stage.anchor === selected.anchor);

const TITLES = {
  embedding: ["sinusoidal", "learned"].includes(page.positional_encoding) ? "Embedding and position" : "Embedding",
  "self-attention": "Self-attention", "masked self-attention": "Masked self-attention", "cross-attention": "Cross-attention",
  residual: "Add", norm: "Norm", feed_forward: "Feed-forward", head: "Dense head",
};
const EXPLANATIONS = {
  "self-attention": "The query (Q) of every source token is compared with every key (K); the softmax of the scores weights the values (V).",
  "masked self-attention": "The new token attends to the tokens fed in so far; there are no later ones yet.",
  "cross-attention": "Queries come from the decoder, keys and values from the encoder's memory: here the translation attends to the source.",
  residual: "The output of the block is added to the residual stream.",
  norm: "Each row is normalized to mean 0 and variance 1; then each number is multiplied by its gain, and its bias, if any, is added.",
  feed_forward: "Each token by itself: Linear, activation, Linear.",
  head: "A logit for every token of the vocabulary; their softmax gives probabilities, and the most probable token is chosen, unless one is forced.",
};
const topicOf = (stage) => stage.attention_type || stage.kind;
const nameOf = (stage) => recurrentTitle(stage) ?? TITLES[topicOf(stage)];

function explanationOf(stage) {
  if (stage.kind !== "embedding") return recurrentExplanation(stage) ?? EXPLANATIONS[topicOf(stage)];
  const position = stage.positions ? "a second vector encodes its position."
    : page.positional_encoding === "rotary" ? "its position is encoded later, by rotating Q and K."
      : walk().encoder.some(isRecurrent) ? "its position matters because words are read one after the other."
        : "nothing encodes its position.";
  return `Every word has a vector, its embedding; ${position}`;
}

const BLOCKS = {self: "self-attention", cross: "cross-attention", ff: "feed-forward"};
const layerOf = (stage) => stage.path.match(/\.layers\.(\d+)/)?.[1];
const hasManyLayers = () => walk().encoder.concat(walk().steps[0].stages).some((each) => layerOf(each) > 0);

function titleOf(stage) {
  const block = ["residual", "norm"].includes(stage.kind) && BLOCKS[stage.anchor.split(".")[0]];
  const title = block ? `${TITLES[stage.kind]} ${stage.kind === "norm" ? "for " : ""}${block}` : nameOf(stage);
  return title + (layerOf(stage) && hasManyLayers() ? `, layer ${layerOf(stage)}` : "");
}

/** Return the address of the selection, with changes. */
function addressOf(change = {}) {
  const {sentence, checkpoint, step, anchor, head, quantity} = {...selected, ...change};
  const parts = [`step=${step}`, `at=${anchor}`];
  if (head) parts.push(`head=${head}`);
  if (quantity !== "weight") parts.push(`show=${quantity}`);
  if (page.sentences.length > 1) parts.push(`sentence=${sentence + 1}`);
  if (page.checkpoints.length > 1) parts.push(`checkpoint=${checkpoint + 1}`);
  return `#${parts.join("&")}`;
}

/** Select what is wanted, or the nearest that exists. */
function select(wanted) {
  const clamp = (value, low, high, usual) => (Number.isInteger(value) ? Math.min(Math.max(value, low), high) : usual);
  selected.sentence = clamp(wanted.sentence, 0, page.sentences.length - 1, 0);
  selected.checkpoint = clamp(wanted.checkpoint, 0, page.checkpoints.length - 1, page.checkpoints.length - 1);
  selected.step = clamp(wanted.step, 0, walk().steps.length, 0);
  selected.quantity = wanted.quantity;
  selected.wanted = wanted.anchor ?? selected.wanted;
  const anchors = stagesOf(walk()).filter(({step}) => step === selected.step).map(({stage}) => stage.anchor);
  const [block] = selected.wanted.split(".");  // "cross" is enough for the first layer's
  selected.anchor = anchors.find((each) => each === selected.wanted) ?? anchors.find((each) => each === `${block}.0`)
    ?? anchors.find((each) => each.startsWith(block)) ?? anchors.find((each) => each.startsWith("cross")) ?? anchors[0];
  const heads = currentStage().stage.query?.[1] ?? 1;
  selected.head = clamp(wanted.head, 0, heads > 1 ? heads + 1 : 0, 0);  // after the last one: mean, all
}

function readAddress() {
  const parameters = new URLSearchParams(location.hash.slice(1));
  const number = (name, first = 0) => Number.parseInt(parameters.get(name), 10) - first;
  select({sentence: number("sentence", 1), checkpoint: number("checkpoint", 1), step: number("step"), head: number("head"),
          quantity: parameters.get("show") ?? "weight", anchor: parameters.get("at") ?? "embedding"});
}

/** Change the selection. The browser's back button undoes this, except for a slider's many small changes. */
function navigate(change, {focus = false, slides = false} = {}) {
  select({...selected, anchor: undefined, ...change});
  draw();
  if (focus) document.querySelector("main h2").focus();
  clearTimeout(navigate.timer);
  navigate.timer = setTimeout(() => {
    try {  // browsers limit how many addresses a page adds per second, and some frames allow none
      history[slides ? "replaceState" : "pushState"](null, "", addressOf());
    } catch { /* the selection changes all the same */ }
  }, slides ? 150 : 0);
}

/** Redraw everything; the focus stays on the same element. */
function draw() {
  const {key} = document.activeElement?.dataset ?? {};
  document.title = `${walk().text} → ${walk().translation}`;
  byId("title").replaceChildren(wordElement([walk().text, walk().translation]));
  byId("notes").replaceChildren(...walk().notes.map((note) => create("p", {class: "quiet"}, `Note: ${note}.`)));
  byId("words").hidden = !walk().words;
  byId("words").querySelector("pre").textContent = walk().words ?? "";
  drawChoices();
  drawTokens();
  drawSteps();
  drawMap();
  drawSection();
  byId("sum").replaceChildren(create("p", {class: "quiet hint"}, "Click a number, or select it with the arrow keys, to see how it is computed."));
  if (key) document.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({preventScroll: true});
  document.documentElement.style.setProperty("--top", `${document.querySelector(".top").offsetHeight + 12}px`);
}

/** Draw the controls for sentence, checkpoint and precision. */
function drawChoices() {
  const box = byId("choices");
  if (box.childElementCount) {  // keep them, and their focus
    for (const control of box.querySelectorAll("[data-of]")) control.value = selected[control.dataset.of];
    const checkpoint = box.querySelector("output");
    if (checkpoint) checkpoint.textContent = page.checkpoints[selected.checkpoint];
    return;
  }
  if (page.sentences.length > 1) {
    const sentences = create("select", {"data-of": "sentence", "aria-label": "Sentence",
      onchange: (event) => navigate({sentence: Number(event.target.value)})},
      ...page.sentences.map((text, number) => create("option", {value: number}, text)));
    sentences.value = selected.sentence;
    box.append(sentences);
  }
  if (page.checkpoints.length > 1) {
    const slider = create("input", {type: "range", min: 0, max: page.checkpoints.length - 1, "data-of": "checkpoint",
      id: "checkpoint", oninput: (event) => navigate({checkpoint: Number(event.target.value)}, {slides: true})});
    slider.value = selected.checkpoint;
    box.append(create("label", {for: "checkpoint"}, "training step"), slider, create("output", {}, page.checkpoints[selected.checkpoint]));
  }
  const precision = create("select", {"aria-label": "Digits after the point", onchange: (event) => {
    digits = Number(event.target.value);
    draw();
  }}, ...range(10).map((count) => create("option", {value: count}, `${count} digit${count === 1 ? "" : "s"}`)));
  precision.value = digits;
  box.append(precision);
}

/** Draw the source and target tokens, which link to the encoder and to their decoding steps. */
function drawTokens() {
  const hasAttention = walk().steps[0].stages.some((stage) => stage.attention_type === "cross-attention");
  const token = (text, step, kind, index) => create("a", {class: `token ${kind}`, dir: "auto", "data-key": `token ${step} ${index}`,
    href: addressOf({step, anchor: !step ? selected.anchor : hasAttention ? "cross" : "rnn"}),
    "aria-current": step > 0 && step === selected.step ? "step" : null}, text,
    step === 0 && walk().is_unknown[index] ? create("small", {}, " <UNK>") : null);
  byId("tokens").replaceChildren(
    create("span", {}, "source"), create("div", {}, ...walk().source.map((text, index) => token(text, 0, "", index))),
    create("span", {}, "target"), create("div", {}, ...walk().steps.map((step) =>
      token(step.produced, step.number, step.number > selected.step ? "later" : "", 0))));
  const current = byId("tokens").querySelector("[aria-current]");
  if (current) current.parentNode.scrollTop = current.offsetTop - current.parentNode.offsetTop - 8;
}

/** Draw the slider of decoding steps and a description of the selected one. */
function drawSteps() {
  const box = byId("steps");
  const {steps} = walk();
  const step = steps[selected.step - 1];
  const wrong = step?.expected && step.expected !== step.produced ? `, expected “${step.expected}”` : "";
  const description = step ? `step ${selected.step} of ${steps.length}: “${step.fed}” is fed in, “${step.produced}” is produced `
    + `(${(100 * step.probability).toFixed(1)} %${wrong})` : "the encoder reads the source, once";
  if (!box.childElementCount) {
    const button = (by) => create("button", {type: "button", class: by < 0 ? "back" : "forth", onclick: () => navigate({step: selected.step + by})},
      by < 0 ? "← step" : "step →");
    box.append(button(-1), create("input", {type: "range", min: 0, "aria-label": "Decoding step; 0 is the encoder",
      oninput: (event) => navigate({step: Number(event.target.value)}, {slides: true})}), button(1), create("output", {"aria-live": "polite"}));
  }
  const slider = box.querySelector("input");
  slider.max = steps.length;
  slider.value = selected.step;
  slider.setAttribute("aria-valuetext", selected.step ? `step ${selected.step} of ${steps.length}` : "encoder");
  const isAtEnd = {back: selected.step === 0, forth: selected.step === steps.length};
  if (isAtEnd[document.activeElement?.className]) slider.focus();  // a disabled button loses the focus
  box.querySelector(".back").disabled = isAtEnd.back;
  box.querySelector(".forth").disabled = isAtEnd.forth;
  box.querySelector("output").replaceChildren(wordElement(description));
}

/** Draw the selected stage. */
function drawSection() {
  const {step, stage} = currentStage();
  const stages = stagesOf(walk());
  const index = stages.findIndex((each) => each.step === step && each.stage === stage);
  const button = (by, text) => {
    const other = stages[index + by];
    const title = other && by > 0 ? `: ${titleOf(other.stage).replace(/^[A-Z](?=[a-z])/, (letter) => letter.toLowerCase())} →` : "";
    return create("button", {type: "button", disabled: !other, class: by > 0 ? "next" : "previous",
      onclick: () => navigate({step: other.step, anchor: other.stage.anchor, head: 0}, {focus: true})}, text + title);
  };
  byId("section").replaceChildren(
    create("h2", {tabindex: "-1"}, `${step === 0 ? "Encoder" : `Step ${step}`}: ${titleOf(stage)}`),
    create("p", {class: "lead"}, wordElement(stage.sentence), ". ", create("span", {class: "quiet"}, explanationOf(stage))),
    create("div", {class: "buttons"}, button(-1, "← back"), button(1, "next")),
    ...sections[stage.kind](step, stage));
}

document.addEventListener("keydown", (event) => {
  const usesArrows = event.target.closest("input, select, table, .scroll, .sum");
  if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey || usesArrows) return;
  if (event.key === "ArrowLeft" && selected.step > 0) navigate({step: selected.step - 1}, {slides: true});
  if (event.key === "ArrowRight" && selected.step < walk().steps.length) navigate({step: selected.step + 1}, {slides: true});
});
const openMapIfWide = () => { if (matchMedia("(min-width: 900px)").matches) byId("map").open = true; };
openMapIfWide();
byId("map").addEventListener("toggle", drawMap);
addEventListener("resize", () => { openMapIfWide(); drawMap(); });
addEventListener("hashchange", () => { readAddress(); draw(); });
readAddress();
draw();
document.fonts.ready.then(drawMap);  // arrows depend on the width of words
