"""Tests of the figures of pipelines: the replay of what happens in a block, and the boxes that
scripts/figures clock's marks become.

Run alone: python3 scripts/tests/pipeline_test.py
"""

import itertools
import json
import unittest

from base import RESULTS, read
from ladder import course
from ladder.bench import clock
from ladder.console import Stop
from ladder.figures import replay
from ladder.figures.pipeline import measured_panel

FORWARD = course.PRODUCTS["attention"]


def event(kind, name="", number=0, amount=0, barrier="", exps=0, flops=0):
    return [kind, name, barrier, number, amount, exps, flops]


class Pipeline(unittest.TestCase):
    """The replay of what happens in a block: of a small case worked out by hand, and of the traces
    that are committed, where what the figure is to show must be there."""

    def test_a_copy_a_product_and_a_softmax(self):
        producer = [event("mbarrier_arrive", "K_full[0]"),
                    event("tma_load", "K", amount=32 * 5120, barrier="K_full[0]"),
                    event("mbarrier_wait", "K_free[0]"),
                    event("tma_load", "K", 1, amount=5120, barrier="K_full[0]"), event("exit")]
        consumer = [event("mbarrier_wait", "K_full[0]"),
                    event("wgmma", "K", amount=4096 * 100),
                    event("wgmma_wait", number=1),
                    event("mbarrier_arrive", "K_free[0]", exps=16),
                    event("mbarrier_wait", "K_full[0]", 1, flops=10), event("exit")]
        played = replay.replay([producer, consumer], FORWARD)
        landed = 32 * 132 + 500
        self.assertEqual(played["products"], [[0, "S", 0, landed, landed + 100]])
        free = landed + 100 + 16 * 128 / 16
        self.assertEqual(played["copies"], [["K", 0, 0, landed, free],
                                            ["K", 0, free, free + 132 + 500, None]])
        self.assertEqual(played["consumers"], [[
            ["tile", None, 0, landed], ["sums", None, landed, landed + 100],
            ["softmax", 0, landed + 100, free], ["scale", 0, free, free + 10],
            ["tile", None, free + 10, free + 632]]])
        self.assertEqual(played["end"], free + 632)

    def test_what_never_comes(self):
        waits = [event("mbarrier_wait", "K_full[0]"), event("mbarrier_arrive", "K_full[0]")]
        with self.assertRaisesRegex(Stop, r"warps \[1\] wait for ever"):
            replay.replay([[event("wgmma", "K", amount=1)], waits], FORWARD)

    # What a consumer has to have before what, and the products that read a tile.
    ORDER = {"attention": ("S softmax", "softmax O"),
             "key_gradients": ("S softmax", "softmax scale", "dP scale", "softmax dV", "scale dK",
                               "scale dQ")}
    READ_BY = {"attention": {"K": ["S"], "V": ["O"]},
               "key_gradients": {"Q": ["S", "dK"], "dO": ["dP", "dV"]}}

    def test_the_committed_traces(self):
        pipelines = json.loads(read(RESULTS, "traces.json"))["pipelines"]
        self.assertEqual([(trace["figure"], trace["head_dim"]) for trace in pipelines],
                         [("pipeline", 128), ("pipeline", 64),
                          ("pipeline_bwd", 128), ("pipeline_bwd", 64)])
        for trace in pipelines:
            with self.subTest(figure=trace["figure"], head_dim=trace["head_dim"]):
                self.check(trace, trace["kernel"])

    def check(self, trace, kernel):
        played = replay.replay(trace["warps"], course.PRODUCTS[kernel])
        rows, keys, d = trace["block_q"], trace["block_kv"], trace["head_dim"]
        forward, consumers = kernel == "attention", range(len(played["consumers"]))
        self.assertEqual(len(consumers), rows // 64 if forward else 2)
        # Forward two tiles of Q.
        steps = 2 * -(-trace["seqlen_kv"] // keys) if forward else trace["seqlen"] // rows

        # Each consumer has each product once a step; the tensor cores do all FLOPs of each, one
        # product at a time.
        names = [name for of in course.PRODUCTS[kernel].values() for name in of]
        every = list(itertools.product(consumers, names, range(steps)))
        at = {(who, what, step): span for who, what, step, *span in played["products"]}
        self.assertEqual((set(at), len(played["products"])), (set(every), len(every)))
        flops = steps * 2 * rows * d * (trace["seqlen_kv"] * 2 // steps if forward else keys)
        for what in names:
            cycles = sum(at[place][1] - at[place][0] for place in every if place[1] == what)
            self.assertAlmostEqual(replay.MATMUL_FLOPS * cycles, flops, msg=what)
        in_turn = sorted(at.values())
        self.assertTrue(all(a[1] <= b[0] for a, b in zip(in_turn, in_turn[1:])))

        # Nothing begins before what it needs is there: sums, tiles, and stages that are free.
        at |= {(who, what, step): span for who in consumers
               for what, step, *span in played["consumers"][who] if what in ("softmax", "scale")}
        for who, order, step in itertools.product(consumers, self.ORDER[kernel], range(steps)):
            first, then = order.split()
            for other in consumers if then == "dQ" else [who]:  # needs the dS of both
                self.assertLessEqual(at[other, first, step][1], at[who, then, step][0])
        for array, products in self.READ_BY[kernel].items():
            copies = [copy for copy in played["copies"] if copy[0] == array]
            self.assertEqual(len(copies), steps)
            for step, (_, stage, _, landed, freed) in enumerate(copies):
                reads = [at[who, what, step] for who in consumers for what in products]
                self.assertLessEqual(landed, min(reads)[0])
                later = [copy for copy in copies[step + 1:] if copy[1] == stage]
                self.assertLessEqual(max(end for _, end in reads), freed or played["end"])
                self.assertTrue(not later or freed <= later[0][2])

        # The point of it: softmaxes under products. Backward P is worked out under dP; forward,
        # from the second step on, under the consumer's own product PV of the step before, and as
        # far as it outlasts that, under another's.
        def under(mine, others):
            return any(mine[0] < until and begin < mine[1] for begin, until in others)

        if not forward:
            self.assertTrue(any(under(at[who, "softmax", step], [at[who, "dP", step]])
                                for who in consumers for step in range(steps)))
            return
        others = [at[place] for place in every if place[0] != 0]
        outlast = 0
        for step in range(1, steps // 2):
            for who in consumers:
                self.assertTrue(under(at[who, "softmax", step], [at[who, "O", step - 1]]))
            begin, until = at[0, "O", step - 1][1], at[0, "softmax", step][1]
            if until > begin + 1e-6:
                outlast += 1
                self.assertTrue(under((begin, until), others), step)
        self.assertEqual(outlast > 0, d == 64)  # at d = 128 a softmax is as long as a product


class Clock(unittest.TestCase):
    """Marks as boxes: consumers of 8 steps of 320 cycles, the second one 160 later."""

    def boxes(self, variant, parts, late):
        """{consumer, or None where nobody has a product: [kind, text, from, to], …}"""
        shown = [[[1000 + 160 * who + 320 * (step + (late and what >= clock.O_ISSUED)) + part
                   for what, part in enumerate(parts)] for step in range(clock.STEPS)]
                 for who in (0, 1)]
        panel = measured_panel({"variant": variant, "shown": shown, "block_q": 128,
                                "block_kv": 128, "head_dim": 128, "cycles": {"step": 4096},
                                "sm_ghz": 1.5, "tflops": 500, "tflops_marked": 490}, 640)
        found = {None: [], 0: [], 1: []}
        for kind, text, consumer, *span, _, _ in panel["boxes"]:
            found[consumer].append([kind, text, *span])
        return found

    def test_marks_become_boxes(self):
        # Begins, S issued, S done, softmax done, P ready, P·V issued, done.
        boxes = self.boxes("producer", [0, 10, 100, 200, 220, 230, 300], False)
        self.assertEqual([box for box in boxes[0] if box[3] <= 320],
                         [["S", "S14", 0, 100], ["O", "O14", 220, 300],
                          ["softmax", "P14", 100, 200], ["rest", "", 200, 220]])
        # Of the second consumer: half of step 13's, cut off where the panel begins.
        self.assertIn(["O", "O13", 60, 140], boxes[1])
        self.assertEqual(boxes[None][-4:-2], [["idle", "", 140, 160], ["idle", "", 300, 320]])
        # Where P·V is step 13's, and is not done before S is; then nobody asks until the softmax is
        # done.
        boxes = self.boxes("overlap", [0, 10, 100, 200, 240, 20, 210], True)
        self.assertEqual([box for box in boxes[0] if box[3] <= 320],
                         [["S", "S14", 0, 100], ["O", "O13", 10, 100],
                          ["perhaps", "", 100, 210], ["softmax", "P14", 100, 200],
                          ["rest", "", 210, 240]])
        # Waited for after the softmax
        boxes = self.boxes("overlap", [0, 10, 100, 200, 300, 20, 280], True)
        self.assertIn(["O", "O13", 10, 280], boxes[0])


if __name__ == "__main__":
    unittest.main()
