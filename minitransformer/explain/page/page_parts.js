// The parts that a page is made of: matrices whose numbers can be asked, bars, pictures to save.
"use strict";

const MOST_AT_ONCE = 700;  // cells that are drawn at once; a larger matrix waits until it is opened
const MASKED = "This token may not be looked at: its score is taken as −∞, its weight is 0.";
const DENSE = 14;  // columns beyond which weights are shown as colours alone
let digits = page.precision;

/** An element with attributes and children; texts are never read as markup. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

/** A number as it is shown, without a minus zero. */
function shown(value, places = digits) {
  const text = value.toFixed(places);
  return Number(text) === 0 ? text.replace("-", "") : text;
}

/** A word in whatever direction its script runs; a pair as first → second, from left to right. */
const word = (text) => (Array.isArray(text)
  ? make("span", {dir: "ltr"}, word(text[0]), " → ", word(text[1])) : make("bdi", {dir: "auto"}, text));
const plainly = (text) => (Array.isArray(text) ? text.join(" → ") : text);

/** Say something to a screen reader, shortly. */
function announce(text) {
  document.getElementById("status").textContent = text;
}

/**
 * A matrix as a grid that is walked with the arrow keys.
 * rows, columns: words; value(row, column); explain(row, column): the sum behind a number;
 * kind: "share" for weights from 0 to 1, "signed" for all others.
 */
function matrix({name, about = "", rows, columns, value, explain, kind = "signed", isHidden = () => false,
                 now = -1, file, mostAtOnce = MOST_AT_ONCE, hiddenText = MASKED}) {
  const size = rows.length * columns.length;
  const figure = make("figure", {"data-matrix": name});
  const tools = make("figcaption", {}, make("b", {}, name), make("span", {class: "quiet"}, about),
    make("button", {type: "button", onclick: (event) => copy(event.target, csv(rows, columns, value, isHidden)),
                    "aria-label": `copy CSV of ${name}`}, "copy CSV"),
    make("button", {type: "button", onclick: () => save(`${file || name}.svg`, svg({name, rows, columns, value, kind, isHidden})),
                    "aria-label": `save SVG of ${name}`}, "save SVG"));
  const draw = () => make("div", {class: "scroll"}, grid({name, rows, columns, value, explain, kind, isHidden, now, hiddenText}));
  if (size <= mostAtOnce) {
    figure.append(tools, draw());
  } else {
    const box = make("details", {class: "matrix"}, make("summary", {}, `${name}: ${rows.length} × ${columns.length} numbers`));
    box.addEventListener("toggle", () => { if (box.open && box.children.length === 1) box.append(tools, draw()); });
    figure.append(box);
  }
  return figure;
}

function largestOf(rows, columns, value, isHidden) {
  let largest = 1e-9;
  rows.forEach((_, row) => columns.forEach((_, column) => {
    if (!isHidden(row, column)) largest = Math.max(largest, Math.abs(value(row, column)));
  }));
  return largest;
}

