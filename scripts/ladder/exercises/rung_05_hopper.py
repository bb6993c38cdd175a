"""Checks of the exercises of 05's lesson on Hopper."""

import math
import os

from ladder.exercises.kinds import Experiment, Numbers
from ladder.npy import npy

HEAD = "--heads 1 --seqlen 512"


def units(lab, step):
    """Of 64 rows × 128 keys of both products, at d = 64."""
    causal = lab.run(f"05_flash_v2 --variant {step} {HEAD} --causal --check off")
    return causal["matmul_flops"] / (4 * 64 * 128 * 64)


def order_is_seen_from_three_keys_on(lab, program):
    """O is wrong and LSE is not; with two keys nothing is."""
    three, two = (lab.start(program, ["--variant", "fp8", "--seqlen-kv", str(n)]) for n in (3, 2))
    if not three.records or not two.records:
        return False
    wrong = {name for name, error in three.records[0]["errors"].items()
             if error["tolerance"] is not None and error["max"] > error["tolerance"]}
    return wrong == {"o"} and two.status == 0


def output_of_vanishing_weights(lab):
    """O where one key has logit 0 and 1,023 have -7, and all of V is 1, with P not scaled."""
    folder = os.path.join(lab.folder, "vanishing")
    os.makedirs(folder, exist_ok=True)
    logits = [0] + 1023 * [-7]
    for name, column, ones in (("q", [1], 1), ("k", logits, 1), ("v", 1024 * [1], 64)):
        values = [x if i < ones else 0 for x in column for i in range(64)]
        with open(os.path.join(folder, f"{name}.npy"), "wb") as file:
            file.write(npy((1, 1, len(column), 64), values))
    run = lab.start(lab.need_build("05_flash_v2"), [
        "--variant", "fp8", "--load", folder, "--scale", "1",
        "--set", "hadamard=off,p_scale=off"])
    return 1 - run.records[0]["errors"]["o_full"]["max"]


EXERCISES = {
    "1": Numbers([("bytes requested", lambda lab: lab.requested(
        f"05_flash_v2 --variant sm90 {HEAD}"), 0)]),
    "2": Numbers([("units", lambda lab: units(lab, "sm90"), 0)]),
    "3": Experiment("05_flash_v2/hopper/fp8.cu", {
        "05.hopper.3": (order_is_seen_from_three_keys_on,
                        "from three keys on `o` fails, and `lse` never does")}),
    "4": Numbers([("below the maximum", lambda lab: 10 * math.log(2), 0.005),
                  ("O", output_of_vanishing_weights, 0.005)]),
}
