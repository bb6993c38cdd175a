"""The sim's traces: who touches what, and who does what in a block."""

from ladder import course
from ladder.figures import replay
from ladder.figures.data.missing import need
from ladder.figures.names import label, number

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
    need(panels, "no traces: scripts/bench.py --sim")
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
    """Boxes [lane, kind, text, consumer or None, from, to]; lanes from the top: stages of tiles, the
    tensor cores, the consumers."""
    about = course.PIPELINES[name]
    traces = [trace for trace in files.pipelines if trace["figure"] == name]
    panels = [pipeline_panel(trace, about) for trace in traces]
    need(panels, "no traces: scripts/bench.py --sim")
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
