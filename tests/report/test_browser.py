# SPDX-License-Identifier: Apache-2.0
# The page in Chromium: from disk without a request or a complaint, every figure drawn, toggles,
# sliders and keys at work, narrow and wide, light and dark; and served, where the explorer's
# numbers are those of `foci attend`. Skipped, with a line that says so, where there is no browser.
import base64
import json
import shutil
import subprocess
import time

import pytest
from serving import BINARY, attend, make_results, serving

webdriver = pytest.importorskip("selenium.webdriver", reason="no selenium: apt install "
                                "python3-selenium")
if not (shutil.which("chromium") and shutil.which("chromedriver")):
    pytest.skip("no chromium with its driver: apt install chromium chromium-driver",
                allow_module_level=True)
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

HEADLINE = "No mechanism beat dot on this budget."
# Every canvas of a figure has more than one colour in it, every plane has points.
BLANK = """
return [...document.querySelectorAll('figure canvas, canvas.map')].filter((canvas) => {
  const size = [canvas.width, canvas.height];
  const data = new Uint32Array(canvas.getContext('2d').getImageData(0, 0, ...size).data.buffer);
  return new Set(data).size < 3;
}).map((canvas) => canvas.closest('[id]').id).concat(
  [...document.querySelectorAll('svg.plane')].filter((plane) => !plane.querySelector('circle'))
    .map(() => 'plane'));"""
# Elements, but for what scrolls by itself, that stick out of the page.
WIDE = """
const wide = [...document.querySelectorAll('main *, .bar *')].filter((element) =>
  element.getBoundingClientRect().right > innerWidth + 1 && element.offsetParent !== null &&
  !element.closest('.scroll, pre, .unseen, svg'));
return [document.documentElement.scrollWidth - innerWidth,
        wide.map((element) => element.tagName + '.' + element.className)];"""
ROBUSTNESS = "Chart.getChart(document.querySelector('#robustness-0 canvas'))"
CORRUPTIONS = "Chart.getChart(document.querySelector('#corruptions canvas'))"
SERIES = f"return {ROBUSTNESS}.data.datasets.map((set) => set.label);"


