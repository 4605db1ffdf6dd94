// Where the reader is, and what is shown there.
"use strict";

const here = {sentence: 0, checkpoint: 0, step: 0, at: "embedding", wanted: "embedding", head: 0, look: "weight"};
const walk = () => page.walks[here.checkpoint][here.sentence];
const element = (id) => document.getElementById(id);
const TITLES = {
  embedding: page.position && page.position !== "rotary" ? "Embedding and position" : "Embedding", "self-attention": "Self-attention",
  "masked self-attention": "Masked self-attention", "cross-attention": "Cross-attention",
  residual: "Add", norm: "Norm", feed_forward: "Feed-forward", head: "Dense head",
};
const EXPLANATIONS = {
  "self-attention": "Every source token asks (Q), every source token answers (K), and each takes the others' values (V) by how well they fit.",
  "masked self-attention": "The new token looks back at the tokens fed in so far; later ones do not exist yet.",
  "cross-attention": "The decoder asks, the encoder's memory answers: this is where the translation looks at the source.",
  residual: "What a block found is added to the line that runs through everything.",
  norm: "Each row is shifted and scaled to mean 0 and spread 1; then each number has a gain, and maybe a bias, of its own.",
  feed_forward: "Each token by itself: pre_activation, bent, narrowed.",
  head: "A number for every word of the vocabulary; the softmax makes probabilities of them, and the largest is taken, unless a word is forced.",
};
const topicOf = (stage) => stage.look || stage.kind;
const nameOf = (stage) => recurrentTitle(stage) ?? TITLES[topicOf(stage)];

function explanationOf(stage) {
  if (stage.kind !== "embedding") return recurrentExplanation(stage) ?? EXPLANATIONS[topicOf(stage)];
  const place = stage.positions ? "; a second row of numbers tells its place." : page.position === "rotary"
    ? "; its place is told later, by turning Q and K." : walk().encoder.some(isRecurrent)
      ? "; its place is told by the words that are read before it." : "; nothing tells its place.";
  return `Every word has a row of numbers, its embedding${place}`;
}

const BLOCKS = {self: "self-attention", cross: "cross-attention", ff: "feed-forward"};
const layerOf = (stage) => stage.path.match(/\.layers\.(\d+)/)?.[1];
const hasManyLayers = () => walk().encoder.concat(walk().steps[0].stages).some((each) => layerOf(each) > 0);

function titleOf(stage) {
  const block = BLOCKS[stage.at.split(".")[0]];
  const ofBlock = stage.kind === "residual" || stage.kind === "norm" ? block : null;
  const title = ofBlock ? `${TITLES[stage.kind]} ${stage.kind === "norm" ? "for " : ""}${ofBlock}` : nameOf(stage);
  return title + (layerOf(stage) && hasManyLayers() ? `, layer ${layerOf(stage)}` : "");
}

/** The address of a place, so that it can be linked. */
function address(change = {}) {
  const place = {...here, ...change};
  const parts = [`step=${place.step}`, `at=${place.at}`];
  if (place.head) parts.push(`head=${place.head}`);
  if (place.look !== "weight") parts.push(`show=${place.look}`);
  if (page.sentences.length > 1) parts.push(`sentence=${place.sentence + 1}`);
  if (page.checkpoints.length > 1) parts.push(`checkpoint=${place.checkpoint + 1}`);
  return `#${parts.join("&")}`;
}

/** The nearest place that there is to the one that is wanted. */
function settle(wanted) {
  const within = (value, low, high, usual) => (Number.isInteger(value) ? Math.min(Math.max(value, low), high) : usual);
  here.sentence = within(wanted.sentence, 0, page.sentences.length - 1, 0);
  here.checkpoint = within(wanted.checkpoint, 0, page.checkpoints.length - 1, page.checkpoints.length - 1);
  here.step = within(wanted.step, 0, walk().steps.length, 0);
  here.look = wanted.look;
  here.wanted = wanted.at ?? here.wanted;  // a step that lacks it does not make it forgotten
  const names = placesOf(walk()).filter((place) => place.step === here.step).map((place) => place.stage.at);
  // "cross" is enough for the first of them, and what a step does not have is looked for nearby.
  const [block] = here.wanted.split(".");
  here.at = names.find((name) => name === here.wanted) ?? names.find((name) => name === `${block}.0`)
    ?? names.find((name) => name.startsWith(block)) ?? names.find((name) => name.startsWith("cross")) ?? names[0];
  const heads = current().stage.query?.[1] ?? 1;
  here.head = within(wanted.head, 0, heads > 1 ? heads + 1 : 0, 0);  // beyond the last: mean, all
}

