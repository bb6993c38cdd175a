"""Tests of the tables that scripts/figures writes into markdown files, over the committed
measurements as each test changes them: see committed.py.

Run alone: python3 scripts/tests/tables_test.py
"""

import unittest

from base import like, read
from committed import GPU, Changed
from ladder.console import Stop
from ladder.figures.measured import Files, of_the_paper
from ladder.figures.memory import steps
from ladder.figures.pages import TABLES, renewed
from ladder.files import course_pages


class Tables(Changed):
    EVERY = "".join(f"{name}\n<!-- {name}:begin -->\nold\n<!-- {name}:end -->\n" for name in TABLES)

    def test_by_hand(self):
        """Rates and times that are set: what is made of them."""
        for record in self.gpu["records"]:
            if record["rung"] in ("05_flash_v2", "06_backward"):
                mma = record["variant"] == "mma"
                record["tflops"] = 300 if not mma else 150 if record["seqlen"] > 512 else 400
                record["time_ms"] = (2 if mma else 1) * (1 if record["direction"] == "fwd" else 3)
        for peer in self.gpu["peers"]:
            peer["tflops"] = 600 if peer["head_dim"] == 64 and peer["causal"] else 240
            peer["time_ms"] = 2
        lines = self.table("sm90_beside_cudnn").splitlines()
        self.assertEqual(lines[2], "| d = 64 | 1.25 · 0.75 |" + " 1.25 · 2.00 |" * 5)
        self.assertEqual(lines[3], "| d = 64, causal | 0.50 · 0.75 |" + " 0.50 · 2.00 |" * 5)
        self.assertIn(f"geometric mean {(1.25**3 * 0.5) ** 0.25:.3f} of 24 points, worst 0.500 (d "
                      "= 64, causal, N = 512), 18 are 1 or more.", lines[-1])
        self.assertEqual(self.table("training_beside_others").splitlines()[2],
                         "| d = 64 |" + " 1.00 · 1.00 · 2.00 |" * 6)  # (2 + 2) / (1 + 3)
        both = next(line for line in self.figures()["tflops_both"]["panels"][0]["lines"]
                    if line["label"] == "06 mma")
        self.assertAlmostEqual(both["y"][0], 3.5 * 4 * 512**2 * 64 * 32 * 32 / 8e-3 / 1e12,
                               places=2)

    def test_what_was_not_in_turn_is_said(self):
        for peer in self.gpu["peers"]:
            peer["beside"] = ["05_flash_v2 sm90", "06_backward sm90"]
        self.assertIn("alternating in one run on the NVIDIA", self.table("peers"))
        next(peer for peer in self.gpu["peers"] if like(
            peer, variant="cudnn", direction="bwd", seqlen=8192)).pop("beside")
        self.assertIn("in one run, but for cuDNN in another, on the", self.table("peers"))
        for library, turn in (("cuDNN", "in another run"),
                              ("FlashAttention-2", "each point in turn")):
            self.assertIn(f"Against {library}, {turn}:", self.table("training_beside_others"))

    def test_what_no_formula_fits_is_a_number(self):
        for record in self.records(self.sim, rung="00_naive", seqlen=2048):
            record["kernels"][0]["arrays"]["Q"]["read"] *= 2
        self.assertRegex(self.table("visits"), r"\| 00 `naive` \| .* \| 4096 at N = 2,048 r \|")

    def test_the_roof_of_shared_memory(self):
        """By hand: a wgmma m64nNk16 reads 32·N bytes of B and, where A is in shared memory, 2,048
        of it. The sim's count must be just that; the lesson has the table."""
        def wgmmas(of_k, n, a_in_shared):
            return of_k // 16 * (32 * n + 2048 * a_in_shared)

        counted = {(step[1], one["d"]): one for step, one in steps(Files(GPU))}
        for d, rows, keys in ((64, 128, 128), (128, 64, 128)):
            # Two consumers: S and dP, dV and dK, dQ. Q, dO, LSE and D arrive, dS is written.
            plain, transposed = (
                2 * (2 * wgmmas(d, n, True) + 2 * wgmmas(rows, d, in_shared)
                     + wgmmas(keys, rows * d // 128, True))
                for n, in_shared in ((keys * rows // 128, True), (rows, False)))
            arrive = 2 * rows * d * 2 + 2 * rows * 4 + rows * keys * 2
            # Each thread reads the floats of its two rows, and P is written; or of its columns; and
            # dQ is written, and read by TMA.
            of_rows, of_columns = 2 * 256 * 2 * 4 + rows * keys * 2, 2 * 256 * rows
            for names, operands, others in (
                    ("wgmma tma producer", plain, of_rows), ("transposed", transposed, of_columns),
                    ("bulk_add sm90", transposed, of_columns + 2 * rows * d * 4)):
                for one in (counted[step, d] for step in names.split()):
                    self.assertEqual(
                        (one["tile"], one["cycles"], one["operands"], one["every"]),
                        ((rows, keys), 5 * 2 * rows * keys * d // 4096, operands,
                         operands + arrive + others), names)

    def test_claims_are_judged(self):
        def check(claim, verdict):
            row = next(line for line in self.table("claims").splitlines() if f'"{claim}"' in line)
            self.assertEqual(row.rstrip(" |").rpartition("| ")[2], verdict, claim)

        def point(r):
            return r["seqlen"], r["head_dim"], r["causal"]

        plain = {point(r): r["tflops"] for r in self.records(variant="safe") if of_the_paper(r)}
        v1, v2 = "04_flash_v1", "05_flash_v2"
        for rung, times, at, claim, verdict in (  # as fast as 02
                (v1, 1.9, {}, "2-4x", "**no**"), (v1, 3, {}, "2-4x", "yes"),
                (v1, 1.9, {"seqlen": 512}, "2-4x", "in part"), (v1, 5, {}, "2-4x", "yes, and more"),
                (v1, 5, {}, "less-at-128", "**no**"),
                (v1, 4, {"head_dim": 128}, "less-at-128", "yes"),
                (v2, 9, {}, "10x-causal", "**no**"),
                (v2, 10.1, {"seqlen": 1024}, "10x-causal", "yes")):  # the best alone
            for r in self.records(rung=rung, **at):
                r["tflops"] = plain.get(point(r), 1) * times
            check(claim, verdict)
        for r in self.records(variant="sm90"):
            r["workspace_bytes"] = r["seqlen"]**2
        for r in self.records(self.sim, rung="02_safe_softmax", dtype="fp16", input="outliers"):
            r["errors"]["o"]["rel"] = 0
        self.drop(self.gpu, lambda c, r: r["seqlen"] == 65536)
        for claim, verdict in (("memory", "**no**"), ("fp16-error", "**no**"),
                               ("64k", "not measured yet")):
            check(claim, verdict)

    def test_markers(self):
        files = Files(GPU)
        text, differ = renewed(self.write("whole.md", self.EVERY), files)
        self.assertEqual((set(differ), "old\n" in text), (set(TABLES), False))
        self.assertEqual(renewed(self.write("whole.md", text), files), (text, []))
        for text, why in (
                ("<!-- nosuch:begin -->\n<!-- nosuch:end -->\n", "there are only ladder, peers"),
                ("<!-- peers:begin -->\n", "no <!-- peers:end --> after it"),
                ("<!-- peers:end -->\n<!-- peers:begin -->\n", "no <!-- peers:end --> after it")):
            with self.assertRaisesRegex(Stop, why):
                renewed(self.write("page.md", text), files)

    def test_each_stands_in_a_page(self):
        pages = "".join(map(read, course_pages()))
        self.assertEqual([name for name in TABLES if f"<!-- {name}:begin -->" not in pages], [])


if __name__ == "__main__":
    unittest.main()
