// Moving about in the plot, with the wheel and with keys.

/** The wheel zooms in time, with Shift in bytes; sideways it moves. */
function onWheel(page, event) {
  event.preventDefault();
  const key = event.shiftKey ? "y" : "x", { min, max } = page.plot.scales[key];
  const delta = event.deltaY || event.deltaX;
  if (!event.shiftKey && Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
    move(page, (event.deltaX / page.plot.over.clientWidth) * (max - min));
    return;
  }
  const box = page.plot.over.getBoundingClientRect();
  const around = page.plot.posToVal(key === "x" ? event.clientX - box.left : event.clientY - box.top, key);
  zoom(page, key, around, Math.exp(Math.sign(delta) * Math.min(Math.abs(delta), 100) * 0.003));
}

/** Makes the range of a scale smaller or larger; `around` keeps its place. */
function zoom(page, key, around, factor) {
  const { min, max } = page.plot.scales[key];
  const whole = key === "x" ? page.whole() : { min: 0, max: page.top() };
  const width = Math.max((max - min) * factor, key === "x" ? least(page) : 4096);
  const share = (around - min) / (max - min), from = Math.max(whole.min, around - share * width);
  page.plot.setScale(key, { min: from, max: Math.min(whole.max, from + width) });
}

/** The shortest range of the x axis. */
function least(page) {
  return page.byTime ? 10 : 4;
}

/** Moves along the x axis. */
function move(page, by) {
  const { min, max } = page.plot.scales.x, whole = page.whole();
  const from = Math.min(Math.max(min + by, whole.min), whole.max - (max - min));
  page.plot.setScale("x", { min: from, max: from + max - min });
}

/** What the keys do while the plot has the focus. */
function onKey(page, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const middle = () => page.places[page.moment];
  const keys = {
    ArrowLeft: () => step(page, event.shiftKey ? -20 : -1),
    ArrowRight: () => step(page, event.shiftKey ? 20 : 1),
    ArrowUp: () => climb(page, 1),
    ArrowDown: () => climb(page, -1),
    Enter: () => page.setPinned(!page.pinned && page.at !== null),
    Escape: () => page.setPinned(false),
    "+": () => zoom(page, "x", middle(), 0.5),
    "=": () => zoom(page, "x", middle(), 0.5),
    "-": () => zoom(page, "x", middle(), 2),
    p: () => page.goTo(page.device.peak),
    0: () => page.showAll(),
  };
  const act = keys[event.key] ?? keys[event.key.toLowerCase()];
  if (!act) return;
  event.preventDefault();
  act();
}

/** Goes some columns further, at the same block if it is still there. */
function step(page, by) {
  const { moment } = page.drawn.columns;
  const column = lowerBound(moment, page.moment) + by, { min, max } = page.plot.scales.x;
  if (column < 0 || column >= moment.length) move(page, (Math.sign(by) * (max - min)) / 8);
  const next = moment[Math.min(Math.max(column, 0), moment.length - 1)];
  const stacked = stackAt(page.device, next, page.hidden);
  page.pinned = false;
  page.choose(next, stacked.find((one) => one.block === page.at?.block) ?? stacked.at(-1) ?? null);
  page.say();
}

/** Goes to the next block above or below that is high enough to see. */
function climb(page, by) {
  const seen = stackAt(page.device, page.moment, page.hidden).filter((one) => one.size * page.drawn.perByte >= 1);
  const now = seen.findIndex((one) => one.block === page.at?.block && one.category === page.at?.category);
  page.pinned = false;
  page.choose(page.moment, seen[Math.min(Math.max(now + by, 0), seen.length - 1)] ?? page.at);
  page.say();
}