function readAddress() {
  const known = new URLSearchParams(location.hash.slice(1));
  const number = (name, from = 0) => Number.parseInt(known.get(name), 10) - from;
  settle({sentence: number("sentence", 1), checkpoint: number("checkpoint", 1), step: number("step"), head: number("head"),
          look: known.get("show") ?? "weight", at: known.get("at") ?? "embedding"});
}

const current = () => placesOf(walk()).find((place) => place.step === here.step && place.stage.at === here.at);

/** Go to a place. What is chosen can be taken back with the browser's own button; a slide cannot. */
function go(change, {focus = false, slides = false} = {}) {
  settle({...here, at: undefined, ...change});
  draw();
  if (focus) document.querySelector("main h2").focus();
  clearTimeout(go.later);
  go.later = setTimeout(() => {
    try {  // browsers allow only so many at a time, and none in some frames
      history[slides ? "replaceState" : "pushState"](null, "", address());
    } catch { /* the place is kept here all the same */ }
  }, slides ? 150 : 0);
}

/** Draw everything anew; the focus stays on what it was on. */
function draw() {
  const {key} = document.activeElement?.dataset ?? {};
  document.title = `${walk().text} → ${walk().translation}`;
  element("title").replaceChildren(word([walk().text, walk().translation]));
  element("notes").replaceChildren(...walk().notes.map((note) => make("p", {class: "quiet"}, `Note: ${note}.`)));
  element("words").hidden = !walk().words;
  element("words").querySelector("pre").textContent = walk().words ?? "";
  drawChoices();
  drawStrip();
  drawSteps();
  drawMap();
  drawSection();
  element("sum").replaceChildren(make("p", {class: "quiet hint"}, "Click any number, or go to it with the keys, and the sum that made it stands here."));
  if (key) document.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({preventScroll: true});
  document.documentElement.style.setProperty("--top", `${document.querySelector(".top").offsetHeight + 12}px`);
}

function drawChoices() {
  const box = element("choices");
  if (box.childElementCount) {  // keep them, and the focus that is on them
    for (const control of box.querySelectorAll("[data-of]")) control.value = here[control.dataset.of];
    const told = box.querySelector("output");
    if (told) told.textContent = page.checkpoints[here.checkpoint];
    return;
  }
  if (page.sentences.length > 1) {
    const select = make("select", {"data-of": "sentence", "aria-label": "Sentence",
      onchange: (event) => go({sentence: Number(event.target.value)})},
      ...page.sentences.map((text, number) => make("option", {value: number}, text)));
    select.value = here.sentence;
    box.append(select);
  }
  if (page.checkpoints.length > 1) {
    const slider = make("input", {type: "range", min: 0, max: page.checkpoints.length - 1, "data-of": "checkpoint",
      id: "checkpoint", oninput: (event) => go({checkpoint: Number(event.target.value)}, {slides: true})});
    slider.value = here.checkpoint;
    box.append(make("label", {for: "checkpoint"}, "training step"), slider, make("output", {}, page.checkpoints[here.checkpoint]));
  }
  const precision = make("select", {"aria-label": "Digits after the point", onchange: (event) => {
    digits = Number(event.target.value);
    draw();
  }}, ...range(10).map((count) => make("option", {value: count}, `${count} digit${count === 1 ? "" : "s"}`)));
  precision.value = digits;
  box.append(precision);
}

