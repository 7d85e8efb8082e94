// The page: its state, what changes it, and the plot.

const $ = (id) => document.getElementById(id);
const NARROW = 900; // pixels of CSS below which the panels are under the plot
const PAPER = { width: 690, height: 380 }; // pixels of CSS that fit on A4 and on letter paper

class Page {
  constructor(timeline) {
    this.timeline = timeline;
    this.hidden = new Set();
    this.matching = null;
    this.part = ""; // the part of the breakdown that is chosen
    this.byTime = false;
    this.pinned = false;
    this.moment = 0;
    this.at = null; // the block at the pointer, as stackAt describes it
    $("title").textContent = timeline.source;
    $("origin").hidden = timeline.writtenBy === null;
    $("origin").textContent = `Written by ${timeline.writtenBy}.`;
    timeline.devices.forEach((device, index) => {
      const text = `${device.index}${device.failures.length ? ", ran out of memory" : ""}`;
      $("device").append(new Option(text, index));
    });
    $("devices").hidden = timeline.devices.length < 2;
    this.paletteChanged();
    this.showDevice(firstShown(timeline.devices));
    this.listen();
  }

  listen() {
    $("device").addEventListener("change", () => this.showDevice(Number($("device").value)));
    $("whole").addEventListener("click", () => this.showAll());
    $("to-peak").addEventListener("click", () => this.goTo(this.device.peak));
    $("to-failure").addEventListener("click", () => this.goTo(this.device.failures.at(-1).moment));
    $("time").addEventListener("click", () => this.setByTime(!this.byTime));
    $("find").addEventListener("input", () => this.find($("find").value.trim()));
    $("plot").addEventListener("keydown", (event) => onKey(this, event));
    $("parts").addEventListener("keydown", (event) => onPartKey($("parts"), event, (key) => this.choosePart(key)));
    addEventListener("resize", () => this.plot.setSize(this.size()));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.redraw();
    });
    for (const [event, onPaper] of [["beforeprint", true], ["afterprint", false]]) {
      addEventListener(event, () => this.print(onPaper));
    }
  }

  /** Draws in light colors and as wide as a sheet of paper, or as before. */
  print(onPaper) {
    this.onPaper = onPaper;
    document.documentElement.toggleAttribute("data-paper", onPaper);
    this.redraw();
    this.showTables();
  }

  /** Draws with other colors what is in view. */
  redraw() {
    const { x, y } = this.plot.scales, ranges = { x: { min: x.min, max: x.max }, y: { min: y.min, max: y.max } };
    this.paletteChanged();
    this.build();
    this.plot.batch(() => Object.entries(ranges).forEach(([key, range]) => this.plot.setScale(key, range)));
  }

  paletteChanged() {
    this.palette = paletteOf(this.timeline, this.onPaper);
    this.palette.bands.forEach((color, at) => document.documentElement.style.setProperty(`--band-${at}`, color));
  }

  showDevice(index) {
    $("device").value = index;
    this.device = this.timeline.devices[index];
    this.pinned = false;
    this.byTime = this.byTime && this.device.time.length > 0;
    $("to-peak").hidden = !this.device.traced;
    $("to-failure").hidden = !this.device.failures.length;
    $("time").hidden = !this.device.time.length;
    $("summary").textContent = summaryOf(this.device);
    $("notes").textContent = notesOf(this.device);
    this.showCategories();
    this.build();
    this.moment = -1; // so that all of it is shown again
    this.goTo(this.device.peak);
  }

  showCategories() {
    const buttons = this.timeline.words.map((name, category) => {
      const button = element("button", "category", swatch(this.timeline, category), name, element("span", "size"));
      button.type = "button";
      button.setAttribute("aria-pressed", `${!this.hidden.has(category)}`);
      button.title = "Click to show or hide, double-click to show only this one";
      button.hidden = !this.device.bytes[category].some((size) => size > 0);
      button.addEventListener("click", (event) => this.filter(category, event.detail === 2));
      return button;
    });
    $("categories").replaceChildren(...buttons);
  }

  filter(category, only) {
    const all = this.timeline.categories.map((_, at) => at);
    if (only) this.hidden = new Set(all.filter((at) => at !== category));
    else if (!this.hidden.delete(category)) this.hidden.add(category);
    [...$("categories").children].forEach((button, at) => button.setAttribute("aria-pressed", `${!this.hidden.has(at)}`));
    this.pinned = false;
    this.totals = totalsOf(this.device, this.hidden);
    this.showAll(false);
    this.pointAt(this.moment, 0);
  }

  /** Makes the plot for the device. */
  build() {
    this.plot?.destroy();
    this.places = placesOf(this.device, this.byTime);
    this.totals = totalsOf(this.device, this.hidden);
    const { palette } = this, page = this;
    const axis = { stroke: palette.faint, grid: { stroke: palette.grid, width: 1 }, ticks: { stroke: palette.grid, width: 1 } };
    const x = (plot, splits) => splits.map((at) => (page.byTime ? timeText(at) : at.toLocaleString("en-US")));
    const decimal = [1, 2, 5].flatMap((one) => Array.from({ length: 15 }, (_, power) => one * 10 ** power)).sort((a, b) => a - b);
    const binary = Array.from({ length: 50 }, (_, power) => 2 ** power);
    this.plot = new uPlot(
      {
        ...this.size(),
        padding: [20, 12, 0, 0],
        legend: { show: false },
        scales: { x: { time: false, auto: false }, y: { auto: false } },
        series: [{}, { paths: () => null, points: { show: false } }],
        axes: [
          { ...axis, values: x, incrs: decimal, label: this.byTime ? "time since the first event" : "events", labelSize: 20, size: 36, labelFont: "12px system-ui" },
          { ...axis, values: (plot, splits) => splits.map(tickText), incrs: binary, size: 68 },
        ],
        cursor: { drag: { x: true, y: true, uni: 30, dist: 5 }, points: { show: false }, bind: { dblclick: () => () => this.showAll() } },
        hooks: {
          drawClear: [() => this.paint()],
          draw: [() => this.paintOver()],
          setCursor: [() => this.onPoint()],
          setScale: [(plot, key) => this.keepInside(key)],
        },
      },
      [this.places, Float64Array.from(this.places, () => 0)],
      $("plot"),
    );
    this.overlay = element("canvas", "overlay");
    this.tip = element("div", "tip");
    this.plot.over.append(this.overlay, this.tip);
    this.plot.over.addEventListener("wheel", (event) => onWheel(this, event), { passive: false });
    this.plot.over.addEventListener("click", () => this.setPinned(this.at !== null));
    this.plot.over.addEventListener("mouseleave", () => (this.tip.hidden = true));
    this.showAll();
  }

  size() {
    if (this.onPaper) return PAPER;
    const width = $("plot").clientWidth;
    const height = innerWidth < NARROW ? innerHeight * 0.5 : innerHeight - $("plot").getBoundingClientRect().top - scrollY - 200;
    return { width, height: Math.max(300, Math.round(height)) };
  }

  whole() {
    return { min: this.places[0], max: this.places[this.device.count] };
  }

  /** The highest of what is drawn: a failed request or the limit only if that is near. */
  top() {
    const { device } = this;
    let top = this.hidden.size ? 0 : largest(device.reserved);
    top = largest(this.totals, top) || 1;
    const wanted = device.failures.map((one) => this.totals[one.moment] + one.requested);
    for (const more of this.hidden.size ? [] : [device.limit, ...wanted]) if (more <= 1.5 * top) top = Math.max(top, more);
    return top * 1.08;
  }

  showAll(places = true) {
    this.plot.batch(() => {
      if (places) this.plot.setScale("x", this.whole());
      this.plot.setScale("y", { min: 0, max: this.top() });
    });
    this.plot.redraw(false, true);
  }

  keepInside(key) {
    if (key !== "x" || !this.plot) return;
    const { min, max } = this.plot.scales.x, whole = this.whole();
    if (min < whole.min || max > whole.max) {
      this.plot.setScale("x", { min: Math.max(min, whole.min), max: Math.min(max, whole.max) });
    }
  }

  scene() {
    const plot = this.plot, box = plot.bbox, { min, max } = plot.scales.x, { scales } = plot;
    const perByte = box.height / (scales.y.max - scales.y.min);
    return {
      ...this,
      words: this.timeline.words,
      box,
      ratio: devicePixelRatio,
      perByte,
      columns: columnsOf(this.device, this.places, this.totals, min, max, Math.round(box.left), Math.round(box.width)),
      x: (moment) => box.left + ((this.places[moment] - min) / (max - min)) * box.width,
      y: (bytes) => box.top + box.height - (bytes - scales.y.min) * perByte,
    };
  }

  paint() {
    // uPlot draws first while it is being made; then there is no scale yet.
    if (!this.plot || this.plot.status === 0) return;
    this.drawn = this.scene();
    this.inBox((context) => (this.labels = paintBlocks(context, this.drawn)));
  }

  paintOver() {
    if (!this.drawn) return;
    this.inBox((context) => {
      paintLines(context, this.drawn);
      paintLabels(context, this.drawn, this.labels);
    });
    this.plot.ctx.save();
    paintMarks(this.plot.ctx, this.drawn);
    this.plot.ctx.restore();
    this.overlay.width = this.drawn.box.width;
    this.overlay.height = this.drawn.box.height;
    this.paintChosen();
  }

  inBox(paint) {
    const { ctx, bbox } = this.plot;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    paint(ctx);
    ctx.restore();
  }

  paintChosen() {
    const chosen = this.at && this.at.block >= 0 ? this.at.block : null;
    if (this.drawn) paintChosen(this.overlay.getContext("2d"), this.drawn, this.moment, chosen);
  }

  onPoint() {
    const { left, top } = this.plot.cursor;
    if (!this.drawn || left === null || left < 0 || this.pinned) return;
    const { columns } = this.drawn, edge = left * devicePixelRatio + this.drawn.box.left;
    if (!columns.count) return;
    const at = Math.max(0, lowerBound(columns.x, edge + 1e-6, columns.count) - 1);
    this.pointAt(columns.moment[at], this.plot.posToVal(top, "y"));
    this.showTip(left, top);
  }

  /** Shows a moment, and the block that is at a height in bytes. */
  pointAt(moment, height) {
    const stacked = stackAt(this.device, moment, this.hidden);
    this.choose(moment, stacked.find((one) => height >= one.below && height < one.below + one.size) ?? null);
  }

  choose(moment, one) {
    const other = this.at?.block !== one?.block || this.at?.category !== one?.category || this.wasPinned !== this.pinned;
    const later = this.moment !== moment;
    this.moment = moment;
    this.at = one;
    this.wasPinned = this.pinned;
    if (later) this.showSizes();
    if (later || this.shownHidden !== this.hidden.size) this.showMoment();
    if (other) showBlock($("block"), this.timeline, this.device, one, this.pinned);
    if (other || later) this.paintChosen();
  }

  showSizes() {
    this.device.bytes.forEach((sums, category) => {
      const size = sums[this.moment];
      $("categories").children[category].querySelector(".size").textContent = size ? sizeText(size) : "";
    });
  }

  /** Lists the largest blocks, once the pointer rests. */
  showMoment() {
    this.shownHidden = this.hidden.size;
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => this.showTables(), 30);
  }

  showTables() {
    showMoment($("moment"), this.timeline, this.device, this.moment, this.hidden, (one) => {
      this.pinned = true;
      this.choose(this.moment, one);
      this.say();
    });
    this.showBreakdown();
  }

  showBreakdown() {
    showBreakdown(
      $("parts"), $("part"), this.timeline, this.device, this.moment, this.hidden, this.part, (key) => this.choosePart(key));
  }

  /** Shows the blocks of a part of the breakdown in the timeline. */
  choosePart(key) {
    this.part = key;
    $("find").value = "";
    this.match(key ? stacksUnder(this.timeline.stacks, key) : null);
    this.showBreakdown();
  }

  showTip(left, top) {
    const one = this.at;
    this.tip.hidden = one === null;
    if (one === null) return;
    this.tip.textContent = blockText(this.timeline, this.device, one);
    const right = left > this.plot.over.clientWidth / 2;
    this.tip.style.left = right ? "" : `${left + 14}px`;
    this.tip.style.right = right ? `${this.plot.over.clientWidth - left + 14}px` : "";
    this.tip.style.top = `${Math.max(0, top - 30)}px`;
  }

  setPinned(pinned) {
    this.pinned = pinned;
    this.choose(this.moment, this.at);
    this.say();
  }

  say() {
    const text = this.at ? blockText(this.timeline, this.device, this.at) : "no block";
    $("said").textContent = `${momentText(this.timeline, this.device, this.moment)}: ${text}${this.pinned ? ", pinned" : ""}`;
  }

  /** Shows a moment, and in it the largest block that has a call stack. */
  goTo(moment) {
    const { min, max } = this.plot.scales.x, place = this.places[moment];
    if (place < min || place >= max) move(this, place - (min + max) / 2);
    this.pinned = false;
    const told = (one) => (one.block >= 0 && this.device.blocks.maker[one.block] >= 0 ? 1 : 0);
    const order = (a, b) => told(b) - told(a) || b.size - a.size;
    this.choose(moment, stackAt(this.device, moment, this.hidden).sort(order)[0] ?? null);
    this.say();
  }

  setByTime(byTime) {
    this.byTime = byTime;
    $("time").setAttribute("aria-pressed", `${byTime}`);
    this.build();
  }

  find(text) {
    this.part = "";
    this.match(text ? this.timeline.stacks.having(text) : null);
    this.showBreakdown();
  }

  /** Colors only the blocks of these stacks; null colors all. */
  match(matching) {
    this.matching = matching;
    const { blocks } = this.device;
    const count = this.matching ? blocks.maker.reduce((sum, one) => sum + this.matching[one + 1], 0) : 0;
    $("found").textContent = this.matching ? countText(count, "block") : "";
    this.plot.redraw(false, false);
  }

}

async function start() {
  try {
    const timeline = await unpack($("data").textContent);
    document.querySelector("main").hidden = false;
    window.page = new Page(timeline);
    document.documentElement.dataset.ready = "1";
  } catch (error) {
    document.querySelector("main").hidden = true;
    $("problem").hidden = false;
    $("problem").textContent = `The timeline cannot be shown: ${error.message}`;
    throw error;
  }
}

start();
