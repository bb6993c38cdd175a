"""Drawings of 02 to 05: the softmax, and who holds which rows and keys."""

import math

from ladder.drawings.pen import drawing


@drawing(380, "02: three passes over each row of S")
def safe_softmax(pen):
    """Three passes over a row of S: maximum, sum, and the row of P."""
    row = [1, 3, 2, 5, 4, 0, 2, 1]
    top, total = max(row), sum(math.exp(x - max(row)) for x in row)
    passes = [("1  maximum", "m = max S", map(str, row), f"m = {top}", "stream"),
              ("2  sum", "l = Σ exp(S − m)", [f"{math.exp(x - top):.3f}" for x in row],
               f"l = {total:.3f}", "stream"),
              ("3  normalise", "P = exp(S − m) / l",
               [f"{math.exp(x - top) / total:.3f}" for x in row], "Σ P = 1", "sum")]
    for i, (name, formula, values, result, kind) in enumerate(passes):
        y = 70 + 92 * i
        pen.text(20, y + 4, name, "bold", 14, "start")
        pen.text(20, y + 24, formula, "", 13, "start")
        for j, value in enumerate(values):
            pen.box(180 + 58 * j, y - 16, 58, 36, kind, value, 13, round_=0)
        pen.arrow(180, y + 32, 644, y + 32, kind)
        pen.text(414, y + 48, "reads the row of S" if i < 2 else
                 "reads the row of S once more, and writes the row of P", "faint", 12)
        pen.box(672, y - 16, 108, 36, "chip", result, 14)
    pen.legend(364, stream="S, from HBM", sum="P, to HBM", chip="stays in registers")


@drawing(400, "Two parts of a row, merged")
def merge(pen):
    """Two parts of a row, each with its own m, l and O, scaled to one maximum and added."""
    a, b = [1, 3, 2], [5, 4]
    part = lambda xs: (max(xs), sum(math.exp(x - max(xs)) for x in xs))  # noqa: E731
    (ma, la), (mb, lb) = part(a), part(b)
    m, l = max(ma, mb), la * math.exp(ma - max(ma, mb)) + lb
    for x, xs, m_part, l_part, kind, name in ((40, a, ma, la, "w0", "part A: keys 1 to 3"),
                                              (450, b, mb, lb, "w1", "part B: keys 4 and 5")):
        pen.text(x, 62, name, "bold", 14, "start")
        for i, value in enumerate(xs):
            pen.box(x + 100 * i, 74, 100, 34, kind, str(value), 14, round_=0)
        pen.box(x, 140, 300, 62, kind)
        pen.text(x + 150, 164, f"m = {m_part},   l = Σ exp(s − {m_part}) = {l_part:.3f}", "", 14)
        pen.text(x + 150, 188, f"o = Σ exp(s − {m_part}) · v", "", 14)
        pen.arrow(x + 150, 110, x + 150, 138)
        pen.arrow(x + 150, 204, 400 + (x - 190) * 0.4, 272)
    pen.text(230, 250, f"× e^({ma} − {m}) = {math.exp(ma - m):.3f}", "hot-ink bold", 14, "end")
    pen.text(580, 250, "× e^0 = 1", "bold", 14, "start")
    pen.box(170, 274, 460, 62, "sum")
    pen.text(400, 298, f"m = max({ma}, {mb}) = {m},   l = {la:.3f} · {math.exp(ma - m):.3f} + "
             f"{lb:.3f} = {l:.3f}", "", 14)
    pen.text(400, 322, f"o = {math.exp(ma - m):.3f} · o of A + o of B", "", 14)
    pen.lines(40, 362, ["Each part is scaled to the common maximum, then added: so parts may "
                        "be merged in any order.",
                        "At the end O = o / l, once."], "", 13, step=20)


