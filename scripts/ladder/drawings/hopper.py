"""Drawings of Hopper's units: who holds what, who waits for whom, and when."""

from ladder.drawings.pen import drawing


@drawing(430, "wgmma: 64 rows of sums, four warps, and which lane holds which")
def wgmma_fragments(pen):
    """A warpgroup's sums: 16 of 64 rows for each warp, and which lane holds which."""
    pen.text(30, 62, "a warpgroup's sums, 64 × N", "bold", 14, "start")
    for w in range(4):
        pen.box(30, 76 + 64 * w, 250, 64, f"w{w}", f"warp {w}", 14,
                f"rows {16 * w} to {16 * w + 15}", round_=0)
    pen.line((61, 76), (61, 332), dash="2 3")
    pen.bracket(30, 338, 31, "8 columns", below=True)
    pen.text(400, 62, "16 rows of warp 1, 8 columns: as C of an mma", "bold", 14, "start")
    lane = lambda r, c: r % 8 * 4 + c  # noqa: E731
    pen.tiles(440, 76, 16, 4, 74, 16, lambda r, c: "w1" if lane(r, c) == 5 else "idle",
              lambda r, c: f"lane {lane(r, c)}", 10)
    for r in range(16):
        pen.text(432, 88 + 16 * r, f"{16 + r}", "faint", 10, "end")
    pen.line((282, 140), (412, 78), kind="w1", dash="4 3")
    pen.line((282, 204), (412, 330), kind="w1", dash="4 3")
    pen.lines(30, 380, ["A box on the right is two neighbouring sums. Each row lies in four lanes: "
                        "a row's maximum takes two shuffles.",
                        "A warp has whole rows, as in 05's mma, so that all operations on rows "
                        "stay the same. The left operand, if it comes",
                        "from registers, has this layout too."], "", 12.5, step=19)


@drawing(410, "An mbarrier over time: it counts arrivals and bytes, phase after phase")
def mbarrier(pen):
    """An mbarrier over time: its phases, their parity, and which wait passes when."""
    edges = [90, 300, 520, 780]
    for phase in range(3):
        x, wide = edges[phase], edges[phase + 1] - edges[phase]
        pen.box(x, 56, wide, 34, f"w{phase % 2}", f"phase {phase}, parity {phase % 2}", 14)
        if phase < 2:
            end = edges[phase + 1]
            pen.line((end, 50), (end, 344), kind="hot", dash="4 3", wide=1.5)
            pen.text(end, 362, f"phase {phase} ends", "hot-ink bold", 12)
    for y, text in ((78, "phase"), (128, "arrivals"), (164, "bytes")):
        pen.text(20, y, text, "faint", 13, "start")
    for phase in range(2):
        x = edges[phase]
        pen.box(x + 10, 108, 140, 28, "chip", "1 of 1, 16,384 promised", 11)
        pen.box(x + 60, 146, edges[phase + 1] - x - 62, 28, "stream", "16,384 come", 12)
    rows = [("wait(0)", 200, ["waits", "passes", "waits"]),
            ("wait(1)", 262, ["passes", "waits", "passes"])]
    for name, y, parts in rows:
        pen.text(20, y + 26, name, "mono bold", 13, "start")
        for phase, does in enumerate(parts):
            x, wide = edges[phase], edges[phase + 1] - edges[phase]
            pen.box(x + 2, y, wide - 4, 40, "hot" if does == "waits" else "sum", does, 14,
                    f"until phase {phase} ends" if does == "waits" else
                    f"phase {phase - 1} has ended" if phase else "as if one before had ended")
    pen.lines(20, 384, ["wait(p) passes while the phase under way has the other parity than p. So "
                        "the round through a ring, odd or even, is all",
                        "that a thread must know, if it is never two phases behind."],
              "faint", 12, step=17)


