"""Errors against float64."""

from ladder import course
from ladder.figures.measured import Measured, need
from ladder.figures.names import PAPER_GRID, gpu_text, label
from ladder.figures.style import INK, margins, marker, title_of
from ladder.bench.grid import LOADED


def error_rows(files, entries):
    """A row for each output of each step; of one with a backward pass for its gradients, as its
    forward is an earlier rung's."""
    rows = []
    for step, of in files.steps_of([e for e in entries if e.record["errors"]]):
        for e in of:
            for name, one in e.record["errors"].items():
                if not one or not one["tolerance"] or name == "lse" or (
                        name == "o" and files.own_way(step) == "bwd"):
                    continue
                what = "" if name == "o" else f" {name[0]}{name[1:].upper()}"  # dQ to a reader
                # JSON has no infinity, so an error without a value is not finite.
                rows.append({**files.look(step), "label": label(step, files) + what,
                             "max": one["max"] if not one["nonfinite"] else None,
                             "tolerance": one["tolerance"]})
    return rows


def error(files, missing):
    on_gpu = [e for e in files.gpu.entries if "--check full" in e.command]
    source = on_gpu or [e for e in files.sim.find("fwd", head_dim=64, seqlen=512, causal=False)
                        + files.sim.find("bwd", head_dim=64, seqlen=512, causal=False)
                        if not e.aside]
    where = gpu_text(files) if on_gpu else "sim"
    if not on_gpu:
        missing(f"no errors on a GPU, the sim's instead: {PAPER_GRID}")
    panels = []
    for kind, title in (("normal", "input N(0, 1)"),
                        ("outliers", "1 in 1000 of the input with N(0, 100) added")):
        entries = [e for e in source if e.input == kind]
        rows = error_rows(files, entries)
        if rows:
            r = entries[0].record
            panels.append({"title": title, "rows": rows,
                           "workload": f"N = {r['seqlen']}, d = {r['head_dim']}, {r['dtype']}"})
        else:
            missing(f"no errors with --input {kind}: scripts/figures measure --sim")
    need(panels, "no errors: scripts/figures measure --sim")
    return {"title": f"Largest error against float64: {panels[0]['workload']} ({where})",
            "panels": panels}


def quantised(files):
    """[(text, [root mean square error at each of course.QUANTISED's inputs])]: of the step in the
    I/O type, then of each row of the step with settings. None where it is not counted."""
    about = course.QUANTISED
    counted = Measured(files.sim.path, "fp16") if files.sim.there else None

    def errors_of(step, settings):
        found = []
        for _, d, kind in about["inputs"]:
            (_, heads, n, width, *_), source = ((0, 8, 1024, d), kind) if d else (
                LOADED[kind][0], "load")
            of = [e for e in counted.find("fwd", rung=step[0], variant=step[1], input=source,
                                          heads=heads, seqlen=n, head_dim=width)
                  if e.errors and e.has_settings(settings)]
            found.append(of[0].full_error()["rms"] if of else None)
        return found

    if not counted:
        return []
    rows = [(f"fp16, `{about['beside'][1]}`", errors_of(about["beside"], None))]
    rows += [(text, errors_of(about["step"], settings)) for text, settings in about["rows"]]
    return rows if all(None not in errors for _, errors in rows) else []


def fp8_error(files, missing):
    rows = quantised(files)
    need(rows, "no errors of FP8: scripts/figures measure --sim")
    look = files.look(course.QUANTISED["step"])
    return {"title": "Root mean square error of O against float64, FP8 and fp16 (sim)",
            "panels": [{"title": title, "rows": [
                {**look, "label": text.replace("`", ""), "rms": errors[i]}
                for text, errors in rows]}
                for i, (title, _, _) in enumerate(course.QUANTISED["inputs"])]}


def draw_error(plt, data):
    from matplotlib.ticker import LogLocator
    panels = data["panels"]
    most = max(len(panel["rows"]) for panel in panels)
    figure, grid = plt.subplots(1, len(panels), figsize=(1 + 5 * len(panels), 1.4 + 0.24 * most),
                                squeeze=False)
    for axis, panel in zip(grid.flat, panels):
        for i, row in enumerate(panel["rows"]):
            tint = row["colour"]
            if row["max"] is None:
                axis.text(row["tolerance"], i, "  not finite", va="center", fontsize=8,
                          color=tint, fontweight="bold")
            elif row["max"] > 0:
                axis.plot([row["max"], row["tolerance"]], [i, i], color=tint, lw=0.9, alpha=0.5)
                axis.plot(row["max"], i, marker=marker(row), color=tint,
                          ls="", markersize=7)
            axis.plot(row["tolerance"], i, marker="|", color=INK, ls="", markersize=11, mew=1.6)
        axis.set_yticks(range(len(panel["rows"])), [row["label"] for row in panel["rows"]])
        axis.set_ylim(len(panel["rows"]) - 0.4, -0.6)
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:.0e}".replace("e-0", "e-")
                                       .replace("e+00", ""))
        axis.tick_params(axis="x", which="minor", length=0)
        shown = [x for row in panel["rows"] for x in (row["max"], row["tolerance"]) if x]
        axis.set_xlim(min(shown) / 2, max(shown) * 2)
        axis.set_title(panel["title"])
        axis.set_xlabel("max |out - reference|; the bar is the tolerance")
    margins(figure, left=1.45, right=0.2, bottom=0.6, top=0.8, across=1.6)
    title_of(figure, data["title"])
    return figure


def draw_fp8_error(plt, data):
    from matplotlib.ticker import LogLocator
    panels = data["panels"]
    rows = len(panels[0]["rows"])
    figure, grid = plt.subplots(1, len(panels), squeeze=False, sharey=True,
                                figsize=(2.4 + 2.6 * len(panels), 1.5 + 0.24 * rows))
    for axis, panel in zip(grid.flat, panels):
        least = min(row["rms"] for row in panel["rows"]) / 2
        for i, row in enumerate(panel["rows"]):
            axis.plot([least, row["rms"]], [i, i], color=row["colour"], lw=0.9, alpha=0.5)
            axis.plot(row["rms"], i, marker=marker(row), color=row["colour"], ls="", markersize=7)
            axis.text(row["rms"] * 1.25, i, f"{row['rms']:.1e}".replace("e-0", "e-"), va="center",
                      fontsize=7, color=INK)
        axis.set_yticks(range(rows), [row["label"] for row in panels[0]["rows"]])
        axis.set_ylim(rows - 0.4, -0.6)
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(LogLocator(numticks=5))
        axis.set_xlim(least, max(row["rms"] for row in panel["rows"]) * 6)
        axis.set_title(panel["title"])
        axis.set_xlabel("RMSE")
    margins(figure, left=1.75, right=0.2, bottom=0.6, top=0.8, across=0.2)
    title_of(figure, data["title"])
    return figure