@drawing(420, "03: one pass, nothing N × N")
def fused(pen):
    """One pass: rows of Q stay, K and V stream past, m, l and O are carried along."""
    pen.place(20, 50, 300, 352, "HBM")
    pen.box(180, 62, 90, 34, "chip", "Q")
    pen.box(180, 356, 90, 34, "sum", "O")
    for name, x in (("K", 76), ("V", 180)):
        pen.tiles(x, 128, 6, 1, 90, 34, lambda r, c: "stream" if r == 2 else "hbm",
                  lambda r, c, name=name: f"{name}, 32 keys", 12)
        pen.text(x + 45, 121, name, "bold", 14)
    pen.arrow(50, 130, 50, 330, "stream", wide=3)
    pen.place(400, 50, 380, 352, "one warp, on chip", "chip")
    pen.arrow(272, 80, 418, 100, "chip", wide=2.5)
    pen.arrow(272, 212, 418, 166, "stream", wide=2.5)
    pen.box(420, 80, 150, 46, "chip", "32 rows of Q", 13, "to the end")
    pen.box(420, 138, 150, 46, "stream", "32 keys: K, V", 13, "then the next 32")
    pen.box(630, 104, 130, 54, "hbm", "S, then P", 13, "32 × 32, forgotten")
    pen.arrow(574, 132, 626, 132)
    pen.arrow(695, 162, 695, 206)
    pen.box(420, 210, 340, 124, "sum")
    pen.lines(436, 234, ["m′ = max(m, rowmax S)", "α = exp(m − m′),  P = exp(S − m′)",
                         "l ← α · l + rowsum P", "O ← α · O + P · V"], "", 14, step=23)
    pen.note(436, 324, "m, l and O stay in registers; α rescales them")
    pen.arrow(480, 338, 274, 373, "sum", wide=2.5)
    pen.text(500, 360, "once, at the end: O / l", "", 13, "start")
    pen.note(500, 384, "Each warp goes through all of K and V.")


def column_of_tiles(pen, x, name, kind, wide=70):
    """An array in HBM, cut into tiles of rows."""
    pen.tiles(x, 96, 4, 1, wide, 52, kind, lambda r, c: f"{name[0]} {r + 1}", 12)
    pen.text(x + wide / 2, 88, name, "bold", 13)


@drawing(420, "04: K and V outside, Q inside — O goes back and forth")
def flash_v1(pen):
    """04: K and V stay in shared memory, Q streams past, O, l and m go to HBM and back."""
    pen.place(20, 50, 470, 330, "HBM, one head")
    column_of_tiles(pen, 40, "K", lambda r, c: "chip" if r == 1 else "hbm")
    column_of_tiles(pen, 126, "V", lambda r, c: "chip" if r == 1 else "hbm")
    column_of_tiles(pen, 262, "Q", lambda r, c: "stream" if r == 2 else "hbm")
    column_of_tiles(pen, 370, "O, l, m", lambda r, c: "hot" if r == 2 else "hbm", wide=90)
    pen.arrow(212, 122, 212, 296, "chip", wide=3)
    pen.lines(212, 322, ["outer", "loop"], "chip-ink bold", 12, "middle", 15)
    pen.arrow(350, 100, 350, 304, "stream", wide=3)
    pen.lines(350, 322, ["inner", "loop"], "stream-ink bold", 12, "middle", 15)
    pen.place(540, 50, 240, 330, "one block, on chip", "chip")
    pen.box(560, 84, 200, 48, "chip", "K 2 and V 2", 14, "stay for the inner loop")
    pen.box(560, 142, 200, 44, "stream", "Q 3", 14, "then Q 4, then Q 1 …")
    pen.box(560, 196, 200, 48, "hbm", "S, P", 14, "Br × Bc, forgotten")
    pen.box(560, 254, 200, 66, "hot", "O 3, l 3, m 3", 14, "read, updated, written")
    pen.arrow(462, 222, 558, 286, "hot", both=True, wide=3)
    pen.lines(660, 342, ["fp32, normalised each time", "again for each tile of K, V"], "faint", 12,
              "middle", 18)
    pen.legend(404, "chip", "stream", hot="read and written at every inner step")


