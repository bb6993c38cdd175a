"""What scripts/figures measure would write on some GPU: made up, after the shape of real ones;
and tests over it.
"""

import json
import os
import pickle
import shutil

from base import RESULTS, SCRIPTS, Scratch, listed
from ladder.bench.grid import DECODE_CACHES
from ladder.figures.gallery import figure_data
from ladder.figures.measured import Files, flops
from ladder.figures.names import POINTS
from ladder.figures.pages import TABLES, renewed

# TFLOP/s at large N, what a step requests (bytes for each of N² and for each of N·d) and keeps.
STEPS = {
    ("00_naive", "naive"): (1.3, 518, 8, "square"),
    ("01_tiled_matmul", "tile"): (2.8, 40, 8, "square"),
    ("01_tiled_matmul", "mma"): (60, 13, 8, "square"),
    ("02_safe_softmax", "safe"): (53, 15, 8, "square"),
    ("03_online_softmax", "softmax"): (60, 13, 8, "square"),
    ("03_online_softmax", "two_pass"): (5.7, 380, 8, "none"),
    ("03_online_softmax", "one_pass"): (5.7, 256, 8, "none"),
    ("03_online_softmax", "one_pass_tile"): (190, 8, 8, "none"),
    ("04_flash_v1", "flash_v1"): (60, 3, 20, "line"),
    ("05_flash_v2", "swap"): (140, 4, 8, "line"),
    ("05_flash_v2", "defer"): (150, 4, 8, "none"),
    ("05_flash_v2", "mma"): (280, 2, 8, "none"),
    ("05_flash_v2", "sm90"): (520, 2, 8, "none"),
    ("06_backward", "stored"): (50, 30, 20, "square"),
    ("06_backward", "mma"): (200, 6, 30, "line"),
    ("06_backward", "deterministic"): (150, 7, 30, "line"),
    ("06_backward", "wgmma"): (280, 6, 30, "line"),
    ("06_backward", "tma"): (300, 6, 30, "line"),
    ("06_backward", "producer"): (320, 6, 30, "line"),
    ("06_backward", "transposed"): (360, 6, 30, "line"),
    ("06_backward", "bulk_add"): (410, 6, 30, "line"),
    ("06_backward", "sm90"): (420, 6, 30, "line"),
}
DEFAULTS = {"00_naive": "naive", "01_tiled_matmul": "mma", "02_safe_softmax": "safe",
            "03_online_softmax": "one_pass_tile", "04_flash_v1": "flash_v1",
            "05_flash_v2": "sm90", "06_backward": "sm90"}
SQUARE = [step for step, of in STEPS.items() if of[3] == "square"]
# What runs on one architecture alone.
HOPPER = ("wgmma", "tma", "producer", "transposed", "bulk_add", "sm90")
ASIDES = [("06_backward", "deterministic")]
COLOURS = {rung: f"#{40 * i:02x}5a5a" for i, rung in enumerate(DEFAULTS)}
PEERS = {"flash": 310, "cudnn": 470, "efficient": 150, "math": 15}
NAME, OTHER = "NVIDIA F200 80GB", "NVIDIA F100 40GB"
COPY = 3.0e12  # bytes a second
OTHERS_COPY = 2.0e12
DECODE_COPY = 4.0e12  # of another run


def registered(rung, variant):
    """What the file's `steps` say of a step."""
    line = listed(
        rung, variant, default=DEFAULTS[rung] == variant, by_name_only=(rung, variant) in ASIDES,
        colour=COLOURS[rung], backward=rung == "06_backward",
        exact_architecture=variant in HOPPER)
    del line["device"], line["after"]
    return line


