"""The sim's traces: who touches what, and who does what in a block."""

from ladder import course
from ladder.figures import replay
from ladder.figures.measured import need
from ladder.figures.names import label, number
from ladder.figures.style import INK, PANEL, READ, WRITE, darker, margins

LANES = ["Q", "K", "V", "O"]
TILES = ["Q", "dO", "K", "V"]  # of a pipeline, from the top


def access(files, missing):
    panels = []
    for trace in files.traces:
        step = (trace["rung"], trace["variant"])
        # Its registration says nothing of its loops.
        loops = course.LOOPS.get(step)
        panels.append({"title": f"{number(step[0])} {step[1]}" + (f": {loops}" if loops else ""),
                       "rung": trace["rung"], "rows": trace["seqlen"], **slots(trace),
                       "block_q": trace["block_q"], "block_kv": trace["block_kv"]})
    need(panels, "no traces: scripts/figures measure --sim")
    first = files.traces[0]
    return {"title": f"Who touches what, and when: one head, N = {first['seqlen']}, d = "
                     f"{first['head_dim']}, tiles of {first['block_q']}×{first['block_kv']} (sim)",
            "panels": panels, "note": course.ACCESS_NOTE}


def slots(trace):
    """Time in slots. One begins where a tile of Q, K or V arrives and lasts until the next one
    does; kernels whose blocks do one step each, all at once, take one."""
    slot, place, boxes, blocks, kernels = -1, None, [], [], []
    many, arrives = {}, set()
    for kernel, block, step, array, op, *_ in trace["events"]:
        many.setdefault(kernel, set()).add(step)
        if array in ("Q", "K", "V") and op == "r":
            arrives.add((kernel, block, step))
    for kernel, block, step, array, op, first, last in trace["events"]:
        short = len(many[kernel]) == 1
        at = (kernel, 0, 0) if short else (kernel, block, step)
        if at != place and (short or at in arrives or place is None or place[0] != kernel):
            slot += 1
        place = at
        name = trace["kernels"][kernel]
        if not kernels or kernels[-1]["name"] != name:
            kernels.append({"name": name, "at": slot})
        if not short and (not blocks or blocks[-1]["block"] != block):
            blocks.append({"block": block, "at": slot})
        lane = "O" if array.startswith("O") else array
        if lane in LANES:
            boxes.append([slot, LANES.index(lane), op, first, last])
    return {"slots": slot + 1, "boxes": merged(boxes), "blocks": blocks, "kernels": kernels}


def merged(boxes):
    """Adjoining rows of the same slot, lane and operation as one."""
    found = []
    for box in sorted(boxes):
        last = found[-1] if found else None
        if last and last[:3] == box[:3] and box[3] <= last[4]:
            last[4] = max(last[4], box[4])
        else:
            found.append(list(box))
    return found


def pipeline(files, missing, name):
    """Boxes [lane, kind, text, consumer or None, from, to]; lanes from the top: stages of tiles,
    the tensor cores, the consumers."""
    about = course.PIPELINES[name]
    traces = [trace for trace in files.pipelines if trace["figure"] == name]
    panels = [pipeline_panel(trace, about) for trace in traces]
    need(panels, "no traces: scripts/figures measure --sim")
    first = traces[0]
    return {"title": f"The pipeline of {label((first['rung'], first['variant']))}: "
                     f"{about['what']}, in the time of a model, not measured",
            "panels": panels, "note": about["note"], "legend": about["legend"],
            "waits": about["waits"],
            "rates": [replay.MATMUL_FLOPS, replay.EXPS, replay.OTHER_FLOPS, replay.COPY_LATENCY,
                      replay.COPY_BYTES]}


