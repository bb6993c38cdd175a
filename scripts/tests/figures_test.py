"""Tests the figures and tables of scripts/figures draw. Most tests change the committed results in
memory; DrawTest draws from files. results_test compares the committed figures and tables."""

import json
import os
import pickle
import re
from unittest import mock

from support import RESULTS, ROOT, SCRIPTS, Scratch, expect_output, like, read
from ladder.base.files import course_pages, json_text, newest_measured, read_lines
from ladder.show import draw, measured
from ladder.show.draw import renewed, stale
from ladder.show.gallery import FIGURES, TABLES, figure_data, table
from ladder.show.measured import Files

GPU = os.path.basename(newest_measured())
COMMITTED = {name: read_lines(os.path.join(RESULTS, name)) for name in os.listdir(RESULTS)
             if name.endswith(".jsonl")}
PICKLED = pickle.dumps(COMMITTED)  # ten times as fast to load as to copy


class Changed(Scratch):
    """A test with the measurements in self.data, {file's name: its lines}, which it may change."""

    def setUp(self):
        super().setUp()
        self.data = pickle.loads(PICKLED)
        patch = mock.patch.object(
            measured, "read_lines", lambda path: self.data.get(os.path.basename(path), []))
        patch.start()
        self.addCleanup(patch.stop)

    def drop(self, which, *names, kind="run"):
        """Drops the lines of a kind that satisfy `which` from these files (default: the GPU's)."""
        for name in names or [GPU]:
            self.data[name] = [r for r in self.data[name] if r["kind"] != kind or not which(r)]

    def records(self, name=GPU, kind="run", **wanted):
        return [r for r in self.data[name] if like(r, kind=kind, **wanted)]

    def figures(self):
        """Returns the data of the figures that have any."""
        return {name: data for name, data in figure_data(Files(GPU)).items() if data}

    def table(self, name):
        return table(Files(GPU), name)


class FiguresTest(Changed):
    def test_missing_data_match_the_expected_output(self):
        """expected_output.md lists the figures and tables that go missing without some data."""
        shown = []
        for what, change in (
                ("peers", lambda: self.drop(bool, kind="peer")),
                ("ceilings", lambda: self.drop(bool, kind="ceilings")),
                ("06", lambda: self.drop(lambda r: r["rung"] == "06_backward")),
                ("tiles", lambda: self.drop(lambda r: "--block" in r["options"], GPU, "sim.jsonl")),
                ("the simulator", lambda: self.drop(bool, "sim.jsonl")),
                ("profile", lambda: self.drop(bool, kind="profile"))):
            self.data = pickle.loads(PICKLED)
            change()
            files = Files(GPU)
            shown += [f"without {what}:",
                      *(name for name, data in figure_data(files).items() if not data), "and",
                      *(name for name in TABLES if name != "models" and table(
                          files, name).startswith("*Not measured yet"))]
        expect_output(self, "what is left out",
                      " ".join(shown).replace(" without", "\nwithout") + "\n")

    def test_which_step_stands_for_a_rung(self):
        """The last step that ran on this GPU stands for its rung, but never an aside."""
        alone = {s["step"] for s in self.records(kind="step", exact_architecture=True)}
        self.drop(lambda r: r["step"] in (*alone, "stored", "recompute", "stages")
                  or r["step"] == "split_sums" and r["rung"] == "06_backward")
        data = self.figures()
        self.assertEqual([line["label"] for line in data["tflops_fwd"]["panels"][0]["lines"]
                          if line["rung"] == "05_flash_v2"], ["05 large_tiles"])
        self.assertEqual([[bar["label"] for bar in panel["bars"] if bar["default"]][-1:]
                          for panel in data["speedup_steps"]["panels"][1:3]],
                         [["05 large_tiles"], []])
        self.assertEqual(data["speedup_steps"]["panels"][2]["bars"][0]["label"], "06 deterministic")
        self.assertNotIn("tflops_bwd", data)

    def test_results_that_are_not_finite_have_no_error(self):
        for r in self.records(rung="05_flash_v2", step="large_tiles", input="outliers"):
            r["errors"]["o"]["nonfinite"] = 1
        rows = self.figures()["error"]["panels"][1]["rows"]
        self.assertEqual([r["label"] for r in rows if r["max"] is None], ["05 large_tiles"])

    def test_the_order_of_lines_changes_nothing(self):
        """Only a table's rows may change their order. (Runs with B = 64, N = 1 are dropped, because
        of two KV caches of the same size the first is drawn.)"""
        self.drop(lambda r: r["batch"] == 64 and r["seqlen"] == 1)
        shown = lambda: (self.figures(), [sorted(re.findall(r"[\w.-]+", self.table(name)))
                                          for name in TABLES])
        before = shown()
        for lines in (self.data[GPU], self.data["sim.jsonl"]):
            lines.sort(key=lambda line: line["kind"] in ("run", "peer"))
            first = [line["kind"] in ("run", "peer") for line in lines].index(True)
            lines[first:] = reversed(lines[first:])
        self.assertEqual(shown(), before)

    def test_a_rung_that_is_added_shows_up(self):
        for kind, more in (("run", {}), ("step", {"colour": "#abcdef", "default": True})):
            self.data[GPU] += [{**line, "rung": "07_toy", "step": "toy", **more} for line in
                               self.records(kind=kind, rung="05_flash_v2", step="large_tiles")]
        data = self.figures()
        for name in ("speedup", "speedup_steps", "tflops_fwd", "traffic", "roofline", "error"):
            self.assertIn('"colour": "#abcdef", "marker": "<"', json.dumps(data[name]), name)
        self.assertIn("| [07 `toy`](07_toy/README.md) | ", self.table("ladder"))
        self.assertIn("ours is 07's `toy` forward and 06's `sm90` backward.", self.table("peers"))


