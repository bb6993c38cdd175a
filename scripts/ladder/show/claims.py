"""The table of the papers' claims, held against what was measured and counted here."""

from __future__ import annotations

import re
from functools import partial
from typing import Any, Callable, Collection, NamedTuple, Tuple, Union

from ladder.base.course import ALL, NONE, QUANTISED
from ladder.base.records import Record
from ladder.base.text import rate_text, time_text
from ladder.show.measured import Files, Measured, Missing, need
from ladder.show.names import (Contender, Shape, StepKey, at_the_machine, length_text,
                               markdown, number, where, whole_bytes)

# ---- how a claim is judged: what was measured, and whether it holds, or in words how far ----

Judged = Tuple[str, Union[bool, str]]


def speed_ratios(files: Files, fast: Contender, slow: Contender, way: str = "fwd",
                 lengths: Collection[int] = (), head_dim: int | None = None,
                 causal: bool | None = None) -> list[tuple[float, Shape]]:
    """[(how much faster `fast` is than `slow`, where)] over the points both have."""
    return need([(ratio, (n, d, mask))
                 for (n, d, mask), ratio in files.gpu.ratios(way, fast, slow).items()
                 if n in (lengths or [n]) and head_dim in (None, d) and causal in (None, mask)])


def speed(files: Files, fast: Contender, slow: Contender, least: float, most: float | None = None,
          best_alone: bool = False, **points: Any) -> Judged:
    """At least `least` times as fast, and at most `most`: at every point, or the best one alone."""
    ratios = speed_ratios(files, fast, slow, **points)
    (lowest, _), (highest, shape) = min(ratios), max(ratios)
    verdict: bool | str = highest >= least
    if lowest < least <= highest and not best_alone:
        verdict = "in part"
    elif most and lowest > most and not best_alone:
        verdict = "yes, and more"
    low, high = rate_text(lowest), rate_text(highest)
    return (f"{low}× to {high}× (most at {where(shape)})" if low != high
            else f"{high}× ({where(shape)})"), verdict


def less_at_128(files: Files, fast: Contender, slow: Contender) -> Judged:
    """The same ratio gains less at d = 128 than at 64."""
    wide, narrow = (max(speed_ratios(files, fast, slow, head_dim=d)) for d in (128, 64))
    return (" against ".join(f"{rate_text(ratio)}× ({where(shape)})"
                             for ratio, shape in (wide, narrow)), wide[0] < narrow[0])


LINEAR = [("fwd", "05_flash_v2"), ("bwd", "06_backward")]  # in memory


def growth(files: Files) -> Judged:
    """The workspace of a head grows at most 2.2 times as N doubles."""
    texts, good = [], True
    for way, rung in LINEAR:
        sizes = {r["seqlen"]: r["workspace_bytes"] / r["batch"] / r["heads"]
                 for r in files.gpu.plain(way, rung=rung, step=files.gpu.defaults.get(rung),
                                          head_dim=64, causal=False)}
        n = max(need([n for n in sizes if 2 * n in sizes]))
        after = sizes[2 * n]
        good = good and after <= 2.2 * sizes[n]
        texts.append(f"{number(rung)}: " + (
            f"{whole_bytes(sizes[n])} a head at N = {length_text(n)}, {whole_bytes(after)} at "
            f"{length_text(2 * n)}" if after else "none at any N"))
    return "; ".join(texts), good


def length(files: Files, seqlen: int = 65536) -> Judged:
    """They ran at this length, where plain attention does not fit."""
    ran = [r for way, rung in LINEAR for r in files.gpu.plain(
        way, rung=rung, step=files.gpu.defaults.get(rung), seqlen=seqlen, head_dim=128)]
    texts = [f"{number(r['rung'])} {'causal ' if r['causal'] else ''}in {time_text(r['time_ms'])}"
             for r in need(ran)]
    texts += [f"{number(PLAIN[0])} would need {needs[1]} GiB" for run in files.gpu.skipped
              if (run.get("rung"), run["seqlen"]) == (PLAIN[0], seqlen)
              and (needs := re.search(r"needs ([\d.]+) GiB", run["reason"]))][:1]
    return "; ".join(texts), True


