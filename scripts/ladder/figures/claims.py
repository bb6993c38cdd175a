"""The table of the papers' claims, held against what was measured and counted here."""

import re

from ladder import course
from ladder.console import NO_DEVICE
from ladder.figures.measured import Measured
from ladder.figures.names import length_text, number, point_text, whole_bytes
from ladder.figures.tables import at_the_machine, markdown
from ladder.text import ratio_text, time_text

NOT_YET = "not measured yet"


def claims_table(files):
    rows = [[f'<a id="{claim["id"]}"></a>{claim["claim"]}', claim["source"], claim["how"],
             *JUDGES[claim["kind"]](files, claim)] for claim in course.CLAIMS]
    lines = markdown(["claim", "where", "measured here as", "ours", "reproduced"], rows)
    if files.gpu.there:
        lines += ["", f"Ours are times on an {at_the_machine(files)}, where the row does not say "
                      "otherwise."]
    return [*lines, "", course.CLAIMS_NOTE]


def times(files, way, rung, variant, d, causal):
    """{N: ms} over the paper's workload."""
    if rung == "pytorch":
        return {r["seqlen"]: r["time_ms"] for r in files.gpu.paper_peers(way, variant, d, causal)}
    return {e.seqlen: e.time_ms for e in files.gpu.paper(way, None, d, causal)
            if e.step == (rung, variant)}


def sum_of_times(files, parts, d, causal):
    """{N: ms} of all parts together, where each was measured."""
    every = [times(files, *part, d, causal) for part in parts]
    return {n: sum(one[n] for one in every) for n in every[0] if all(n in one for one in every)}


def speed_ratios(files, claim):
    """[(how much faster `fast` is than `slow`, N, d, causal)] over the points both have."""
    ratios = []
    for d in (64, 128):
        for causal in (False, True):
            if d != claim.get("head_dim", d) or causal != claim.get("causal", causal):
                continue
            fast, slow = (sum_of_times(files, claim[side], d, causal) for side in ("fast", "slow"))
            ratios += [(slow[n] / fast[n], n, d, causal) for n in fast if n in slow
                       and n in claim.get("lengths", [n])]
    return ratios


def where(ratio):
    return f"N = {length_text(ratio[1])}, {point_text(*ratio[2:])}"


def range_text(lowest, highest):
    least, most = ratio_text(lowest[0]), ratio_text(highest[0])
    return (f"{least}× to {most}× (most at {where(highest)})" if least != most
            else f"{most}× ({where(highest)})")


def speed(files, claim):
    found = speed_ratios(files, claim)
    if not found:
        return NOT_YET, NOT_YET
    lowest, highest = min(found)[0], max(found)[0]
    if highest < claim["least"]:
        verdict = "**no**"
    elif claim.get("best_alone"):
        verdict = "yes"
    elif lowest < claim["least"]:
        verdict = "in part"
    else:
        verdict = "yes, and more" if lowest > claim.get("most", lowest) else "yes"
    return range_text(min(found), max(found)), verdict


def less(files, claim):
    every = [speed_ratios(files, {**claim, "head_dim": d}) for d in claim["head_dims"]]
    if not all(every):
        return NOT_YET, NOT_YET
    first, second = (max(of) for of in every)
    return (" against ".join(f"{ratio_text(one[0])}× ({where(one)})" for one in (second, first)),
            "yes" if second[0] < first[0] else "**no**")


def growth(files, claim):
    found = []
    for way, rung in claim["rungs"]:
        for source in (files.gpu, files.sim):
            sizes = {e.seqlen: e.workspace_bytes / e.heads_in_all() for e in source.plain(
                way, rung=rung, head_dim=claim["head_dim"], causal=False)
                if source.is_default(e.step)}
            doubled = [n for n in sizes if 2 * n in sizes]
            if doubled:
                n = max(doubled)
                found.append((rung, sizes[n], sizes[2 * n], n))
                break
    if not found:
        return NOT_YET, NOT_YET
    texts, good = [], True
    for rung, before, after, n in found:
        if after == 0:
            texts.append(f"{number(rung)}: none at any N")
        else:
            good = good and after <= claim["factor"] * before
            texts.append(f"{number(rung)}: {whole_bytes(before)} a head at N = {length_text(n)}, "
                         f"{whole_bytes(after)} at {length_text(2 * n)}")
    return "; ".join(texts), "yes" if good else "**no**"


def length(files, claim):
    ran = [e for way, rung in claim["rungs"] for e in files.gpu.plain(
        way, rung=rung, seqlen=claim["seqlen"], head_dim=claim["head_dim"])
        if files.gpu.is_default(e.step)]
    if not ran:
        return NOT_YET, NOT_YET
    text = "; ".join(f"{number(e.rung)} {'causal ' if e.causal else ''}in {time_text(e.time_ms)}"
                     for e in ran)
    for one in files.gpu.skipped:
        needs = re.search(r"needs ([\d.]+ GiB)", one["reason"])
        if (one["rung"] in claim["beside"] and one["seqlen"] == claim["seqlen"]
                and one["status"] == NO_DEVICE and needs):
            text += f"; {number(one['rung'])} would need {needs[1]}"
            break
    return text, "yes"


def matrix(files, claim):
    rung, variant = claim["step"]
    for source in (files.gpu, files.sim):
        of = source.plain("fwd", rung=rung, variant=variant, causal=False)
        if of:
            e = max(of, key=lambda e: e.seqlen)
            each = e.workspace_bytes / e.heads_in_all() / e.seqlen**2 / 2
            return (f"{each:g} bytes at N = {length_text(e.seqlen)}, so "
                    f"{each * claim['seqlen']**2 / 2**30:g} GiB at "
                    f"{length_text(claim['seqlen'])}, twice, for each head",
                    "yes" if abs(each - claim["bytes"]) < 0.1 else "**no**")
    return NOT_YET, NOT_YET


def error(files, claim):
    """Both steps have the same inputs, and what the programs print is relative to the norm of the
    output in float64: so the errors have the ratio of their root mean squares."""
    counted = Measured(files.sim.path, claim["dtype"])
    wanted = {"input": claim["input"], **{k: claim[k] for k in ("head_dim",) if k in claim}}
    found = {}
    for side in ("fast", "slow"):
        rung, variant, *settings = claim[side]
        found[side] = [e for e in counted.find("fwd", rung=rung, variant=variant, **wanted)
                       if not e.tiled and e.errors and e.has_settings(*settings)]
    if not (found["fast"] and found["slow"]):
        return NOT_YET, NOT_YET
    # Of a step that rounds its inputs the error is that against the inputs as they were.
    fast, slow = (found[side][0].full_error()["rel"] for side in ("fast", "slow"))
    about = found["fast"][0]
    return (f"{ratio_text(slow / fast)}× (N = {length_text(about.seqlen)}, d = {about.head_dim}: "
            f"{fast:.1e} of the output's norm against {slow:.1e})",
            "yes" if slow / fast >= claim["least"] else "**no**")


def not_here(files, claim):
    return claim["why"], "**no**"


JUDGES = {"speed": speed, "less": less, "growth": growth, "length": length, "matrix": matrix,
          "error": error, "not_here": not_here}
