// The labels along a heat map.

const LABEL_STEP = 13; // pixels that a line of labels needs

/// Labels on both axes: every token if there is room, otherwise every 2nd, 5th, 10th, ..
function drawAxes(context, pane, part, x, y, paint) {
  const every = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find((n) => n * viewport.size >= LABEL_STEP) ?? 2000;
  context.textBaseline = "middle";
  const label = (position, room, here) => {
    const sought = state.found.has(position);
    const chosen = position === state.token || here;
    context.font = `${chosen ? "bold " : ""}11px ui-monospace, monospace`;
    context.fillStyle = sought ? paint.mark : chosen ? paint.ink : paint.quiet;
    // Positions tell apart tokens that are far away or repeat; next to its neighbors a token needs none.
    const text = every > 1 || chosen ? `${position} ${tokens[position]}` : tokens[position];
    context.fillText(clip(context, text, room), 0, 0);
  };
  const placed = (axis, position, at) => {
    context.save();
    const here = state.cell && (axis === "y" ? state.cell.query + offset : state.cell.key) === position;
    if (axis === "y") {
      context.translate(pane.left - 6, at);
      context.textAlign = "right";
      label(position, GUTTER.left - 10, here);
    } else {
      context.translate(at, pane.top - 6);
      context.rotate(-Math.PI / 2);
      context.textAlign = "left";
      label(position, GUTTER.top - 10, here);
    }
    context.restore();
  };
  // The token under the pointer and the chosen one always have labels; the others make room.
  const drawn = (axis, from, to, must, at) => {
    const kept = [...new Set(must)].filter((p) => p !== null && p >= from && p < to);
    for (let p = Math.ceil(from / every) * every; p < to; p += every) {
      if (kept.every((k) => k === p || Math.abs(at(k) - at(p)) >= LABEL_STEP)) placed(axis, p, at(p));
    }
    for (const p of kept) {
      const first = kept[0];
      if (p === first || Math.abs(at(p) - at(first)) >= LABEL_STEP) placed(axis, p, at(p));
    }
  };
  const cell = state.cell;
  if (pane.labeled) {
    drawn("y", part.top + offset, part.bottom + offset, [cell ? cell.query + offset : null, state.token],
      (p) => Math.min(Math.max(y(p - offset + 0.5), pane.top + 4), pane.top + plot.height - 4));
  }
  drawn("x", part.left, part.right, [cell ? cell.key : null, state.token],
    (p) => Math.min(Math.max(x(p + 0.5), pane.left + 4), pane.left + plot.width - 4));

  // The axes mark the tokens that the search found at any zoom.
  context.fillStyle = paint.mark;
  for (const position of state.found) {
    const size = Math.max(viewport.size, 2);
    const [across, down] = [x(position), y(position - offset)];
    const isKey = state.as !== "query" && position < part.right;
    if (isKey && across >= pane.left && across < pane.left + plot.width) context.fillRect(across, pane.top - 4, size, 3);
    const isQuery = state.as !== "key" && position >= offset && position < part.bottom + offset;
    if (isQuery && down >= pane.top && down < pane.top + plot.height) context.fillRect(pane.left - 4, down, 3, size);
  }
}
