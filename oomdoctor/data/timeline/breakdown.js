// Where the memory at a moment comes from: an icicle of modules or of lines of code, outermost first.

const LEAST_SHARE = 0.004; // narrower parts of the icicle are not drawn
const LEAST_LISTED = 0.02; // the same where it is a list, on a phone

/** What leads to the blocks of a stack, outermost first: modules if it names them, else lines of code. */
function pathOf(stacks, stack) {
  const whole = stacks.frames(stack), own = whole[stacks.own(stack)];
  const frames = whole.filter((frame) => frame.python);
  if (!frames.length) return [{ key: "?", text: "no line of Python" }];
  const [inner] = frames;
  if (!inner.line && inner.file.startsWith("<")) {
    // Layers that repeat are one part: layers.0 and layers.1 are layers.*
    const modules = inner.file.slice(1, -1).replace(/\.\d+(?=\.|$)/g, "\n*").split(".");
    const steps = modules.map((name) => name.replaceAll("\n", "."));
    return [...steps, inner.name.replace("aten::", "")].map((name) => ({ key: name, text: name, module: true }));
  }
  // What nn.Module does between two modules says nothing.
  const told = frames.filter((frame) => frame === inner || !frame.file.endsWith("torch/nn/modules/module.py"));
  return told.reverse().map((frame) => {
    const line = `${placeText(frame)} in ${frame.name}`;
    return { key: line, text: frame.line ? `${nameOf(frame.file)}:${frame.line} in ${frame.name}` : line, own: frame === own };
  });
}

/** The same as one text that those of all inner parts begin with. */
const pathText = (path) => path.map((step) => `${step.key}\n`).join("");

/** The stacks below a part, by stack + 1. */
function stacksUnder(stacks, key) {
  return Uint8Array.from({ length: stacks.count + 1 }, (_, at) => pathText(pathOf(stacks, at - 1)).startsWith(key));
}

/** All bytes at a moment as a tree: `key` is the text of its path, `parts` are what is inside. */
function breakdownOf(timeline, device, moment, hidden) {
  const partOf = (step, key) => ({ ...step, key, size: 0, count: 0, bytes: new Map(), parts: new Map() });
  const all = partOf({ text: "all" }, "");
  const add = (path, { size, count, category }) => {
    let part = all;
    for (const step of [null, ...path]) {
      if (step) {
        if (!part.parts.has(step.key)) part.parts.set(step.key, partOf(step, `${part.key}${step.key}\n`));
        part = part.parts.get(step.key);
      }
      part.own ||= step?.own;
      part.size += size;
      part.count += count;
      part.bytes.set(category, (part.bytes.get(category) ?? 0) + size);
    }
  };
  const phases = new Set();
  for (const group of groupsAt(device, moment, hidden)) {
    add(pathOf(timeline.stacks, group.stack), group);
    if (!timeline.stacks.frames(group.stack).some((frame) => frame.python)) phases.add(makerText(timeline, device, group.largest.block));
  }
  // The backward pass has no lines, because torch runs it in C++.
  if (phases.size === 1) [all.parts.get("?").text] = phases;
  device.rest.forEach((sums, category) => {
    if (sums?.[moment] && !hidden.has(category)) add([{ key: "small", text: "small blocks" }], { size: sums[moment], count: 0, category });
  });
  return all;
}

/** A part together with those that it only leads to; a line of the user's stays by itself. */
function joined(part) {
  let inner = part;
  const names = [part.text];
  while (inner.parts.size === 1) {
    const [next] = inner.parts.values();
    if (next.size < inner.size || (!next.module && (inner.own || next.own))) break;
    inner = next;
    names.push(inner.text);
  }
  return { ...inner, text: inner.module ? names.join(".") : inner.text };
}

