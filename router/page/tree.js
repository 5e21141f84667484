// A round's tree as an SVG: depth to the right, siblings below each other, the accepted path in colour.

const SVG = "http://www.w3.org/2000/svg";
const COLUMN = 118, ROW = 26, WIDTH = 96, HEIGHT = 20, MARGIN = 12, MAX_TEXT = 13;

export function svg(name, attributes = {}, text = "") {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "style") element.style.cssText = value; // the attribute is what the page's policy forbids
    else element.setAttribute(key, value);
  }
  if (text !== "") element.textContent = text;
  return element;
}

// Where each node goes: leaves take rows in order, a parent stands in the middle of its children.
export function layout(parents) {
  const children = parents.map(() => []);
  const depth = parents.map(() => 0);
  parents.forEach((parent, node) => {
    if (parent < 0) return;
    children[parent].push(node);
    depth[node] = depth[parent] + 1;
  });
  const row = new Array(parents.length).fill(0);
  let rows = 0;
  const place = (node) => {
    if (children[node].length === 0) { row[node] = rows++; return; }
    children[node].forEach(place);
    row[node] = (row[children[node][0]] + row[children[node].at(-1)]) / 2;
  };
  if (parents.length > 0) place(0);
  return { depth, row, rows: Math.max(rows, 1) };
}

// Spaces and line ends in a token are what one looks for, so they are drawn.
export function visible(text) {
  const shown = text.replace(/ /g, "␣").replace(/\n/g, "↵").replace(/\t/g, "⇥");
  return shown.length > MAX_TEXT ? shown.slice(0, MAX_TEXT - 1) + "…" : shown;
}

export function drawTree(frame, tree, onPoint) {
  frame.replaceChildren();
  if (!tree) return;
  const { depth, row, rows } = layout(tree.parents);
  const accepted = new Set(tree.accepted ?? []);
  const last = (tree.accepted ?? []).at(-1);
  const columns = Math.max(...depth) + (tree.new_token ? 2 : 1);
  const width = columns * COLUMN + MARGIN, height = rows * ROW + 2 * MARGIN;
  frame.setAttribute("viewBox", `0 0 ${width} ${height}`);
  frame.setAttribute("width", width);
  frame.setAttribute("height", height);
  const x = (node) => MARGIN + depth[node] * COLUMN, y = (node) => MARGIN + row[node] * ROW + HEIGHT / 2;

  tree.parents.forEach((parent, node) => {
    if (parent < 0) return;
    const on = accepted.has(parent) && accepted.has(node);
    frame.append(edge(x(parent) + WIDTH, y(parent), x(node), y(node), on));
  });
  tree.tokens.forEach((token, node) => {
    const kind = (node === 0 ? " root" : "") + (accepted.has(node) ? " accepted" : "");
    const facts = `node ${node}, parent ${tree.parents[node]}, depth ${depth[node]}, ` +
      `position ${tree.base_committed_len + depth[node]}, token ${token} ${JSON.stringify(tree.texts[node])}` +
      (accepted.has(node) ? (node === 0 ? ", the root" : ", accepted") : "");
    frame.append(box(x(node), y(node), tree.texts[node], kind, facts, onPoint));
  });
  if (tree.new_token && last !== undefined) {
    const left = MARGIN + (depth[last] + 1) * COLUMN;
    const taken = tree.parents.some((parent, node) => parent === last && node > 0);
    const top = taken ? height - MARGIN / 2 : y(last);
    if (taken) frame.setAttribute("height", height + ROW);
    if (taken) frame.setAttribute("viewBox", `0 0 ${width} ${height + ROW}`);
    const where = taken ? top + HEIGHT / 2 : top;
    frame.append(edge(x(last) + WIDTH, y(last), left, where, true));
    const facts = `the new token ${tree.new_token.token} ${JSON.stringify(tree.new_token.text)}, the next round's root`;
    frame.append(box(left, where, tree.new_token.text, " new", facts, onPoint));
  }
}

function edge(fromX, fromY, toX, toY, accepted) {
  const middle = (fromX + toX) / 2;
  const path = `M${fromX},${fromY} C${middle},${fromY} ${middle},${toY} ${toX},${toY}`;
  return svg("path", { class: accepted ? "edge accepted" : "edge", d: path });
}

function box(left, middle, text, kind, facts, onPoint) {
  const group = svg("g", { class: "node" + kind, tabindex: "0" });
  group.append(svg("rect", { x: left, y: middle - HEIGHT / 2, width: WIDTH, height: HEIGHT, rx: 4 }));
  group.append(svg("text", { x: left + 6, y: middle + 4 }, visible(text)));
  group.append(svg("title", {}, facts));
  for (const event of ["mouseenter", "focus"]) group.addEventListener(event, () => onPoint(facts));
  return group;
}
