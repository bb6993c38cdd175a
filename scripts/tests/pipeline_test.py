"""Tests of the replay of what happens in a block, which figures and the explorer show.

Run alone: python3 scripts/tests/pipeline_test.py
"""

import itertools
import json
import unittest

from base import RESULTS, read
from ladder import course
from ladder.console import Stop
from ladder.figures import replay
from ladder.figures.pipeline import gaps

FORWARD = course.PRODUCTS["attention"]


def event(kind, name="", number=0, amount=0, barrier="", exps=0, flops=0):
    return [kind, name, barrier, number, amount, exps, flops]


class Pipeline(unittest.TestCase):
    """A small case worked out by hand, and what holds of the traces that are committed. What their
    figures show is as it was: results_test."""

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

    def test_when_nobody_asks_the_tensor_cores(self):
        self.assertEqual(gaps([[1, 5], [2, 3], [6, 7]], 9), [[0, 1], [5, 6], [7, 9]])

    # What a consumer has to have before what, and the products that read a tile.
    ORDER = {"attention": ("S softmax", "softmax O"),
             "key_gradients": ("S softmax", "softmax scale", "dP scale", "softmax dV", "scale dK",
                               "scale dQ")}
    READ_BY = {"attention": {"K": ["S"], "V": ["O"]},
               "key_gradients": {"Q": ["S", "dK"], "dO": ["dP", "dV"]}}

    def test_the_committed_traces(self):
        pipelines = json.loads(read(RESULTS, "traces.json"))["pipelines"]
        self.assertEqual(len(pipelines), len(course.PIPELINED))
        for trace in pipelines:
            with self.subTest(figure=trace["figure"], head_dim=trace["head_dim"]):
                self.check(trace, trace["kernel"])

    def check(self, trace, kernel):
        played = replay.replay(trace["warps"], course.PRODUCTS[kernel])
        rows, keys = trace["block_q"], trace["block_kv"]
        forward, consumers = kernel == "attention", range(len(played["consumers"]))
        self.assertEqual(len(consumers), rows // 64 if forward else 2)
        # Forward two tiles of Q.
        steps = 2 * -(-trace["seqlen_kv"] // keys) if forward else trace["seqlen"] // rows

        # Each consumer has each product once a step; the tensor cores do one at a time.
        names = [name for of in course.PRODUCTS[kernel].values() for name in of]
        at = {(who, what, step): span for who, what, step, *span in played["products"]}
        self.assertEqual(sorted(at), sorted(itertools.product(consumers, names, range(steps))))
        self.assertEqual(len(at), len(played["products"]))
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


if __name__ == "__main__":
    unittest.main()
