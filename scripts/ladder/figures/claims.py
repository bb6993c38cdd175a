"""The table of the papers' claims, held against what was measured and counted here."""

from ladder import course
from ladder.figures.measured import Measured, Missing, need
from ladder.figures.names import (POINTS, at_the_machine, length_text, markdown, number, point_text,
                                  whole_bytes)
from ladder.text import rate_text, time_text


def claims_table(files, _):
    rows = [[f'<a id="{claim["id"]}"></a>{claim["claim"]}', claim["source"], claim["how"],
             *judged(files, claim)] for claim in course.CLAIMS]
    lines = markdown(["claim", "where", "measured here as", "ours", "reproduced"], rows)
    if files.gpu.there:
        lines += ["", f"Ours are times on an {at_the_machine(files)}, where the row does not say "
                      "otherwise."]
    return [*lines, "", course.CLAIMS_NOTE]


def judged(files, claim):
    """What was found, and the verdict: its text, or whether the claim holds."""
    try:
        text, verdict = JUDGES[claim["kind"]](files, claim)
    except Missing:
        return ["not measured yet"] * 2
    return text, verdict if isinstance(verdict, str) else "yes" if verdict else "**no**"


def sum_of_times(files, parts, point):
    """{N: ms} of all parts together, where each was measured."""
    lines = [files.gpu.line(way, variant if rung == "pytorch" else (rung, variant), *point)
             for way, rung, variant in parts]
    return {n: sum(line[n]["time_ms"] for line in lines)
            for n in lines[0] if all(n in line for line in lines)}


def speed_ratios(files, claim):
    """[(how much faster `fast` is than `slow`, N, d, causal)] over the points both have."""
    ratios = []
    for point in POINTS:
        if point == (claim.get("head_dim", point[0]), claim.get("causal", point[1])):
            fast, slow = (sum_of_times(files, claim[side], point) for side in ("fast", "slow"))
            ratios += [(slow[n] / fast[n], n, *point) for n in fast
                       if n in slow and n in claim.get("lengths", [n])]
    return need(ratios)


def where(ratio):
    return f"N = {length_text(ratio[1])}, {point_text(*ratio[2:])}"


def speed(files, claim):
    found = speed_ratios(files, claim)
    lowest, highest = min(found), max(found)
    if highest[0] < claim["least"] or claim.get("best_alone"):
        verdict = highest[0] >= claim["least"]
    elif lowest[0] < claim["least"]:
        verdict = "in part"
    else:
        verdict = "yes, and more" if lowest[0] > claim.get("most", lowest[0]) else True
    least, most = rate_text(lowest[0]), rate_text(highest[0])
    return (f"{least}× to {most}× (most at {where(highest)})" if least != most
            else f"{most}× ({where(highest)})"), verdict


def less(files, claim):
    first, second = (max(speed_ratios(files, {**claim, "head_dim": d}))
                     for d in claim["head_dims"])
    return (" against ".join(f"{rate_text(one[0])}× ({where(one)})" for one in (second, first)),
            second[0] < first[0])


def growth(files, claim):
    texts, good = [], True
    for way, rung in claim["rungs"]:
        for source in (files.gpu, files.sim):
            sizes = {e.seqlen: e.per_head(e.workspace_bytes) for e in source.plain(
                way, rung=rung, head_dim=claim["head_dim"], causal=False)
                if source.is_default(e.step)}
            n = max((n for n in sizes if 2 * n in sizes), default=None)
            if n:
                after = sizes[2 * n]
                good = good and after <= claim["factor"] * sizes[n]
                texts.append(f"{number(rung)}: " + (
                    f"{whole_bytes(sizes[n])} a head at N = {length_text(n)}, "
                    f"{whole_bytes(after)} at {length_text(2 * n)}" if after else "none at any N"))
                break
    return "; ".join(need(texts)), good


def length(files, claim):
    ran = [e for way, rung in claim["rungs"] for e in files.gpu.plain(
        way, rung=rung, seqlen=claim["seqlen"], head_dim=claim["head_dim"])
        if files.gpu.is_default(e.step)]
    texts = [f"{number(e.rung)} {'causal ' if e.causal else ''}in {time_text(e.time_ms)}"
             for e in need(ran)]
    texts += [f"{number(step[0])} would need {gib} GiB"
              for step, one, gib in files.gpu.did_not_fit()
              if step[0] in claim["beside"] and one["seqlen"] == claim["seqlen"]][:1]
    return "; ".join(texts), True


def matrix(files, claim):
    rung, variant = claim["step"]
    found = [max(of, key=lambda e: e.seqlen) for source in (files.gpu, files.sim)
             if (of := source.plain("fwd", rung=rung, variant=variant, causal=False))]
    e = need(found)[0]
    each = e.per_head(e.workspace_bytes) / e.seqlen**2 / 2
    return (f"{each:g} bytes at N = {length_text(e.seqlen)}, so "
            f"{each * claim['seqlen']**2 / 2**30:g} GiB at {length_text(claim['seqlen'])}, twice, "
            "for each head", abs(each - claim["bytes"]) < 0.1)


def error(files, claim):
    """Both steps have the same inputs, and what the programs print is relative to the norm of the
    output in float64: so the errors have the ratio of their root mean squares."""
    counted = Measured(files.sim.path, claim["dtype"])
    wanted = {name: claim[name] for name in ("input", "head_dim") if name in claim}
    fast, slow = (need([e for e in counted.find("fwd", rung=rung, variant=variant, **wanted)
                        if not e.tiled and e.errors and e.has_settings(*settings)])[0]
                  for rung, variant, *settings in (claim["fast"], claim["slow"]))
    # Of a step that rounds its inputs the error is that against the inputs as they were.
    ours, theirs = (e.full_error()["rel"] for e in (fast, slow))
    return (f"{rate_text(theirs / ours)}× (N = {length_text(fast.seqlen)}, d = {fast.head_dim}: "
            f"{ours:.1e} of the output's norm against {theirs:.1e})",
            theirs / ours >= claim["least"])


def not_here(files, claim):
    return claim["why"], False


JUDGES = {"speed": speed, "less": less, "growth": growth, "length": length, "matrix": matrix,
          "error": error, "not_here": not_here}
