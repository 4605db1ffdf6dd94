// What the page is built from: elements, matrices with selectable numbers, the panel with the sum of a number.
"use strict";

const MAX_CELLS = 700;  // of a matrix that is drawn at once; a larger one is drawn when it is opened
const DENSE = 14;  // columns beyond which weights are shown as colours alone
const MASKED = "This token is masked: its score counts as −∞, its weight is 0.";
let digits = page.precision;

/** Return a new element with attributes and children; texts are never parsed as markup. */
function create(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

const byId = (id) => document.getElementById(id);

/** Format a number, without a minus zero. */
function formatNumber(value, precision = digits) {
  const text = value.toFixed(precision);
  return Number(text) === 0 ? text.replace("-", "") : text;
}

/** Return a word in the direction of its script; a pair as first → second, from left to right. */
const wordElement = (text) => (Array.isArray(text)
  ? create("span", {dir: "ltr"}, wordElement(text[0]), " → ", wordElement(text[1])) : create("bdi", {dir: "auto"}, text));
const plainText = (text) => (Array.isArray(text) ? text.join(" → ") : text);

/** Announce a text to screen readers. */
function announce(text) {
  byId("status").textContent = text;
}

/**
 * Return a matrix as a grid for mouse and arrow keys, with buttons for CSV and SVG.
 * rows, columns: words; value(row, column); explain(row, column): how the number is computed;
 * kind: "share" for weights from 0 to 1, "signed" for all others; maskedText: why cells are masked.
 */
function matrixFigure({name, about = "", rows, columns, value, explain, kind = "signed", isMasked = () => false,
                       currentRow = -1, file, maxCells = MAX_CELLS, maskedText = MASKED}) {
  const figure = create("figure", {"data-matrix": name});
  const caption = create("figcaption", {}, create("b", {}, name), create("span", {class: "quiet"}, about),
    create("button", {type: "button", onclick: (event) => copy(event.target, csv(rows, columns, value, isMasked)),
                      "aria-label": `copy CSV of ${name}`}, "copy CSV"),
    create("button", {type: "button", onclick: () => save(`${file}.svg`, svg({name, rows, columns, value, kind, isMasked})),
                      "aria-label": `save SVG of ${name}`}, "save SVG"));
  const draw = () => create("div", {class: "scroll"}, grid({name, rows, columns, value, explain, kind, isMasked, currentRow, maskedText}));
  if (rows.length * columns.length <= maxCells) {
    figure.append(caption, draw());
  } else {
    const box = create("details", {class: "matrix"}, create("summary", {}, `${name}: ${rows.length} × ${columns.length} numbers`));
    box.addEventListener("toggle", () => { if (box.open && box.children.length === 1) box.append(caption, draw()); });
    figure.append(box);
  }
  return figure;
}

/** Return the number that has the full colour. */
function colourScale(kind, rows, columns, value, isMasked) {
  if (kind === "share") return 1;
  let largest = 1e-9;
  rows.forEach((_, row) => columns.forEach((_, column) => {
    if (!isMasked(row, column)) largest = Math.max(largest, Math.abs(value(row, column)));
  }));
  return largest;
}

function grid({name, rows, columns, value, explain, kind, isMasked, currentRow, maskedText}) {
  const largest = colourScale(kind, rows, columns, value, isMasked);
  const dense = columns.length <= DENSE ? "" : kind === "share" ? " dense" : " wide";
  const table = create("table", {class: `grid${dense}`, role: "grid", "aria-label": name});
  table.append(create("thead", {}, create("tr", {}, create("td", {class: "corner", role: "presentation"}),
    ...columns.map((column) => create("th", {scope: "col"}, wordElement(column))))));
  const body = create("tbody");
  rows.forEach((label, row) => {
    const line = create("tr", {class: row === currentRow ? "current" : null}, create("th", {scope: "row"}, wordElement(label)));
    columns.forEach((_, column) => {
      const cell = create("td", {tabindex: "-1"});
      if (isMasked(row, column)) {
        cell.className = "masked";
        cell.setAttribute("aria-label", maskedText);
      } else {
        const number = value(row, column);
        cell.textContent = formatNumber(number);
        if (number < 0) cell.className = "minus";
        cell.style.setProperty("--share", `${(100 * Math.abs(number) / largest).toFixed(1)}%`);
      }
      line.append(cell);
    });
    body.append(line);
  });
  table.append(body);

  const indicesOf = (cell) => [cell.parentNode.rowIndex - 1, cell.cellIndex - 1];
  const selectCell = (cell) => {
    for (const other of table.querySelectorAll("td[tabindex='0']")) other.tabIndex = -1;
    cell.tabIndex = 0;
    for (const other of document.querySelectorAll("td[aria-selected]")) other.removeAttribute("aria-selected");
    cell.setAttribute("aria-selected", "true");
    const [row, column] = indicesOf(cell);
    if (isMasked(row, column)) showSum({title: maskedText}, null);
    else showSum(explain(row, column), value(row, column));
    // Scroll the cell out from under the panel, where the panel overlaps the page.
    const [panel, box] = [byId("sum").getBoundingClientRect(), cell.getBoundingClientRect()];
    if (panel.left < box.left && box.bottom > panel.top) scrollBy({top: box.bottom - panel.top + 8});
  };
  const first = body.querySelector("td");
  if (first) first.tabIndex = 0;
  body.addEventListener("focusin", (event) => { const cell = event.target.closest("td"); if (cell) selectCell(cell); });
  body.addEventListener("click", (event) => { const cell = event.target.closest("td"); if (cell) cell.focus({preventScroll: true}); });
  body.addEventListener("keydown", (event) => {
    const moves = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]};
    const ends = {Home: 0, End: columns.length - 1};
    const cell = event.target.closest("td");
    if (!cell || !(moves[event.key] || event.key in ends)) return;
    const [row, column] = indicesOf(cell);
    const [down, right] = moves[event.key] ?? [0, ends[event.key] - column];
    const next = body.rows[row + down]?.cells[column + right + 1];
    if (next && next.cellIndex > 0) next.focus();
    event.preventDefault();
    event.stopPropagation();
  });
  return table;
}

