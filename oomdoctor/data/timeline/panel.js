// What the page says of a moment and of a block. Texts go in as text, never as HTML.

/** An element with a class, and texts or elements in it. */
function element(tag, name, ...content) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  made.append(...content);
  return made;
}

/** A file without its folder, or the cell of a notebook. */
const nameOf = (file) => file.replace(/^.*\/ipykernel_\d+\/(.*)\.py$/, "cell $1").split("/").pop();

/** The place of a frame; that of a library without the folder that it is installed in. */
function placeText(frame) {
  const file = frame.file.includes("/ipykernel_")
    ? nameOf(frame.file)
    : frame.file.replace(/^.*\/((site|dist)-packages|lib\/python\d[^/]*)\//, "");
  return frame.line ? `${file}:${frame.line}` : file === "??" ? "" : file;
}

/** The line of the user's in a stack, else the innermost line of Python, else nothing. */
function lineText(stacks, stack) {
  const frames = stacks.frames(stack), own = stacks.own(stack);
  const frame = own >= 0 ? frames[own] : frames.find((one) => one.python);
  if (!frame) return "no line of Python";
  return frame.line ? `${nameOf(frame.file)}:${frame.line} in ${frame.name}` : `${frame.name} in ${frame.file}`;
}

/** The same with the function of the library that this line called. */
function callText(stacks, stack) {
  const frames = stacks.frames(stack), own = stacks.own(stack);
  const called = frames.find((one) => one.python);
  const line = lineText(stacks, stack);
  return own > 0 && called && frames.indexOf(called) < own ? `${line.split(" in ")[0]}, ${called.name}` : line;
}

/** When a moment is: its event, time, optimizer step and phase. */
function momentText(timeline, device, moment) {
  if (!device.traced) return "when the snapshot was written";
  const words = [moment ? `event ${device.event[moment].toLocaleString("en-US")}` : "before the first event"];
  const step = stepAt(device, moment), phase = timeline.phases[device.phase[moment]];
  if (step !== null) words.push(step > device.steps.length ? "after the last step" : `step ${step}`);
  if (phase !== "unknown") words.push(phase);
  if (device.time.length && moment) words.push(`${timeText(device.time[moment])} after the first event`);
  return words.join(", ");
}

/** What made a block: a line, or only the phase, because torch runs the backward pass in C++. */
function makerText(timeline, device, block, text = lineText) {
  const stack = device.blocks.maker[block];
  if (stack < 0 && device.blocks.before[block]) return "made before the history";
  const phase = timeline.phases[device.phase[device.blocks.born[block]]];
  if (timeline.stacks.frames(stack).some((one) => one.python) || phase === "unknown") return text(timeline.stacks, stack);
  return `no line of Python, ${phase}`;
}

/** One sentence for those who do not see the picture. */
function blockText(timeline, device, one) {
  if (one.block < 0) return `${sizeText(one.size)} of small blocks, ${timeline.words[one.category]}`;
  return `${sizeText(one.size)}, ${timeline.words[one.category]}, ${makerText(timeline, device, one.block)}`;
}

function showMoment(panel, timeline, device, moment, hidden, choose) {
  const rows = groupsAt(device, moment, hidden).slice(0, 10).map((group) => {
    const row = element(
      "button", "row",
      element("span", "size", sizeText(group.size)),
      element("span", "what", swatch(timeline, group.category), makerText(timeline, device, group.largest.block, callText)),
      element("span", "times", group.count > 1 ? `${group.count.toLocaleString("en-US")} blocks` : ""),
    );
    row.type = "button";
    row.title = `${timeline.words[group.category]}: ${makerText(timeline, device, group.largest.block)}`;
    row.addEventListener("click", () => choose(group.largest));
    return row;
  });
  panel.replaceChildren(
    element("h2", "", "At this moment"),
    element("p", "", momentText(timeline, device, moment)),
    element(
      "p", "",
      `${sizeText(device.allocated[moment])} allocated, ${sizeText(device.reserved[moment])} reserved`),
    ...device.failures.filter((one) => one.moment === moment).map((one) => failureOf(timeline, one)),
    ...rows,
  );
}

/** A request that failed, with its call stack. */
function failureOf(timeline, failure) {
  const text = `Out of memory: tried to allocate ${sizeText(failure.requested)} with ${sizeText(failure.free)} free`;
  const made = element("details", "failure", element("summary", "", `${text}, ${lineText(timeline.stacks, failure.stack)}`));
  made.append(...stackOf(timeline.stacks, failure.stack));
  return made;
}

/** The frames of a stack as lists, innermost first: those of Python, and on request the others. */
function stackOf(stacks, stack) {
  const frames = stacks.frames(stack), own = stacks.own(stack);
  const lines = frames.map((frame, at) =>
    element("li", at === own ? "own" : "", element("b", "", frame.name), " ", element("span", "", placeText(frame))));
  const python = lines.filter((_, at) => frames[at].python), native = lines.filter((_, at) => !frames[at].python);
  const more = element("details", "", element("summary", "", countText(native.length, "frame of native code", "frames of native code")));
  more.append(element("ol", "stack", ...native));
  more.open = !python.length;
  more.hidden = !native.length;
  return [element("ol", "stack", ...python), more];
}

function swatch(timeline, category) {
  const made = element("i", "swatch");
  made.style.background = `var(--band-${category})`;
  return made;
}

function showBlock(panel, timeline, device, one, pinned) {
  if (one === null) {
    panel.replaceChildren(element("h2", "", "Block"), element("p", "faint", "Point at a block to see its line of code."));
    return;
  }
  const name = timeline.words[one.category];
  if (one.block < 0) {
    const text = "Blocks that are too small or too short to draw one by one in a history of this length.";
    panel.replaceChildren(element("h2", "", `${sizeText(one.size)} in small blocks, ${name}`), element("p", "", text));
    return;
  }
  const { blocks } = device, block = one.block, stack = blocks.stack[block];
  const frames = timeline.stacks.frames(stack);
  const freed = blocks.died[block] < device.count;
  const noted = blocks.maker[block] !== stack ? "Call stack when it was freed, innermost first" : "Call stack, innermost first";
  panel.replaceChildren(
    element("h2", "", swatch(timeline, one.category), `${sizeText(one.size)}, ${name}`, pinned ? " (pinned)" : ""),
    element("p", "", `${blocks.size[block].toLocaleString("en-US")} bytes; confidence of the category: ${timeline.confidences[blocks.confidence[block]]}`),
    element("p", "", lifeText(timeline, device, block, freed)),
    element("h3", "", frames.length ? noted : "The history has no call stack of this block"),
    ...stackOf(timeline.stacks, stack),
  );
}

function lifeText(timeline, device, block, freed) {
  const { blocks } = device;
  if (!device.traced) return "When it was allocated was not recorded.";
  const born = blocks.before[block] ? "before the first event" : `at ${momentText(timeline, device, blocks.born[block])}`;
  if (!freed) return `Allocated ${born}; still there at the end.`;
  const events = device.event[blocks.died[block]] - device.event[blocks.born[block]];
  let life = countText(events, "event");
  if (device.time.length) life += `, ${timeText(device.time[blocks.died[block]] - device.time[blocks.born[block]])}`;
  if (blocks.before[block]) return `Allocated ${born}; freed at ${momentText(timeline, device, blocks.died[block])}.`;
  return `Allocated ${born}; freed at event ${device.event[blocks.died[block]].toLocaleString("en-US")} (${life} later).`;
}

/** One line about a device. */
function summaryOf(device) {
  const sizes = `${sizeText(device.allocated[device.peak])} allocated, ${sizeText(largest(device.reserved))} reserved`;
  const words = [device.traced ? `peak ${sizes}` : `${sizes}, when the snapshot was written`];
  words.push(countText(device.events, "event"));
  if (device.steps.length) words.push(countText(device.steps.length, "optimizer step"));
  if (device.failures.length) words.push(`ran out of memory${device.failures.length > 1 ? ` ${device.failures.length} times` : ""}`);
  return words.join("; ");
}

/** The device that a page opens on: the first that ran out of memory, else the one with the highest peak. */
function firstShown(devices) {
  const peak = (device) => device.allocated[device.peak];
  const failed = devices.findIndex((device) => device.failures.length);
  return failed >= 0 ? failed : devices.reduce((best, device, at) => (peak(device) > peak(devices[best]) ? at : best), 0);
}

/** What a reader has to know about how the device is drawn. */
function notesOf(device) {
  const notes = [];
  if (device.count < device.moments) {
    notes.push(`This history is long: of ${device.moments.toLocaleString("en-US")} moments, ${device.count.toLocaleString("en-US")} are kept, the highest and the lowest of each group. The peak is exact.`);
    if (device.unseen) notes.push(`${countText(device.unseen, "block")} that came and went between them ${device.unseen === 1 ? "is" : "are"} left out.`);
  }
  if (device.small) notes.push(`${countText(device.small, "small or short block")} are drawn as one area in each category.`);
  if (device.truncated && device.traced) notes.push("The history began after memory was already in use: what was there before has no call stack.");
  if (!device.traced) notes.push("No allocation was recorded, so this is what was there when the snapshot was written.");
  else if (!device.stacks) notes.push("The history was recorded without Python stacks, so categories are mostly unknown.");
  notes.push("Where many events share a column of pixels, the highest of them is drawn; zoom in to see each one.");
  return notes.join(" ");
}