def matrix(files: Files, seqlen: int = 65536) -> Judged:
    """02 keeps two bytes for each element of S, and of P."""
    r = max(need(files.gpu.plain(rung=PLAIN[0], step=PLAIN[1], causal=False)),
            key=lambda r: r["seqlen"])
    each = r["workspace_bytes"] / r["batch"] / r["heads"] / r["seqlen"]**2 / 2
    return (f"{each:g} bytes at N = {length_text(r['seqlen'])}, so "
            f"{each * seqlen**2 / 2**30:g} GiB at {length_text(seqlen)}, twice, for each head",
            abs(each - 2) < 0.1)


def error(files: Files, fast: tuple[StepKey, Record | None], slow: tuple[StepKey, Record | None],
          least: float, **wanted: Any) -> Judged:
    """The slow step's error over the fast one's, each with its settings. Both have the same inputs
    and are relative to the same norm, so this is the ratio of their root mean squares."""
    counted = Measured(files.sim.path, "fp16")
    (record, our_error), (_, their_error) = (
        counted.checked(step, settings, input="outliers", **wanted)
        for step, settings in (fast, slow))
    ours, theirs = our_error["rel"], their_error["rel"]
    return (f"{rate_text(theirs / ours)}× (N = {length_text(record['seqlen'])}, d = {record['head_dim']}: "
            f"{ours:.1e} of the output's norm against {theirs:.1e})", theirs / ours >= least)


def not_here(_: Files) -> Judged:
    return "this project trains no model", False


# ---- the claims ----

V1, V2, V3 = "FlashAttention [1]", "FlashAttention-2 [2]", "FlashAttention-3 [3]"

PLAIN, FLASH_V1 = ("02_safe_softmax", "safe"), ("04_flash_v1", "flash_v1")
# mma: what the papers describe. sm90 is for a GPU that they did not know.
FLASH_V2, FLASH_V3, PRODUCER, PING_PONG = (
    ("05_flash_v2", step) for step in ("mma", "sm90", "producer", "ping_pong"))
TRAINING = ("06_backward", "mma")


class Claim(NamedTuple):
    anchor: str  # of its row
    text: str
    source: str
    how: str  # it is measured here
    judge: Callable[[Files], Judged]


