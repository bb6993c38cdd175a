"""Drawings of 06: five products, and where their results go."""

from ladder.drawings.pen import drawing


@drawing(470, "06: five products for one tile of S, and where their operands are")
def backward_products(pen):
    """The five products of the backward pass, and where their operands are."""
    rows = [("S = Q Kᵀ", "Q: shared", "K: shared", "P = exp(S − LSE)", "P → shared"),
            ("dP = dO Vᵀ", "dO: shared", "V: shared", "dS = P ∘ (dP − D)", "dS → shared"),
            ("dV += Pᵀ dO", "Pᵀ: shared", "dO: shared", "", "dV: registers"),
            ("dK += dSᵀ Q", "dSᵀ: shared", "Q: shared", "", "dK: registers"),
            ("dQ += dS K", "dS: shared", "K: shared", "", "dQ: HBM, added")]
    turned = ["Sᵀ = K Qᵀ", "dPᵀ = V dOᵀ", "Pᵀ: registers", "dSᵀ: registers", "dS: shared"]
    for x, text in ((20, "product"), (150, "left operand"), (262, "right operand"), (374, "then"),
                    (520, "result")):
        pen.note(x, 62, text)
    pen.lines(718, 48, ["on Hopper,", "transposed"], "w0-ink bold", 12, "middle", 16)
    for i, (product, left, right, then, result) in enumerate(rows):
        y = 76 + 58 * i
        pen.text(20, y + 28, product, "bold", 15, "start")
        for x, text in ((150, left), (262, right)):
            kind = ("stream" if text.startswith(("Q", "dO")) else
                    "w2" if text.startswith(("P", "dS")) else "chip")
            pen.box(x, y + 5, 104, 36, kind, text, 13)
        pen.text(374, y + 28, then, "", 13, "start")
        pen.box(500, y + 5, 140, 36, "w2" if i < 2 else "sum" if i < 4 else "hot", result, 13)
        pen.box(656, y + 5, 124, 36, "w0" if 1 < i < 4 else "idle", turned[i], 13)
    pen.legend(386, chip="stays: the block's tile of keys", stream="streams past: tiles of queries",
               w2="P and dS, through shared memory")
    pen.legend(410, sum="summed over all steps", hot="every block adds to it",
               w0="transposed: left operand for nothing")
    pen.text(20, 446, "Forward there are two products a tile, backward five: S once more, "
             "since P was not stored. LSE and D: a number a row.", "", 12, "start")


@drawing(440, "06: K and V outside, Q and dO inside; sums over keys leave through HBM")
def backward_nest(pen):
    """06's loops: K and V stay, Q and dO stream past, dQ is added up in HBM."""
    pen.place(20, 50, 430, 340, "HBM, one head")
    for name, x, wide, kind, text in (
            ("K, V", 40, 76, lambda r, c: f"w{r}", "K V"),
            ("Q, dO", 160, 76, lambda r, c: "stream" if r == 1 else "hbm", "Q dO"),
            ("LSE, D", 250, 40, lambda r, c: "stream" if r == 1 else "hbm", ""),
            ("dQ", 350, 76, lambda r, c: "hot" if r == 1 else "hbm", "dQ")):
        pen.tiles(x, 100, 4, 1, wide, 50, kind,
                  lambda r, c, text=text: f"{text} {r + 1}" if text else "", 12)
        pen.text(x + wide / 2, 92, name, "bold", 13)
    pen.arrow(312, 104, 312, 298, "stream", wide=3)
    pen.lines(78, 318, ["a block", "each"], "bold", 12, "middle", 15)
    pen.text(236, 318, "the loop", "stream-ink bold", 12)
    pen.lines(388, 318, ["fp32: every", "block adds"], "hot-ink bold", 12, "middle", 15)
    pen.note(40, 364, "before: D = rowsum(dO ∘ O), dQ = 0; after: dQ · scale")
    pen.place(510, 50, 270, 340, "block 3, on chip", "w2")
    pen.box(528, 82, 234, 44, "w2", "K 3, V 3", 14, "stay to the end")
    pen.box(528, 134, 234, 44, "stream", "Q 2, dO 2, LSE 2, D 2", 14, "then Q 3, dO 3 …")
    pen.box(528, 186, 234, 44, "hbm", "S, P, dP, dS", 14, "made anew, forgotten")
    pen.box(528, 238, 234, 44, "sum", "dK 3, dV 3", 14, "in registers, written once")
    pen.box(528, 290, 234, 44, "hot", "dS K, for dQ 2", 14, "out at every step")
    pen.arrow(526, 312, 432, 184, "hot", wide=2.5)
    pen.lines(645, 360, ["one side's sums must leave: of the three",
                         "gradients, dQ alone is a sum over keys"], "faint", 12, "middle", 16)
    pen.legend(420, "stream", w2="one block's own", sum="summed in registers", hot="added in HBM")


@drawing(420, "06 on Hopper: dQ's way out of a block")
def dq_sum(pen):
    """Three ways for dQ out of a block: atomics by threads, additions by TMA, none."""
    ways = [
        ("wgmma to transposed", "atomics",
         [("dQ in registers", "w0"), ("each thread: two floats", "hot"), ("L2 adds them", "hbm")],
         ["16 instructions a thread and", "step, and the threads wait",
          "until their SM has sent them."]),
        ("bulk_add, sm90", "TMA adds",
         [("dQ in registers", "w0"), ("shared memory", "chip"), ("one lane a warp: TMA", "stream"),
          ("L2 adds them", "hbm")],
         ["One instruction for thousands of", "floats; the warps go on. Shared",
          "memory has 64 KB a step more."]),
        ("06's deterministic", "no addition in HBM",
         [("a block a tile of Q", "w0"), ("sums in registers", "sum"), ("written once", "hbm")],
         ["A kernel of its own for dQ, which", "computes S and dP once more:",
          "seven products, same bits always."])]
    for i, (name, idea, boxes, notes) in enumerate(ways):
        x = 20 + 262 * i
        pen.text(x, 62, name, "bold", 14, "start")
        pen.text(x, 82, idea, "faint", 13, "start")
        for j, (text, kind) in enumerate(boxes):
            step = 210 / len(boxes)
            y = 96 + j * step
            pen.box(x, y, 236, 36, kind, text, 13)
            if j + 1 < len(boxes):
                pen.arrow(x + 118, y + 38, x + 118, y + step - 2)
        pen.lines(x, 330, notes, "", 12.5, step=19)
    pen.note(20, 404, "In HBM dQ is fp32, in the order of the registers for bulk_add; convert, "
             "the last kernel, puts it in rows and rounds it.")
