"""The table of the papers' claims, held against what was measured and counted here."""

from __future__ import annotations

import os
import re
from functools import partial
from typing import Any, Callable, Collection, Tuple, Union

from ladder.base.console import BAD_USAGE, Stop
from ladder.base.course import FLASH_V1, FLASH_V2, FLASH_V3, PLAIN, TRAINING
from ladder.base.files import RESULTS, read
from ladder.base.text import rate_text
from ladder.show.measured import Contender, Files, Missing, Shape, markdown, need, where

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
    """At least `least` times as fast, and at most `most`: at every point, or the best one alone,
    which is "nearly" so from 95% on."""
    ratios = speed_ratios(files, fast, slow, **points)
    (lowest, _), (highest, shape) = min(ratios), max(ratios)
    verdict: bool | str = highest >= least
    if best_alone:
        if least > highest >= 0.95 * least:
            verdict = "nearly"
    elif lowest < least <= highest:
        verdict = "in part"
    elif verdict and most and highest > most:
        verdict = "yes, and more"
    low, high = rate_text(lowest), rate_text(highest)
    return (f"{low}× to {high}× (most at {where(shape)})" if low != high
            else f"{high}× ({where(shape)})"), verdict


def less_at_128(files: Files, fast: Contender, slow: Contender) -> Judged:
    """The same ratio gains less at d = 128 than at 64."""
    wide, narrow = (max(speed_ratios(files, fast, slow, head_dim=d)) for d in (128, 64))
    return (" against ".join(f"{rate_text(ratio)}× ({where(shape)})"
                             for ratio, shape in (wide, narrow)), wide[0] < narrow[0])


# ---- the claims ----

PRODUCER, PING_PONG = (("05_flash_v2", step) for step in ("producer", "ping_pong"))

# By the anchor of a claim's row in the page, which says what is claimed and where, and what it is
# set against here. A row that is not here stands as it is.
JUDGES: dict[str, Callable[[Files], Judged]] = {
    "2-4x": partial(speed, fast=FLASH_V1, slow=PLAIN, least=2, most=4),
    "less-at-128": partial(less_at_128, fast=FLASH_V1, slow=PLAIN),
    "3x-short": partial(speed, fast=TRAINING, slow="math", way="both", least=3, best_alone=True,
                        lengths=[512, 1024, 2048]),
    "7.6x-gpt2": partial(speed, fast=FLASH_V2, slow="math", least=7.6, best_alone=True,
                         lengths=[1024], head_dim=64, causal=True),
    "2x-over-v1": partial(speed, fast=FLASH_V2, slow=FLASH_V1, least=1.7, most=3),
    "3-10x": partial(speed, fast=FLASH_V2, slow=PLAIN, least=3, most=10, causal=False),
    "10x-causal": partial(speed, fast=FLASH_V2, slow=PLAIN, least=10, best_alone=True, causal=True),
    "1.5-2x-over-v2": partial(speed, fast=FLASH_V3, slow="flash", least=1.5, most=2),
    "ping-pong": partial(speed, fast=PING_PONG, slow=PRODUCER, least=1.12, most=1.16, head_dim=128,
                         causal=False),
}


def claims_table(files: Files) -> list[str]:
    """The rows that the page has, with what is measured of each and whether it holds made anew."""
    page = os.path.join(RESULTS, "README.md")
    rows = {anchor: row.split(" | ") for row, anchor in re.findall(
        r'^\| (<a id="(.+?)">.*) \|$', read(page), re.MULTILINE)}
    for anchor, judge in JUDGES.items():
        try:
            text, verdict = judge(files)
        except Missing:
            text = verdict = "not measured yet"
        if anchor not in rows:
            raise Stop(f'{os.path.relpath(page)} has no row <a id="{anchor}">', BAD_USAGE)
        rows[anchor][3:] = [text, verdict if isinstance(verdict, str) else
                            "yes" if verdict else "**no**"]
    return markdown(["claim", "where", "measured here as", "ours", "reproduced"],
                    list(rows.values()), note=f"Ours are times on an {files.gpu.machine()}, where "
                    "the row does not say otherwise.")
