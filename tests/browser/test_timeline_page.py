"""The timeline in a real browser: what it draws, what it says, and what it never does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import Tab
from snapshots import Writer, training

from oomdoctor.package_data import page_parts
from oomdoctor.render.snapshot.timeline_page import PARTS, page
from oomdoctor.snapshot.history import history_of
from oomdoctor.snapshot.phases import own_frames
from oomdoctor.snapshot.reading.snapshot import read_snapshot
from oomdoctor.snapshot.timeline import timeline_of
from oomdoctor.units import MIB, format_bytes

AXE = Path(__file__).parents[2] / "build" / "axe-core" / "axe.min.js"
EVIL = "<img src=x onerror=document.title='ran'><script>document.title='ran'</script>"
pytestmark = pytest.mark.slow


def page_of(writer: Writer, folder: Path, **options: Any) -> Path:
    """The page of a snapshot whose name and frames hold HTML."""
    snapshot = read_snapshot(writer.write(folder / "x.pickle"))
    histories = [history_of(snapshot, device) for device in snapshot.devices]
    file = folder / "timeline.html"
    file.write_text(page(timeline_of(EVIL, histories, **options), page_parts("timeline", PARTS)))
    return file


def failing() -> Writer:
    """A training that runs out of memory in its fourth step, in a file with an evil name."""
    writer = training(3)
    for frame in writer._frames["forward"]:
        if frame["filename"] == "model.py":
            frame.update(filename=f"/home/{EVIL}/model.py", name=EVIL)
    writer.alloc("activations", 24 * MIB, "forward")
    writer.note("oom", 5 * MIB, 40 * MIB, "forward")
    return writer


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return page_of(failing(), tmp_path_factory.mktemp("page"))


@pytest.fixture
def shown(tab: Tab, file: Path) -> Iterator[Tab]:
    """The page, which does nothing wrong whatever a test does with it."""
    tab.errors.clear()
    tab.requests.clear()
    tab.open(file)
    yield tab
    assert tab.errors == []
    assert tab.requests == [file.as_uri()]
    assert tab.value("document.title") == f"Memory timeline of {EVIL}"
    assert tab.value("document.images.length") == 0


def at(tab: Tab, share_x: float, share_y: float) -> tuple[float, float]:
    """A point of the plot, from its left and its bottom."""
    box = tab.value(
        "(b => [b.left, b.top, b.width, b.height])(page.plot.over.getBoundingClientRect())"
    )
    return box[0] + box[2] * share_x, box[1] + box[3] * (1 - share_y)


def point_at_block(tab: Tab, category: str) -> dict[str, Any]:
    """Move the mouse to the largest block of a category, where it is in view."""
    where: dict[str, Any] = tab.value(f"""(() => {{
        const category = page.timeline.categories.indexOf({category!r}), {{ device, drawn }} = page;
        const blocks = [...device.members[category]];
        const block = blocks.sort((a, b) => device.blocks.size[b] - device.blocks.size[a])[0];
        const moment = device.blocks.born[block];
        const one = stackAt(device, moment, page.hidden).find((other) => other.block === block);
        const [first] = columnsOfBlock(device, drawn.columns, block);
        const box = page.plot.over.getBoundingClientRect(), {{ x }} = drawn.columns;
        return {{
          x: box.left + (x[first] + x[first + 1]) / 2 - drawn.box.left,
          y: box.top + drawn.y(one.below + one.size / 2) - drawn.box.top,
          size: one.size,
        }};
    }})()""")
    tab.point(where["x"], where["y"])
    return where


def colors_at(tab: Tab, points: list[tuple[float, float]]) -> list[tuple[int, ...]]:
    """The colors that the plot has at points of the window."""
    found = tab.value(f"""(points => {{
        const {{ canvas }} = page.plot.ctx, box = canvas.getBoundingClientRect();
        const copy = new OffscreenCanvas(canvas.width, canvas.height);
        const context = copy.getContext("2d", {{ willReadFrequently: true }});
        context.drawImage(canvas, 0, 0);
        const color = (x, y) => [...context.getImageData(x - box.left, y - box.top, 1, 1).data];
        return points.map(([x, y]) => color(x, y));
    }})({json.dumps(points)})""")
    return [tuple(color) for color in found]


def colors_of_a_line(tab: Tab, share_x: float) -> int:
    """How many colors a vertical line through the plot has."""
    return len(set(colors_at(tab, [at(tab, share_x, step / 100) for step in range(1, 100)])))


def test_it_draws_bands_lines_and_marks(shown: Tab) -> None:
    assert colors_of_a_line(shown, 0.5) >= 3
    summary = shown.value("summary.textContent")
    assert summary.startswith("peak 92.0 MiB allocated") and "3 optimizer steps" in summary
    assert "ran out of memory" in summary
    assert shown.value("title.textContent") == EVIL


@pytest.mark.parametrize("category", ["weights", "optimizer", "activations", "logits"])
def test_a_block_is_drawn_where_the_pointer_finds_it(shown: Tab, category: str) -> None:
    assert_drawn_as_found(shown, category)
    lowest = "weights" if category != "weights" else "optimizer"
    press(shown, lowest)
    shown.until("page.drawn.totals === page.totals && page.hidden.size === 1")
    assert_drawn_as_found(shown, category)


def press(tab: Tab, category: str) -> None:
    """Click the button of a category."""
    tab.value(
        f"[...categories.children].find((one) => one.textContent.startsWith({category!r})).click()"
    )


def assert_drawn_as_found(shown: Tab, category: str) -> None:
    """The pointer finds the largest block of a category, and it has its color."""
    where = point_at_block(shown, category)
    assert shown.value("page.timeline.categories[page.at.category]") == category
    (color,) = colors_at(shown, [(where["x"], where["y"])])
    wanted = shown.value("""(() => {
        const context = new OffscreenCanvas(1, 1).getContext("2d"), { palette, device, at } = page;
        const shades = palette.shades[at.category];
        context.fillStyle = shades[(device.blocks.maker[at.block] + 1) % shades.length];
        context.fillRect(0, 0, 1, 1);
        return [...context.getImageData(0, 0, 1, 1).data];
    })()""")
    assert color == pytest.approx(wanted, abs=40)  # a line of the grid may be above it


@pytest.mark.parametrize("limits", [{}, {"most_moments": 90, "most_blocks": 30}])
def test_the_stack_at_each_moment_adds_up(tab: Tab, tmp_path: Path, limits: dict[str, int]) -> None:
    tab.open(page_of(training(40, leak=3 * MIB), tmp_path, **limits))
    assert (
        tab.value("""(() => {
        const { device } = page, wrong = [];
        for (let moment = 0; moment < device.count; moment++) {
          let sum = 0;
          for (const one of stackAt(device, moment, new Set())) {
            if (one.below !== sum) wrong.push([moment, one]);
            sum += one.size;
          }
          const bands = device.bytes.reduce((total, sums) => total + sums[moment], 0);
          if (sum !== device.allocated[moment] || sum !== bands) wrong.push([moment, sum, bands]);
        }
        return wrong;
    })()""")
        == []
    )


def test_hovering_shows_size_category_life_and_stack(shown: Tab) -> None:
    where = point_at_block(shown, "activations")
    text = shown.value("block.innerText")
    assert f"{format_bytes(where['size'])}, activations" in text
    assert "freed at event" in text and "step 1, forward" in text
    assert "torch/nn/modules/linear.py:125" in text and "train.py:20" in text
    assert f"{EVIL}/model.py:33" in text
    assert "24.0 MiB, activations" in shown.value("page.tip.textContent")
    shown.until("moment.innerText.includes('24.0 MiB')")  # which a timer shows
    point_at_block(shown, "gradients")
    assert "8.00 MiB, gradients, no line of Python, backward" in shown.value("page.tip.textContent")
    point_at_block(shown, "logits")
    text = shown.value("block.innerText")
    assert "32.0 MiB, logits" in text and "train.py:21" in text and "model.py:33" not in text


def test_a_category_can_be_hidden_and_shown_alone(shown: Tab) -> None:
    where = point_at_block(shown, "logits")
    before = colors_at(shown, [(where["x"], where["y"])])
    button = "[...categories.children].find((one) => one.textContent.startsWith('logits'))"
    shown.value(f"{button}.click()")
    shown.until("page.hidden.size === 1")
    assert shown.value(f"{button}.getAttribute('aria-pressed')") == "false"
    assert shown.value("Math.max(...page.totals)") == (92 - 32) * MIB
    shown.until("page.drawn.totals === page.totals")
    shown.point(where["x"], where["y"])
    assert "logits" not in shown.value("block.innerText")
    assert colors_at(shown, [(where["x"], where["y"])]) != before
    shown.value(f"{button}.click()")
    shown.until("page.drawn.totals === page.totals && page.hidden.size === 0")
    assert colors_at(shown, [(where["x"], where["y"])]) == before


def test_dragging_zooms_and_a_double_click_shows_all(shown: Tab) -> None:
    (x, y), (to, _) = at(shown, 0.2, 0.5), at(shown, 0.4, 0.5)
    shown.point(x, y)
    shown.point(x, y, "mousePressed", button="left", clickCount=1)
    shown.point((x + to) / 2, y, button="left", buttons=1)
    shown.point(to, y, button="left", buttons=1)
    shown.point(to, y, "mouseReleased", button="left", clickCount=1)
    shown.until("page.plot.scales.x.min > 0")
    whole, (low, high) = (
        shown.value("page.places.at(-1)"),
        shown.value("[page.plot.scales.x.min, page.plot.scales.x.max]"),
    )
    assert low == pytest.approx(whole * 0.2, rel=0.05) and high == pytest.approx(
        whole * 0.4, rel=0.05
    )
    for count in (1, 2):
        for kind in ("mousePressed", "mouseReleased"):
            shown.point(x, y, kind, button="left", clickCount=count)
    shown.until("page.plot.scales.x.min === 0 && page.plot.scales.x.max === page.places.at(-1)")


def test_the_wheel_zooms_around_the_pointer(shown: Tab) -> None:
    x, y = at(shown, 0.5, 0.5)
    before = shown.value("page.places.at(-1) / 2")
    shown.point(x, y)
    shown.point(x, y, "mouseWheel", deltaX=0, deltaY=-300)
    shown.until("page.plot.scales.x.min > 0")
    low, high = shown.value("[page.plot.scales.x.min, page.plot.scales.x.max]")
    assert (low + high) / 2 == pytest.approx(before, rel=0.01)


def test_keys_reach_everything(shown: Tab) -> None:
    shown.value("plot.focus()")
    shown.key("p")
    assert shown.value("page.moment === page.device.peak")
    first = shown.value("said.textContent")
    shown.key("ArrowRight")
    assert shown.value("page.moment") == shown.value("page.device.peak") + 1
    shown.key("ArrowLeft")
    shown.key("ArrowUp")
    shown.key("ArrowUp")
    assert shown.value("said.textContent") not in ("", first)
    shown.key("Enter")
    assert "pinned" in shown.value("block.innerText") + shown.value("said.textContent")
    chosen = shown.value("page.at.block")
    shown.point(*at(shown, 0.9, 0.1))
    assert shown.value("page.at.block") == chosen
    shown.key("Escape")
    shown.key("+")
    shown.until("page.plot.scales.x.max < page.places.at(-1)")
    shown.key("0")
    shown.until("page.plot.scales.x.max === page.places.at(-1)")


def test_the_failed_request_is_shown_with_its_line(shown: Tab) -> None:
    shown.value("document.getElementById('to-failure').click()")
    shown.until("moment.innerText.includes('Out of memory')")
    text = shown.value("moment.innerText")
    assert "tried to allocate 40.0 MiB with 5.00 MiB free" in text and "model.py:33" in text


@pytest.mark.skipif(not AXE.is_file(), reason="no axe-core: run scripts/chromium.sh")
@pytest.mark.parametrize(("width", "dark"), [(390, False), (1280, True)])
def test_nothing_keeps_people_out(shown: Tab, file: Path, width: int, dark: bool) -> None:
    shown.open(file, width, dark=dark)
    shown.until("parts.children.length > 5")
    shown.value(AXE.read_text(encoding="utf-8") + "; 0")
    wrong = shown.value(
        "axe.run().then((found) => found.violations.map((one) => [one.id, one.nodes.map("
        "(node) => node.html.slice(0, 120) + node.failureSummary)]))"
    )
    assert wrong == [], json.dumps(wrong, indent=1)
    shown.requests[:] = [file.as_uri()]


def test_stacks_can_be_searched(shown: Tab) -> None:
    shown.value(
        "((box) => {box.value = 'cross_entropy'; box.dispatchEvent(new Event('input'));})"
        "(document.getElementById('find'))"
    )
    assert shown.value("found.textContent") == "3 blocks"


def test_it_fits_narrow_and_dark_windows(shown: Tab, file: Path, tmp_path: Path) -> None:
    light = shown.value("getComputedStyle(document.body).backgroundColor")
    for width in (800, 1280):
        shown.resize(width, 800)
        shown.until(f"innerWidth === {width} && page.plot.width === plot.clientWidth")
        assert shown.value("document.documentElement.scrollWidth") <= width
    shown.dark()
    assert shown.value("getComputedStyle(document.body).backgroundColor") != light
    assert colors_of_a_line(shown, 0.5) >= 3


def test_it_prints_in_light_colors_with_its_legend_and_tables(shown: Tab, tmp_path: Path) -> None:
    band = "page.palette.bands[0]"
    light = shown.value(band)
    shown.dark()
    shown.until(f"{band} !== {light!r}")
    shown.value("page.plot.setScale('x', {min: 5, max: 50})")
    dark, width = shown.value(f"[{band}, page.plot.width]")
    shown.value("dispatchEvent(new Event('beforeprint'))")
    shown.dark(media="print")
    shown.resize(690, 1000)
    assert shown.value(f"[{band}, page.palette.page]") == [light, "#ffffff"]
    assert shown.value("[page.plot.width, page.plot.scales.x.min]") == [690, 5]
    assert shown.value("document.documentElement.scrollWidth") <= 690
    seen = "((name) => document.querySelector(name).getBoundingClientRect().height > 0)"
    for name in ("#categories", "#moment .row", "#parts .part", ".u-wrap > canvas"):
        assert shown.value(f"{seen}({name!r})"), name
    for name in (".tools", ".keys", "#plot .overlay"):
        assert not shown.value(f"{seen}({name!r})"), name
    assert colors_of_a_line(shown, 0.5) >= 3
    shown.value("dispatchEvent(new Event('afterprint'))")
    shown.dark()
    shown.resize(1280, 800)
    shown.until(f"innerWidth === 1280 && page.plot.width === {width} && {band} === {dark!r}")
    assert shown.value("page.plot.scales.x.min") == 5
    shown.paper(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().count(b"/Type /Page\n") in (1, 2)


def test_a_long_history_says_what_was_left_out(tab: Tab, tmp_path: Path) -> None:
    tab.open(page_of(training(200), tmp_path, most_moments=100, most_blocks=30))
    notes = tab.value("notes.textContent")
    assert "moments, 1" in notes and "The peak is exact." in notes and "drawn as one area" in notes
    assert tab.value("page.device.allocated[page.device.peak]") == 92 * MIB


def test_a_snapshot_without_a_history_shows_what_is_there(tab: Tab, tmp_path: Path) -> None:
    writer = training(1)
    writer.events.clear()
    tab.open(page_of(writer, tmp_path))
    assert tab.value("summary.textContent").startswith("24.0 MiB allocated")
    assert "No allocation was recorded" in tab.value("notes.textContent")
    assert "8.00 MiB" in tab.value("categories.innerText")
    assert "peak" not in tab.value("document.body.innerText").lower()


def test_it_says_that_a_simulation_wrote_the_snapshot(tab: Tab, tmp_path: Path) -> None:
    tab.open(page_of(training(2), tmp_path, written_by="oomdoctor plan: simulated"))
    assert "Written by oomdoctor plan: simulated." in tab.value("document.body.innerText")
    assert "after the first event" not in tab.value("document.body.innerText")


def on_two_gpus(one: Writer, other: Writer) -> Writer:
    """One snapshot of two devices."""
    snapshot = one.snapshot()
    for segment in (more := other.snapshot())["segments"]:
        segment["device"] = 1
    snapshot["segments"] += more["segments"]
    snapshot["device_traces"] += more["device_traces"]
    one.snapshot = lambda **_: snapshot  # type: ignore[method-assign]
    return one


def test_several_devices_are_chosen_from_a_list(tab: Tab, tmp_path: Path) -> None:
    tab.open(page_of(on_two_gpus(training(2), training(5)), tmp_path))
    assert tab.value("[...device.options].map((one) => one.text)") == ["0", "1"]
    assert "2 optimizer steps" in tab.value("summary.textContent")
    tab.value("device.value = 1, device.dispatchEvent(new Event('change'))")
    assert "5 optimizer steps" in tab.value("summary.textContent")


def test_it_opens_on_the_gpu_that_ran_out_or_else_has_the_highest_peak(
    tab: Tab, tmp_path: Path
) -> None:
    tab.open(page_of(on_two_gpus(training(5), failing()), tmp_path))
    assert tab.value("[device.value, device.selectedOptions[0].text]") == [
        "1",
        "1, ran out of memory",
    ]
    assert "ran out of memory" in tab.value("summary.textContent")
    larger = training(2)
    larger.alloc("more", 90 * MIB, "forward")
    tab.open(page_of(on_two_gpus(training(2), larger), tmp_path))
    assert tab.value("device.value") == "1"


def part(text: str) -> str:
    """The part of the breakdown whose label begins so."""
    return f"[...parts.children].find((one) => one.textContent.startsWith({text!r}))"


def test_the_breakdown_adds_up_and_leads_to_its_blocks(shown: Tab) -> None:
    shown.until("parts.children.length > 5")
    assert shown.value("parts.children[0].textContent") == "all 92.0 MiB"
    assert shown.value("""(() => {
        const wrong = [];
        const check = (part) => {
          const inner = [...part.parts.values()];
          const bytes = [...part.bytes.values()].reduce((sum, size) => sum + size, 0);
          const below = inner.reduce((sum, one) => sum + one.size, 0);
          if (below > part.size || bytes !== part.size) wrong.push(part.key);
          inner.forEach(check);
        };
        const all = breakdownOf(page.timeline, page.device, page.moment, page.hidden);
        check(all);
        return [all.size === page.device.allocated[page.moment], wrong];
    })()""") == [True, []]
    where = point_at_block(shown, "weights")
    (before,) = colors_at(shown, [(where["x"], where["y"])])
    shown.value("page.goTo(page.device.peak)")
    shown.until(f"{part('train.py:21 in main')} !== undefined")
    shown.value(f"{part('train.py:21 in main')}.click()")
    assert shown.value("found.textContent") == "3 blocks"
    label = "train.py:21 in main 32.0 MiB, 34.8%, 1 block"
    assert shown.value("document.getElementById('part').textContent") == label
    shown.until("page.drawn.matching === page.matching")
    (after,) = colors_at(shown, [(where["x"], where["y"])])
    assert before != after and max(after[:3]) - min(after[:3]) < 25  # gray
    shown.value(f"{part('all')}.click()")
    assert shown.value("[page.matching, found.textContent]") == [None, ""]
    shown.value(f"{part('no line of Python')}.click()")
    assert shown.value("found.textContent") == "6 blocks"  # gradients and scratch of three steps


def test_the_breakdown_goes_by_keys_and_is_a_list_on_a_phone(shown: Tab) -> None:
    shown.until("parts.children.length > 5")
    shown.value("parts.children[0].focus()")
    shown.key("ArrowDown")
    shown.key("ArrowRight")
    shown.key("ArrowDown")
    at = "document.activeElement"
    assert EVIL in shown.value(f"{at}.ariaLabel") and shown.value(f"{at}.ariaLevel") == "3"
    shown.key("Enter")
    assert shown.value(f"[{at}.ariaSelected, found.textContent]") == ["true", "4 blocks"]
    shown.key("Escape")
    assert shown.value("page.matching") is None and EVIL in shown.value(f"{at}.ariaLabel")
    shown.key("ArrowUp")
    shown.key("ArrowLeft")
    assert shown.value(f"{at}.textContent").startswith("train.py:21 in main")
    shown.resize(390, 800)
    shown.until("innerWidth === 390 && page.plot.width === plot.clientWidth")
    tops = shown.value("[...parts.children].map((one) => one.getBoundingClientRect().top)")
    assert tops == sorted(set(tops))
    assert shown.value("document.documentElement.scrollWidth") <= 390


def test_the_breakdown_of_a_simulation_is_by_module(tab: Tab, tmp_path: Path) -> None:
    writer = Writer()
    for layer in range(4):
        for name, size in (("mlp.up_proj", 2 * MIB), ("attn", MIB)):
            frames = own_frames(
                f"model.layers.{layer}.{name}", "aten::mm", "forward", "activations"
            )
            writer._frames[f"{layer} {name}"] = [
                {"name": one.function, "filename": one.file, "line": 0} for one in frames
            ]
            writer.alloc(f"{layer} {name}", size, f"{layer} {name}")
    tab.open(page_of(writer, tmp_path, written_by="oomdoctor plan"))
    tab.until("parts.children.length > 0")
    assert tab.value("[...parts.children].map((one) => one.textContent)") == [
        "all 12.0 MiB",
        "model.layers.* 12.0 MiB",
        "mlp.up_proj.mm 8.00 MiB",
        "attn.mm 4.00 MiB",
    ]


@pytest.mark.parametrize("width", [390, 1280])
def test_texts_in_the_plot_cover_no_other(shown: Tab, width: int) -> None:
    shown.resize(width, 800)
    shown.until(f"innerWidth === {width} && page.plot.width === plot.clientWidth")
    covered = shown.value("""(() => {
        const { ctx } = page.plot, write = ctx.fillText.bind(ctx), texts = [];
        ctx.fillText = (text, x, y) => {
          const box = ctx.measureText(text), left = x - box.actualBoundingBoxLeft;
          const right = x + box.actualBoundingBoxRight;
          texts.push([text, left, right, y - box.actualBoundingBoxAscent, y]);
          write(text, x, y);
        };
        paintMarks(ctx, page.drawn);
        delete ctx.fillText;
        const pairs = texts.flatMap((one, at) => texts.slice(at + 1).map((other) => [one, other]));
        return [texts.length, pairs.filter(([one, other]) =>
          one[1] < other[2] && one[2] > other[1] && one[3] < other[4] && one[4] > other[3])];
    })()""")
    assert covered == [7, []]  # three steps, reserved, the limit, the request and the peak


def test_a_browser_without_what_it_needs_says_so(tab: Tab, file: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.html"
    text = file.read_text()
    start = text.index('id="data">') + len('id="data">')
    broken.write_text(text[:start] + "AAAA" + text[text.index("</script>", start) :])
    tab.open(broken)
    assert tab.value("problem.textContent").startswith("The timeline cannot be shown")
    tab.errors.clear()
