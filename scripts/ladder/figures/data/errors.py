"""Errors against float64."""

from ladder import course
from ladder.figures.data.missing import need
from ladder.figures.measured import Measured
from ladder.figures.names import PAPER_GRID, gpu_text, label
from ladder.grid import LOADED


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
            missing(f"no errors with --input {kind}: scripts/bench.py --sim")
    need(panels, "no errors: scripts/bench.py --sim")
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
    need(rows, "no errors of FP8: scripts/bench.py --sim")
    look = files.look(course.QUANTISED["step"])
    return {"title": "Root mean square error of O against float64, FP8 and fp16 (sim)",
            "panels": [{"title": title, "rows": [
                {**look, "label": text.replace("`", ""), "rms": errors[i]} for text, errors in rows]}
                for i, (title, _, _) in enumerate(course.QUANTISED["inputs"])]}
