"""Drawings of 00 and 01: memories, loops, and products in tiles."""

from ladder.drawings.pen import drawing


@drawing(500, "Four loop nests: what is inside decides what goes to HBM")
def loop_nests(pen):
    """The loop nests of 00, 03, 04 and 05 side by side, and what each sends to HBM."""
    kernels = [("all i, j at once", ["S = q·k", "!write S"]),
               ("all rows i at once", ["read S twice", "P = exp S / l", "!write P"]),
               ("all i, c at once", ["read P", "O = Σ P·v"])]
    recurrence = ["read K, V", "S = QKᵀ", "m, l, O"]
    nests = [("03  online softmax", "32 rows of Q: a warp", "32 keys at a time", recurrence,
              ["O / l → HBM", "Q, m, l, O stay on chip"]),
             ("04  FlashAttention", "tile of K, V (one block)", "tile of Q",
              ["read Q, O, l, m", "S = QKᵀ", "combine", "!write O, l, m"], ["K, V stay meanwhile"]),
             ("05  FlashAttention-2", "tile of Q: a block each", "tile of K, V", recurrence,
              ["O / l, LSE → HBM", "Q, m, l, O stay meanwhile"])]
    pen.text(20, 58, "00  three kernels", "bold", 14, "start")
    for (head, inside), y in zip(kernels, (78, 156, 254)):
        pen.box(20, y, 178, 20 * len(inside) + 30, "hbm", round_=6)
        pen.text(30, y + 18, head, "bold", 12, "start")
        pen.lines(42, y + 38, inside, size=12, step=20)
    for i, (name, outer, inner, inside, after) in enumerate(nests):
        x = 214 + 194 * i
        pen.text(x, 58, name, "bold", 14, "start")
        pen.box(x, 78, 178, 210, "chip", round_=6)
        pen.text(x + 10, 96, outer, "bold", 12, "start")
        pen.box(x + 14, 108, 154, 20 * len(inside) + 32, "stream", round_=6)
        pen.text(x + 24, 126, inner, "bold", 12, "start")
        pen.lines(x + 34, 148, inside, size=12, step=20)
        pen.lines(x + 10, 258, after, size=12, step=20)
    # The order in which a 4 × 4 matrix S is gone through.
    for i, (cost, kind, when) in enumerate((
            (["S and P lie in HBM:", "N × N elements each"], "hbm", "123"),
            (["nothing N × N; each warp", "reads all of K and V"], "w{r}", "{c}"),
            (["K and V read once,", "O, l, m at every step"], "w0", "{n}"),
            (["O written once, K and V", "read by every block"], "w{r}", "{c}"))):
        x = 20 + 194 * i
        pen.tiles(x + 34, 350, 4, 4, 26, 18, lambda r, c, kind=kind: kind.format(r=r),
                  lambda r, c, when=when: when.format(c=c + 1, n=4 * c + r + 1), 10)
        pen.text(x + 28, 390, "rows", "faint", 11, "end")
        pen.text(x + 86, 344, "keys", "faint", 11)
        pen.lines(x, 438, cost, "", 12, step=17)
    pen.text(20, 484, "Squares: tiles of S, and when each is worked on. A colour is a worker: "
             "a warp in 03, a block in 04 and 05; equal numbers at once.", "faint", 11, "start")