/** Show how a number is computed: its explanation, then the terms and the effect of rounding on their sum. */
function showSum(sum, number) {
  const panel = byId("sum");
  const finer = digits + 2;  // for factors and powers, so that a calculator gives the same
  const isIntermediate = sum.share || sum.activation;  // the sum of the terms is not yet the number
  const termsOf = (each, of, value, precision) => [
    create("p", {class: "quiet"}, `${of}the sum of ${each.terms.length} term${each.terms.length > 1 ? "s" : ""}`
      + (each === sum && each.terms.some((term) => term.factors?.length) ? "; factors are rounded only for display:" : ":")),
    termTable(each.terms, value, precision, finer)];
  panel.classList.toggle("activation", Boolean(sum.activation));
  panel.replaceChildren(create("p", {}, create("b", {}, wordElement(sum.title))));
  if (number != null) {
    const how = sum.share ? `${formatNumber(sum.share[0], finer)} / ${formatNumber(sum.share[1], finer)} = `
      : sum.activation ? `${sum.activation}(${formatNumber(sum.value, finer)}) = ` : "= ";
    panel.append(create("p", {class: "result", "data-value": number}, how,
                        create("b", {}, formatNumber(number, sum.share ? finer : digits))));
  }
  if (sum.formula) {
    const [first, ...rest] = sum.formula;
    panel.append(create("p", {}, [formatNumber(first, finer), ...rest].join(" ")));
  }
  if (sum.note) panel.append(create("p", {class: "quiet"}, sum.note));
  if (sum.facts) {
    panel.append(create("table", {}, create("tbody", {}, ...sum.facts.map(([name, value]) =>
      create("tr", {}, create("th", {scope: "row"}, name), create("td", {}, formatNumber(value, finer)))))));
  }
  if (sum.terms) panel.append(...termsOf(sum, "", isIntermediate ? sum.value : number, isIntermediate ? finer : digits));
  if (sum.inner) panel.append(...termsOf(sum.inner, `${sum.inner.title}: `, sum.inner.value, finer));
  announce(number == null ? sum.title : `${sum.title}: ${formatNumber(number)}`);
}