/** Where each part is drawn: shares of the width; what is around `chosen` has all of it. */
function placedParts(all, chosen) {
  const placed = [], bySize = (a, b) => b.size - a.size;
  const place = (part, depth, from, whole) => {
    const around = chosen.startsWith(part.key);
    if (!around && !part.key.startsWith(chosen)) return;
    const share = around ? 1 : part.size / whole;
    if (share < LEAST_SHARE) return;
    placed.push({ ...part, depth, from, share });
    let next = around ? 0 : from;
    for (const inner of [...part.parts.values()].sort(bySize).map(joined)) {
      place(inner, depth + 1, next, whole);
      if (inner.key.startsWith(chosen)) next += inner.size / whole;
    }
  };
  place(all, 0, 0, sizeAt(all, chosen));
  return placed;
}

/** The bytes of the part with this key. */
function sizeAt(all, key) {
  return key.split("\n").slice(0, -1).reduce((part, step) => part.parts.get(step), all).size;
}

/** What a part is, for the line above the icicle. */
function partText(part, all) {
  const blocks = part.count ? `, ${countText(part.count, "block")}` : "";
  const name = part.module ? part.key.trim().replaceAll("\n", ".") : part.text;
  return `${name} ${sizeText(part.size)}, ${((100 * part.size) / all.size).toFixed(1)}%${blocks}`;
}

/** Shows the icicle; `choose` gets the key of a part. */
function showBreakdown(panel, said, timeline, device, moment, hidden, wanted, choose) {
  const all = breakdownOf(timeline, device, moment, hidden);
  const isThere = wanted.split("\n").slice(0, -1).reduce((part, step) => part?.parts.get(step), all);
  const chosen = isThere ? wanted : "", parts = placedParts(all, chosen);
  const focused = panel.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  const made = parts.map((part) => {
    const [[category, most]] = [...part.bytes].sort((a, b) => b[1] - a[1]);
    const button = element("button", "part", element("span", "what", part.text), " ", element("span", "size", sizeText(part.size)));
    button.type = "button";
    button.dataset.key = part.key;
    button.setAttribute("role", "treeitem");
    button.setAttribute("aria-level", part.depth + 1);
    button.setAttribute("aria-selected", `${part.key === chosen}`);
    button.setAttribute("aria-label", partText(part, all));
    button.tabIndex = part.key === chosen ? 0 : -1;
    if (part.share < LEAST_LISTED) button.classList.add("minor");
    if (part.own) button.classList.add("own");
    if (most > 0.9 * part.size) button.style.setProperty("--band", `var(--band-${category})`);
    for (const name of ["depth", "from", "share"]) button.style.setProperty(`--${name}`, part[name]);
    button.addEventListener("click", () => choose(part.key));
    for (const event of ["mouseenter", "focus"]) button.addEventListener(event, () => (said.textContent = partText(part, all)));
    return button;
  });
  panel.replaceChildren(...(all.size ? made : []));
  panel.style.setProperty("--rows", 1 + parts.reduce((most, part) => Math.max(most, part.depth), 0));
  said.textContent = all.size ? partText(parts.find((part) => part.key === chosen) ?? { ...all, ...isThere }, all) : "";
  if (focused !== null) (made.find((one) => one.dataset.key === focused) ?? made[0])?.focus();
}

/** Arrows go to the part around, inside and at either side; Escape chooses all. */
function onPartKey(panel, event, choose) {
  const parts = [...panel.children], at = parts.indexOf(document.activeElement);
  const level = (part) => Number(part?.ariaLevel ?? 0), here = level(parts[at]);
  const outer = parts.findLastIndex((part, index) => index < at && level(part) < here);
  const beside = (by) => {
    let index = at + by;
    while (level(parts[index]) > here) index += by;
    return level(parts[index]) === here ? index : -1;
  };
  const wanted = {
    ArrowUp: () => outer,
    ArrowDown: () => (level(parts[at + 1]) > here ? at + 1 : -1),
    ArrowLeft: () => beside(-1),
    ArrowRight: () => beside(1),
    Home: () => 0,
  }[event.key];
  if (event.key === "Escape") choose("");
  else if (!wanted) return;
  event.preventDefault();
  if (wanted) parts[wanted()]?.focus();
}