@drawing(430, "Where data lives, and what an SM is made of")
def levels(pen):
    """A GPU's memories with size, rate and latency, and what an SM consists of."""
    rows = [("registers", "one thread's; 256 KB an SM", "at hand at once", "chip", 200),
            ("shared memory", "one block's; 164 KB an SM", "23 cycles · 19 TB/s", "chip", 250),
            ("L2 cache", "all SMs'; 40 MB", "200 cycles · 7 TB/s", "sum", 300),
            ("HBM", "all SMs'; 40 to 80 GB", "290 cycles · 1.5 to 2 TB/s", "hbm", 350)]
    for i, (name, who, speed, kind, wide) in enumerate(rows):
        y = 52 + 88 * i
        pen.box(195 - wide / 2, y, wide, 66, kind)
        pen.text(195, y + 21, name, "bold", 14)
        pen.text(195, y + 40, who, "", 12)
        pen.text(195, y + 57, speed, "faint", 12)
        if i:
            pen.arrow(195, y - 1, 195, y - 21, both=True)
    pen.text(195, 416, "published figures of an A100", "faint", 12)
    pen.place(400, 52, 380, 352, "one SM of 108 (A100) or 132 (H100)", "chip")
    for i in range(4):
        x, y = 414 + 180 * (i % 2), 82 + 122 * (i // 2)
        pen.box(x, y, 172, 114, "hbm", round_=5)
        pen.box(x + 8, y + 8, 156, 20, "w2", "scheduler: a warp a cycle", 11)
        pen.box(x + 8, y + 32, 156, 20, "chip", "registers, 64 KB", 11)
        pen.box(x + 8, y + 56, 74, 50, "w0", "arithmetic", 11, "fp32")
        pen.box(x + 90, y + 56, 74, 22, "w1", "tensor core", 11)
        pen.box(x + 90, y + 84, 74, 22, "w3", "special: exp", 11)
    pen.box(414, 330, 352, 28, "chip", "shared memory and L1, one for the four quarters", 12)
    pen.text(590, 388, "A block runs on one SM, its warps spread over the quarters.", "faint", 12)


@drawing(440, "01: a block's tile of S, and the tiles of Q and K that it needs")
def matmul_tiles(pen):
    """A block's tile of S, and the tiles of Q and K that it takes through shared memory."""
    pen.place(20, 50, 456, 376, "HBM")
    pen.tiles(60, 230, 4, 4, 38, 38, lambda r, c: "stream" if r == 1 else "hbm",
              lambda r, c: f"step {c}" if r == 1 else "", 11)
    pen.text(136, 222, "Q", "bold", 15)
    pen.text(136, 402, "N × d", "faint")
    pen.tiles(300, 72, 4, 4, 38, 32, lambda r, c: "stream" if c == 2 else "hbm",
              lambda r, c: f"step {r}" if c == 2 else "", 11)
    pen.text(288, 140, "Kᵀ", "bold", 15, "end")
    pen.tiles(300, 230, 4, 4, 38, 38, lambda r, c: "sum" if (r, c) == (1, 2) else "hbm",
              lambda r, c: "16²" if (r, c) == (1, 2) else "")
    pen.text(376, 402, "S, N × N", "faint")
    pen.arrow(214, 287, 372, 287, "stream")
    pen.arrow(395, 202, 395, 264, "stream")
    pen.place(500, 82, 262, 300, "one block, on chip", "chip")
    pen.box(520, 116, 90, 66, "chip", "tile of Q", 13, "16 × 16")
    pen.box(650, 116, 90, 66, "chip", "tile of K", 13, "16 × 16")
    pen.text(630, 202, "shared memory, both new at each step", "faint", 12)
    pen.arrow(565, 212, 607, 250)
    pen.arrow(695, 212, 653, 250)
    pen.box(585, 254, 90, 52, "sum", "tile of S", 13, "registers")
    pen.lines(516, 330, ["256 threads, one sum each.", "An element fetched once is read",
                         "by 16 threads: HBM reads / 16."], "", 12, step=18)


@drawing(420, "One load of a warp: how many sectors of 32 bytes it touches")
def coalescing(pen):
    """One load of a warp: a thread a row touches 32 sectors, a warp a row 16 full ones."""
    for r in range(8):
        y = 94 + 26 * r
        for x in (78, 478):
            pen.tiles(x, y, 1, 4, 72, 20, "hbm")
        pen.box(78, y, 12, 20, f"w{r % 4}", round_=0)
        pen.text(70, y + 15, f"lane {r}", "faint", 11, "end")
    pen.tiles(478, 94, 1, 8, 36, 20, lambda r, c: f"w{c % 4}", lambda r, c: str(c))
    pen.text(470, 109, "lanes", "faint", 11, "end")
    pen.text(772, 110, "…", "", 14)
    pen.text(70, 312, "…", "", 14, "end")
    for x, name, what, kind, result in (
            (20, "a thread a row (00)", "32 lanes in 32 rows of S, 2 bytes each", "hot",
             "32 sectors, 1,024 bytes moved for 64"),
            (420, "a warp a row (warp_rows)", "32 lanes side by side in a row, 16 bytes each",
             "sum", "16 sectors, 512 bytes moved for 512")):
        pen.text(x, 58, name, "bold", 14, "start")
        pen.bracket(x + 58, 94, 72, "a sector: 32 bytes")
        pen.text(x, 334, what, "", 13, "start")
        pen.text(x, 354, result, f"{kind}-ink bold", 14, "start")
    pen.note(20, 396, "A row of boxes is a row of S in HBM; a box is a sector, the least that HBM "
             "reads or writes.")


@drawing(504, "mma.m16n8k16: which lane of the warp holds which elements")
def mma_fragments(pen):
    """Which lane of a warp holds which elements of A, B and C of an mma m16n8k16."""
    row_lane = lambda r, c: r % 8 * 4 + c % 4  # noqa: E731
    column_lane = lambda r, c: c * 4 + r % 4  # noqa: E731
    for x, name, pairs, kind in ((30, "A, 16 × 16: a[0] … a[3]", 8, "w0"),
                                 (590, "C, 16 × 8: c[0] … c[3]", 4, "w1")):
        wide = 36 if pairs == 8 else 42
        pen.text(x, 58, name, "bold", 14, "start")
        pen.tiles(x, 84, 16, pairs, wide, 20,
                  lambda r, c, kind=kind: kind if row_lane(r, c) == 5 else "idle",
                  lambda r, c: str(row_lane(r, c)), 10)
        for r in (0, 8):
            for c in range(0, pairs, 4):
                pen.frame(x + c * wide, 84 + 20 * r, 4 * wide, 160)
                register = (f"a[{r // 8 + c // 2}]" if pairs == 8 else
                            f"c[{r // 4}], c[{r // 4 + 1}]")
                pen.text(x + (c + 2) * wide, 79 if r == 0 else 418, register, "faint", 11)
    pen.text(360, 58, "B, 16 × 8: b0, b1", "bold", 14, "start")
    pen.tiles(360, 84, 8, 8, 24, 40, lambda r, c: "w2" if column_lane(r, c) == 5 else "idle",
              lambda r, c: str(column_lane(r, c)), 10)
    for r in (0, 4):
        pen.frame(360, 84 + 40 * r, 192, 160)
        pen.text(556, 168 + 40 * r, f"b{r // 4}", "faint", 11, "start")
    pen.lines(30, 446, ["A box is two neighbours: side by side in A and C, one above the other "
                        "in B; its number is the lane.",
                        "Lane 5 is coloured: row ⌊5/4⌋ = 1, columns 2 · (5 mod 4) = 2 and 3 of "
                        "each 8 × 8 piece; in B column 1, rows 2 and 3.",
                        "C has A's layout: rounded to 16 bits, sums become the left operand of the "
                        "next product without a move."], "", 12.5, step=20)


@drawing(400, "Eight rows of a tile in shared memory, and chunk 3 of each")
def swizzle(pen):
    """A column of a tile in one bank group, and swizzled into all eight."""
    for x, name, at, result, kind, passes in (
            (50, "plain: chunk c at place c", lambda r, c: c, "one bank group has all eight:",
             "hot", "8 passes"),
            (450, "swizzled: chunk c at place c XOR r", lambda r, c: c ^ r,
             "each in a bank group of its own:", "sum", "1 pass")):
        pen.text(x, 62, name, "bold", 14, "start")
        pen.tiles(x, 92, 8, 8, 40, 26, lambda r, c, at=at: "stream" if at(r, c) == 3 else "idle",
                  lambda r, c, at=at: str(at(r, c)), 13)
        for i in range(8):
            pen.text(x + 20 + 40 * i, 86, f"{i}", "faint", 11)
            pen.text(x - 8, 110 + 26 * i, f"row {i}", "faint", 11, "end")
        pen.text(x, 338, result, "", 13, "start")
        pen.text(x, 360, passes, f"{kind}-ink bold", 15, "start")
    pen.note(20, 388, "Columns: bank groups, 4 of the 32 banks each. A chunk is 16 bytes, 8 "
             "elements. ldmatrix reads one from each of 8 rows.")


@drawing(400, "cp.async: copies in groups, three stages, and wait<1>")
def cp_async_groups(pen):
    """Copies in groups over time, and a wait that leaves the newest in flight."""
    left, wide = 130, 105
    for step in range(5):
        x = left + wide * (step + 1)
        pen.line((x + 8, 70), (x + 8, 296), kind="hot", dash="4 3", wide=1.5)
        pen.text(x + 8, 312, "wait<1>", "hot-ink mono", 11)
        pen.text(x + 8, 328, f"{step} is there,", "", 11)
        pen.text(x + 8, 343, f"{step + 1} perhaps not", "faint", 11)
    for step in range(-1, 5):
        pen.text(left + wide * (step + 1.5), 62, "before" if step < 0 else f"step {step}", "faint")
    for g in range(6):
        start = left + (40 * g if g < 2 else wide * (g - 1) + 26)
        end = left + wide * (g + 1)
        y = 78 + 34 * g
        pen.text(left - 12, y + 17, f"group {g}", "", 13, "end")
        pen.box(start, y, min(end, left + 6 * wide) - start - 12, 24, "stream",
                f"→ stage {g % 3}", 12)
        if g < 5:
            pen.box(end + 26, y, wide - 30, 24, "chip", "multiply", 12)
    pen.lines(20, 368, ["A commit closes a group. wait<n> returns when at most the n newest groups "
                        "are under way: with n = 1 all but one are there.",
                        "Then a barrier, the next copies start into the stage just left, and the "
                        "block multiplies."], "", 12, step=18)
