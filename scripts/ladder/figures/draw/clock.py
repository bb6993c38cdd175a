"""Draws what the marks of scripts/clock.py say."""

import textwrap

from ladder.figures.draw.style import INK, PANEL, darker, margins, title_of
from ladder.figures.draw.traces import CONSUMERS, box_colour

# From the top: a consumer's lanes, and their heights.
LANES = {"S": 0, "O": 1, "perhaps": 1, "softmax": 2, "rest": 2}
HEIGHTS, GAP, STRIP = (0.42, 0.42, 0.62), 0.34, 0.3
AS = {"rest": "scale"}  # in the other pipelines' colours
IDLE, SHADE, HATCH = "#4a4a46", "#e7e7e0", "//////"


def draw_pipeline_measured(plt, data):
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import Patch
    panels = data["panels"]
    tall = [STRIP + GAP + (sum(HEIGHTS) + GAP) * panel["consumers"] for panel in panels]
    figure, axes = plt.subplots(len(panels), 1, figsize=(11, 2.0 + 0.45 * sum(tall) + 0.6 * (
        len(panels) - 1)), squeeze=False, gridspec_kw={"height_ratios": tall}, sharex=True)
    margins(figure, left=1.1, right=0.2, bottom=1.1, top=0.95, down=0.6)
    letter = data["end"] * 0.0048
    for axis, panel in zip(axes.flat, panels):
        bottom, shapes, hatched = STRIP + GAP, {}, {}
        ticks = [(STRIP / 2, "no product", INK)]
        for begin, until in panel["idle"]:
            axis.axvspan(begin, until, color=SHADE, lw=0, zorder=0)
            shapes.setdefault(IDLE, []).append(
                [(begin, 0), (until, 0), (until, STRIP), (begin, STRIP)])
        for consumer in range(panel["consumers"]):
            top = bottom + (sum(HEIGHTS) + GAP) * consumer
            ticks.append((top + sum(HEIGHTS) / 2, f"consumer {'ABC'[consumer]}",
                          darker(CONSUMERS[consumer])))
        for consumer, kind, text, begin, until in panel["boxes"]:
            lane = LANES[kind]
            at = "O" if kind == "perhaps" else AS.get(kind, kind)
            high = bottom + (sum(HEIGHTS) + GAP) * consumer + sum(HEIGHTS[:lane])
            low = high + HEIGHTS[lane]
            (hatched if kind == "perhaps" else shapes).setdefault(
                box_colour(at, consumer), []).append(
                    [(begin, high), (until, high), (until, low), (begin, low)])
            if until - begin > letter * (len(text) + 0.4):
                axis.text((begin + until) / 2, (high + low) / 2, text, ha="center",
                          va="center_baseline", fontsize=6.5, zorder=3,
                          color="#ffffff" if kind == "S" and consumer != 1 else INK)
        for face, of in shapes.items():
            axis.add_collection(PolyCollection(of, facecolors=face, edgecolors=PANEL,
                                               linewidths=0.5, zorder=2))
        for tint, of in hatched.items():
            axis.add_collection(PolyCollection(of, facecolors=PANEL, edgecolors=tint,
                                               linewidths=0, hatch=HATCH, zorder=2))
        axis.set_xlim(0, data["end"])
        axis.set_ylim(bottom + (sum(HEIGHTS) + GAP) * panel["consumers"], -GAP / 2)
        axis.set_yticks([at for at, *_ in ticks], [text for _, text, _ in ticks])
        for name, (_, text, tint) in zip(axis.get_yticklabels(), ticks):
            name.set_color(tint)
            name.set_fontsize(8.5 if text.startswith("consumer") else 7.5)
            name.set_fontweight("bold" if text.startswith("consumer") else "normal")
        axis.tick_params(axis="y", length=0)
        axis.tick_params(axis="x", labelbottom=True)
        axis.grid(axis="y", visible=False)
        axis.spines["left"].set_visible(False)
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axis.set_title(panel["said"])
    axes.flat[-1].set_xlabel("cycles of the SM")
    height = figure.get_size_inches()[1]
    handles = [Patch(color=box_colour(kind, 0), label=text) for kind, text in (
        ("S", "S: a product QKᵀ, from issue to done"),
        ("O", "O: a product PV"), ("softmax", "P: a softmax"),
        ("scale", "O scaled, P packed"))]
    if any(box[1] == "perhaps" for panel in panels for box in panel["boxes"]):
        handles.insert(2, Patch(facecolor=PANEL, edgecolor=box_colour("O", 0), lw=0, hatch=HATCH,
                                label="O, unless it is done"))
    handles.append(Patch(color=IDLE, label="no product under way"))
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.006, 1 - 0.29 / height),
                  ncol=len(handles), frameon=False, fontsize=7.5, columnspacing=1.4,
                  handlelength=1.6)
    note = textwrap.fill(data["note"], 180)
    figure.text(0.012, 0.07 / height, note, fontsize=7.5, color="#555555", va="bottom",
                linespacing=1.35)
    title_of(figure, data["title"])
    return figure
