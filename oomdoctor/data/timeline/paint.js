// Draws on canvases. All lengths are pixels of the screen, not of CSS.

const SHADES = [0, 5, -5, 9, -9];
const LEAST_HEIGHT = 1.2; // below this a block is part of its band

/** The colors of the page, from its style; paper is light. */
function paletteOf(timeline, onPaper) {
  const dark = !onPaper && matchMedia("(prefers-color-scheme: dark)").matches;
  const style = getComputedStyle(document.documentElement);
  const named = (name) => style.getPropertyValue(`--${name}`).trim();
  const shade = ([hue, saturation, lightness], by) =>
    `hsl(${hue} ${saturation}% ${(dark ? lightness - 8 : lightness) + by}%)`;
  return {
    bands: timeline.colors.map((color) => shade(color, 0)),
    shades: timeline.colors.map((color) => SHADES.map((by) => shade(color, by))),
    gray: SHADES.map((by) => `hsl(220 6% ${(dark ? 30 : 80) + by / 2}%)`),
    ...Object.fromEntries(["page", "text", "faint", "grid", "reserved", "alarm", "mark"].map((n) => [n, named(n)])),
  };
}

/** The outline of an area of columns between two heights in bytes. */
function outline(path, columns, first, after, lower, upper, y) {
  path.moveTo(columns.x[first], y(upper(first)));
  for (let at = first; at < after; at++) {
    const height = y(upper(at));
    path.lineTo(columns.x[at], height);
    while (at + 1 < after && y(upper(at + 1)) === height) at++;
    path.lineTo(columns.x[at + 1], height);
  }
  for (let at = after - 1; at >= first; at--) {
    const height = y(lower(at));
    path.lineTo(columns.x[at + 1], height);
    while (at > first && y(lower(at - 1)) === height) at--;
    path.lineTo(columns.x[at], height);
  }
  path.closePath();
}

/** Draws the bands of the categories, and in them the blocks that are high enough to see. */
function paintBlocks(context, scene) {
  const { device, columns, hidden, palette, y, perByte, matching } = scene;
  if (!columns.count) return [];
  const labels = [];
  context.lineWidth = 1;
  context.strokeStyle = palette.page;
  stack(
    device, columns, hidden,
    (category, lower, upper) => {
      context.beginPath();
      outline(context, columns, 0, columns.count, (at) => lower[at], (at) => upper[at], y);
      context.fillStyle = matching ? palette.gray[0] : palette.bands[category];
      context.fill();
      const wide = (scene.words[category].length * 8 + 10) * scene.ratio;
      labels.push({ category, ...roomFor(columns, lower, upper, y, scene.box, wide) });
    },
    (block, first, after, lower) => {
      const size = device.blocks.size[block], height = size * perByte;
      const trace = device.blocks.maker[block];
      const hit = matching && matching[trace + 1];
      if (height < LEAST_HEIGHT && !hit) return;
      const shades = matching && !hit ? palette.gray : palette.shades[device.blocks.category[block]];
      context.beginPath();
      outline(context, columns, first, after, (at) => lower[at], (at) => lower[at] + size, y);
      context.fillStyle = shades[(trace + 1) % shades.length];
      context.fill();
      if (height >= 3) {
        context.globalAlpha = 0.55;
        context.stroke();
        context.globalAlpha = 1;
      }
    },
  );
  return labels;
}

/** Where a band has room for its name, `wide` pixels: as high as possible, else near the middle. */
function roomFor(columns, lower, upper, y, box, wide) {
  const steps = 32;
  let best = { x: 0, y: 0, half: 0 };
  for (let step = 1; step < steps; step++) {
    // From the middle to both sides.
    const x = box.left + box.width * (0.5 + ((step % 2 ? 1 : -1) * Math.floor(step / 2)) / steps);
    const first = Math.max(0, lowerBound(columns.x, x - wide / 2, columns.count) - 1);
    const after = lowerBound(columns.x, x + wide / 2, columns.count);
    if (columns.x[first] > x - wide / 2 || columns.x[after] < x + wide / 2) continue;
    let top = box.top, bottom = box.top + box.height;
    for (let at = first; at < after; at++) {
      top = Math.max(top, y(upper[at]));
      bottom = Math.min(bottom, y(lower[at]));
    }
    const half = (bottom - top) / 2;
    if (half > best.half * 1.1) best = { x, y: (top + bottom) / 2, half };
  }
  return best;
}