def pipeline_panel(trace, about):
    played = replay.replay(trace["warps"], course.PRODUCTS[trace["kernel"]])
    consumers, end, boxes = len(played["consumers"]), played["end"], []
    fills = stage_fills(played["copies"], about["own"], consumers, end)
    stages = sorted(fills, key=lambda one: (TILES.index(one[0]), one))
    rings = {array for array, stage in stages if stage}
    for place, of in fills.items():
        for text, issued, landed, freed in of:
            boxes.append([stages.index(place), "copy", text, None, issued, landed])
            boxes.append([stages.index(place), "held", "", None, landed, freed])
    for consumer, what, step, begin, until in played["products"]:
        boxes.append([len(stages), what, f"{what}{step}", consumer, begin, until])
    for consumer, spans in enumerate(played["consumers"]):
        for what, step, begin, until in spans:
            text = about["texts"].get(what, what).format(step)
            boxes.append([len(stages) + 1 + consumer, what, text, consumer, begin, until])
    busy = sum(until - begin for *_, begin, until in played["products"]) / end
    share = about["share"].format(rows=trace["block_q"] // consumers, **trace)
    return {"title": f"d = {trace['head_dim']}: {consumers} consumers of {share}; the tensor cores "
                     f"are busy {busy:.0%} of the time",
            "lanes": [f"{array} stage {stage}" if array in rings else array
                      for array, stage in stages] + ["tensor cores"] + [
                f"consumer {'ABC'[i]}" for i in range(consumers)],
            "stages": len(stages), "end": end, "boxes": boxes}


def stage_fills(copies, own, consumers, end):
    """(array, stage) → [[name of the tile, issued, landed, stage free again]]. Where each consumer
    has a stage of its own, those of a round share a lane, and what is issued at once is one."""
    fills, numbers = {}, {}
    for array, stage, issued, landed, freed in copies:
        if array not in TILES:  # a number for each row, with a tile
            continue
        place = (array, stage // consumers if array in own else stage)
        freed = end if freed is None else freed
        last = fills[place][-1] if fills.get(place) else None
        if array in own and last and last[1] == issued:
            last[2], last[3] = max(last[2], landed), max(last[3], freed)
            continue
        numbers[array] = numbers.get(array, -1) + 1
        fills.setdefault(place, []).append([f"{array}{numbers[array]}", issued, landed, freed])
    return fills


def draw_access(plt, data):
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import Patch
    panels = data["panels"]
    figure, axes = plt.subplots(len(panels), 1, figsize=(11, 0.9 + 4 * len(panels)), squeeze=False)
    margins(figure, left=0.45, right=0.25, bottom=0.8, top=0.8, down=1.0)
    for axis, panel in zip(axes.flat, panels):
        rows, gap = panel["rows"], panel["rows"] * 0.12
        lane_top = [i * (rows + gap) for i in range(len(LANES))]
        for top in lane_top:
            axis.add_patch(plt.Rectangle((0, top), panel["slots"], rows, fc="#f0f0ea", ec="none",
                                         zorder=0))
        # Where a step reads and writes the same rows, the write takes the later half of it.
        both = {}
        for slot, lane, op, first, last in panel["boxes"]:
            both.setdefault((slot, lane), set()).add(op)
        for op, tint in (("r", READ), ("w", WRITE)):
            shapes = []
            for slot, lane, kind, first, last in panel["boxes"]:
                if kind != op:
                    continue
                half = len(both[slot, lane]) == 2
                left = slot + (0.5 if half and op == "w" else 0)
                right = slot + (0.5 if half and op == "r" else 1)
                top = lane_top[lane]
                shapes.append([(left, top + first), (right, top + first), (right, top + last),
                               (left, top + last)])
            axis.add_collection(PolyCollection(shapes, facecolors=tint, edgecolors="none",
                                               zorder=2))

        def boundary(at):
            axis.plot([at, at], [0, lane_top[-1] + rows], color=INK, lw=0.7, zorder=3)

        if len(panel["blocks"]) > 1:
            for number, block in enumerate(panel["blocks"]):
                if number:
                    boundary(block["at"])
                axis.text(block["at"] + 0.3, -gap * 0.3, f"block {block['block']}", fontsize=7,
                          va="bottom")
        else:
            ends = [kernel["at"] for kernel in panel["kernels"][1:]] + [panel["slots"]]
            for i, (kernel, end) in enumerate(zip(panel["kernels"], ends)):
                # A kernel of one slot has its name beside it, where nothing else is written.
                short, first = end - kernel["at"] <= 1, i == 0
                axis.text((0 if first else panel["slots"]) if short else (kernel["at"] + end) / 2,
                          -gap * 0.3, kernel["name"], fontsize=7, va="bottom",
                          ha=("left" if first else "right") if short else "center")
                if i:
                    boundary(kernel["at"])
        axis.set_xlim(0, panel["slots"])
        axis.set_ylim(lane_top[-1] + rows, -gap * 1.6)
        axis.set_yticks([top + rows / 2 for top in lane_top], LANES)
        axis.tick_params(axis="y", length=0, labelsize=11)
        axis.grid(visible=False)
        axis.spines["left"].set_visible(False)
        axis.spines["bottom"].set_visible(False)
        axis.set_title(panel["title"] + (
            " (one block does it all)" if len(panel["blocks"]) <= 1 else
            f" ({len(panel['blocks'])} blocks, which a GPU runs side by side, here one after the "
            "other)"))
        axis.set_xlabel("time: a step begins where a tile of Q, K or V arrives")
    axes[0][0].legend(handles=[Patch(color=READ, label="read"), Patch(color=WRITE, label="write")],
                      loc="lower right", bbox_to_anchor=(1, 1.0), ncol=2, frameon=False,
                      borderaxespad=0.2)
    figure.text(0.012, 0.006, f"Rows 0 to N - 1 run downwards in each band. {data['note']}",
                fontsize=8, color="#555555")
    return figure


CONSUMERS = ["#0072B2", "#E69F00", "#009E73"]
# Of a consumer's colour: products, and its arithmetic.
SHARES = {"S": 1, "dP": 0.8, "softmax": 0.7, "dV": 0.6, "dK": 0.5, "O": 0.42, "dQ": 0.35,
          "scale": 0.25}
COLUMNS = 5  # of the legend
DARK = ("S", "dP")  # with white letters, where the colour is not orange
BOXES = {"copy": "#c9a3bb", "held": "#ece4e9", "tile": "#c4c4bd", "turn": "#a3a39c",
         "sums": "#efefea", "store": "#a3a39c"}


def box_colour(kind, consumer):
    """A wait's or a copy's own; else the consumer's, with white."""
    if kind in BOXES:
        return BOXES[kind]
    value = CONSUMERS[consumer].lstrip("#")
    return "#" + "".join(f"{round(255 - (255 - int(value[i:i + 2], 16)) * SHARES[kind]):02x}"
                         for i in (0, 2, 4))


def draw_pipeline(plt, data):
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import Patch
    panels, low, high, gap = data["panels"], 0.45, 0.86, 0.1
    tall = [sum(low if lane < panel["stages"] else high for lane in range(len(panel["lanes"])))
            + gap * len(panel["lanes"]) for panel in panels]
    handles = [Patch(color=box_colour(kind, 0), label=text) for kind, text in (
        ("copy", "copy under way"), ("held", "tile there, until its stage is free"),
        *data["legend"].items())]
    handles += [Patch(color=BOXES[kind], label=f"waits for {what}")
                for kind, what in data["waits"].items()
                if any(box[1] == kind for panel in panels for box in panel["boxes"])]
    more = 0.17 * max(0, -(-len(handles) // COLUMNS) - 2)  # rows of the legend
    figure, axes = plt.subplots(len(panels), 1, figsize=(11, 2 + more + 0.36 * sum(tall) + 0.75 * (
        len(panels) - 1)), squeeze=False, gridspec_kw={"height_ratios": tall})
    margins(figure, left=0.95, right=0.2, bottom=1.05, top=1.0 + more, down=0.75)
    for axis, panel in zip(axes.flat, panels):
        heights = [low if lane < panel["stages"] else high for lane in range(len(panel["lanes"]))]
        tops = [sum(heights[:lane]) + gap * lane for lane in range(len(heights))]
        letter = panel["end"] * 0.0048  # about as wide as one
        shapes = {}
        for lane, kind, text, consumer, begin, until in panel["boxes"]:
            top, bottom = tops[lane], tops[lane] + heights[lane]
            shapes.setdefault(box_colour(kind, consumer), []).append(
                [(begin, top), (until, top), (until, bottom), (begin, bottom)])
            if until - begin > letter * (len(text) + 0.4):
                axis.text((begin + until) / 2, (top + bottom) / 2, text, ha="center",
                          va="center_baseline", fontsize=6.5 if kind not in BOXES else 6, zorder=3,
                          color="#ffffff" if kind in DARK and consumer != 1 else INK)
        for face, of in shapes.items():
            axis.add_collection(PolyCollection(of, facecolors=face, edgecolors=PANEL,
                                               linewidths=0.5, zorder=2))
        axis.set_xlim(0, panel["end"])
        axis.set_ylim(tops[-1] + high, -gap)
        axis.set_yticks([top + one / 2 for top, one in zip(tops, heights)], panel["lanes"])
        for lane, name in enumerate(axis.get_yticklabels()):
            name.set_fontsize(7 if lane < panel["stages"] else 8.5)
            if lane > panel["stages"]:
                name.set_color(darker(CONSUMERS[lane - panel["stages"] - 1]))
                name.set_fontweight("bold")
        axis.tick_params(axis="y", length=0)
        axis.grid(axis="y", visible=False)
        axis.spines["left"].set_visible(False)
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axis.set_title(panel["title"])
    axes.flat[-1].set_xlabel("cycles of the model")
    height = figure.get_size_inches()[1]
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.006, 1 - 0.29 / height),
                  ncol=COLUMNS, frameon=False, fontsize=7.5, columnspacing=1.4, handlelength=1.6)
    matmul, exps, other, latency, copy = data["rates"]
    figure.text(0.012, 0.07 / height,
                "Order and amounts are the sim's, the time is a model's. Of one SM: the tensor "
                f"cores do {matmul:,} FLOPs a cycle, one product after the other as they were "
                f"issued; {exps} exponentials\nand {other} other operations a cycle side by side, "
                "which consumers that compute at the same time share equally; tiles come one after "
                f"the other, {copy:.0f} bytes a cycle, each {latency} cycles\nlate (assumed). All "
                f"else takes no time. {data['note']}", fontsize=7.5, color="#555555", va="bottom",
                linespacing=1.35)
    return figure
