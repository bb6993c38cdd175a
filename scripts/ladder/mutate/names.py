"""Which names a place in a source sees, and of what type they are, as far as the text says it."""

import collections
import re

# A name in scope in [begin, end). `type`: as it is written, less const and references; of an `auto`
# what it is initialised with, where that tells. `same`: the name that this one is a reference to.
Name = collections.namedtuple("Name", "name type const constant begin end same")

KEYWORDS = set("""break case class continue default delete do else enum extern for friend goto if
inline namespace new operator private public requires return static_assert struct switch template
throw typename using while""".split())
TYPE = r"(?:unsigned\s+|typename\s+)?[A-Za-z_][\w:]*(?:<[^;{}()=]*>)?(?:::\w+)?"
DECLARATION = re.compile(rf"(?<=[;{{}}(])\s*((?:static\s+|constexpr\s+|const\s+)*)({TYPE})"
                         r"(?:\s*([&*]+)\s*|\s+)(?=[A-Za-z_\[])")
PARAMETER = re.compile(rf"((?:const\s+|__grid_constant__\s+)*)({TYPE})(?:\s*([&*.]+)\s*|\s+)"
                       r"(\w+)\s*(?:=.*)?", re.S)
# What these give, they give to an auto.
GIVES = {**dict.fromkeys(("fill_rows", "make_rows", "finite_or_zero", "sum_over_lanes", "row_max",
                          "row_sum", "max_over_lanes", "row_max_in_lane", "row_sum_in_lane",
                          "inverse_or_zero", "max", "exp2"), "Rows"),
         "smem.take": "Smem", "hbm": "Hbm", "read_chunk": "Chunk"}


def split(text):
    """[(begin, end)] of the parts between commas that stand in no bracket."""
    depth, begin, parts = 0, 0, []
    for i, here in enumerate(text):
        if here in "([{<":
            depth += 1
        elif here in ")]}" or here == ">" and text[i - 1] != "-":
            depth -= 1
        elif here == "," and depth == 0:
            parts.append((begin, i))
            begin = i + 1
    return parts + [(begin, len(text))]


def parameters_before(text, at, opens):
    """[begin, end) of the parameters of the function whose body opens at `at`; None if it is none,
    or a control's. `opens`: {where a bracket closes: where it opens}."""
    close = text.rfind(")", 0, at)
    if close < 0 or not re.fullmatch(r"(?:const\b|noexcept\b|mutable\b|override\b|final\b|\s)*"
                                     r"(?:->\s*[\w:<>&*, ]+)?", text[close + 1:at]):
        return None
    begin = opens.get(close)
    if begin is None or re.search(r"\b(?:if|for|while|switch|constexpr|catch)\s*$",
                                   text[max(0, begin - 20):begin]):
        return None
    return begin + 1, close


