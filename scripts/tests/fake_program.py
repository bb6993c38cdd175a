"""A program of a ladder that is made up: it notes what it is asked, and does what it was told.

python3 fake_program.py FOLDER RUNG OPTION...: FOLDER/called has a line for each call. told.json
says what a step ("05_flash_v2/mma", or on one device "… gpu") or the search for a GPU ("probe",
or of one type "probe bf16") does:
  {status, err, out: instead of records, changes: of its records, fwd or bwd: of one, sleep, crash}
"""

import json
import os
import signal
import sys
import time


ERRORS = {"fwd": {"lse": 0.01, "o": 4.88e-4}, "bwd": {"dq": 1e-5, "dk": 4.88e-4, "dv": 1e-6}}


def record(rung, step, direction, given):
    on_gpu = given["--device"] == "gpu"
    n = int(given.get("--seqlen", 256))
    heads = int(given.get("--heads", 2))
    return {
        "rung": rung, "step": step, "direction": direction, "device": given["--device"],
        "device_name": "NVIDIA H100 80GB HBM3" if on_gpu else "sim on 2 cores",
        "dtype": given.get("--dtype", "fp16"), "input": given.get("--input", "normal"), "seed": 0,
        "batch": int(given.get("--batch", 1)), "heads": heads,
        "kv_heads": int(given.get("--kv-heads", heads)), "seqlen": n,
        "seqlen_kv": int(given.get("--seqlen-kv", n)),
        "head_dim": int(given.get("--head-dim", 64)),
        "causal": "--causal" in given, "time_ms": 0.1234 if on_gpu else None,
        "tflops": 12.3 if on_gpu else None,
        "model_read_bytes": 30_000_000, "model_write_bytes": 4_000_000,
        "requested_read_bytes": None if on_gpu else 30_000_000,
        "requested_write_bytes": None if on_gpu else 4_000_000,
        "distinct_read_bytes": None if on_gpu else 1_000_000,
        "distinct_write_bytes": None if on_gpu else 200_000, "workspace_bytes": 524_288,
        "errors": {name: {"max": error, "rel": 1e-3, "tolerance": 1e-3, "nonfinite": 0}
                   for name, error in ERRORS[direction].items()},
        "kernels": [{"name": "attention", "time_ms": 0.12 if on_gpu else None, "barriers": 0}],
        "unknown": [1, {"a": None}], "pass": True}


def answer(folder, rung, told, step, given):
    if "sleep" in told:
        with open(os.path.join(folder, "asleep.part"), "w") as file:
            file.write(str(os.getpid()))
        os.rename(os.path.join(folder, "asleep.part"), os.path.join(folder, "asleep"))
        time.sleep(told["sleep"])
    status = told.get("status", 0)
    if "out" in told:
        print(told["out"], flush=True)
    elif step and (not status or "changes" in told):
        for direction in ["fwd", "bwd"] if rung.startswith("06") else ["fwd"]:
            print(json.dumps({**record(rung, step, direction, given),
                              **told.get("changes", {}), **told.get(direction, {})}))
    if "err" in told:
        print(told["err"], file=sys.stderr)
    if told.get("crash"):
        os.kill(os.getpid(), signal.SIGSEGV)
    return status


def main(folder, rung, *options):
    with open(os.path.join(folder, "called"), "a") as file:
        print(rung, *options, file=file)
    with open(os.path.join(folder, "told.json")) as file:
        told = json.load(file)
    given = dict(zip(options, [*options[1:], ""]))
    if "--step" not in given:
        mine = told.get(f"probe {given['--dtype']}", told.get("probe", {}))
        return answer(folder, rung, mine, None, given)
    status = 0
    for step in given["--step"].split(","):
        of_rung = f"{rung}/{step}"
        mine = told.get(f"{of_rung} {given['--device']}", told.get(of_rung, {}))
        status = answer(folder, rung, mine, step, given) or status
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