/** Names the bands in which there is room. */
function paintLabels(context, scene, labels) {
  const { palette, words, ratio } = scene;
  context.font = `600 ${12 * ratio}px system-ui, sans-serif`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.lineWidth = 3 * ratio;
  context.lineJoin = "round";
  for (const label of labels) {
    if (label.half < 9 * ratio) continue;
    context.strokeStyle = palette.page;
    context.fillStyle = palette.text;
    context.globalAlpha = 0.75;
    context.strokeText(words[label.category], label.x, label.y);
    context.globalAlpha = 1;
    context.fillText(words[label.category], label.x, label.y);
  }
}

/** The line of what is reserved, and that of what the process could reserve at most. */
function paintLines(context, scene) {
  const { device, columns, palette, y, ratio, box } = scene;
  context.lineWidth = 1.5 * ratio;
  context.strokeStyle = palette.reserved;
  context.beginPath();
  for (let at = 0; at < columns.count; at++) {
    const height = y(columns.reserved[at]);
    context.lineTo(columns.x[at], height);
    context.lineTo(columns.x[at + 1], height);
  }
  context.stroke();
  if (device.limit === null) return;
  context.setLineDash([6 * ratio, 4 * ratio]);
  context.strokeStyle = palette.alarm;
  context.beginPath();
  context.moveTo(box.left, y(device.limit));
  context.lineTo(box.left + box.width, y(device.limit));
  context.stroke();
  context.setLineDash([]);
}

/** Above the plot the optimizer steps; in it the requests that failed, the peak, and the names of all. */
function paintMarks(context, scene) {
  const { device, columns, palette, y, x, ratio, box, totals } = scene;
  const inside = (at) => at >= box.left - 1 && at <= box.left + box.width + 1;
  const end = box.left + box.width - 4 * ratio, failed = device.failures.map((one) => x(one.moment)).filter(inside);
  const taken = failed.map((at) => ({ left: at - 2, right: at + 2, top: box.top, bottom: box.top + box.height }));
  // A text is written at the first of its places, as left or right edge and bottom, that is free.
  const write = (text, color, places) => {
    const wide = context.measureText(text).width;
    const boxes = places.map(([from, bottom, to = from + wide]) => ({ left: to - wide, right: to, bottom, top: bottom - 12 * ratio }));
    const free = boxes.find((one) => isFree(one, scene, taken)) ?? boxes.find((one) => isIn(one, box)) ?? boxes[0];
    taken.push(free);
    context.strokeStyle = palette.page;
    context.lineWidth = 3 * ratio;
    context.strokeText(text, free.left, free.bottom);
    context.fillStyle = color;
    context.fillText(text, free.left, free.bottom);
  };
  context.font = `${11 * ratio}px system-ui, sans-serif`;
  context.lineWidth = ratio;
  paintSteps(context, scene);
  context.textAlign = "left";
  context.textBaseline = "bottom";
  /** Above and below a line. */
  const along = (from, height, to) => [-2, 15].map((by) => [from, height + by * ratio, to]);
  const ends = [end, ...failed.map((at) => at - 6 * ratio)];
  if (columns.count) write("reserved", palette.reserved, ends.flatMap((to) => along(0, y(columns.reserved.at(-1)), to)));
  if (device.limit !== null) write(`limit ${sizeText(device.limit)}`, palette.alarm, along(box.left + 4 * ratio, y(device.limit)));
  for (const failure of device.failures) {
    const at = x(failure.moment), base = totals[failure.moment];
    if (!inside(at)) continue;
    context.strokeStyle = palette.alarm;
    context.lineWidth = ratio;
    context.setLineDash([3 * ratio, 3 * ratio]);
    context.strokeRect(at, y(base + failure.requested), 10 * ratio, y(base) - y(base + failure.requested));
    context.setLineDash([]);
    context.lineWidth = 2 * ratio;
    context.beginPath();
    context.moveTo(at, box.top);
    context.lineTo(at, box.top + box.height);
    context.stroke();
    const sides = at < box.left + box.width / 2 ? [at + 6 * ratio] : [0, at - 6 * ratio];
    const places = Array.from({ length: 12 }, (_, row) => [sides[0], box.top + (16 + 14 * row) * ratio, sides[1]]);
    write(`out of memory: tried to allocate ${sizeText(failure.requested)}`, palette.alarm, places);
  }
  const at = x(device.peak), height = y(totals[device.peak]);
  if (!device.traced || !inside(at)) return;
  context.fillStyle = palette.mark;
  context.beginPath();
  context.moveTo(at, height);
  context.lineTo(at - 5 * ratio, height - 8 * ratio);
  context.lineTo(at + 5 * ratio, height - 8 * ratio);
  context.fill();
  // At either side of the mark, else as far above it as is needed.
  const rows = Array.from({ length: 12 }, (_, row) => height - 4 * row * ratio);
  const places = rows.flatMap((bottom) => [[at + 8 * ratio, bottom], [0, bottom, at - 8 * ratio]]);
  write(`peak ${sizeText(device.allocated[device.peak])}`, palette.mark, places);
}