class TablesTest(Changed):
    def test_grouped_heads_are_not_the_papers_workload(self):
        before = self.table("steps"), self.table("peers")
        self.data[GPU] += [{**r, name: 1, "time_ms": 1, "workspace_bytes": r["seqlen"]**2}
                           for r in self.records(head_dim=64, options="--check off")
                           for name in ("kv_heads", "seqlen_kv")]
        self.assertEqual((self.table("steps"), self.table("peers")), before)

    def test_equal_times_are_a_ratio_of_1(self):
        for r in (*self.records(), *self.records(kind="peer")):
            r["tflops"], r["time_ms"] = 100, 1
        self.assertRegex(self.table("models"), r"1 or more for (\d+) of \1\b")

    def test_a_stale_table_of_several_pages(self):
        files = Files(GPU)
        old = self.write("old.md", "<!-- models:begin -->\nold\n<!-- models:end -->\n")
        good = self.write("good.md", renewed(old, files)[0])
        with mock.patch.object(draw, "course_pages", lambda: [copy]), \
                mock.patch.object(draw, "draw"):
            copy = self.write("copy.md", read(old))
            draw.main([GPU, "--readme"])
        self.assertRegex(read(copy), r"^<!-- models:begin -->\n\n\*Peer\*")
        self.assertEqual(read(copy), read(good))
        self.assertEqual(sum("old.md is stale" in line for line in
                             stale(files, self.root, [good, old, good])), 1)

    def test_each_figure_and_table_is_on_a_page(self):
        pages = "".join(map(read, course_pages()))
        self.assertEqual(sorted(re.findall(r"<!-- (\w+):begin -->", pages)), sorted(TABLES))
        self.assertEqual(sorted(name for _, name, *_ in draw.BLOCK.findall(pages)
                                if "/" not in name), sorted(TABLES))
        self.assertEqual([name for name in FIGURES if f"figures/{name}.svg)" not in pages], [])

    def test_a_table_names_the_date_of_a_single_run(self):
        """Without any run at its N the table is missing."""
        [run] = self.records(seqlen=2048, batch=8, heads=32, step="large_tiles", causal=False,
                             dtype="bf16", options="--check off")
        self.drop(lambda r: r["seqlen"] == 2048 and r != run)
        self.assertIn(f", {run['date']}. ", self.table("ladder"))
        self.drop(lambda r: r["seqlen"] == 2048)
        for name in ("ladder", "steps", "flash_v2"):
            self.assertIn("Not measured yet", self.table(name))

    def test_each_lesson_says_where_its_steps_pay(self):
        steps = re.findall(r"\| \[(\d+) `(\w+)`\]\(\.\./\.\./([\w/.]+)", self.table("pays"))
        found = [(*step, os.path.relpath(page, ROOT)) for page in course_pages()
                 for step in re.findall(r"<!-- pays (\d+)/(\w+):begin", read(page))]
        self.assertGreater(len(steps), 30)
        self.assertEqual(sorted(found), sorted(steps))

    def test_where_a_step_pays(self):
        """A gain counts from 2% on if both steps were measured at one commit, else from 5% on.
        Missing times are reported."""
        said = []
        old, rows = (self.records(rung="05_flash_v2", step=step) for step in ("defer", "rows"))
        for ratio, commit in ((1.01, "one"), (1.03, "one"), (1.03, "two"), (1.06, "two")):
            for r in old + rows:
                r.update(time_ms=103, commit="one", date="2026-01-01")
            for r in rows:
                r.update(time_ms=103 / ratio, commit=commit)
            said += re.findall(r"no faster|[\d.]+ times", self.table("pays 05/rows"))
        self.assertEqual(said, ["no faster", "1.03 times", "no faster", "1.06 times"])
        self.drop(lambda r: r in rows)
        self.assertRegex(self.table("pays"), r"05 `rows`.* \| `defer` \| not measured yet \|")


