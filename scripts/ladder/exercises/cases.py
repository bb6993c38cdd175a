"""Shapes at which a program that was built from a reader's file is tried."""

# What comes up in the suite, as options; together well under a second on any step.
CASES = """\
--batch 2 --heads 2 --kv-heads 1 --seqlen 64 --seqlen-kv 40 --head-dim 48 --input outliers
--heads 1 --seqlen 50 --head-dim 256 --dtype bf16 --input outliers --causal
--batch 2 --heads 2 --kv-heads 1 --seqlen 33 --seqlen-kv 70 --head-dim 128 --dtype bf16
--batch 2 --heads 1 --seqlen 33 --head-dim 200
--heads 4 --kv-heads 2 --seqlen 50 --seqlen-kv 33 --head-dim 96 --dtype bf16 --causal
--heads 2 --kv-heads 1 --seqlen 270 --seqlen-kv 258
--heads 1 --seqlen 300 --head-dim 80 --causal
--batch 2 --heads 2 --seqlen 1
--heads 4 --kv-heads 1 --seqlen 1 --seqlen-kv 217 --head-dim 128 --dtype bf16 --causal
--batch 2 --heads 2 --kv-heads 1 --seqlen 7 --seqlen-kv 1 --head-dim 8 --dtype bf16
--heads 9 --kv-heads 3 --seqlen 7 --head-dim 40 --dtype bf16 --input outliers --causal
--heads 2 --kv-heads 1 --seqlen 130 --seqlen-kv 65 --head-dim 16 --dtype bf16
--heads 2 --seqlen 34 --seqlen-kv 224 --head-dim 144 --causal
--heads 2 --kv-heads 1 --seqlen 217 --seqlen-kv 70 --dtype bf16 --causal
--heads 2 --seqlen 66 --seqlen-kv 70 --head-dim 24 --scale 2e-45 --dtype bf16 --causal
--heads 2 --kv-heads 1 --seqlen 113 --seqlen-kv 128 --scale 6.25
--heads 2 --seqlen 65 --seqlen-kv 66 --head-dim 128 --scale 1.77 --dtype bf16 --causal
""".splitlines()


def run_case(lab, program, case, predicted):
    """None, or in a line what is wrong."""
    run = lab.start(program, [*case.split(), "--check", "full"])
    if not run.records or run.status not in (0, 1):
        return f"{case}: {run.last_words()}"
    # 00 and 01 are expected to fail on large logits, and say so.
    expected_to_fail = "so this failure is expected" in run.err
    for record in run.records:
        for kernel in record["kernels"]:
            for way in ("read", "write"):
                counted, formula = (kernel[f"{of}_{way}_bytes"] for of in ("requested", "model"))
                if counted != formula:
                    return (f"{case}: {kernel['name']} requests {counted:,} bytes to {way}, and "
                            f"traffic() says {formula:,}")
        wanted = predicted(record)
        for kernel in record["kernels"]:
            for array, of in kernel["arrays"].items():
                counts = of["read"], of["write"]
                if wanted.get((kernel["name"], array), counts) != counts:
                    read, write = wanted[kernel["name"], array]
                    return (f"{case}: {kernel['name']} requests {counts[0]:,} bytes of {array} to "
                            f"read and {counts[1]:,} to write; predicted are {read:,} and "
                            f"{write:,}")
        for output, error in record["errors"].items():
            bad = error["nonfinite"] or error["max"] is None or error["max"] > error["tolerance"]
            if bad and not expected_to_fail:
                return (f"{case}: {output} is wrong: its error is {error['max']}, the tolerance "
                        f"{error['tolerance']}, {error['nonfinite']} not finite")
    return None


def keys_seen(record, row):
    """How many keys a query sees, as Problem::keys."""
    if not record["causal"]:
        return record["seqlen_kv"]
    return min(max(row + 1 + record["seqlen_kv"] - record["seqlen"], 0), record["seqlen_kv"])
