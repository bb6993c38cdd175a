"""The few shapes that all drawings are made of, and their colours, for light and dark pages.

A drawing says what a shape is, and the class gives its colour: chip for what stays on chip, stream
for what streams past, sum for what is added up, hbm for what lies in HBM, hot for what costs, idle
for what is not there or not done; w0 to w3 are the owners of a part, such as warps.
"""

from xml.sax.saxutils import escape

WIDTH = 800
# What a text or shape is → (fill, line) on a light page and on a dark one.
COLOURS = {
    "chip": ("#cfe4fb", "#0969da", "#123a66", "#58a6ff"),
    "stream": ("#ffdfb5", "#b35900", "#5a3a0a", "#e3a34a"),
    "sum": ("#c9ecd0", "#1a7f37", "#124a24", "#4ac26b"),
    "hbm": ("#eceff2", "#8c959f", "#20262e", "#6e7681"),
    "idle": ("none", "#afb8c1", "none", "#484f58"),
    "hot": ("#ffd3d0", "#cf222e", "#67181c", "#ff7b72"),
    "w0": ("#e3d7fb", "#8250df", "#3b2472", "#a371f7"),
    "w1": ("#c4eeee", "#1b7c83", "#0f4448", "#39c5cf"),
    "w2": ("#fbf0b8", "#9a6700", "#4d3c05", "#d4a72c"),
    "w3": ("#ffd8eb", "#bf3989", "#5e1f45", "#f778ba"),
    "place": ("none", "#8c959f", "none", "#6e7681"),
}
PAPER, INK, FAINT = ("#ffffff", "#0d1117"), ("#1f2328", "#e6edf3"), ("#59636e", "#9198a1")
SANS = "system-ui,'Segoe UI',Roboto,Helvetica,Arial,sans-serif"
MONO = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
LEGEND = {"chip": "stays on chip", "stream": "streams past", "sum": "is added up",
          "hbm": "lies in HBM", "hot": "costs", "idle": "not done"}


def scheme(dark):
    """The rules of one colour scheme."""
    rules = [f".paper{{fill:{PAPER[dark]}}}text,.ink{{fill:{INK[dark]}}}"
             f".faint{{fill:{FAINT[dark]}}}.rule{{stroke:{INK[dark]};fill:none}}"]
    for name, colours in COLOURS.items():
        fill, line = colours[2 * dark:2 * dark + 2]
        rules.append(f".{name}{{fill:{fill};stroke:{line}}}.{name}-line{{stroke:{line};fill:none}}"
                     f".{name}-ink{{fill:{line}}}")
    return "".join(rules)