/** Whether a text is inside the plot. */
const isIn = (text, box) => text.left >= box.left && text.right <= box.left + box.width && text.top >= box.top;

/** Whether nothing is where a text would be: no other text, and neither of the lines. */
function isFree(text, { device, columns, y, box }, taken) {
  const first = Math.max(0, lowerBound(columns.x, text.left, columns.count) - 1);
  const reserved = columns.reserved.slice(first, lowerBound(columns.x, text.right, columns.count));
  const lines = (device.limit === null ? reserved : [...reserved, device.limit]).map(y);
  return isIn(text, box)
    && !lines.some((line) => line > text.top && line < text.bottom + 1)
    && !taken.some((one) => one.left < text.right && one.right > text.left && one.top < text.bottom && one.bottom > text.top);
}

/** A ruler above the plot: where each optimizer step ends, with its number. */
function paintSteps(context, scene) {
  const { device, palette, x, ratio, box } = scene;
  const ends = [...device.steps.map(([, after]) => x(after)), x(device.count)];
  const narrow = device.steps.length > 1 && (ends[device.steps.length - 1] - ends[0]) / device.steps.length < 6 * ratio;
  context.textAlign = "center";
  context.textBaseline = "bottom";
  let start = x(0), free = -Infinity;
  ends.forEach((end, index) => {
    const left = Math.max(start, box.left), right = Math.min(end, box.left + box.width);
    start = end;
    if (right <= left) return;
    const last = index === device.steps.length;
    context.strokeStyle = palette.faint;
    if (!last && end <= box.left + box.width && !narrow) {
      context.globalAlpha = 0.6;
      context.beginPath();
      context.moveTo(end, box.top - 14 * ratio);
      context.lineTo(end, box.top + box.height);
      context.stroke();
      context.globalAlpha = 1;
    }
    if (last || !device.steps.length) return;
    const number = `${index + 1}`, middle = (left + right) / 2;
    const text = right - left > 60 * ratio ? `step ${number}` : number;
    const half = context.measureText(text).width / 2 + 2 * ratio;
    if (middle - half < free || middle + half > box.left + box.width) return;
    context.fillStyle = palette.faint;
    context.fillText(text, middle, box.top - 2 * ratio);
    free = middle + half + 4 * ratio;
  });
}

/** Draws on a canvas over the plot: a line at a moment, and the outline of one block. */
function paintChosen(context, scene, moment, chosen) {
  const { device, columns, hidden, palette, y, ratio } = scene;
  context.clearRect(0, 0, context.canvas.width, context.canvas.height);
  const at = Math.round(scene.x(moment) - scene.box.left) + 0.5;
  context.strokeStyle = palette.text;
  context.lineWidth = 1;
  context.globalAlpha = 0.5;
  context.beginPath();
  context.moveTo(at, 0);
  context.lineTo(at, scene.box.height);
  context.stroke();
  context.globalAlpha = 1;
  if (chosen === null || !columns.count) return;
  stack(device, columns, hidden, () => {}, (block, first, after, lower) => {
    if (block !== chosen) return;
    const size = device.blocks.size[block];
    context.save();
    context.translate(-scene.box.left, -scene.box.top);
    context.beginPath();
    outline(context, columns, first, after, (at) => lower[at], (at) => lower[at] + size, y);
    context.fillStyle = palette.text;
    context.globalAlpha = 0.25;
    context.fill();
    context.globalAlpha = 1;
    context.strokeStyle = palette.text;
    context.lineWidth = 2 * ratio;
    context.beginPath();
    // Without the edges between columns: those of many narrow ones would cover everything.
    for (let at = first; at < after; at++) {
      for (const height of [y(lower[at]), y(lower[at] + size)]) {
        context.moveTo(columns.x[at], height);
        context.lineTo(columns.x[at + 1], height);
      }
    }
    for (const [at, edge] of [[first, first], [after - 1, after]]) {
      context.moveTo(columns.x[edge], y(lower[at]));
      context.lineTo(columns.x[edge], y(lower[at] + size));
    }
    context.stroke();
    context.restore();
  }, device.blocks.category[chosen]);
}
