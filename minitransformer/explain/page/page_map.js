// The whole computation as a map: two sides, a place for each stage, and what goes from one to the other.
"use strict";

/** Both sides as lines, which everything adds to where sums stand on them; a block stands beside its line. */
function drawMap() {
  const link = (step, stage, text, kind = "") => make("a", {class: kind, href: address({step, at: stage.at, head: 0}),
    "data-key": `map ${step > 0} ${stage.at}`,
    "aria-label": kind === "add" ? titleOf(stage) : null,
    "aria-current": here.step === step && here.at === stage.at ? "location" : null}, text);
  const side = (title, step, stages, ending) => {
    const items = new Map();  // a block with its norms and its sum is one item
    for (const stage of stages) {
      const block = isRecurrent(stage) || stage.kind === "joined" ? stage.at : stage.at.split(".").slice(0, 2).join(".");
      if (!items.has(block)) items.set(block, []);
      const name = stage.kind === "norm" ? "norm" : nameOf(stage).replace(" and ", " + ");
      const kind = stage.look === "cross-attention" ? "cross" : isRecurrent(stage) && step === 1 ? "begins" : "";
      items.get(block).layer = layerOf(stage);
      items.get(block).push(stage.kind === "residual" ? link(step, stage, "+", "add") : link(step, stage, name, kind), " ");
    }
    let layer;
    const lines = [...items.values()].flatMap((parts) => {
      const number = parts.layer;
      const heading = number !== layer && number !== undefined && hasManyLayers() ? [make("li", {class: "layer"}, `layer ${number}`)] : [];
      layer = number;
      return [...heading, make("li", {}, ...parts)];
    });
    return [make("h2", {}, title), make("ol", {class: stages.some(isRecurrent) ? "chain" : null}, ...lines, ...ending.map((each) => make("li", {}, each)))];
  };
  const step = Math.max(here.step, 1);
  const {stages, head} = walk().steps[step - 1];
  const [memory, ...beginning] = handedOn(stages.some((stage) => stage.look === "cross-attention"));
  element("lines").replaceChildren(...side("Encoder", 0, walk().encoder, [memory, ...beginning]),
                                   ...side(`Decoder, step ${step}`, step, stages, [link(step, head, "Dense head")]));
  drawArrows(memory);
  const now = element("lines").querySelector("[aria-current]");
  const map = element("map");
  if (now && map.scrollHeight > map.clientHeight) {
    map.scrollTop += now.getBoundingClientRect().top - map.getBoundingClientRect().top - map.clientHeight / 2;
  }
}

/** What the encoder hands on: what may be looked at, and where a recurrent decoder begins. */
function handedOn(looks) {
  const box = (text) => make("span", {class: "memory"}, text);
  const ways = walk().encoder.filter(isRecurrent);
  if (!ways.length) return [box("= memory")];
  const isBothWays = ways.some((way) => way.is_backward);
  const told = (text) => make("span", {class: "quiet"}, `${hasManyLayers() ? "in each layer, " : ""}${text}where the decoder begins`);
  if (!looks) return [box(isBothWays ? "= last states" : "= last state"), told("")];
  return [box("= memory"), told(isBothWays ? "the last states of both ways are " : "its last state is ")];
}

/** From the memory to every cross-attention, which looks there, and to layers that begin with its end. */
function drawArrows(memory) {
  const lines = element("lines");
  const frame = lines.getBoundingClientRect();
  if (!frame.width) return;  // closed
  const edge = (box) => {
    const {right, top, height} = box.getBoundingClientRect();
    return [right - frame.left, top - frame.top + height / 2];
  };
  const shape = (tag, attributes) => {
    const part = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) part.setAttribute(name, value);
    return part;
  };
  const drawing = shape("svg", {"aria-hidden": "true"});
  const [x, y] = edge(memory);
  const far = frame.width - 4;
  for (const box of lines.querySelectorAll("a.cross, a.begins")) {
    const [right, middle] = edge(box);
    drawing.append(shape("path", {d: `M${x} ${y}H${far}V${middle}H${right + 8}`}),
                   shape("path", {class: "tip", d: `M${right + 1} ${middle}l8 -5v10z`}));
  }
  lines.append(drawing);
}