function grid({name, rows, columns, value, explain, kind, isHidden, now, hiddenText}) {
  const largest = kind === "share" ? 1 : largestOf(rows, columns, value, isHidden);
  // Many columns show their colours alone; each number is a click away.
  const dense = columns.length <= DENSE ? "" : kind === "share" ? " dense" : " wide";
  const table = make("table", {class: `grid${dense}`, role: "grid", "aria-label": name});
  table.append(make("thead", {}, make("tr", {}, make("td", {class: "corner", role: "presentation"}),
    ...columns.map((column) => make("th", {scope: "col"}, word(column))))));
  const body = make("tbody");
  rows.forEach((label, row) => {
    const line = make("tr", {class: row === now ? "now" : null}, make("th", {scope: "row"}, word(label)));
    columns.forEach((_, column) => {
      const cell = make("td", {tabindex: "-1"});
      if (isHidden(row, column)) {
        cell.className = "masked";
        cell.setAttribute("aria-label", hiddenText);
      } else {
        const number = value(row, column);
        cell.textContent = shown(number);
        if (number < 0) cell.className = "minus";
        cell.style.setProperty("--share", `${(100 * Math.abs(number) / largest).toFixed(1)}%`);
      }
      line.append(cell);
    });
    body.append(line);
  });
  table.append(body);
  const place = (cell) => [cell.parentNode.rowIndex - 1, cell.cellIndex - 1];
  const cellAt = (row, column) => body.rows[row]?.cells[column + 1];
  const choose = (cell) => {
    for (const other of table.querySelectorAll("td[tabindex='0']")) other.tabIndex = -1;
    cell.tabIndex = 0;
    for (const other of document.querySelectorAll("td[aria-selected]")) other.removeAttribute("aria-selected");
    cell.setAttribute("aria-selected", "true");
    const [row, column] = place(cell);
    if (isHidden(row, column)) showSum({title: hiddenText}, null);
    else showSum(explain(row, column), value(row, column));
    // Where the panel lies over the page, the cell comes out from under it.
    const [panel, box] = [document.getElementById("sum").getBoundingClientRect(), cell.getBoundingClientRect()];
    if (panel.left < box.left && box.bottom > panel.top) scrollBy({top: box.bottom - panel.top + 8});
  };
  const first = body.querySelector("td");
  if (first) first.tabIndex = 0;
  body.addEventListener("focusin", (event) => { const cell = event.target.closest("td"); if (cell) choose(cell); });
  body.addEventListener("click", (event) => { const cell = event.target.closest("td"); if (cell) cell.focus({preventScroll: true}); });
  body.addEventListener("keydown", (event) => {
    const moves = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]};
    const cell = event.target.closest("td");
    const ends = {Home: 0, End: columns.length - 1};
    if (!cell || !(moves[event.key] || event.key in ends)) return;
    const [row, column] = place(cell);
    const [down, right] = moves[event.key] ?? [0, ends[event.key] - column];
    const next = cellAt(row + down, column + right);
    if (next && next.cellIndex > 0) next.focus();
    event.preventDefault();
    event.stopPropagation();
  });
  return table;
}

/** What is left between shown terms and their shown total, because each is rounded by itself. */
function rounding(texts, totalText, places) {
  const unit = 10 ** places;
  const whole = (text) => Math.round(Number(text) * unit);
  return (whole(totalText) - texts.reduce((sum, text) => sum + whole(text), 0)) / unit;
}

/** Show how a number came about: the number, then its terms and what rounding leaves open. */
function showSum(sum, number) {
  const panel = document.getElementById("sum");
  const finer = digits + 2;  // factors and powers, so that a calculator comes to the same
  const isInside = sum.share || sum.bent;  // what the terms come to is not yet the number
  panel.replaceChildren(make("p", {}, make("b", {}, word(sum.title))));
  panel.classList.toggle("bent", Boolean(sum.bent));
  if (number != null) {
    const how = sum.share ? `${shown(sum.share[0], finer)} / ${shown(sum.share[1], finer)}`
      : sum.bent ? `${sum.bent}(${shown(sum.value, finer)})` : "";
    panel.append(make("p", {class: "result", "data-value": number}, `${how} = `.trimStart(), make("b", {}, shown(number, sum.share ? finer : digits))));
  }
  if (sum.formula) {
    const [first, ...rest] = sum.formula;
    panel.append(make("p", {}, [shown(first, finer), ...rest].join(" ")));
  }
  if (sum.note) panel.append(make("p", {class: "quiet"}, sum.note));
  if (sum.facts) panel.append(factTable(sum.facts, finer));
  if (sum.terms) {
    const rounded = sum.terms.some((term) => term.factors?.length) ? "; factors are shown rounded, the model used all of their digits" : "";
    panel.append(make("p", {class: "quiet"}, `the ${countedSum(sum.terms)}${rounded}:`),
                 isInside ? termTable(sum.terms, sum.value, finer, finer) : termTable(sum.terms, number, digits, finer));
  }
  if (sum.within) {
    panel.append(make("p", {class: "quiet"}, `${sum.within.title}: the ${countedSum(sum.within.terms)}:`),
                 termTable(sum.within.terms, sum.within.value, finer, finer));
  }
  announce(number == null ? sum.title : `${sum.title}: ${shown(number)}`);
}

const countedSum = (terms) => `sum of ${terms.length} term${terms.length > 1 ? "s" : ""}`;
const factTable = (facts, places) => make("table", {}, make("tbody", {}, ...facts.map(([name, value]) =>
  make("tr", {}, make("th", {scope: "row"}, name), make("td", {}, shown(value, places))))));