@drawing(420, "05: Q outside, K and V inside — O is written once")
def flash_v2(pen):
    """05: a tile of Q stays on chip, K and V stream past, and O is written once."""
    pen.place(20, 50, 470, 330, "HBM, one head")
    column_of_tiles(pen, 40, "Q", lambda r, c: f"w{r}")
    column_of_tiles(pen, 278, "K", lambda r, c: "stream" if r == 1 else "hbm")
    column_of_tiles(pen, 360, "V", lambda r, c: "stream" if r == 1 else "hbm")
    column_of_tiles(pen, 130, "O, LSE", lambda r, c: f"w{r}", wide=90)
    pen.arrow(254, 100, 254, 304, "stream", wide=3)
    pen.text(254, 322, "the loop", "stream-ink bold", 12)
    pen.lines(75, 322, ["a block", "each"], "bold", 12, "middle", 15)
    pen.lines(175, 322, ["written", "once"], "bold", 12, "middle", 15)
    pen.place(540, 50, 240, 330, "block 3, on chip", "w2")
    pen.box(560, 84, 200, 48, "w2", "Q 3", 14, "stays to the end")
    pen.box(560, 142, 200, 44, "stream", "K 2 and V 2", 14, "then K 3 and V 3 …")
    pen.box(560, 196, 200, 48, "hbm", "S, P", 14, "Br × Bc, forgotten")
    pen.box(560, 254, 200, 66, "w2", "O, l, m", 14, "in registers to the end")
    pen.arrow(434, 174, 556, 164, "stream", wide=2.5)
    pen.lines(660, 342, ["O unnormalised; at the end", "O / l and LSE = m + ln l"], "faint", 12,
              "middle", 18)
    pen.legend(404, "stream", w2="one block's own: no block waits for another")


@drawing(360, "04: the warps split the keys of a tile of S")
def warps_keys(pen):
    """04's warps: each has a quarter of the keys, so that a row needs all four."""
    pen.text(300, 80, "keys", "faint")
    pen.text(58, 242, "rows", "faint", 13, "end")
    pen.box(70, 150, 64, 176, "stream", "Q: all")
    for w in range(4):
        pen.box(150 + 75 * w, 96, 75, 44, f"w{w}", "K", 13, round_=0)
        pen.box(150 + 75 * w, 150, 75, 176, f"w{w}", f"warp {w}", 14, "Br × Bc/4", round_=0)
    pen.line((150, 194), (450, 194), kind="hot", wide=2.5)
    pen.text(458, 190, "one row", "hot-ink bold", 12, "start")
    pen.box(500, 222, 130, 60, "hot", "shared memory", 13, "maxima, sums, O")
    pen.arrow(454, 252, 496, 252, "hot", wide=2.5)
    pen.lines(648, 160, ["Every row needs", "all four warps:", "add through", "shared memory,",
                         "two barriers", "for the statistics", "and two for every",
                         "16 rows of O."], "", 13, step=21)


@drawing(360, "05: the warps split the rows of a tile of S")
def warps_rows(pen):
    """05's warps: each has a quarter of the rows, and all keys."""
    pen.text(300, 80, "keys", "faint")
    pen.text(58, 242, "rows", "faint", 13, "end")
    pen.box(150, 96, 300, 44, "stream", "K: all keys to each warp")
    for w in range(4):
        y = 150 + 44 * w
        pen.box(70, y, 64, 44, f"w{w}", "Q", 13, round_=0)
        pen.box(150, y, 300, 44, f"w{w}", f"warp {w}: Br/4 × Bc", 14, round_=0)
        pen.box(500, y, 120, 44, f"w{w}", "m, l, O", 13, round_=0)
        pen.arrow(454, y + 22, 496, y + 22, f"w{w}")
    pen.lines(650, 160, ["Every row is", "one warp's own:", "nothing to add,",
                         "nothing to wait for.", "", "P stays in the", "warp's registers."],
              "", 13, step=21)