class Pen:
    """A page 800 wide. Coordinates are pixels from the top left; every call draws one thing."""

    def __init__(self, height, heading):
        self.height, self.parts, self.css = height, [], ""
        if heading:
            self.text(20, 28, heading, "bold", 17, "start")

    def add(self, tag, text=None, **attributes):
        inside = ""
        for name, value in attributes.items():
            if value not in (None, ""):
                value = f"{value:g}" if isinstance(value, float) else escape(str(value))
                inside += f' {name.rstrip("_").replace("_", "-")}="{value}"'
        self.parts.append(f"<{tag}{inside}/>" if text is None else
                          f"<{tag}{inside}>{escape(text)}</{tag}>")

    def text(self, x, y, text, kind="", size=13, anchor="middle", style=None):
        """One line, y its baseline. kind: bold, mono, faint, or a colour's name with -ink."""
        if text:
            self.add("text", text, x=x, y=y, class_=kind, font_size=size, style=style,
                     text_anchor=None if anchor == "start" else anchor)

    def note(self, x, y, text):
        """A faint line, from its left end."""
        self.text(x, y, text, "faint", 12, "start")

    def lines(self, x, y, texts, kind="", size=13, anchor="start", step=None):
        """Lines of text; one that begins with "!" is marked."""
        for i, text in enumerate(texts):
            marked = text.startswith("!")
            self.text(x, y + i * (step or size * 1.45), text[marked:],
                      f"{kind} hot-ink bold" if marked else kind, size, anchor)

    def box(self, x, y, wide, high, kind="hbm", text="", size=13, below="", round_=3, style=None):
        """A box with a line of text in its middle, and perhaps a fainter one below."""
        self.add("rect", x=x, y=y, width=wide, height=high, class_=kind, rx=round_, style=style)
        middle = y + high / 2 + size * 0.35 - (size * 0.62 if below else 0)
        if text:
            self.text(x + wide / 2, middle, text, "", size)
        if below:
            self.text(x + wide / 2, middle + size * 1.25, below, "faint", size - 1)

    def place(self, x, y, wide, high, name, kind="place"):
        """A memory, or who works: a frame with its name at the top left."""
        self.add("rect", x=x, y=y, width=wide, height=high, class_=f"{kind}-line", rx=8,
                 stroke_dasharray="6 4" if kind == "place" else None, stroke_width=1.5)
        self.text(x + 10, y + 18, name, "faint bold" if kind == "place" else f"{kind}-ink bold", 13,
                  "start")

    def tiles(self, x, y, rows, columns, wide, high, kind, text=None, size=11):
        """A matrix of tiles; kind and text are names, or functions of row and column."""
        for r in range(rows):
            for c in range(columns):
                self.box(x + c * wide, y + r * high, wide, high,
                         kind(r, c) if callable(kind) else kind,
                         text(r, c) if text else "", size, round_=0)

    def arrow(self, x1, y1, x2, y2, kind="rule", both=False, wide=1.8):
        """A straight arrow, its head at the second end, or at both."""
        length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
        ux, uy = (x2 - x1) / length, (y2 - y1) / length
        line = kind if kind == "rule" else f"{kind}-line"
        ink = "ink" if kind == "rule" else f"{kind}-ink"
        self.add("path", d=f"M{x1 + 7 * ux * both:.1f} {y1 + 7 * uy * both:.1f}"
                           f"L{x2 - 7 * ux:.1f} {y2 - 7 * uy:.1f}",
                 class_=line, stroke_width=wide)
        for x, y, s in [(x2, y2, 1)] + [(x1, y1, -1)] * both:
            self.add("path", class_=ink, d=f"M{x:.1f} {y:.1f}"
                     f"L{x - s * (9 * ux - 4.5 * uy):.1f} {y - s * (9 * uy + 4.5 * ux):.1f}"
                     f"L{x - s * (9 * ux + 4.5 * uy):.1f} {y - s * (9 * uy - 4.5 * ux):.1f}z")

    def line(self, *points, kind="rule", dash=None, wide=1.2):
        self.add("path", d="M" + "L".join(f"{x:g} {y:g}" for x, y in points),
                 class_=kind if kind == "rule" else f"{kind}-line", stroke_width=wide,
                 stroke_dasharray=dash)

    def frame(self, x, y, wide, high):
        self.add("rect", x=x, y=y, width=wide, height=high, class_="rule", stroke_width=2)

    def bracket(self, x, y, length, text, below=False):
        """How wide something is: a bracket above it, or below."""
        s = -6 if below else 6
        self.line((x, y), (x, y - s), (x + length, y - s), (x + length, y), kind="hbm")
        self.text(x + length / 2, y + 19 if below else y - 11, text, "faint", 12)

    def legend(self, y, *kinds, **texts):
        """What the colours mean: their usual words, or others."""
        x = 20
        for kind in [*kinds, *texts]:
            text = texts.get(kind) or LEGEND[kind]
            self.box(x, y - 11, 16, 14, kind)
            self.text(x + 22, y, text, "faint", 12, "start")
            x += 44 + len(text) * 6.4

    def svg(self, about):
        """The page as SVG."""
        return "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" '
            f'width="{WIDTH}" height="{self.height}" stroke-width="1.2" role="img">',
            f"<title>{escape(about)}</title>",
            f"<style>text{{font-family:{SANS}}}.mono{{font-family:{MONO};white-space:pre}}"
            f".bold{{font-weight:600}}.ink{{stroke:none}}{scheme(0)}"
            f"@media (prefers-color-scheme:dark){{{scheme(1)}}}{self.css}</style>",
            f'<rect class="paper" width="{WIDTH}" height="{self.height}"/>', *self.parts,
            "</svg>", ""])


DRAWINGS = {}  # name → (what it shows, height, heading, the function that draws it)


def drawing(height, heading=""):
    """Of a function that draws one on a pen, and says what it shows."""
    def known(draw):
        DRAWINGS[draw.__name__] = draw.__doc__.rstrip("."), height, heading, draw
        return draw
    return known