/** Terms and their total, which is the number that the model came to, not what they sum to here. */
function termTable(terms, value, places, finer) {
  const line = (name, steps, text, kind) => make("tr", {class: kind === "term-total" ? "total" : null},
    make("th", {scope: "row"}, word(name)), make("td", {}, steps), make("td", {class: kind}, text));
  const steps = (term) => (term.factors ? term.factors.map((factor) => shown(factor, finer)).join(" × ") : `e^${shown(term.power, finer)}`);
  const lines = terms.map((term) => line(term.name, steps(term), shown(term.value, places), "term"));
  const rest = rounding(terms.map((term) => shown(term.value, places)), shown(value, places), places);
  if (Math.abs(rest) > 10 ** -(places + 2)) lines.push(line("rounding", "", shown(rest, places), "term"));
  lines.push(line("sum", "", shown(value, places), "term-total"));
  return make("table", {}, make("tbody", {}, ...lines));
}

function csv(rows, columns, value, isHidden) {
  const quoted = (text) => `"${String(text).replaceAll('"', '""')}"`;
  const lines = [["", ...columns].map(quoted).join(",")];
  rows.forEach((label, row) => lines.push([quoted(plainly(label)),
    ...columns.map((_, column) => (isHidden(row, column) ? "" : value(row, column)))].join(",")));
  return lines.join("\n") + "\n";
}

async function copy(button, text) {
  let done = "copied";
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // a page from a file may not write there in every browser
    const field = make("textarea", {"aria-hidden": "true"});
    field.value = text;
    document.body.append(field);
    field.select();
    done = document.execCommand("copy") ? "copied" : "not allowed";
    field.remove();
    button.focus();
  }
  announce(done);
  button.textContent = done;
  setTimeout(() => { button.textContent = "copy CSV"; }, 1500);
}

function save(name, text) {
  const link = make("a", {download: name, href: `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`});
  document.body.append(link);
  link.click();
  link.remove();
}

/** The matrix as a picture of its own. */
function svg({name, rows, columns, value, kind, isHidden}) {
  const clean = (text) => plainly(text).replace(/[\u0000-\u001f]/g, " ")
    .replace(/[&<>"]/g, (letter) => ({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"}[letter]));
  const longest = (words) => Math.max(...words.map((label) => plainly(label).length)) * 8 + 16;  // wide letters
  const [cell, high, left] = [52, 22, longest(rows)];
  const isTurned = columns.some((column) => column.length > 6);
  const top = isTurned ? longest(columns) + 24 : 50;
  const largest = kind === "share" ? 1 : largestOf(rows, columns, value, isHidden);
  const parts = [];
  columns.forEach((column, place) => {
    const [x, y] = [left + place * cell + cell / 2, top - 6];
    parts.push(isTurned ? `<text transform="translate(${x + 4} ${y}) rotate(-90)">${clean(column)}</text>`
      : `<text x="${x}" y="${y}" text-anchor="middle">${clean(column)}</text>`);
  });
  rows.forEach((row, r) => {
    const y = top + r * high;
    parts.push(`<text x="${left - 6}" y="${y + 15}" text-anchor="end">${clean(row)}</text>`);
    columns.forEach((_, c) => {
      const x = left + c * cell;
      const number = value(r, c);
      const share = Math.abs(number) / largest;
      const end = number < 0 ? [240, 128, 106] : [76, 155, 232];
      const mixed = [242, 245, 250].map((part, n) => Math.round(part + (end[n] - part) * share));
      const fill = isHidden(r, c) ? "#c3c9d1" : `rgb(${mixed.join(" ")})`;
      parts.push(`<rect x="${x}" y="${y}" width="${cell - 1}" height="${high - 1}" fill="${fill}"/>`);
      if (!isHidden(r, c)) parts.push(`<text x="${x + cell / 2}" y="${y + 15}" text-anchor="middle">${shown(number)}</text>`);
    });
  });
  const [width, height] = [left + columns.length * cell + 8, top + rows.length * high + 8];
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" `
    + `font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="#fff"/>`
    + `<text x="8" y="18" font-size="14">${clean(name)}</text>${parts.join("")}</svg>`;
}
