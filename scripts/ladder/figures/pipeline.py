"""The sim's traces: who touches what, and who does what in a block."""

from ladder import course
from ladder.figures import replay
from ladder.figures.measured import need
from ladder.figures.names import SIM, label, number
from ladder.figures.style import INK, PANEL, READ, WRITE, darker, note, plots

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
    need(panels, f"no traces: {SIM}")
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
    need(panels, f"no traces: {SIM}")
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


def rectangles(axis, boxes, **looks):
    """Boxes: (left, right, top, bottom)."""
    from matplotlib.collections import PolyCollection
    axis.add_collection(PolyCollection(
        [[(left, top), (right, top), (right, bottom), (left, bottom)]
         for left, right, top, bottom in boxes], zorder=2, **looks))


def lane_axis(axis, ends, names):
    """Lanes from the top, with the names [(y, text)]; returns their labels."""
    axis.set_ylim(*ends)
    axis.set_yticks(*zip(*names))
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_visible(False)
    return axis.get_yticklabels()


def draw_access(plt, data):
    from matplotlib.patches import Patch
    panels = data["panels"]
    figure, pairs = plots(plt, panels, (11, 0.9 + 4 * len(panels)), {
        "left": 0.45, "right": 0.25, "bottom": 0.8, "top": 0.8, "down": 1.0}, columns=1)
    for axis, panel in pairs:
        rows, gap = panel["rows"], panel["rows"] * 0.12
        lane_top = [i * (rows + gap) for i in range(len(LANES))]
        for top in lane_top:
            axis.add_patch(plt.Rectangle((0, top), panel["slots"], rows, fc="#f0f0ea", ec="none",
                                         zorder=0))
        # Where a step reads and writes the same rows, the write takes the later half of it.
        both = {}
        for slot, lane, op, *_ in panel["boxes"]:
            both.setdefault((slot, lane), set()).add(op)
        for op, tint, earlier, later in (("r", READ, 0, 0.5), ("w", WRITE, 0.5, 1)):
            rectangles(axis, [
                (slot + earlier, slot + later, lane_top[lane] + first, lane_top[lane] + last)
                if len(both[slot, lane]) == 2 else
                (slot, slot + 1, lane_top[lane] + first, lane_top[lane] + last)
                for slot, lane, kind, first, last in panel["boxes"] if kind == op],
                facecolors=tint, edgecolors="none")
        # A block's number where it begins, or a kernel's name in its middle; of one slot beside it,
        # where nothing else is written.
        starts = [(block["at"], f"block {block['block']}", block["at"] + 0.3, "left")
                  for block in panel["blocks"]]
        if len(starts) <= 1:
            ends = [kernel["at"] for kernel in panel["kernels"][1:]] + [panel["slots"]]
            starts = [(kernel["at"], kernel["name"], *(
                ((kernel["at"] + end) / 2, "center") if end - kernel["at"] > 1 else
                (panel["slots"], "right") if i else (0, "left")))
                for i, (kernel, end) in enumerate(zip(panel["kernels"], ends))]
        for i, (begin, text, x, align) in enumerate(starts):
            if i:
                axis.plot([begin, begin], [0, lane_top[-1] + rows], color=INK, lw=0.7, zorder=3)
            axis.text(x, -gap * 0.3, text, fontsize=7, va="bottom", ha=align)
        axis.set_xlim(0, panel["slots"])
        lane_axis(axis, (lane_top[-1] + rows, -gap * 1.6),
                  [(top + rows / 2, name) for top, name in zip(lane_top, LANES)])
        axis.tick_params(axis="y", labelsize=11)
        axis.grid(visible=False)
        axis.spines["bottom"].set_visible(False)
        axis.set_title(panel["title"] + (
            " (one block does it all)" if len(panel["blocks"]) <= 1 else
            f" ({len(panel['blocks'])} blocks, which a GPU runs side by side, here one after the "
            "other)"))
        axis.set_xlabel("time: a step begins where a tile of Q, K or V arrives")
    pairs[0][0].legend(handles=[Patch(color=READ, label="read"), Patch(color=WRITE, label="write")],
                       loc="lower right", bbox_to_anchor=(1, 1.0), ncol=2, frameon=False,
                       borderaxespad=0.2)
    note(figure, f"Rows 0 to N - 1 run downwards in each band. {data['note']}", 0.006)
    return figure


CONSUMERS = ["#0072B2", "#E69F00", "#009E73"]
# Of a consumer's colour: products, and its arithmetic.
SHARES = {"S": 1, "dP": 0.8, "softmax": 0.7, "dV": 0.6, "dK": 0.5, "O": 0.42, "dQ": 0.35,
          "scale": 0.25, "rest": 0.25}
COLUMNS = 5  # of the legend
DARK = ("S", "dP")  # with white letters, where the colour is not orange
BOXES = {"copy": "#c9a3bb", "held": "#ece4e9", "tile": "#c4c4bd", "turn": "#a3a39c",
         "sums": "#efefea", "store": "#a3a39c", "idle": "#4a4a46"}
