"use strict";
// From the text that the page holds to typed arrays: what render/timeline/timeline_page.py wrote.

const KINDS = { b: Int8Array, h: Int16Array, i: Int32Array, d: Float64Array };

/** The whole timeline; sizes are numbers of bytes, times are microseconds. */
async function unpack(text) {
  if (typeof DecompressionStream === "undefined") {
    throw new Error("This browser is too old for this page: Chrome 80, Firefox 113 and Safari 16.4 can show it.");
  }
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let at = 0; at < letters.length; at++) bytes[at] = letters.charCodeAt(at);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  const length = new DataView(buffer).getUint32(0, true);
  const found = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const start = Math.ceil((4 + length) / 8) * 8;
  const column = (name, Type = Float64Array) => {
    const [kind, offset, count] = found.columns[name];
    const steps = new KINDS[kind](buffer, start + offset, count);
    const values = new Type(count);
    for (let at = 0, sum = 0; at < count; at++) values[at] = sum += steps[at];
    return values;
  };
  return {
    source: found.source,
    writtenBy: found.written_by,
    categories: found.categories,
    words: found.words,
    colors: found.colors,
    confidences: found.confidences,
    phases: found.phases,
    stacks: stacksOf(found.texts, column),
    devices: found.devices.map((device) => deviceOf(device, found, column)),
  };
}

/** Finds frames and texts of a stack; -1 is a stack without any. */
function stacksOf(texts, column) {
  const length = column("stack.length", Int32Array);
  const frame = column("stack.frame", Int32Array);
  const where = column("stack.where", Int32Array);
  const file = column("frame.file", Int32Array);
  const line = column("frame.line", Int32Array);
  const name = column("frame.function", Int32Array);
  const first = new Int32Array(length.length + 1);
  for (let at = 0; at < length.length; at++) first[at + 1] = first[at] + length[at];
  const isPython = (path) => path.endsWith(".py") || path.startsWith("<");
  const one = (index) => ({
    file: texts[file[index]],
    line: line[index],
    name: texts[name[index]],
    python: isPython(texts[file[index]]),
  });
  return {
    count: length.length,
    /** The frames, innermost first. */
    frames: (stack) => (stack < 0 ? [] : Array.from(frame.subarray(first[stack], first[stack + 1]), one)),
    /** The place of the user's own line among them, or -1. */
    own: (stack) => (stack < 0 ? -1 : where[stack]),
    /** For each stack, by stack + 1, whether a text is in a file or function of it. */
    having(text) {
      const low = text.toLowerCase();
      const hit = texts.map((one) => one.toLowerCase().includes(low));
      const frames = Array.from(file, (at, index) =>
        hit[at] || hit[name[index]] || `${texts[at]}:${line[index]}`.toLowerCase().includes(low));
      const matching = new Uint8Array(length.length + 1);
      for (let stack = 0; stack < length.length; stack++) {
        for (let at = first[stack]; at < first[stack + 1] && !matching[stack + 1]; at++) matching[stack + 1] = frames[frame[at]];
      }
      return matching;
    },
  };
}

/** One device with its columns, and by category the bytes at each moment and the blocks. */
function deviceOf(device, found, column) {
  const of = (name, Type) => column(`${device.index}.${name}`, Type);
  const blocks = {};
  for (const name of ["born", "died", "stack", "category", "confidence", "before", "maker"]) {
    blocks[name] = of(`block.${name}`, Int32Array);
  }
  blocks.size = of("block.size");
  const moments = of("event").length;
  // The stack of an old block that was freed later is the one that freed it.
  blocks.maker = blocks.maker.map((isMaker, block) => (isMaker ? blocks.stack[block] : -1));
  const members = found.categories.map(() => []);
  const bytes = found.categories.map(() => new Float64Array(moments + 1));
  for (let block = 0; block < blocks.born.length; block++) {
    const category = blocks.category[block];
    members[category].push(block);
    bytes[category][blocks.born[block]] += blocks.size[block];
    bytes[category][blocks.died[block]] -= blocks.size[block];
  }
  const rest = found.categories.map((name) =>
    `${device.index}.rest.${name}` in found.columns ? of(`rest.${name}`) : null);
  bytes.forEach((sums, category) => {
    for (let at = 1; at < moments; at++) sums[at] += sums[at - 1];
    if (rest[category]) for (let at = 0; at < moments; at++) sums[at] += rest[category][at];
  });
  const first = of("step.first", Int32Array), after = of("step.after", Int32Array);
  return {
    ...device,
    count: moments,
    event: of("event"),
    time: of("at_us"),
    allocated: of("allocated"),
    reserved: of("reserved"),
    phase: of("phase", Int32Array),
    blocks,
    members: members.map((list) => Int32Array.from(list)),
    bytes,
    rest,
    steps: Array.from(first, (at, index) => [at, after[index]]),
    failures: device.failures.map(([moment, requested, free, stack]) => ({ moment, requested, free, stack })),
  };
}

/** The first index at which a rising array is not less than a value. */
function lowerBound(values, value, count = values.length) {
  let low = 0, high = count;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** Bytes as oomdoctor writes them: three digits and a binary unit. */
function sizeText(bytes) {
  let unit = 0, value = Math.abs(bytes);
  while (value >= 1000 && unit < UNITS.length - 1) {
    value /= 1024;
    unit++;
  }
  const digits = unit === 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return `${bytes < 0 ? "-" : ""}${value.toFixed(digits)} ${UNITS[unit]}`;
}

/** The same for an axis, where zeros after the point say nothing. */
const tickText = (bytes) => sizeText(bytes).replace(/\.0+ /, " ").replace(/(\.\d)0 /, "$1 ");

/** Microseconds as a time. */
function timeText(us) {
  if (us < 1e3) return `${us} µs`;
  if (us < 1e6) return `${(us / 1e3).toPrecision(3)} ms`;
  if (us < 1e8) return `${(us / 1e6).toPrecision(3)} s`;
  return `${Math.floor(us / 6e7)} min ${Math.round((us % 6e7) / 1e6)} s`;
}

const countText = (count, one, many = `${one}s`) => `${count.toLocaleString("en-US")} ${count === 1 ? one : many}`;
