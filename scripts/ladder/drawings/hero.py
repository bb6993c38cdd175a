"""The animated drawing at the top of README: CSS alone, so that it plays as an image."""

from ladder.drawings.pen import drawing

TICK, TICKS, HOLD = 0.8, 18, 5  # seconds a tick; ticks of work, and of rest at the end
TILES, N, D = 4, 256, 64        # tiles of 64 × 64 of one head
TILE = N // TILES * D * 2       # bytes of a tile in 16 bits
LM = N // TILES * 4 * 2         # of l and m of a tile's rows


def requested_v1():
    """Bytes that 04 has requested from HBM after each tick: set-up, 16 steps, the end."""
    total = [2 * TILES * TILE + TILES * LM]
    for step in range(TILES * TILES):
        kv = 2 * TILE if step % TILES == 0 else 0
        total.append(total[-1] + kv + TILE + 2 * 2 * TILE + 2 * LM)
    return [*total, total[-1] + 3 * TILES * TILE + TILES * LM + N * 4]


def requested_v2():
    """05's, four blocks at once: after Q with the first K and V, each further K and V, and O."""
    total = [TILES * 3 * TILE]
    for _ in range(TILES - 1):
        total.append(total[-1] + TILES * 2 * TILE)
    return [*total, total[-1] + TILES * TILE + N * 4]


@drawing(430)
def hero(pen):
    """The two loop orders tile by tile: 04 carries O to HBM and back, 05 writes it once."""
    period = TICK * (TICKS + HOLD)
    share = 100 / (TICKS + HOLD)
    pen.css = (
        f".on,.end{{opacity:0;animation:{period:.1f}s step-end infinite}}"
        f".on{{animation-name:on}}"
        f"@keyframes on{{0%{{opacity:1}}{share:.4f}%,100%{{opacity:0}}}}"
        + "".join(f".e{t}{{animation-name:e{t}}}@keyframes e{t}"
                  f"{{0%{{opacity:0}}{t * share:.4f}%,100%{{opacity:1}}}}" for t in range(TICKS))
        + "@media (prefers-reduced-motion:reduce){.on{animation:none;opacity:0}"
          ".end{animation:none;opacity:1}}")

    def at(tick):
        """Seen during one tick only."""
        return f"animation-delay:{tick * TICK - period * (tick > 0):.1f}s"

    def flash(x, y, wide, high, kind, tick, text=""):
        pen.box(x, y, wide, high, f"{kind} on", "", style=at(tick))
        if text:
            pen.text(x + wide / 2, y + high / 2 + 4, text, "on bold", 12, style=at(tick))

    biggest = requested_v1()[-1]
    for x, name, where, total in (
            (20, "04: FlashAttention", "K, V outside, Q inside: one block a head", requested_v1()),
            (420, "05: FlashAttention-2", "Q outside, K, V inside: a block a tile",
             requested_v2())):
        v1 = x == 20
        pen.text(x, 30, name, "bold", 18, "start")
        pen.text(x, 52, where, "faint", 13, "start")
        left, top, cell = x + 62, 112, 52
        kv = [(left + cell * i, 70, cell - 4, 32) for i in range(TILES)]
        q, o = ([(begin, top + cell * i, wide, cell - 4) for i in range(TILES)]
                for begin, wide in ((x, 50), (left + cell * TILES + 12, 62)))
        s = [[(left + cell * j, top + cell * i, cell - 4, cell - 4) for j in range(TILES)]
             for i in range(TILES)]
        for i in range(TILES):
            for place, text in ((kv[i], "K,V"), (q[i], "Q"), (o[i], "O")):
                pen.box(*place, "hbm", f"{text} {i + 1}", 12)
            for place in s[i]:
                pen.box(*place, "idle")
        for i in range(TILES):
            for j in range(TILES):
                pen.box(*s[i][j], f"w0 end e{1 + j * TILES + i}" if v1 else f"w{i} end e{1 + j}")
        for j in range(TILES):
            for i in range(TILES):
                if v1:
                    tick = 1 + j * TILES + i
                    flash(*kv[j], "chip", tick, f"K,V {j + 1}")
                    flash(*q[i], "stream", tick, f"Q {i + 1}")
                    flash(*o[i], "hot", tick, f"⇄ O {i + 1}")
                else:
                    flash(*q[i], f"w{i}", 1 + j, f"Q {i + 1}")
                    if i == 0:
                        flash(*kv[j], "stream", 1 + j, f"K,V {j + 1}")
        for i, (begin, y, *_) in enumerate(o):
            pen.box(*o[i], f"sum end e{17 if v1 else 5}")
            pen.text(begin + 31, y + 28, f"O {i + 1}", f"bold end e{17 if v1 else 5}", 12)
        # HBM's bytes: a bar that grows, and the number of each tick.
        pen.text(x, 350, "requested from HBM", "", 14, "start")
        pen.box(x, 360, 350, 20, "idle")
        for tick, (before, count) in enumerate(zip([0, *total], total)):
            pen.box(x + 350 * before / biggest, 360, 350 * (count - before) / biggest, 20,
                    f"{'hot' if v1 else 'sum'} end e{tick}", round_=0)
        *earlier, last = (f"{count:,} B" for count in total)
        for tick, text in enumerate(earlier):
            pen.text(x + 350, 350, text, "on bold", 14, "end", style=at(tick))
        pen.text(x + 350, 350, last, f"bold end e{len(earlier)}", 14, "end")
    pen.note(20, 412, f"One head, N = {N}, d = {D}, 16 bits, tiles of 64. 04 carries O (fp32), l "
             "and m to HBM and back at every step.")