class Browser:
    def __init__(self):
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium")
        for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                     "--hide-scrollbars", "--disable-background-networking", "--no-first-run"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(service=Service(shutil.which("chromedriver")),
                                       options=options)

    def open(self, url, width=1440, colours="light"):
        self.driver.get("about:blank")
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {
            "features": [{"name": "prefers-color-scheme", "value": colours},
                         {"name": "prefers-reduced-motion", "value": "reduce"}]})
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500})
        self.complaints()
        self.requests()
        self.driver.get(url)

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def find(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector):
        """What is read there now; the element may be another by the time one looks again."""
        return self.run("const e = document.querySelector(arguments[0]);"
                        "return e ? e.innerText : ''", selector)

    def click(self, selector):
        element = self.find(selector)
        self.run("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()

    def press(self, *keys):
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def focus(self, selector):
        self.run("document.querySelector(arguments[0]).focus()", selector)

    def focused(self):
        return self.run("return document.activeElement.id")

    def choose(self, selector, value):
        self.run("const e = document.querySelector(arguments[0]); e.value = arguments[1];"
                 "e.dispatchEvent(new Event(e.type === 'range' ? 'input' : 'change'))",
                 selector, value)

    def complaints(self):
        return [line["message"] for line in self.driver.get_log("browser")]

    def requests(self):
        """Addresses that were asked for, but for data that stands in the page."""
        found = []
        for line in self.driver.get_log("performance"):
            message = json.loads(line["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                found.append(message["params"]["request"]["url"])
        return [url for url in found if not url.startswith(("data:", "about:", "blob:"))]

    def until(self, true, seconds=20):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = true()
            if found:
                return found
            time.sleep(0.05)
        raise AssertionError("it did not become true")


@pytest.fixture(scope="module")
def browser():
    browser = Browser()
    yield browser
    browser.driver.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Pages as files, as `foci serve` hands them out to keep."""
    folder = tmp_path_factory.mktemp("pages")
    kinds = {"done": [], "running": ["--state", "running"], "failed": ["--state", "failed"],
             "stopped": ["--state", "stopped"], "one": ["--seeds", "1"]}
    with serving(folder) as server:
        for name, words in kinds.items():
            make_results(folder / "results.json", *words)
            (folder / f"{name}.html").write_bytes(server.ask("/report.html")[2])
        bare = {"schema": 1, "title": "bare", "mechanisms": [{"name": "dot"}, {"name": 3}, None],
                "measures": [{"name": "x", "group": "accuracy", "values": {"dot": "?"}}, 7],
                "maps": [{}], "ellipses": [{}], "curves": [], "runs": "none", "layers": {}}
        (folder / "results.json").write_text(json.dumps(bare))
        (folder / "bare.html").write_bytes(server.ask("/report.html")[2])
        (folder / "results.json").write_text(json.dumps(words_of_a_text()))
        (folder / "text.html").write_bytes(server.ask("/report.html")[2])
        make_results(folder / "results.json")
        (folder / "results.json").write_text(
            json.dumps(spread_out(json.loads((folder / "results.json").read_text()))))
        (folder / "spread.html").write_bytes(server.ask("/report.html")[2])
    whole = (folder / "done.html").read_text()
    begin, end = whole.index("<script>/*!"), whole.index("</script>", whole.index("<script>/*!"))
    (folder / "tables.html").write_text(whole[:begin] + whole[end + len("</script>"):])
    return {path.stem: path.as_uri() for path in folder.glob("*.html")}


def words_of_a_text():
    """Maps without an image: six tokens, one layer, two heads."""
    weights = {"layers": 1, "heads": 2, "data": base64.b64encode(bytes(range(72))).decode()}
    return {"schema": 1, "title": "words", "task": "text", "state": "done",
            "mechanisms": [{"name": "dot", "baseline": True}],
            "maps": [{"tokens": 6, "words": ["the", "cat", "<b>", "on", "a", "mat"],
                      "weights": {"dot": weights}}]}


def spread_out(results):
    """As many columns as a comparison has, with its titles; seeds that lie far apart."""
    titles = {"top5": "Before the attack, same images", "robust": "Under attack, linf 1/255",
              "corrupted": "Accuracy under corruption", "cosine": "Tokens alike",
              "memory": "Memory in training"}
    measures = {measure["name"]: measure for measure in results["measures"]}
    for measure in results["measures"]:
        measure["key"] = True
        measure["title"] = titles.get(measure["name"], measure["title"])
        for against in measure["against"].values():
            against["words"] = ("worse by 24.6 ± 21.3 points; may be chance, counting all "
                                "comparisons")
    measures["memory"].update(unit="MiB", mean={"dot": 312.5}, deviation={"dot": 1.25},
                              values={"dot": [311.25, 312.5, 313.75, 312.5]})
    measures["rate"].update(unit="samples/s", values={"dot": [4, 900, 20, 5]},
                            mean={"dot": 232.25}, deviation={"dot": 445.2})
    robust = results["measures"].index(measures["robust"])
    results["measures"].insert(robust + 1, {
        **measures["robust"], "name": "robust 2", "title": "Under attack, linf 2/255"})
    for curve in results["curves"]["corruptions"]:
        for points in curve["values"].values():
            points[0] = [0.99] * len(points[0])
    return results


@pytest.fixture
def page(browser, pages):
    browser.open(pages["done"])
    return browser


def test_it_opens_from_disk_without_a_request_or_a_complaint(page, pages):
    assert page.complaints() == []
    assert page.requests() == [pages["done"]]
    assert page.text("h1") == HEADLINE
    assert page.driver.title.startswith("dot, flat, random")  # no script of the data has run
    assert "foci serve" in page.text("#explorer")


def test_every_figure_is_drawn_and_has_a_table(page):
    figures = {figure.get_attribute("id") for figure in page.all("figure")}
    assert {"measure-top1", "robustness-0", "robustness-1", "corruptions", "layer-concentration",
            "layer-cosine", "layer-effective_rank", "measure-rate", "measure-memory",
            "training-loss"} <= figures
    assert len(page.all("canvas.map")) == 5 and len(page.all("svg.plane")) == 5
    assert page.run(BLANK) == []
    for figure in page.all("figure"):
        assert figure.find_elements(By.CSS_SELECTOR, "details table td")
    cells = [cell.get_attribute("textContent") for cell in page.all("#robustness-0 tbody td")]
    assert len(cells) == 4 * 5 and all("%" in cell for cell in cells)


@pytest.mark.parametrize("width", [360, 1440])
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_it_fits_and_has_its_colours(browser, pages, width, colours):
    browser.open(pages["done"], width, colours)
    assert browser.run(WIDE) == [0, []]
    assert browser.run(BLANK) == []
    paper = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(19, 22, 27)"}[colours]
    assert browser.complaints() == []
    first = browser.find("#answer")
    assert first.find_element(By.CSS_SELECTOR, "table").is_displayed()
    assert "no difference shown" in first.text
    assert "A demonstration. It has 3 seeds, where 10 are the least (--seeds 10)" in first.text
    assert "3 seeds · 300 steps a run, 0.32 epochs ·" in first.text


@pytest.mark.parametrize("width", [360, 1440, 1920])
def test_the_first_table_fits_with_all_its_columns(browser, pages, width):
    browser.open(pages["spread"], width)
    assert browser.run(WIDE) == [0, []]
    assert len(browser.all("#answer thead th")) == 10
    assert browser.run("const box = document.querySelector('#answer .scroll');"
                       "return box.scrollWidth - box.clientWidth") <= 0


def test_axes_hold_what_is_drawn(browser, pages):
    browser.open(pages["spread"])
    ends = "return ['min', 'max'].map((end) => {}.scales.{}[end])"
    speed = "Chart.getChart(document.querySelector('#measure-rate canvas'))"
    low, high = browser.run(ends.replace("{}", speed, 1).replace("{}", "x"))
    assert low == 0 and high >= 900
    assert browser.run(f"return {speed}.data.datasets[0].ends[0][0]") == 0
    browser.choose("#severity", "1")
    low, high = browser.run(ends.replace("{}", CORRUPTIONS, 1).replace("{}", "y"))
    assert low == 0 and high >= 0.99


def test_words_wrap_where_they_may(browser, pages):
    for width in (360, 1440):
        browser.open(pages["done"], width)
        flags = browser.all("#answer .unbroken")
        assert [flag.text for flag in flags] == ["(--seeds 10)", "--suite"]
        assert all(flag.size["height"] < 30 for flag in flags)
    assert "the attack may have been blind" in browser.text("#answer .flags"), "as it is given"
    assert browser.text("#answer thead th:nth-child(2) .samples") == "10,000 images"


def test_a_flag_says_where_it_stands_and_is_marked_there(page):
    places = page.text("#answer .flags")
    assert "gradient-masking (Robust accuracy, 2/255): " in places
    assert "few-samples: 64 images" in places
    marks = page.run("return [...document.querySelectorAll('#answer .doubted')].map((e) => "
                     "[e.closest('tr').querySelector('th .named').innerText,"
                     " e.closest('td').dataset.measure, e.title])")
    assert marks == [["random", "Robust accuracy, 2/255, 10,000 images",
                      "doubted: gradient-masking"]]
    cells = page.run("return [...document.querySelectorAll('#measure-robust tbody tr')]"
                     ".map((row) => [...row.cells].map((cell) => cell.textContent))")
    flagged = [(row[0], i) for row in cells for i, text in enumerate(row) if "⚑" in text]
    assert flagged == [("random", 2)]  # its second seed


def test_a_figure_alone_in_its_row_has_the_row(page):
    widths = page.run("return [...document.querySelectorAll('#accuracy figure, #concentration "
                      "figure, #robustness figure')].map((f) => [f.offsetTop, f.offsetWidth])")
    rows = {}
    for top, width in widths:
        rows.setdefault(top, []).append(width)
    assert {len(row) for row in rows.values()} >= {1, 2}
    assert all(sum(row) > 1090 for row in rows.values())


def test_losses_are_a_bold_mean_and_pale_runs(page):
    sets = page.run("return Chart.getChart(document.querySelector('#training-loss canvas')).data"
                    ".datasets.map((set) => [set.label, set.borderWidth, set.borderColor])")
    assert len(sets) == 5 * 4
    bold = [label for label, width, colour in sets if width > 2 and len(colour) == 7]
    assert bold == ["dot", "flat", "random", "layer-change", "key-covariance"]
    assert sum(width < 1 and len(colour) == 9 for _, width, colour in sets) == 15


def test_the_command_comes_with_all_its_flags(page):
    page.click("#all-flags summary")
    command = page.until(lambda: page.text("#reproduce-flags"))
    assert command.startswith("foci compare --note '<script>")
    assert command.endswith("' --steps 300 --out again")
    assert page.text("#reproduce") == "foci compare --plan compare/plan.json --out again"
    assert "synthetic" in page.text("#configuration") and "made" not in page.run(
        "return [...document.querySelectorAll('#configuration dt')].map((e) => e.textContent)")


def test_colours_can_be_chosen(page):
    shade = "return getComputedStyle(document.body).backgroundColor"
    light = page.run(shade)
    page.click("#theme")
    assert page.run(shade) == light and page.focused() == "theme"
    page.press(Keys.ENTER)
    assert page.run(shade) != light
    assert page.run(f"return {CORRUPTIONS}.options.scales.y.ticks.color") \
        == "#a6aeba"
    page.press(Keys.ENTER)
    assert page.run(shade) == light


def test_mechanisms_are_toggled_everywhere(page):
    assert page.run(SERIES) == ["dot", "flat", "random", "layer-change", "key-covariance"]
    page.click("#toggle-1")
    assert page.run(SERIES) == ["dot", "random", "layer-change", "key-covariance"]
    assert len(page.all("canvas.map")) == 4 and len(page.all("svg.plane")) == 4
    assert len(page.all("#answer tbody tr")) == 5
    assert page.focused() == "toggle-1"
    page.press(Keys.SPACE)
    assert len(page.run(SERIES)) == 5 and page.run(BLANK) == []


def test_the_severity_is_chosen(page):
    values = f"return {CORRUPTIONS}.data.datasets[0].data"
    mean = page.run(values)
    page.choose("#severity", "5")
    worst = page.run(values)
    assert len(mean) == len(worst) == 5 and all(a > b for a, b in zip(mean, worst))


def test_the_layer_of_the_ellipses_is_chosen(page):
    shapes = "return document.querySelector('#ellipses .panels').innerHTML"
    first = page.run(shapes)
    page.choose("#ellipse-place", "1 0")
    assert page.run(shapes) != first and len(page.all("svg.plane")) == 5
    assert "layer 1, head 0" in page.text("#ellipses .panels")


def test_maps_follow_keys_clicks_and_choices(page):
    picture = "return document.querySelector('#map-1').toDataURL()"
    query = "return Number(document.querySelector('#map-query').value)"
    first, at = page.run(picture), page.run(query)
    page.focus("#map-1")
    page.press(Keys.ARROW_RIGHT)
    assert page.run(query) == at + 1 and page.focused() == "map-1"
    assert page.run(picture) != first
    assert "patch in row" in page.find("#spoken").get_attribute("textContent")
    page.press(Keys.ARROW_UP)
    assert page.run(query) == at + 1 - 7
    page.press(Keys.END, Keys.ARROW_DOWN)
    assert page.run(query) == 49
    page.click("#map-2")  # its middle
    assert page.run(query) == at
    page.focus("#map-query")
    page.press(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert page.run(query) == at - 2 and page.focused() == "map-query"
    for control, value in (("#map-layer", "0"), ("#map-head", "1"), ("#map-view", "matrix")):
        before = page.run(picture)
        page.choose(control, value)
        assert page.run(picture) != before, control
    page.click("#image-1")
    assert page.find("#image-1").get_attribute("aria-pressed") == "true"
    assert page.run(BLANK) == []


def test_all_is_reached_by_keyboard(page):
    page.run("document.activeElement.blur(); window.scrollTo(0, 0)")
    seen = []
    for _ in range(120):
        page.press(Keys.TAB)
        name, tag, outline = page.run(
            "const e = document.activeElement;"
            "return [e.id || e.className, e.tagName, getComputedStyle(e).outlineStyle]")
        if tag == "BODY":  # all around
            break
        seen.append(name)
        assert outline == "solid" or name == "skip", (name, tag)
    assert seen[0] == "skip" and seen[1] == "toggle-0"
    for reached in ("theme", "map-layer", "map-query", "map-0", "take-csv", "print"):
        assert reached in seen


def test_a_figure_is_walked_with_arrow_keys(page):
    page.focus("#robustness-0 canvas")
    page.press(Keys.ARROW_RIGHT)
    first = page.find("#spoken").get_attribute("textContent")
    page.press(Keys.ARROW_RIGHT)
    assert "dot" in first and first != page.find("#spoken").get_attribute("textContent")
    page.press(Keys.ARROW_DOWN)
    assert "flat" in page.find("#spoken").get_attribute("textContent")


def test_numbers_are_taken_away(page):
    page.run("window.kept = []; URL.createObjectURL = (blob) => "
             "{ blob.text().then((text) => kept.push(text)); return '#'; };")
    page.click("#take-csv")
    page.click("#take-json")
    csv, text = page.until(lambda: (lambda kept: len(kept) == 2 and kept)(page.run("return kept")))
    lines = csv.split("\r\n")
    assert lines[0] == "measure,group,unit,mechanism,seed,value,flags"
    assert len(lines) == 1 + 8 * 5 * 3 + 1
    assert [line.split(",")[:1] + line.split(",")[3:5] for line in lines
            if line.endswith(",gradient-masking")] == [["robust", "random", "1"]]
    assert json.loads(text)["verdict"]["headline"] == HEADLINE


def test_it_prints(page):
    page.run("dispatchEvent(new Event('beforeprint'))")
    assert page.run("return document.documentElement.dataset.theme") == "light"
    page.run("dispatchEvent(new Event('afterprint'))")
    assert len(page.driver.execute_cdp_cmd("Page.printToPDF", {})["data"]) > 50000
    assert page.complaints() == []


@pytest.mark.parametrize("name, words", [
    ("running", ["Still running.", "9 of 15 runs done"]),
    ("stopped", ["Stopped.", "9 of 15 runs done; the same command goes on", "So far:"]),
    ("failed", ["1 run failed", "key-covariance, seed 2: the loss is not a number"]),
    ("one", ["too few seeds to say"]),
    ("bare", ["No answer yet."])])
def test_what_is_missing_is_said(browser, pages, name, words):
    browser.open(pages[name])
    assert browser.complaints() == []
    text = browser.text("#answer")
    assert all(part in text for part in words)
    assert "NaN" not in browser.text("main")
    assert "undefined" not in browser.text("main")


def test_maps_of_words_have_no_image(browser, pages):
    browser.open(pages["text"])
    assert browser.complaints() == [] and browser.run(BLANK) == []
    assert browser.all("#map-view") == [] and len(browser.all("canvas.map")) == 1
    browser.focus("#map-0")
    browser.press(Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    assert browser.text("label[for=map-query]") == "Query: “<b>”"
    browser.click("#map-numbers summary")
    browser.until(lambda: len(browser.all("#map-numbers tbody tr")) == 6)
    browser.focus("#map-0")
    browser.press(Keys.ARROW_DOWN)  # it stays open, with other numbers
    browser.until(lambda: len(browser.all("#map-numbers tbody tr")) == 6)


def test_without_chart_js_figures_are_tables(browser, pages):
    browser.open(pages["tables"])
    assert browser.complaints() == []
    assert browser.all("figure canvas") == []
    assert all(figure.find_element(By.CSS_SELECTOR, "table").is_displayed()
               for figure in browser.all("figure"))
    assert "no Chart.js: figures are tables" in browser.text("#take")
    browser.click("#toggle-1")
    assert len(browser.all("canvas.map")) == 4


ASKED = """window.asked = [];
const send = window.fetch;
window.fetch = async (...words) => {
  const reply = await send(...words);
  if (words[0] === 'explore') asked.push([JSON.parse(words[1].body), await reply.clone().json()]);
  return reply;
};"""
ROWS = """return [...document.querySelectorAll('#explorer-numbers tbody tr')].map((row) =>
  Number(row.lastChild.textContent.replace('−', '-')));"""
SETTINGS = [
    [("#explore-metric", "key-covariance"), ("#explore-ridge", "-1"), ("#explore-prior", "8")],
    [("#explore-scaling", "auto")],
    [("#explore-metric", "layer-change"), ("#explore-normalize", "mean"),
     ("#explore-change-y", "1.5")],
    [("#explore-scaling", "own"), ("#explore-scale", "0.3")],
    [("#explore-form", "product"), ("#explore-weighting", "relu2")],
    [("#explore-cloud", "4"), ("#explore-x", "0.2")],
    [("#explore-weighting", "decay"), ("#explore-rate", "0.8")],
    [("#explore-content", "yes")],
    [("#explore-weighting", "relu2"), ("#explore-x", "0.3")],
]


def explored(browser):
    """The last question and answer, once the page shows it."""
    def settled():
        pair = browser.run("return asked.length ? asked[asked.length - 1] : null")
        shown = browser.run("const e = document.querySelector('#explorer-concentration');"
                            "return e && Number(e.dataset.value)")
        return pair if pair and shown == pair[1].get("concentration") else None
    time.sleep(0.15)
    try:
        return browser.until(settled)
    except AssertionError:
        raise AssertionError(browser.text("#explorer-fault")) from None


def test_the_explorer_shows_what_attend_says(browser, tmp_path):
    make_results(tmp_path / "results.json")
    with serving(tmp_path) as server:
        browser.open(server.url)
        browser.until(lambda: browser.all("#explorer-concentration"))
        browser.run(ASKED)
        seen = set()
        for setting in SETTINGS:
            for control, value in setting:
                browser.choose(control, value)
            question, answer = explored(browser)
            expected = attend(tmp_path, question)
            for name, value in expected.items():
                assert answer[name] == value, name
                if name != "weights":
                    shown = browser.find(f"#explorer-{name}").get_attribute("data-value")
                    assert float(shown) == value
            rows = browser.run(ROWS)
            assert rows == pytest.approx(expected["weights"], rel=1e-5, abs=1e-9)
            discs = browser.run("return [...document.querySelectorAll('#explorer-plane .weight')]"
                                ".map((disc) => Number(disc.getAttribute('r')))")
            total = sum(abs(w) for w in expected["weights"])
            assert discs == pytest.approx([46 * (abs(w) / total) ** 0.5
                                           for w in expected["weights"]], abs=1e-6)
            seen.add(json.dumps(expected))
        assert len(seen) == len(SETTINGS)
        browser.focus("#explorer-plane")
        before = question["q"]
        browser.press(Keys.ARROW_UP)
        assert explored(browser)[0]["q"][0][1] > before[0][1]
        assert browser.focused() == "explorer-plane"
        browser.choose("#explore-metric", "key-covariance")
        browser.until(lambda: "relu2" in browser.text("#explorer-fault"))
        assert browser.run("return document.querySelectorAll('.stale').length") == 1
        faults = [line for line in browser.complaints() if "400" not in line]
        assert faults == []
        assert all(url.startswith(f"http://127.0.0.1:{server.port}/")
                   for url in browser.requests())


def test_it_follows_what_changes_and_says_when_the_server_is_gone(browser, tmp_path):
    with serving(tmp_path) as server:
        browser.open(server.url)
        assert "No answer yet." in browser.text("h1")
        make_results(tmp_path / "results.json", "--state", "running")
        browser.until(lambda: "9 of 15 runs done" in browser.text("#answer"))
        browser.run("document.querySelector('#toggle-2').click(); window.same = true")
        browser.focus("#map-layer")
        make_results(tmp_path / "results.json")
        browser.until(lambda: "Still running" not in browser.text("#answer"))
        assert browser.run("return window.same") and browser.focused() == "map-layer"
        assert not browser.find("#toggle-2").is_selected()
        browser.run("document.querySelector('#explore-x').focus()")
    browser.choose("#explore-x", "0.1")
    browser.until(lambda: "does not answer any more" in browser.text("#explorer-fault"))


def test_with_a_token_the_address_opens_it_and_forgets_it(browser, tmp_path):
    make_results(tmp_path / "results.json")
    with serving(tmp_path, "--token") as server:
        browser.open(server.url)
        assert browser.text("h1") == HEADLINE
        assert "token" not in browser.driver.current_url
        browser.until(lambda: browser.all("#explorer-concentration"))
        browser.driver.delete_all_cookies()
        browser.open(server.url.split("?")[0])
        assert "a token is needed" in browser.text("body")


COMPARE = """--model dim=16!depth=2!heads=2!patch=14!batch=20!judge-count=8 --seeds 2 --steps 4
--mechanisms dot,layer-change --attack apgd-ce,square --eps 8,16 --iterations 2 --queries 4
--attack-samples 6 --check 2 --corruptions fog,contrast --severity 1,3 --corrupt-samples 8
--measure-samples 4 --maps 2 --threads 2 --quiet --out it's!compared"""


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """The folder of a comparison that foci makes in seconds."""
    if not (BINARY / "foci-torch").exists():
        pytest.skip("this build has no foci compare")
    folder = tmp_path_factory.mktemp("compared")
    foci = str((BINARY / "foci").resolve())
    subprocess.run([foci, "data", "make", "images", "--out", "images", "--count", "60"],
                   check=True, cwd=folder)
    words = [word.replace("!", " ") for word in COMPARE.split()]
    subprocess.run([foci, "compare", "--data", "images", *words], check=True, cwd=folder)
    return folder / "it's compared"


def test_the_page_of_a_real_comparison(browser, compared):
    browser.open((compared / "report.html").as_uri())
    assert browser.complaints() == []
    assert browser.requests() == [(compared / "report.html").as_uri()]
    results = json.loads((compared / "results.json").read_text())
    browser.run("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    figures = {figure.get_attribute("id") for figure in browser.all("figure")}
    assert {"measure-top1", "robustness-0", "robustness-1", "corruptions", "training-loss",
            "measure-train_per_second", "measure-peak_mebibytes"} <= figures
    assert {f"layer-{layer['name']}" for layer in results["layers"]} <= figures
    assert len(browser.all("canvas.map")) == 2 and len(browser.all("svg.plane")) == 2
    browser.until(lambda: browser.run(BLANK) == [])
    text = browser.text("main")
    assert "NaN" not in text and "undefined" not in text and "null" not in text
    assert browser.text("#reproduce") == results["reproduce"]
    assert browser.text("#reproduce-flags") == results["reproduce_flags"]
    links = [link.get_attribute("href") for link in browser.all("#take a[href^='figures/']")]
    assert len(links) == len(results["figures"])
    names = {figure["file"] for figure in results["figures"]}
    assert {"figures/heat-maps.svg", "figures/ellipses-0.svg", "figures/ellipses-1.svg",
            "figures/robustness.svg", "figures/robustness-2.svg"} <= names
    for link in links:
        browser.open(link)
        assert browser.complaints() == []
        assert browser.run("return document.querySelectorAll('svg path, svg image').length") > 0
