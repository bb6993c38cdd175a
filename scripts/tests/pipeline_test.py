"""Tests of the replay of what happens in a block, which figures and the explorer show."""

import unittest

import base  # finds the scripts
from ladder import course
from ladder.console import Stop
from ladder.trace import replay

FORWARD = course.PRODUCTS["attention"]


def event(kind, name="", number=0, amount=0, barrier="", exps=0, flops=0):
    return [kind, name, barrier, number, amount, exps, flops]


class Pipeline(unittest.TestCase):
    """Small cases worked out by hand. That what the committed traces become is as it was,
    results_test sees."""

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

    def test_two_consumers(self):
        """They queue for the tensor cores, share the units for exponentials, and take turns."""
        consumer = [event("wgmma", "K", amount=4096 * 100), event("wgmma_wait", number=1)]
        first = [*consumer, event("named_barrier_arrive", "turn", exps=16), event("exit")]
        second = [*consumer, event("named_barrier_sync", "turn", exps=16),
                  event("wgmma", "V", 1, amount=4096 * 100), event("tma_store", "O", 5, 5120 * 10),
                  event("tma_store_wait", "", 6), event("exit")]
        played = replay.replay([first, second], FORWARD)
        self.assertEqual(played["products"], [[0, "S", 0, 0, 100], [1, "S", 0, 100, 200],
                                              [1, "O", 0, 356, 456]])
        # For 128 cycles alone, 100 of which the first has before the second comes.
        self.assertEqual(played["consumers"], [
            [["sums", None, 0, 100], ["softmax", 0, 100, 256]],
            [["sums", None, 0, 200], ["softmax", 0, 200, 356], ["store", None, 356, 1676]]])

    def test_what_never_comes(self):
        waits = [event("mbarrier_wait", "K_full[0]"), event("mbarrier_arrive", "K_full[0]")]
        with self.assertRaisesRegex(Stop, r"warps \[1\] wait for ever"):
            replay.replay([[event("wgmma", "K", amount=1)], waits], FORWARD)


if __name__ == "__main__":
    unittest.main()
