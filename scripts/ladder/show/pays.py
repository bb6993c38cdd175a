"""Finds where each step pays: the workload with its largest gain over the step that it follows, in
time on the GPU and, on the simulator, in the count that its idea is about."""

from __future__ import annotations

from ladder.base.programs import Ladder, Step
from ladder.base.records import MOVES, Point, Record, count_of
from ladder.base.text import NO_VALUE, counts_text, rate_text, time_text
from ladder.show.measured import (Files, Measured, length_text, linked, markdown, need, number,
                                  of_the_paper, point_text)

# A gain must exceed this fraction to be shown, in one run and in two. It may still be chance: two
# times of one kernel in one run have differed by 8%.
ONE_RUN, TWO_RUNS = 0.02, 0.05
# A word in the key of a count → the word in the text.
WORDS = {"exps": "exponentials", "flops": "FLOPs", "hbm": "global-memory",
         "matmul": "matrix-product", "products": "matrix instructions", "sram": "shared-memory"}


class Pair:
    """The records of a step (`new`) and of the step that it follows (`old`) at one workload. The
    step is `ratio` times as fast (0: no times); `gain` is that minus ONE_RUN or TWO_RUNS."""

    def __init__(self, old: Record, new: Record) -> None:
        self.records = (old, new)
        self.ratio = old["time_ms"] / new["time_ms"] if "time_ms" in old and "time_ms" in new else 0
        self.two_runs = any(old.get(name) != new.get(name) for name in ("commit", "date"))
        self.gain = self.ratio - (TWO_RUNS if self.two_runs else ONE_RUN)
        self.place = place(new)

    def moved(self, step: Step) -> float:
        """Returns how many times larger or smaller the count of the step's idea becomes; 0 if it
        does not move as registered, or is registered for the other mask."""
        count, how, options = step.change
        if not count or self.records[1]["causal"] != ("--causal" in options):
            return 0
        old, new = (count_of(record, count) or 0 for record in self.records)
        return max(old, new) / max(min(old, new), 1) if MOVES[how](old, new) else 0


def place(record: Record) -> str:
    """Returns a workload in words. N, d and the mask suffice for the paper's workload, and for one
    head on the simulator."""
    n, keys, heads, kv_heads = (record[name] for name in (
        "seqlen", "seqlen_kv", "heads", "kv_heads"))
    words = [f"N = {length_text(n)}" + f" over {length_text(keys)} keys" * (keys != n),
             point_text(record["head_dim"], record["causal"])]
    if record["device"] == "gpu" and not of_the_paper(record):
        words += [f"batch {record['batch']}",
                  f"{heads} heads" + f" over {kv_heads} of K and V" * (kv_heads != heads)]
    return ", ".join(words)


def pairs(measured: Measured, way: str, old: Step, new: Step) -> list[Pair]:
    """Returns a Pair for each workload that `measured` has for both steps, by Point.key()."""
    before = {Point.key(r): r for r in measured.plain(way, rung=old.rung, step=old.name)}
    return sorted((Pair(before[Point.key(r)], r)
                   for r in measured.plain(way, rung=new.rung, step=new.name)
                   if Point.key(r) in before), key=lambda pair: Point.key(pair.records[1]))


def pays(files: Files, only: str = "") -> list[str]:
    """Returns a table of all steps that follow another or, for one ("05/rows"), its sentence."""
    ladder, gpu, rows = Ladder(files.sim.steps.values()), files.gpu.name, []
    for step in ladder.steps:
        old, name = ladder.before(step), f"{number(step.rung)}/{step.name}"
        if not old or only not in ("", name):
            continue
        timed, counted = (pairs(measured, files.own_way(step.key), old, step)
                          for measured in (files.gpu, files.sim))
        timed = [pair for pair in timed if pair.ratio]
        cells = ["nowhere" if timed else "not measured yet", *[NO_VALUE] * 4]
        text = (f"*Time:* it is no faster than `{old.name}` at any of the {len(timed)} workloads "
                f"measured ({gpu})." if timed else "*Time:* it is not measured yet.")
        if step.repeats:
            cells[0] = "the same kernel in another form"
            text = f"*Time:* the tables leave it out, because it is `{old.name}` in another form."
        best = max(timed, key=lambda pair: pair.gain, default=None)
        if best and best.gain > 1:
            ratio = rate_text(best.ratio)
            cells[:3] = [best.place, " → ".join(time_text(r["time_ms"]) for r in best.records),
                         ratio + "*" * best.two_runs]
            text = (f"*Where it pays:* most at {best.place}. There it is {ratio} times as fast as "
                    f"`{old.name}` ({gpu}{'; two separate runs' * best.two_runs}).")
        most = max(counted[::-1], key=lambda pair: pair.moved(step), default=None)
        if most and most.moved(step):
            count = step.change[0]
            was, now = counts_text(count, *(count_of(r, count) or 0 for r in most.records))
            words = " ".join(WORDS.get(word, word) for word in count.split("_"))
            cells[3:] = [f"{words} {was} → {now}", most.place]
            text += (f" *What it changes:* {words}, from {was} to {now} (simulator, one head, "
                     f"{most.place}).")
        if only:
            return [text]
        rows.append([linked(step.key, "../../"), f"`{old.name}`", *cells])
    return [
        f"Times are from an {gpu} in {files.gpu.dtype}. Unless a row says otherwise, there are 16k "
        "tokens in total and a hidden size of 2,048. *Time*: the previous step's → this step's. "
        f"*Nowhere*: all ratios are below {1 + ONE_RUN:.2f} or, between two runs (*), below "
        f"{1 + TWO_RUNS:.2f}. Any ratio below 1.08 may be chance. *Its count* is for one head. "
        "Some ideas raise their count, and some steps have none.",
        "", *markdown(["step", "follows", "gains most time at", "time", "ratio", "its count",
                       "at"], need(rows), (3, 4))]
