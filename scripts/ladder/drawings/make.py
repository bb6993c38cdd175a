"""Every drawing as SVG, and which of those in scripts/results are stale."""

import glob
import os

from ladder.drawings import backward, hero, hopper, products, softmax  # noqa: F401: they register
from ladder.drawings.pen import DRAWINGS, Pen
from ladder.files import RESULTS, write_all

FOLDER = os.path.join(RESULTS, "drawings")


def drawn():
    """{path: SVG} of all."""
    found = {}
    for name, (about, height, heading, draw) in DRAWINGS.items():
        pen = Pen(height, heading)
        draw(pen)
        found[os.path.join(FOLDER, f"{name}.svg")] = pen.svg(about)
    return found


def write_drawings():
    os.makedirs(FOLDER, exist_ok=True)
    write_all(drawn())


def stale_drawings():
    """Lines that say which are missing, not as they would be drawn, or not drawn any more."""
    wanted, there = drawn(), {}
    for path in glob.glob(os.path.join(FOLDER, "*")):
        with open(path, encoding="utf-8") as file:
            there[path] = file.read()
    return [f"{os.path.relpath(path)} is stale" for path in sorted({*wanted, *there})
            if wanted.get(path) != there.get(path)]