SHADE, HATCH = "#e7e7e0", "//////"  # of when nobody has a product; of a product that may be done


def box_colour(kind, consumer):
    """A wait's or a copy's own; else the consumer's, with white."""
    if kind in BOXES:
        return BOXES[kind]
    value = CONSUMERS[consumer].lstrip("#")
    return "#" + "".join(f"{round(255 - (255 - int(value[i:i + 2], 16)) * SHARES[kind]):02x}"
                         for i in (0, 2, 4))


def box_axis(axis, end, boxes, ends, lanes):
    """Boxes (kind, text, consumer, left, right, top, bottom) over cycles; lanes (y, name, size,
    consumer or None)."""
    shapes, perhaps = {}, {}
    for kind, text, consumer, *box in boxes:
        if kind == "perhaps":
            perhaps.setdefault(box_colour("O", consumer), []).append(box)
        else:
            shapes.setdefault(box_colour(kind, consumer), []).append(box)
        left, right, top, bottom = box
        if right - left > end * 0.0048 * (len(text) + 0.4):  # a letter is about as wide
            axis.text((left + right) / 2, (top + bottom) / 2, text, ha="center",
                      va="center_baseline", fontsize=6.5 if kind not in BOXES else 6, zorder=3,
                      color="#ffffff" if kind in DARK and consumer != 1 else INK)
    for tint, of in shapes.items():
        rectangles(axis, of, facecolors=tint, edgecolors=PANEL, linewidths=0.5)
    for tint, of in perhaps.items():
        rectangles(axis, of, facecolors=PANEL, edgecolors=tint, linewidths=0, hatch=HATCH)
    labels = lane_axis(axis, ends, [lane[:2] for lane in lanes])
    for label_, (_, _, size, consumer) in zip(labels, lanes):
        label_.set_fontsize(size)
        if consumer is not None:
            label_.set_color(darker(CONSUMERS[consumer]))
            label_.set_fontweight("bold")
    axis.set_xlim(0, end)
    axis.grid(axis="y", visible=False)
    axis.xaxis.set_major_formatter("{x:,.0f}")


def legend_and_note(figure, handles, columns, text):
    height = figure.get_size_inches()[1]
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.006, 1 - 0.29 / height),
                  ncol=columns, frameon=False, fontsize=7.5, columnspacing=1.4, handlelength=1.6)
    note(figure, text, 0.07 / height, fontsize=7.5, va="bottom")


def draw_pipeline(plt, data):
    from matplotlib.patches import Patch
    panels, low, high, gap = data["panels"], 0.45, 0.86, 0.1
    heights = [[low if lane < panel["stages"] else high for lane in range(len(panel["lanes"]))]
               for panel in panels]
    tall = [sum(of) + gap * len(of) for of in heights]
    handles = [Patch(color=box_colour(kind, 0), label=text) for kind, text in (
        ("copy", "copy under way"), ("held", "tile there, until its stage is free"),
        *data["legend"].items())]
    handles += [Patch(color=BOXES[kind], label=f"waits for {what}")
                for kind, what in data["waits"].items()
                if any(box[1] == kind for panel in panels for box in panel["boxes"])]
    more = 0.17 * max(0, -(-len(handles) // COLUMNS) - 2)  # rows of the legend
    figure, pairs = plots(
        plt, panels, (11, 2 + more + 0.36 * sum(tall) + 0.75 * (len(panels) - 1)),
        {"left": 0.95, "right": 0.2, "bottom": 1.05, "top": 1.0 + more, "down": 0.75},
        columns=1, gridspec_kw={"height_ratios": tall})
    for (axis, panel), of in zip(pairs, heights):
        tops = [sum(of[:lane]) + gap * lane for lane in range(len(of))]
        first = panel["stages"] + 1  # of the consumers
        box_axis(axis, panel["end"], [
            (kind, text, consumer, begin, until, tops[lane], tops[lane] + of[lane])
            for lane, kind, text, consumer, begin, until in panel["boxes"]],
            (tops[-1] + high, -gap), [
            (tops[lane] + of[lane] / 2, name, 7 if lane < panel["stages"] else 8.5,
             lane - first if lane >= first else None) for lane, name in enumerate(panel["lanes"])])
    pairs[-1][0].set_xlabel("cycles of the model")
    matmul, exps, other, latency, copy = data["rates"]
    legend_and_note(
        figure, handles, COLUMNS,
        "Order and amounts are the sim's, the time is a model's. Of one SM: the tensor cores do "
        f"{matmul:,} FLOPs a cycle, one product after the other as they were issued; {exps} "
        f"exponentials\nand {other} other operations a cycle side by side, which consumers that "
        "compute at the same time share equally; tiles come one after the other, "
        f"{copy:.0f} bytes a cycle, each {latency} cycles\nlate (assumed). All else takes no "
        f"time. {data['note']}")
    return figure