function drawStrip() {
  const looks = walk().steps[0].stages.some((stage) => stage.look === "cross-attention");
  const chip = (text, step, kind, place) => make("a", {class: `token ${kind}`, dir: "auto", "data-key": `strip ${step} ${place}`, href: address({step, at: !step ? here.at : looks ? "cross" : "read"}),
    "aria-current": step > 0 && step === here.step ? "step" : null}, text,
    step === 0 && walk().is_unknown[place] ? make("small", {}, " <UNK>") : null);
  element("strip").replaceChildren(
    make("span", {}, "source"), make("div", {}, ...walk().source.map((token, place) => chip(token, 0, "", place))),
    make("span", {}, "target"), make("div", {}, ...walk().steps.map((step) =>
      chip(step.produced, step.number, step.number > here.step ? "later" : "", 0))));
  const now = element("strip").querySelector("[aria-current]");
  if (now) now.parentNode.scrollTop = now.offsetTop - now.parentNode.offsetTop - 8;
}

function drawSteps() {
  const box = element("steps");
  const {steps} = walk();
  const step = steps[here.step - 1];
  const wrong = step?.expected && step.expected !== step.produced ? `, expected “${step.expected}”` : "";
  const told = step ? `step ${here.step} of ${steps.length}: “${step.fed}” is fed in, “${step.produced}” comes out `
    + `(${(100 * step.probability).toFixed(1)} %${wrong})` : "the encoder reads the source, once";
  if (!box.childElementCount) {
    const move = (by) => make("button", {type: "button", class: by < 0 ? "back" : "forth", onclick: () => go({step: here.step + by})},
      by < 0 ? "← step" : "step →");
    box.append(move(-1), make("input", {type: "range", min: 0, "aria-label": "Decoding step; 0 is the encoder",
      oninput: (event) => go({step: Number(event.target.value)}, {slides: true})}), move(1), make("output", {"aria-live": "polite"}));
  }
  const slider = box.querySelector("input");
  slider.max = steps.length;
  slider.value = here.step;
  slider.setAttribute("aria-valuetext", here.step ? `step ${here.step} of ${steps.length}` : "encoder");
  const isAtEnd = {back: here.step === 0, forth: here.step === steps.length};
  if (isAtEnd[document.activeElement?.className]) slider.focus();  // a button that ends takes no focus
  box.querySelector(".back").disabled = isAtEnd.back;
  box.querySelector(".forth").disabled = isAtEnd.forth;
  box.querySelector("output").replaceChildren(word(told));
}

function drawSection() {
  const {step, stage} = current();
  const places = placesOf(walk());
  const number = places.findIndex((place) => place.step === step && place.stage === stage);
  const turn = (by, text) => {
    const place = places[number + by];
    return make("button", {type: "button", disabled: !place, class: by > 0 ? "next" : "previous",
      onclick: () => go({step: place.step, at: place.stage.at, head: 0}, {focus: true})},
      place && by > 0 ? `${text}: ${titleOf(place.stage).replace(/^[A-Z](?=[a-z])/, (letter) => letter.toLowerCase())} →` : text);
  };
  element("section").replaceChildren(
    make("h2", {tabindex: "-1"}, `${step === 0 ? "Encoder" : `Step ${step}`}: ${titleOf(stage)}`),
    make("p", {class: "lead"}, word(stage.sentence), ". ", make("span", {class: "quiet"}, explanationOf(stage))),
    make("div", {class: "buttons"}, turn(-1, "← back"), turn(1, "next")),
    ...sections[stage.kind](step, stage));
}

document.addEventListener("keydown", (event) => {
  const isAnswered = event.target.closest("input, select, table, .scroll, .sum");
  if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey || isAnswered) return;
  if (event.key === "ArrowLeft" && here.step > 0) go({step: here.step - 1}, {slides: true});
  if (event.key === "ArrowRight" && here.step < walk().steps.length) go({step: here.step + 1}, {slides: true});
});
element("map").open = matchMedia("(min-width: 900px)").matches;
element("map").addEventListener("toggle", drawMap);
addEventListener("resize", () => { if (matchMedia("(min-width: 900px)").matches) element("map").open = true; drawMap(); });
addEventListener("hashchange", () => { readAddress(); draw(); });
readAddress();
draw();
document.fonts.ready.then(drawMap);  // its arrows end where words end