CLAIMS = [
    Claim("2-4x", "2–4× faster than plain attention", f"{V1} v2, App. E.5 (d = 64); {V2}, abstract",
          "04 over 02, forward", partial(speed, fast=FLASH_V1, slow=PLAIN, least=2, most=4)),
    Claim("less-at-128", "less gained at d = 128 than at 64", f"{V1} v2, App. E.5",
          "04 over 02, forward, the best of each", partial(less_at_128, fast=FLASH_V1, slow=PLAIN)),
    Claim("3x-short", "up to 3× faster than plain attention, N = 128 to 2k", f"{V1}, §1 and §4.3",
          "06's `mma` over PyTorch's plain one, forward and backward, from N = 512",
          partial(speed, fast=TRAINING, slow="math", way="both", least=3, best_alone=True,
                  lengths=[512, 1024, 2048])),
    Claim("7.6x-gpt2", "7.6× faster on GPT-2's attention (N = 1k, d = 64)", f"{V1}, Fig. 1",
          "05's `mma` over PyTorch's plain one, forward, causal",
          partial(speed, fast=FLASH_V2, slow="math", least=7.6, best_alone=True, lengths=[1024],
                  head_dim=64, causal=True)),
    Claim("2x-over-v1", "about 2× faster than FlashAttention (1.7–3.0×)", f"{V2}, abstract (§4)",
          "05's `mma` over 04, forward",
          partial(speed, fast=FLASH_V2, slow=FLASH_V1, least=1.7, most=3)),
    Claim("3-10x", "3–10× faster than plain attention", f"{V2}, §4",
          "05's `mma` over 02, forward, no mask",
          partial(speed, fast=FLASH_V2, slow=PLAIN, least=3, most=10, causal=False)),
    Claim("10x-causal", "up to 10× faster than plain attention", f"{V2}, §4.1",
          "05's `mma` over 02, forward, causal: 05 skips hidden tiles, 02 skips nothing",
          partial(speed, fast=FLASH_V2, slow=PLAIN, least=10, best_alone=True, causal=True)),
    Claim("1.5-2x-over-v2", "1.5–2.0× faster than FlashAttention-2, forward, on an H100",
          f"{V3}, abstract and §4.1", "05's `sm90` over PyTorch's FlashAttention-2",
          partial(speed, fast=FLASH_V3, slow="flash", least=1.5, most=2)),
    Claim("ping-pong",
          "ping-pong and softmax under products: 570 → 640–660 TFLOP/s (d = 128), so 1.12–1.16×",
          f"{V3}, §3.1 and §3.2", "05's `ping_pong` over `producer`, no mask",
          partial(speed, fast=PING_PONG, slow=PRODUCER, least=1.12, most=1.16, head_dim=128,
                  causal=False)),
    Claim("fp16-error", "fp16 RMSE 1.7× below that of standard attention", f"{V3}, §4.3",
          "02's over that of 05's `sm90`, on the paper's distribution (`--input outliers`), on the "
          "sim",
          partial(error, fast=(("05_flash_v2", "sm90"), None),
                  slow=(("02_safe_softmax", "safe"), None), least=1.7)),
    Claim("fp8-error", "FP8 RMSE 2.6× below that of one scale a tensor (9.1e-3, 2.4e-2)",
          f"{V3}, §4.3", "05's `fp8` with nothing but a scale a tensor over it with all settings, "
          "on the paper's distribution, on the sim",
          partial(error, fast=(QUANTISED["step"], ALL), slow=(QUANTISED["step"], NONE), least=2.6,
                  head_dim=128)),
    Claim("memory", "memory O(N), not O(N²)", f"{V1}, Theorem 1",
          "workspace of 05 and 06 as N doubles", growth),
    Claim("64k", "64k tokens fit", f"{V1}, §4.3", "05 and 06 at N = 64k, 16 heads of 128", length),
    Claim("8gb", "an N×N matrix in fp16 takes 8 GB at 64k",
          "none of the papers: arithmetic, often quoted", "what 02 keeps of S and P, by element",
          matrix),
    Claim("bert", "BERT-large trains 15% faster, end to end: 17.4 min for 20.0, so 13% less time",
          f"{V1}, Table 1", "–", not_here),
    Claim("gpt2-training", "GPT-2 trains up to 3× faster, end to end (small: 3.5×)",
          f"{V1}, Table 2", "–", not_here),
    Claim("gpt-training",
          "GPT-style models train up to 1.3× faster than with FlashAttention, 2.8× faster than "
          "without",
          f"{V2}, §4.2 and Table 1", "–", not_here),
]
NOTE = (
    "*In part*: at some points and not at others. "
    "[1] Dao et al. 2022, [arXiv 2205.14135](https://arxiv.org/abs/2205.14135), whose versions 1 "
    "and 2 differ in figures and appendices. "
    "[2] Dao 2023, [arXiv 2307.08691](https://arxiv.org/abs/2307.08691). "
    "[3] Shah et al. 2024, [arXiv 2407.08608](https://arxiv.org/abs/2407.08608). [1] and [2] "
    "measured on an A100, against the plain attention of their day. PyTorch's plain one here "
    "computes in fp32 inside, whatever the inputs, so the ratios over it are large; 02 keeps to "
    "16 bits and the tensor cores. A range is over N = 512 … 16k, d = 64 and 128, causal or not, "
    "unless the row says otherwise, where both sides could be measured. [3] adds ping-pong first "
    "(570 → 620–640), then the overlap with the softmax; this course the other way round, so both "
    "are judged together. (In its Table 2 the 570 is without warp specialisation, and without the "
    "overlap alone it has 582 for 661, 1.14×.) “Up to 9×” for FlashAttention-2 is Dao's own "
    "announcement of it; “2–7×” for FlashAttention is secondary literature's. Neither paper has "
    "them.")


def claims_table(files: Files) -> list[str]:
    rows = []
    for claim in CLAIMS:
        try:
            text, verdict = claim.judge(files)
        except Missing:
            text = verdict = "not measured yet"
        rows.append([f'<a id="{claim.anchor}"></a>{claim.text}', claim.source, claim.how, text,
                     verdict if isinstance(verdict, str) else "yes" if verdict else "**no**"])
    lines = markdown(["claim", "where", "measured here as", "ours", "reproduced"], rows)
    return [*lines, "", f"Ours are times on an {at_the_machine(files)}, where the row does not say "
            "otherwise.", "", NOTE]