/** Return terms and their total, which is the model's number: rounding is a term of its own. */
function termTable(terms, value, precision, finer) {
  const line = (name, factors, text, kind) => create("tr", {class: kind === "term-total" ? "total" : null},
    create("th", {scope: "row"}, wordElement(name)), create("td", {}, factors), create("td", {class: kind}, text));
  const factorsOf = (term) => (term.factors ? term.factors.map((factor) => formatNumber(factor, finer)).join(" × ")
    : `e^${formatNumber(term.power, finer)}`);
  const texts = terms.map((term) => formatNumber(term.value, precision));
  const total = formatNumber(value, precision);
  const lines = terms.map((term, n) => line(term.name, factorsOf(term), texts[n], "term"));
  const units = (text) => Math.round(Number(text) * 10 ** precision);
  const rounding = (units(total) - sumOf(texts.map(units))) / 10 ** precision;
  if (rounding !== 0) lines.push(line("rounding", "", formatNumber(rounding, precision), "term"));
  lines.push(line("sum", "", total, "term-total"));
  return create("table", {}, create("tbody", {}, ...lines));
}

function csv(rows, columns, value, isMasked) {
  const quoted = (text) => `"${String(text).replaceAll('"', '""')}"`;
  const lines = [["", ...columns].map(quoted).join(",")];
  rows.forEach((label, row) => lines.push([quoted(plainText(label)),
    ...columns.map((_, column) => (isMasked(row, column) ? "" : value(row, column)))].join(",")));
  return lines.join("\n") + "\n";
}

async function copy(button, text) {
  let result = "copied";
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // some browsers deny the clipboard to a page that is a local file
    const field = create("textarea", {"aria-hidden": "true"});
    field.value = text;
    document.body.append(field);
    field.select();
    result = document.execCommand("copy") ? "copied" : "not allowed";
    field.remove();
    button.focus();
  }
  announce(result);
  button.textContent = result;
  setTimeout(() => { button.textContent = "copy CSV"; }, 1500);
}

function save(name, text) {
  const link = create("a", {download: name, href: `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`});
  document.body.append(link);
  link.click();
  link.remove();
}

/** Return a matrix as an SVG picture. */
function svg({name, rows, columns, value, kind, isMasked}) {
  const escaped = (text) => plainText(text).replace(/[\u0000-\u001f]/g, " ")
    .replace(/[&<>"]/g, (letter) => ({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"}[letter]));
  const longest = (words) => Math.max(...words.map((label) => plainText(label).length)) * 8 + 16;  // wide letters
  const [cellWidth, cellHeight, left] = [52, 22, longest(rows)];
  const isRotated = columns.some((column) => column.length > 6);
  const top = isRotated ? longest(columns) + 24 : 50;
  const largest = colourScale(kind, rows, columns, value, isMasked);
  const parts = [];
  columns.forEach((column, n) => {
    const [x, y] = [left + n * cellWidth + cellWidth / 2, top - 6];
    parts.push(isRotated ? `<text transform="translate(${x + 4} ${y}) rotate(-90)">${escaped(column)}</text>`
      : `<text x="${x}" y="${y}" text-anchor="middle">${escaped(column)}</text>`);
  });
  rows.forEach((row, r) => {
    const y = top + r * cellHeight;
    parts.push(`<text x="${left - 6}" y="${y + 15}" text-anchor="end">${escaped(row)}</text>`);
    columns.forEach((_, c) => {
      const x = left + c * cellWidth;
      const number = value(r, c);
      const full = number < 0 ? [240, 128, 106] : [76, 155, 232];
      const mixed = [242, 245, 250].map((pale, n) => Math.round(pale + (full[n] - pale) * Math.abs(number) / largest));
      const fill = isMasked(r, c) ? "#c3c9d1" : `rgb(${mixed.join(" ")})`;
      parts.push(`<rect x="${x}" y="${y}" width="${cellWidth - 1}" height="${cellHeight - 1}" fill="${fill}"/>`);
      if (!isMasked(r, c)) parts.push(`<text x="${x + cellWidth / 2}" y="${y + 15}" text-anchor="middle">${formatNumber(number)}</text>`);
    });
  });
  const [width, height] = [left + columns.length * cellWidth + 8, top + rows.length * cellHeight + 8];
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" `
    + `font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="#fff"/>`
    + `<text x="8" y="18" font-size="14">${escaped(name)}</text>${parts.join("")}</svg>`;
}
