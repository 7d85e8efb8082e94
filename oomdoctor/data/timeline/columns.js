// What is drawn where: the moments in view as columns of pixels, and the blocks stacked in them.

/** The places of moments on the x axis, with the end of the last one: by event or by time. */
function placesOf(device, byTime) {
  const from = byTime ? device.time : device.event;
  const places = new Float64Array(device.count + 1);
  places.set(from.subarray(0, device.count));
  const last = places[device.count - 1];
  // The end of the history is drawn with some width: what is there stays.
  places[device.count] = last + Math.max(1, (last - places[0]) / 100);
  return places;
}

/** The bytes at each moment in the categories that are shown. */
function totalsOf(device, hidden) {
  const totals = new Float64Array(device.count);
  device.bytes.forEach((sums, category) => {
    if (!hidden.has(category)) for (let at = 0; at < device.count; at++) totals[at] += sums[at];
  });
  return totals;
}

/** The largest of many values, or the one given. */
const largest = (values, least = 0) => values.reduce((a, b) => Math.max(a, b), least);

/**
 * The columns between two places. A column shows one moment, `moment`: of all that fall on its
 * pixel, the one with the most bytes. `x` are its edges, one more than there are columns.
 */
function columnsOf(device, places, totals, min, max, left, width) {
  const first = Math.max(0, lowerBound(places, min, device.count + 1) - (places[0] > min ? 0 : 1));
  const moment = [], x = [], reserved = [];
  const pixel = (at) => Math.round(left + ((places[at] - min) / (max - min)) * width);
  let latest = -1;
  for (let at = first; at < device.count && places[at] < max; at++) {
    const edge = Math.max(pixel(at), left), top = x.length - 1;
    if (top >= 0 && edge <= x[top]) {
      if (totals[at] > totals[moment[top]]) moment[top] = at;
      reserved[top] = Math.max(reserved[top], device.reserved[at]);
    } else {
      // The highest moment of a pixel does not last until the next one if another follows it.
      if (top >= 0 && latest !== moment[top] && edge > x[top] + 1) {
        x.push(x[top] + 1);
        moment.push(latest);
        reserved.push(device.reserved[latest]);
      }
      x.push(edge);
      moment.push(at);
      reserved.push(device.reserved[at]);
    }
    latest = at;
  }
  x.push(Math.min(left + width, Math.max(pixel(Math.min(latest + 1, device.count)), (x[x.length - 1] ?? left) + 1)));
  return { count: moment.length, moment: Int32Array.from(moment), x: Float64Array.from(x), reserved };
}

/** The columns that a block is in, as the first and the one after the last. */
const columnsOfBlock = (device, columns, block) => [
  lowerBound(columns.moment, device.blocks.born[block], columns.count),
  lowerBound(columns.moment, device.blocks.died[block], columns.count),
];

/**
 * Calls `band(category, lower, upper)` and then `block(index, first, after, lower)` for each block
 * of it, from the bottom to the top. `lower` are the bytes below it in each column, and hold until
 * the call returns. Stops after the category `until`.
 */
function stack(device, columns, hidden, band, block, until = device.bytes.length) {
  const floor = new Float64Array(columns.count);
  for (let category = 0; category < device.bytes.length && category <= until; category++) {
    if (hidden.has(category)) continue;
    const sums = device.bytes[category], rest = device.rest[category];
    const upper = floor.slice(), lower = floor.slice();
    for (let at = 0; at < columns.count; at++) {
      upper[at] += sums[columns.moment[at]];
      if (rest) lower[at] += rest[columns.moment[at]];
    }
    band(category, floor, upper);
    for (const one of device.members[category]) {
      const [first, after] = columnsOfBlock(device, columns, one);
      if (first >= after) continue;
      block(one, first, after, lower);
      const size = device.blocks.size[one];
      for (let at = first; at < after; at++) lower[at] += size;
    }
    floor.set(upper);
  }
}

/** The blocks at a moment from the bottom to the top; a block of -1 is the sum of small ones. */
function stackAt(device, moment, hidden) {
  const found = [];
  let below = 0;
  device.members.forEach((members, category) => {
    if (hidden.has(category)) return;
    const rest = device.rest[category] ? device.rest[category][moment] : 0;
    if (rest) found.push({ block: -1, category, below, size: rest });
    below += rest;
    for (const block of members) {
      if (device.blocks.born[block] > moment) break;
      if (device.blocks.died[block] <= moment) continue;
      const size = device.blocks.size[block];
      found.push({ block, category, below, size });
      below += size;
    }
  });
  return found;
}

/** The blocks at a moment, added up by stack and category, the most bytes first. */
function groupsAt(device, moment, hidden) {
  const groups = new Map();
  for (const one of stackAt(device, moment, hidden)) {
    if (one.block < 0) continue;
    const stack = device.blocks.maker[one.block], key = stack * 16 + one.category;
    const group = groups.get(key) ?? { stack, category: one.category, size: 0, count: 0, largest: one };
    group.size += one.size;
    group.count++;
    if (one.size > group.largest.size) group.largest = one;
    groups.set(key, group);
  }
  return [...groups.values()].sort((a, b) => b.size - a.size);
}

/** The optimizer step that a moment is in, from 1; null without any. */
function stepAt(device, moment) {
  if (!device.steps.length) return null;
  const step = device.steps.findIndex(([, after]) => moment < after);
  return step < 0 ? device.steps.length + 1 : step + 1;
}