def made_record(shape, direction, kind="normal", tile=None):
    """What a step would be measured to do, of what the figures and tables ask for."""
    batch, heads, n, d = (shape[name] for name in ("batch", "heads", "seqlen", "head_dim"))
    rate, square, line, kept = STEPS[shape["rung"], shape["variant"]]
    if direction == "fwd" and shape["rung"].startswith("06"):
        rate *= 1.3
    rate *= n / (n + 500) * (0.8 if shape["causal"] else 1) * (1.2 if d == 128 else 1)
    if tile:
        rate, square = rate * tile / 256, square * 256 / tile
    record = {**shape, "direction": direction, "device": "gpu", "input": kind, "kv_heads": heads,
              "seqlen_kv": n, "block_q": 64, "block_kv": tile or 64, "warps": 4, "stages": 2,
              "smem_bytes": 1000}
    time_ms = flops(record) / rate * 1e-9
    asked = int(batch * heads * (square * n * n + line * n * d))
    dram = {f"dram_{way}_bytes": None if shape["causal"] else count for way, count in (
        ("read", asked // 10 + batch * heads * 6 * n * d), ("write", batch * heads * 2 * n * d))}
    error = {"max": 1e-3, "rel": 1e-3, "tolerance": 4e-3, "nonfinite": 0}
    return {**record, **dram, "time_ms": time_ms, "tflops": rate, "model_read_bytes": asked,
            "model_write_bytes": 0, "workspace_bytes": batch * heads * 4 * n * {
                "square": n, "line": d, "none": 0}[kept],
            "kernels": [{"name": name, "time_ms": time_ms * part, **dram}
                        for name, part in (("first", 0.75), ("second", 0.25))],
            "errors": {name: error for name in (
                "lse", *(["o"] if direction == "fwd" else ["dq", "dk", "dv"]))}}


def peer(backend, direction, tflops, shape, **more):
    record = {"seqlen_kv": shape["seqlen"], **shape, "rung": "pytorch", "variant": backend,
              "direction": direction, "dtype": "bf16", "version": "PyTorch 0.0", "beside": [],
              "tflops": tflops, **more}
    return {"time_ms": flops(record) / tflops * 1e-9, **record}


def fake_results():
    commands, records, skipped, peers = [], [], [], []

    def add(step, batch, heads, n, d, causal, more="--check off", **changes):
        rung, variant = step
        shape = {"rung": rung, "variant": variant, "batch": batch, "heads": heads, "seqlen": n,
                 "head_dim": d, "causal": causal, "dtype": "bf16"}
        gib = 4 * heads * batch * n * n / 2**30
        if step in SQUARE and gib > 75:
            skipped.append({**shape, "status": 3, "reason":
                            f"{rung} needs {gib:.1f} GiB of GPU memory: there are 79.1"})
        elif STEPS[step][0] < 10 and n > 4096:
            skipped.append({**shape, "status": None, "reason": "slow: made up"})
        else:
            for direction in ["fwd", "bwd"] if rung.startswith("06") else ["fwd"]:
                commands.append(f"{rung} --variant {variant} {more}")
                records.append(made_record(shape, direction, **changes))

    for n in (512, 1024, 2048, 4096, 8192, 16384):
        for d, causal in POINTS:
            shape = {"batch": 16384 // n, "heads": 2048 // d, "seqlen": n, "head_dim": d,
                     "causal": causal}
            for step in STEPS:
                add(step, *shape.values())
            peers += [peer(backend, way, rate * n / (n + 300) * factor * (0.7 if causal else 1),
                           shape, beside=[" ".join(s) for s in STEPS if s[0][:2] in "05 06"])
                      for backend, rate in PEERS.items()
                      for way, factor in (("fwd", 1), ("bwd", 0.8))]
    for n in (4096, 8192, 16384, 32768, 65536):
        for causal in (False, True):
            for step in STEPS:
                add(step, 1, 16, n, 128, causal)
    for batch, heads, kv_heads, keys in DECODE_CACHES:
        for d in (64, 128):
            shape = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "seqlen": 1,
                     "seqlen_kv": keys, "head_dim": d, "causal": False}
            # K and V at the rate of the copy.
            time_ms = 0.01 + 4e3 * batch * kv_heads * keys * d / DECODE_COPY
            ours = {"rung": "05_flash_v2", "variant": "mma", "dtype": "bf16", **shape}
            record = made_record(ours, "fwd") | shape | {"variant": "split_kv", "time_ms": time_ms}
            record["tflops"] = flops(record) / time_ms * 1e-9
            commands.append("05_flash_v2 --variant split_kv --seqlen 1")
            records.append(record)
            peers += [peer(backend, "fwd", record["tflops"] / factor, shape,
                           time_ms=factor * time_ms, copy_bytes_per_s=DECODE_COPY)
                      for backend, factor in (("flash", 1.5), ("cudnn", 1.1))]
    for step in STEPS:
        for kind in ("normal", "outliers"):
            add(step, 1, 2, 1024, 64, False, f"--check full --input {kind}", kind=kind)
    for d in (64, 128):
        for tile in (64, 128, 256):
            add(("04_flash_v1", "flash_v1"), 8, 2048 // d, 2048, d, False,
                f"--block-q 64 --block-kv {tile} --check off", tile=tile)
    return {"machine": {"gpu": NAME, "driver": "1.2", "memory_bytes": 80 * 2**30, "clocks":
                        {"sm_mhz": {"median": 1500}}, "cuda": "12.8", "commit": "0" * 12,
                        "date": "2001-02-03"},
            "ceilings": {"matmul_tflops": 700, "copy_bytes_per_s": COPY},
            "steps": [registered(*step) for step in STEPS], "commands": commands,
            "records": records, "peers": peers, "skipped": skipped}


def of_another(results):
    """The same, measured earlier on another GPU, of a smaller bandwidth: what keeps S and P in HBM
    takes longer by as much, all else as long."""
    results = json.loads(json.dumps(results))
    results["machine"] |= {"gpu": OTHER, "commit": "1" * 12, "date": "2001-01-01"}
    results["ceilings"]["copy_bytes_per_s"] = OTHERS_COPY
    for record in results["records"]:
        if (record["rung"], record["variant"]) in SQUARE:
            for one in (record, *record["kernels"]):
                one["time_ms"] *= COPY / OTHERS_COPY
            record["tflops"] *= OTHERS_COPY / COPY
    return results


def like(record, **wanted):
    return wanted.items() <= record.items()


class MadeUp(Scratch):
    """Measurements that are made up, self.results and, of another GPU, self.others, beside the
    sim's real ones."""

    EVERY = "".join(f"{name}\n<!-- {name}:begin -->\nold\n<!-- {name}:end -->\n" for name in TABLES)

    @classmethod
    def setUpClass(cls):
        results = fake_results()
        cls.made = pickle.dumps((results, of_another(results)))  # copied ten times as fast

    def setUp(self):
        super().setUp()
        self.path, self.written, self.stamps = self.at("gpu.json"), {}, None
        self.as_it_was()

    def as_it_was(self):
        for name in ("sim.json", "traces.json", "clock.json"):
            shutil.copy(os.path.join(RESULTS, name), self.root)
        self.results, self.others = pickle.loads(self.made)

    def files(self):
        """Read anew where something has changed: writing and reading take long."""
        for name, data in (("gpu.json", self.results), ("other.json", self.others)):
            now = pickle.dumps(data)
            if self.written.get(name) != now:
                self.written[name] = now
                self.write(name, data)
        stamps = {one.name: one.stat().st_mtime_ns for one in os.scandir(self.root)}
        if self.stamps != stamps:
            self.stamps, self.as_read = stamps, Files(self.path)
        return self.as_read

    def edit(self, name, change):
        """Changes a file of JSON beside the results."""
        data = json.loads(self.read(name))
        change(data)
        self.write(name, data)

    def plot(self, *words, status=0):
        result = self.run_it(os.path.join(SCRIPTS, "figures"), "draw", *words, status=None)
        if result.returncode == 3 and "matplotlib is missing" in result.stderr and not \
                os.environ.get("CI"):
            self.skipTest(result.stderr.strip())
        self.assertEqual(result.returncode, status, result.stderr)
        return result

    def said(self, files=None):
        """The figures' data, and what is said of those that lack some."""
        lines = []
        return figure_data(files or self.files(), lines.append), "\n".join(lines)

    def table(self, name):
        return TABLES[name](self.files(), name)

    def row(self, name, part):
        """The first of a table's lines that has this in it."""
        found = [line for line in self.table(name) if part in line]
        self.assertTrue(found, part)
        return found[0]

    def readme(self, files=None):
        return renewed(self.write("README.md", self.EVERY), files or self.files())[0]

    def records(self, **wanted):
        return [r for r in self.results["records"] if like(r, **wanted)]

    def drop(self, keep):
        """Keeps the records, with their commands, for which `keep` holds."""
        pairs = [(c, r) for c, r in zip(self.results["commands"], self.results["records"])
                 if keep(c, r)]
        self.results["commands"], self.results["records"] = map(list, zip(*pairs))

    def drop_step(self, rung, variant):
        self.drop(lambda _, r: (r["rung"], r["variant"]) != (rung, variant))

    def add_fp16(self, faster=1):
        """All that was measured, in fp16 too, and first."""
        for words in ("commands", "records", "peers"):
            more = json.loads(json.dumps(self.results[words]).replace("bf16", "fp16"))
            for record in more if words != "commands" else []:
                record["time_ms"] = record["time_ms"] and record["time_ms"] / faster
                record["tflops"] = record["tflops"] and record["tflops"] * faster
            self.results[words] = more + self.results[words]
