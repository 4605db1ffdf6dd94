// The map of the whole computation: the stages of both sides, and arrows from the encoder to the decoder.
"use strict";

/** Draw both sides; where there are residual connections, the line is the residual stream and blocks are beside it. */
function drawMap() {
  const link = (step, stage, text, kind = "") => create("a", {class: kind, href: addressOf({step, anchor: stage.anchor, head: 0}),
    "data-key": `map ${step > 0} ${stage.anchor}`,
    "aria-label": kind === "add" ? titleOf(stage) : null,
    "aria-current": selected.step === step && selected.anchor === stage.anchor ? "location" : null}, text);
  const side = (title, step, stages, ending) => {
    const blocks = new Map();  // a block with its norms and its sum is one item
    for (const stage of stages) {
      const name = isRecurrent(stage) || stage.kind === "joined" ? stage.anchor : stage.anchor.split(".").slice(0, 2).join(".");
      if (!blocks.has(name)) blocks.set(name, {layer: layerOf(stage), links: []});
      const text = stage.kind === "norm" ? "norm" : nameOf(stage).replace(" and ", " + ");
      const kind = stage.attention_type === "cross-attention" ? "cross" : isRecurrent(stage) && step === 1 ? "starts" : "";
      blocks.get(name).links.push(stage.kind === "residual" ? link(step, stage, "+", "add") : link(step, stage, text, kind), " ");
    }
    let last;
    const items = [...blocks.values()].flatMap(({layer, links}) => {
      const isNew = layer !== last && layer !== undefined && hasManyLayers();
      last = layer;
      return [...(isNew ? [create("li", {class: "layer"}, `layer ${layer}`)] : []), create("li", {}, ...links)];
    });
    return [create("h2", {}, title), create("ol", {class: stages.some(isRecurrent) ? "chain" : null},
      ...items, ...ending.map((each) => create("li", {}, each)))];
  };
  const step = Math.max(selected.step, 1);
  const {stages, head} = walk().steps[step - 1];
  const [memory, ...initialStates] = encoderOutputs(stages.some((stage) => stage.attention_type === "cross-attention"));
  byId("lines").replaceChildren(...side("Encoder", 0, walk().encoder, [memory, ...initialStates]),
                                ...side(`Decoder, step ${step}`, step, stages, [link(step, head, "Dense head")]));
  drawArrows(memory);
  const current = byId("lines").querySelector("[aria-current]");
  const map = byId("map");
  if (current && map.scrollHeight > map.clientHeight) {
    map.scrollTop += current.getBoundingClientRect().top - map.getBoundingClientRect().top - map.clientHeight / 2;
  }
}

/** What the decoder gets from the encoder: the memory, and the initial states of a recurrent decoder. */
function encoderOutputs(hasAttention) {
  const box = (text) => create("span", {class: "memory"}, text);
  const directions = walk().encoder.filter(isRecurrent);
  if (!directions.length) return [box("= memory")];
  const isBidirectional = directions.some((each) => each.is_backward);
  const states = isBidirectional ? "the final states of both directions" : "the final state";
  const note = `${hasManyLayers() ? "in each layer, " : ""}the decoder starts from ${hasAttention ? states : isBidirectional ? "them" : "it"}`;
  return [box(hasAttention ? "= memory" : isBidirectional ? "= final states" : "= final state"), create("span", {class: "quiet"}, note)];
}

/** Draw arrows from the memory to every cross-attention, and to recurrent layers, which start from its final states. */
function drawArrows(memory) {
  const lines = byId("lines");
  const frame = lines.getBoundingClientRect();
  if (!frame.width) return;  // closed
  const rightEdge = (box) => {
    const {right, top, height} = box.getBoundingClientRect();
    return [right - frame.left, top - frame.top + height / 2];
  };
  const svgElement = (tag, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  };
  const drawing = svgElement("svg", {"aria-hidden": "true"});
  const [x, y] = rightEdge(memory);
  const far = frame.width - 4;
  for (const box of lines.querySelectorAll("a.cross, a.starts")) {
    const [right, middle] = rightEdge(box);
    drawing.append(svgElement("path", {d: `M${x} ${y}H${far}V${middle}H${right + 8}`}),
                   svgElement("path", {class: "tip", d: `M${right + 1} ${middle}l8 -5v10z`}));
  }
  lines.append(drawing);
}