@drawing(420, "Causal mask: full, masked and skipped tiles (Br = 128, Bc = 64)")
def causal_tiles(pen):
    """Tiles of S under the causal mask: full, masked on the diagonal, and skipped."""
    kind = lambda r, c: "chip" if c < 2 * r else "stream" if c < 2 * r + 2 else "idle"  # noqa: E731
    pen.tiles(80, 84, 4, 8, 44, 66, kind,
              lambda r, c: {"chip": "full", "stream": "", "idle": "skip"}[kind(r, c)], 12)
    pen.line((80, 84), (432, 348), wide=2)
    pen.text(256, 70, "keys, 64 a tile", "faint")
    for r in range(4):
        pen.text(70, 121 + 66 * r, f"Q {r + 1}", "", 13, "end")
    pen.arrow(20, 340, 20, 92, "hot", wide=2)
    pen.text(20, 366, "the last rows see the most keys: their blocks start first", "hot-ink", 12,
             "start")
    pen.text(500, 70, "the two masked tiles, by warp", "bold", 13, "start")
    for w in range(4):
        for c in range(2):
            see = 64 * c < 32 * (w + 1)
            masked = 64 * c + 64 > 32 * w + 1
            pen.box(560 + 100 * c, 84 + 50 * w, 100, 50,
                    "idle" if not see else "stream" if masked else "chip",
                    "" if see and masked else "all seen" if see else "none seen", 12, round_=0)
        pen.text(550, 113 + 50 * w, f"warp {w}", "", 12, "end")
    pen.line((560, 84), (760, 284), wide=2)
    pen.lines(500, 312, ["Right of the line nothing is seen: these",
                         "elements become −∞, their exp is 0.",
                         "A warp whose rows see the whole tile",
                         "spends nothing on the mask."], "", 12.5, step=19)
    pen.legend(404, chip="full: no mask needed", stream="on the diagonal: computed, masked",
               idle="skipped: not even read")


@drawing(424, "Decoding: which block has which keys of which head, and who merges")
def split_kv(pen):
    """Decoding: the keys are split among blocks, and a second kernel merges their parts."""
    for head, y in enumerate((84, 204)):
        pen.text(20, y - 10, f"heads {4 * head + 1} to {4 * head + 4} of Q", "bold", 12, "start")
        pen.tiles(40, y, 4, 1, 76, 13, "chip")
        pen.text(160, y - 10, f"head {head + 1} of K and V", "bold", 12, "start")
        pen.arrow(118, y + 26, 158, y + 26, "chip")
        for part in range(4):
            x = 160 + 114 * part
            pen.box(x, y, 110, 52, f"w{part}", f"block {4 * head + part + 1}", 13,
                    f"tiles {part + 1}, {part + 5}, {part + 9} …")
            pen.box(x, y + 54, 110, 24, "hbm", "4 × (m, l, Ô)", 12)
        pen.arrow(618, y + 66, 652, y + 66)
        pen.box(654, y, 126, 78, "sum", "merge", 14, "a block a row of Q")
    pen.text(20, 326, "one row in merge:", "bold", 12, "start")
    for part in range(4):
        x = 160 + 114 * part
        pen.box(x, 306, 96, 34, f"w{part}", f"w{part + 1} · Ô{part + 1}", 13)
        pen.text(x + 105, 328, "+" if part < 3 else "", "", 14)
    pen.arrow(602, 323, 652, 323)
    pen.box(654, 306, 126, 34, "sum", "divided by l: O", 13)
    pen.text(160, 362, "w1 = e^(m1 − m), with m the largest of m1 to m4; l is the same sum, of l1 "
             "to l4", "faint", 12, "start")
    pen.legend(404, chip="Q, read by four blocks", w0="a part of the keys, read by one",
               hbm="workspace in HBM", sum="all parts, added up")
