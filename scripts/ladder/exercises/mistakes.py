"""Mistakes in sources: readers look for them in bug hunts, experiments make them on purpose, and
tests plant them and see that the suite finds them. One function makes them all."""

from __future__ import annotations

import os
import re
from typing import Iterator, NamedTuple, Pattern, Sequence, Union

from ladder.base.console import WRONG_RESULT, CommandError
from ladder.base.files import ROOT, read
from ladder.base.sources import included

# A change of a text: what stands there, and what takes its place. A text stands there once; a
# pattern may be found often, and its place may name its groups.
Edits = Sequence[tuple[Union[str, Pattern[str]], str]]


def edited(text: str, edits: Edits) -> str:
    """A text with the edits made. Raises CommandError with the one whose place is not there, or
    twice."""
    for old, new in edits:
        if isinstance(old, str):
            if text.count(old) != 1:
                raise CommandError("an edit is to find this once, and it stands "
                                   f"{text.count(old)} times in the file:\n{old}", WRONG_RESULT)
            text = text.replace(old, new)
        else:
            text, count = old.subn(new, text)
            if not count:
                raise CommandError(f"an edit finds nothing like {old.pattern}", WRONG_RESULT)
    return text


# ---- what tests plant in every kernel ----


class Planted(NamedTuple):
    """ON in the new text is whether the mistake is chosen, by LADDER_MISTAKE while the program
    runs; WAS is the old text, and ARRAY an array that the kernel has. `said` is a pattern of what
    the suite says of it: BY_ORDER for anything, under another order of threads; FORMULA where a
    count is not what traffic() says."""

    was: Union[str, Pattern[str]]
    now: str
    said: str


HEAD = re.compile(r"__global__[^{;]*\{\n")
WRONG, FAULT, BY_ORDER, FORMULA = "max error", "kernel .*", r"\S", "formula"
OF_ANY = [
    Planted(HEAD, "WAS if (ON) for (volatile int x = 0;; x = x + 1) {}",
            "had not ended after 2 seconds"),
    Planted(HEAD, "WAS if (ON) (void)float(ARRAY[int64_t{1} << 40]);", r"\[1099511627776\]"),
    Planted(HEAD, "WAS if (ON) { static int* volatile none; *none = 1; }",
            "memory that is not its own"),
    Planted(HEAD, "WAS if (ON) std::exit(0);", "it ends the program"),
    Planted(HEAD, "WAS if (ON) return;", "max error|unwritten|nobody"),
    Planted(re.compile(r"__syncthreads\(\);"), "if (!ON) WAS", BY_ORDER),
    Planted(re.compile(r"p\.scale"), "(ON ? 1 : WAS)", WRONG)]
OF_SOURCES = {
    "01_tiled_matmul/tile.cu": [
        # Reads what nobody wrote; and writes what others still read.
        Planted("__syncthreads();  // the tiles are complete", "if (!ON) WAS", FAULT),
        Planted("__syncthreads();  // everybody is done with them", "if (!ON) WAS", BY_ORDER),
        Planted("inside && i < p.N", "WAS + ON", FAULT),
        Planted("int64_t{blockIdx.x} * kRowThreads", "int64_t{blockIdx.x} * (kRowThreads - ON)",
                FAULT + "wrote in the same kernel"),
        Planted("ceil_div(p.N_kv, kTile)", "(ON ? p.N_kv / kTile : WAS)", FORMULA)],
    "05_flash_v2/hopper/fp8.cu": [
        Planted("return column_at(i)", "return ON ? i : column_at(i)", WRONG),
        Planted("exp2_fast(-of_V) * row_sum", "(ON ? 1 : exp2_fast(-of_V)) * row_sum", WRONG),
        Planted("scales[work.head * scaled.q + row / kWarpgroupRows]",
                "scales[(ON ? 0 : work.head * scaled.q) + row / kWarpgroupRows]", WRONG),
        Planted("if (how.hadamard)", "if (how.hadamard && (is_Q || !ON))", WRONG),
        Planted("__syncthreads();  // the tile is transposed", "if (!ON) WAS",
                FAULT + "transposed")]}


def mistakes_in(path: str) -> Iterator[Planted]:
    """Those that tests plant in a step's file of the repository."""
    text = read(os.path.join(ROOT, path))
    yield from (one for one in OF_ANY if one.was.search(text))  # type: ignore[union-attr]
    yield from OF_SOURCES.get(path, ())


def planted(path: str) -> str:
    """A step's text, its own headers' in it, with all of its mistakes, of which a run has one."""
    text = read(os.path.join(ROOT, path))
    for header, inlined in reversed(included(path, text).items()):
        line = f'#include "{os.path.basename(header)}"\n'
        before, _, after = text.partition(line)
        text = before + inlined + after.replace(line, "")
    for number, mistake in enumerate(mistakes_in(path)):
        def changed(found: re.Match[str], mistake: Planted = mistake, number: int = number) -> str:
            array = re.search(r"Hbm<(?:const )?\w+> (\w+)", found[0])
            return (mistake.now.replace("ON", f"(ladder::kMistake == {number})")
                    .replace("WAS", found[0]).replace("ARRAY", array[1] if array else ""))
        alone = isinstance(mistake.was, str)
        end = len(text if alone else text.partition("\nPlan plan(")[0])  # of all kernels
        pattern = re.compile(re.escape(mistake.was) if isinstance(mistake.was, str)
                             else mistake.was.pattern)
        text = pattern.sub(changed, text[:end], count=int(alone)) + text[end:]
    return """#include <cstdlib>
namespace ladder {
inline const char* const kChosen = std::getenv("LADDER_MISTAKE");
inline const int kMistake = kChosen ? std::atoi(kChosen) : -1;
}
""" + text