class Names:
    """The names of a masked source."""

    def __init__(self, text):
        self.text = text
        self.closes = text.closes
        self.opens = text.opens
        self.blocks = [(at, close) for at, close in self.closes.items() if text[at] == "{"]
        self.block_begins = sorted(self.blocks)
        self.names = collections.defaultdict(list)
        self.closed = [self.after(found.end() - 1)
                       for found in re.finditer(r"\[\](?=\s*[(<{])", text)]
        self.templates()
        self.parameters()
        self.declarations()

    def add(self, name, kind, const, constant, begin, end, same=None):
        self.names[name].append(Name(name, kind, const, constant, begin, end, same))

    def after(self, at):
        """[begin, end) of the first block after a place that is in no bracket; up to a ; else."""
        at = self.text.until(at, ";{")
        return (at, self.closes.get(at, at))

    def around(self, at):
        """The end of the innermost block around a place, and where it begins."""
        found = (-1, len(self.text))
        for begin, end in self.block_begins:
            if begin >= at:
                break
            if at < end:
                found = (begin, end)
        return found

    def templates(self):
        for start in re.finditer(r"\btemplate\s*<", self.text):
            at, depth = start.end(), 1
            while at < len(self.text) and depth:
                depth += {"<": 1, ">": -1}.get(self.text[at], 0)
                at += 1
            inside = self.text[start.end():at - 1]
            begin, end = self.after(at)
            for first, last in split(inside):
                part = re.fullmatch(r"\s*(class|typename|int|bool)\s+(\w+)\s*(?:=.*)?",
                                    inside[first:last], re.S)
                if part:
                    kind = "type" if part[1] in ("class", "typename") else part[1]
                    self.add(part[2], kind, True, True, at, end)

    def parameters(self):
        for begin, end in self.blocks:
            found = parameters_before(self.text, begin, self.opens)
            if not found:
                continue
            inside = self.text[found[0]:found[1]]
            for first, last in split(inside):
                part = PARAMETER.fullmatch(inside[first:last].strip())
                if part and part[2] not in KEYWORDS:
                    kind = plain_type(part[2]) + "*" * ("*" in (part[3] or ""))
                    self.add(part[4], kind, "const" in part[1], False, begin, end)

    def declarations(self):
        text = self.text
        for start in DECLARATION.finditer(text):
            kind = start[2]
            if kind.split()[0].split(":")[0] in KEYWORDS:
                continue
            opening = text[:start.start(1) if start[1] else start.start(2)].rstrip()
            if opening.endswith("("):  # of a for or an if
                at = len(opening) - 1
                if not re.search(r"\b(?:for|if|while)(?: constexpr)?\s*$", text[:at]):
                    continue
                end = self.end_of_control(self.closes[at] + 1)
                whole = False
            else:
                block, end = self.around(start.start(2))
                whole = bool(re.search(r"\b(?:struct|class)\b[^;(){}]*$", text[:max(block, 0)]))
                block = block if whole else start.start()
            constant, const = "constexpr" in start[1], "const" in start[1]
            if constant and kind == "auto":
                continue
            at = start.end()
            if text[at] == "[":  # a structured binding
                if kind == "auto" and at in self.closes:
                    begin = self.end_of_declarator(self.closes[at])
                    for name in re.findall(r"\w+", text[at:self.closes[at]]):
                        self.add(name, f"binding {at}", const, False, begin, end)
                continue
            while True:
                name = re.match(r"\s*[&*]?\s*(\w+)", text[at:])
                if not name:
                    break
                after = at + name.end()
                if not re.match(r"\s*(?:[=;,{\[]|:(?!:))", text[after:]):
                    break
                stop = self.end_of_declarator(after)
                init = text[after:stop].strip()
                of = self.type_of(init, after) if kind == "auto" else plain_type(kind)
                if init.startswith("["):
                    of = None if kind == "auto" else f"{of}[]"
                same = re.fullmatch(r"=\s*(\w+)", init) if start[3] else None
                if of:
                    self.add(name[1], of, const, constant, block if whole else stop, end,
                             same and same[1])
                if text[stop:stop + 1] != ",":
                    break
                at = stop + 1

    def end_of_control(self, at):
        """Where the statement that begins at `at` ends."""
        rest = re.match(r"\s*(?:(?:if|for|while)(?: constexpr)?\s*(?=\())?", self.text[at:])
        at = self.text.until(at + rest.end(), ";{}")
        return self.closes.get(at, at) + 1

    def end_of_declarator(self, at):
        while at < len(self.text) and self.text[at] not in ",;)":
            if self.text[at] == ":" and "::" not in self.text[at - 1:at + 2] and \
                    "?" not in self.text[self.text.rfind(";", 0, at) + 1:at]:
                break
            template = re.match(r"<[\w\s,.:]*>(?=[({])", self.text[at:])
            at = at + template.end() if template else self.closes.get(at, at) + 1
        return at

    def type_of(self, init, at):
        """What an auto is that is initialised so; None if the text does not tell."""
        init = init.lstrip("=").strip()
        found = re.match(r"(\w+)(?:$|\s+[+-]\s)", init)
        if found:
            one = self.find(found[1], at)
            return one.type if one and (found[0] == found[1] or
                                        one.type.startswith(("Hbm", "Smem", "Rows"))) else None
        found = re.match(r"(\w+) \* (\w+)\(", init)
        if found and GIVES.get(found[2]) == "Rows":
            return "Rows"
        found = re.match(r"([A-Za-z_][\w:.]*)(<[^()]*>)?\s*[({]", init)
        if not found:
            return None
        gives = GIVES.get(found[1], found[1])
        return plain_type(gives + (found[2] or "")) if gives in ("Smem", "Hbm") else gives

    def find(self, name, at):
        """What a name means at a place; None if nothing that is known."""
        seen = [one for one in self.names.get(name, ()) if one.begin <= at < one.end and
                (one.constant or not self.shut(one.begin, at))]
        return max(seen, key=lambda one: one.begin) if seen else None

    def shut(self, begin, at):
        """Whether a lambda that captures nothing lies between a name and its use."""
        return any(begin < first <= at < last for first, last in self.closed)

    def like(self, one, at):
        """The likeliest other name of its type that the place sees: of those spelt most alike the
        one declared last. For a constant only one that is spelt alike. None if there is none."""
        found = []
        for name in self.names:
            other = self.find(name, at)
            if other and name != one.name and other.type == one.type and other.type != "type" and \
                    other.constant == one.constant and self.root(other, at) != self.root(one, at):
                found.append(other)
        best = max(found, default=None,
                   key=lambda other: (alike(one.name, other.name), other.begin, other.name))
        return best if best and (not one.constant or alike(one.name, best.name) > 1) else None

    def root(self, one, at):
        while one and one.same:
            name, one = one.same, self.find(one.same, at)
            if one is None:
                return name
        return one and one.name


def plain_type(kind):
    kind = re.sub(r"\s+", " ", re.sub(r"\b(?:const|typename)\b", "", kind)).strip()
    inner = re.fullmatch(r"std::type_identity_t<(.*)>", kind)
    return re.sub(r"\s*([<>,])\s*", r"\1", (inner[1] if inner else kind).strip())


def alike(a, b):
    """How much two names have in common."""
    shared = set(a.split("_")) & set(b.split("_"))
    return 2 * len(shared) + (max(len(a), len(b)) <= 2) + (a[0].lower() == b[0].lower()) + \
        (a[-1] == b[-1])