class DrawTest(Scratch):
    """Tests which figures are drawn into files, and which of them count as stale."""

    def setUp(self):
        super().setUp()
        for name, lines in COMMITTED.items():
            self.write(name, json_text(lines))

    def plot(self, *words, status=0):
        result = self.run_it(os.path.join(SCRIPTS, "figures"), "draw", *words, status=None,
                             MPLBACKEND="of a notebook")
        if result.returncode == 3 and "matplotlib is missing" in result.stderr and not (
                os.environ.get("CI")):
            self.skipTest(result.stderr.strip())
        self.assertEqual(result.returncode, status, result.stderr)
        return result.stderr

    def stale(self):
        return [os.path.basename(line) for line in stale(Files(self.at(GPU)), self.at("one"), [])]

    def test_figures_are_drawn_and_go_stale(self):
        self.plot(GPU, "--out", "one")
        self.assertEqual(sorted(os.listdir(self.at("one"))), sorted(f"{n}.svg" for n in FIGURES))
        self.assertEqual(self.stale(), [])
        before = self.read("one/error.svg")
        # A figure whose data and code are the same is kept; after a change of code it is redrawn.
        touched = before.replace("</svg>", "\n</svg>")
        for svg, kept in ((touched, True), (re.sub("[0-9a-f]<", "x<", touched), False)):
            self.write("one/error.svg", svg)
            said = self.plot(GPU, "--out", "one")
            self.assertEqual("one/error.svg shows these measurements already" in said, kept)
            self.assertEqual(self.read("one/error.svg"), svg if kept else before)

        os.unlink(self.at("one/error.svg"))
        data = pickle.loads(PICKLED)
        for line in data["sim.jsonl"]:
            if like(line, kind="run", rung="04_flash_v1", seqlen=1024):
                line["distinct_read_bytes"] += 4096
        self.write("sim.jsonl", json_text(data["sim.jsonl"]))
        self.write(GPU, json_text(line for line in data[GPU] if line["kind"] != "ceilings"))
        self.assertEqual(self.stale(), [
            "traffic.svg is stale", "roofline.svg shows data that the files no longer have",
            "shared_roof.svg shows data that the files no longer have", "error.svg is missing",
            "roofline_tiles.svg shows data that the files no longer have"])
        # A redrawn figure is identical to the byte; a figure without data is removed.
        self.assertIn("roofline is left out: `scripts/figures measure --help`",
                      self.plot(GPU, "--out", "one"))
        self.assertEqual(self.read("one/error.svg"), before)
        self.assertFalse(os.path.exists(self.at("one/roofline.svg")))

    def test_bad_files(self):
        self.write("bad.jsonl", '{"machine": 1}')
        for words, why in ((("bad.jsonl",), "was not written by scripts/figures measure"),
                           (("sim.jsonl",), "sim.jsonl holds no GPU's measurements"),
                           ((".",), "Is a directory")):
            self.assertIn(why, self.plot(*words, status=2))