@drawing(430, "A ring of two stages: one thread fills, the consumers empty")
def ring(pen):
    """A ring of stages: the producer fills, the consumers empty, two barriers a stage."""
    pen.box(20, 150, 150, 90, "stream", "producer", 15, "one thread, TMA")
    pen.box(630, 96, 150, 70, "w0", "consumer 1", 15, "4 warps")
    pen.box(630, 226, 150, 70, "w1", "consumer 2", 15, "4 warps")
    pen.place(250, 56, 300, 280, "shared memory", "chip")
    for i, (state, kind) in enumerate((("K tile 4: read", "chip"), ("K tile 5: comes", "stream"))):
        y = 90 + 122 * i
        pen.box(270, y, 260, 108, "idle", round_=5)
        pen.text(282, y + 20, f"stage {i}", "bold", 13, "start")
        pen.box(282, y + 30, 236, 34, kind, state, 13)
        pen.box(282, y + 72, 112, 26, "sum" if not i else "idle", "full", 12)
        pen.box(406, y + 72, 112, 26, "idle", "free", 12)
    pen.arrow(172, 180, 266, 150, "stream", wide=2.5)
    pen.arrow(172, 205, 266, 260, "stream", wide=2.5)
    pen.text(214, 128, "fill", "stream-ink bold", 13)
    for y in (130, 260):
        pen.arrow(534, 150 + (y - 130) * 0.2, 626, y, "chip", wide=2.5)
    pen.text(590, 88, "wait, read", "chip-ink bold", 12)
    pen.line((705, 298), (705, 356), (95, 356), (95, 246), kind="w1", wide=2, dash="6 4")
    pen.arrow(95, 260, 95, 242, "w1", wide=2)
    pen.text(400, 350, "release: each of the eight warps arrives at free", "w1-ink", 13)
    pen.lines(20, 388, ["full: the producer promises the bytes, TMA counts them in; consumers wait "
                        "for it. free: 8 arrivals, one a warp; the producer",
                        "waits for it before it fills the stage again. Both are mbarriers; a round "
                        "through the ring is a phase of each."], "", 12, step=18)


@drawing(400, "Ping-pong: two consumers, turn by turn")
def ping_pong(pen):
    """Two consumers in turn: one has the tensor cores while the other has its softmax."""
    left, unit = 130, 80

    def lane(y, name, shift):
        pen.text(left - 14, y + 32, name, "bold", 13, "end")
        for i in range(4):
            x = left + unit * (2 * i + shift)
            if i * 2 + shift < 8:
                pen.box(x, y, unit - 2, 24, f"w{shift}", "S, PV" if i else "S", 12)
                wide = min(unit, left + 8 * unit - x - unit)
                if wide > 0:
                    pen.box(x + unit, y + 28, wide - 2, 24, "w2", "softmax", 12)

    pen.text(left, 62, "without turns", "bold", 14, "start")
    lane(76, "consumer 1", 0)
    pen.text(left - 14, 168, "consumer 2", "bold", 13, "end")
    for i in range(4):
        pen.box(left + unit * 2 * i, 136, unit - 2, 24, "w1", "S, PV" if i else "S", 12)
        pen.box(left + unit * (2 * i + 1), 164, unit - 2, 24, "w2", "softmax", 12)
        pen.text(left + unit * (2 * i + 1.5), 208, "both at it", "hot-ink bold", 12)
    pen.text(left, 240, "with turns", "bold", 14, "start")
    lane(252, "consumer 1", 0)
    lane(312, "consumer 2", 1)
    for i in range(7):
        x = left + unit * (i + 1)
        pen.arrow(x - 1, 278 + 34 * (i % 2), x - 1, 310 - 32 * (i % 2), "hot", wide=1.5)
    pen.note(20, 388, "Arrow: a named barrier hands the turn on. Drawn with both equally long; "
             "that PV also runs under its own softmax is left out.")


@drawing(430, "FP8: what has a scale, and where it goes")
def fp8_scales(pen):
    """Where FP8 has its scales: one a tile of Q, of K and of V, one constant for P."""
    tiles = [("Q̂", 54, 92, "w0", 4, "a consumer's 64 rows: s_Q", "goes into exp's factor"),
             ("K̂", 240, 92, "w1", 2, "a tile, 128 keys: s_K", "goes into exp's factor"),
             ("V̂ᵀ", 422, 92, "w3", 2, "a tile, 128 keys: s_V", "goes into O's rescaling")]
    for name, x, y, kind, count, below, use in tiles:
        pen.text(x + 60, y - 16, name, "bold", 15)
        shape = (x, y, 1, 2, 62, 160) if name == "V̂ᵀ" else (x, y, count, 1, 120, 160 // count)
        pen.tiles(*shape, kind, lambda r, c, n=name[0]: f"s_{n} {r + c + 1}", 13)
        pen.text(x + 60, y + 182, below, "", 12)
        pen.text(x + 60, y + 200, use, "faint", 11)
    pen.box(590, 112, 170, 120, "w2", "P · 2⁸", 15, "one constant")
    pen.text(675, 84, "P", "bold", 15)
    pen.text(675, 274, "rounded in registers", "", 12)
    pen.text(675, 292, "l holds 2⁸ too: O / l is right", "faint", 11)
    pen.box(40, 316, 340, 42, "idle", "S = scale · s_Q · s_K · (Q̂ K̂ᵀ)", 15)
    pen.box(400, 316, 360, 42, "idle", "O ← α · O + s_V · (e4m3(P) V̂)", 15)
    pen.lines(40, 384, ["A scale is the tile's largest magnitude / 448, so that the largest number "
                        "becomes 448, e4m3's largest.",
                        "V is stored transposed: 8-bit operands want neighbours along the keys. "
                        "quantise, the kernel before, does both."], "", 12.5, step=19)
