"""The text of a source, as the rules for mistakes take it: where in it they may plant, which names
a place sees, and of what type they are, as far as the text says it."""

import collections
import functools
import re

# A name in scope in [begin, end). `type`: as it is written, less const and references; of an `auto`
# what it is initialised with, where that tells. `same`: the name that this one is a reference to.
Name = collections.namedtuple("Name", "name type const constant begin end same", defaults=[None])

KEYWORDS = set("""break case class continue default delete do else enum extern for friend goto if
inline namespace new operator private public requires return static_assert struct switch template
throw typename using while""".split())
TYPE = r"(?:unsigned\s+|typename\s+)?[A-Za-z_][\w:]*(?:<[^;{}()=]*>)?(?:::\w+)?"
DECLARATION = re.compile(rf"(?<=[;{{}}(])\s*((?:static\s+|constexpr\s+|const\s+)*)({TYPE})"
                         r"(?:\s*([&*]+)\s*|\s+)(?=[A-Za-z_\[])")
PARAMETER = re.compile(rf"((?:const\s+|__grid_constant__\s+)*)({TYPE})(?:\s*([&*.]+)\s*|\s+)"
                       r"(\w+)\s*(?:=.*)?", re.S)
DECLARATOR = re.compile(r"\s*[&*]?\s*(\w+)(?=\s*(?:[=;,{\[]|:(?!:)))")
# A template's opens after a name, without a space before it, or after `template`.
BRACKET = re.compile(r"[()\[\]{}>]|(?<=\w)<(?=[^\s=<])|(?<=\btemplate )<")
# What these give, they give to an auto.
GIVES = {**dict.fromkeys(("fill_rows", "make_rows", "finite_or_zero", "sum_over_lanes", "row_max",
                          "row_sum", "max_over_lanes", "row_max_in_lane", "row_sum_in_lane",
                          "inverse_or_zero", "max", "exp2"), "Rows"),
         "smem.take": "Smem", "hbm": "Hbm", "read_chunk": "Chunk"}
# Comments, literals and the preprocessor's lines.
NO_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])*\''
                     r'|^[ \t]*#(?:[^\n\\]|\\.|\\\n)*', re.S | re.M)


def masked(text):
    """The text with spaces for what is no code."""
    return NO_CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


class Code(str):
    """The masked text of a source. `whole`: the text itself; `closes`: {where a bracket opens:
    where it closes}, a template's among them; `names`: {name: [Name]}."""

    def __new__(cls, whole):
        code = super().__new__(cls, masked(whole))
        code.whole = whole
        code.closes, opened = {}, []
        for bracket in BRACKET.finditer(code):
            if bracket[0] in "([{<":
                opened.append(bracket.start())
                continue
            while opened and code[opened[-1]] == "<" and bracket[0] != ">":
                opened.pop()
            if opened and (code[opened[-1]] == "<") == (bracket[0] == ">"):
                code.closes[opened.pop()] = bracket.start()
        code.opens = {close: at for at, close in code.closes.items()}
        code.blocks = [(at, close) for at, close in code.closes.items() if code[at] == "{"]
        return code

    @functools.cached_property
    def names(self):
        # Here already, because the type of an `auto` is found in what was declared before.
        names = self.__dict__["names"] = collections.defaultdict(list)
        for kind in (self.parameters, self.declarations):
            for name in kind():
                names[name.name].append(name)
        return names

    @functools.cached_property
    def lambdas(self):
        """{name: [begin, end) of the body}, of those that see all around them."""
        return {found[1]: (found.end(), self.closes[found.end() - 1])
                for found in re.finditer(r"\b(\w+) = \[&\][^;{]*\{", self)}

    def until(self, at, ends):
        """The first of these characters from a place on that stands in no bracket; else the end."""
        while at < len(self) and self[at] not in ends:
            at = self.closes.get(at, at) + 1
        return at

    def before(self, at):
        """What stands before a place, as far as it matters to a regex that ends there."""
        return self[max(0, at - 200):at]

    def skip(self, at):
        """Where the next sign stands that is no space."""
        return len(self) - len(self[at:].lstrip())

    def block_after(self, at):
        """[begin, end) of the first block after a place that is in no bracket; up to a ; else."""
        at = self.until(at, ";{")
        return at, self.closes.get(at, at)

    def parts(self, at, end):
        """[(begin, end)] of the parts between commas that stand in no bracket."""
        while at < end:
            stop = min(self.until(at, ","), end)
            yield at, stop
            at = stop + 1

    def one_line(self, begin, end):
        """What stands there, on one line, without comments and the preprocessor's lines."""
        return " ".join(re.sub(r"//.*|^\s*#.*", "", self.whole[begin:end], flags=re.M).split())

    # ---- where mistakes may be planted ----

    def bodies(self):
        """[begin, end) of the bodies of what runs on the device."""
        blocks = (self.block_after(start.end())
                  for start in re.finditer(r"\b__(?:global|device)__\b", self))
        return [(begin + 1, end) for begin, end in blocks if begin != end]

    def host_bodies(self):
        """[begin, end) of the bodies of all functions."""
        return [(begin + 1, end) for begin, end in self.blocks if self.parameters_before(begin)]

    def constants(self):
        """[begin, end) of what the compiler must know: there is no choosing while the program
        runs."""
        for start in re.finditer(r"\b(?:constexpr|static_assert|using|template)\b", self):
            at = self.until(start.end(), ";{")
            if re.search(r"\bif\s*$", self.before(start.start())):
                at = self.closes[self.index("(", start.end())]
            yield start.start(), at
        for at, close in self.closes.items():
            if self[at] == "<":
                yield at, close + 1

    # ---- names ----

    def parameters_before(self, at):
        """[begin, end) of the parameters of the function whose body opens at `at`; None if it is
        none, or a control's."""
        close = self.rfind(")", 0, at)
        if close < 0 or not re.fullmatch(
                r"(?:const\b|mutable\b|override\b|\s)*(?:->\s*[\w:<>&*, ]+)?",
                self[close + 1:at]):
            return None
        begin = self.opens.get(close)
        if begin is None or re.search(r"\b(?:if|for|while|switch|constexpr|catch)\s*$",
                                      self.before(begin)):
            return None
        return begin + 1, close

    def parameters(self):
        """Of templates and functions."""
        lists = [(at + 1, close, True, (close + 1, self.block_after(close + 1)[1]))
                 for at, close in self.closes.items() if self[:at].endswith("template ")]
        lists += [(*(self.parameters_before(block[0]) or (0, 0)), False, block)
                  for block in self.blocks]
        for begin, end, constant, scope in lists:
            for first, last in self.parts(begin, end):
                part = PARAMETER.fullmatch(self[first:last].strip())
                if part:
                    kind = "type" if part[2] in ("class", "typename") else \
                        plain_type(part[2]) + "*" * ("*" in (part[3] or ""))
                    yield Name(part[4], kind, constant or "const" in part[1], constant, *scope)

    def declarations(self):
        for start in DECLARATION.finditer(self):
            kind = start[2]
            if kind.split()[0].split(":")[0] in KEYWORDS:
                continue
            opening, whole = start.start() - 1, False
            if self[opening] == "(":  # of a for or an if
                if not re.search(r"\b(?:for|if|while)(?: constexpr)?\s*$", self.before(opening)):
                    continue
                block, end = opening, self.until(self.closes[opening] + 1, ";{}")
                end = self.closes.get(end, end) + 1
            else:
                block, end = max((span for span in self.blocks
                                  if span[0] < start.start(2) < span[1]), default=(0, len(self)))
                whole = bool(re.search(r"\b(?:struct|class)\b[^;(){}]*$", self.before(block)))
            constant, const = "constexpr" in start[1], "const" in start[1]
            at = start.end()
            if self[at] == "[":  # a structured binding
                begin = self.until(at, ",;)")
                for name in re.findall(r"\w+", self[at:self.closes[at]]):
                    yield Name(name, f"binding {at}", const, False, begin, end)
                continue
            # Of several declarators, those up to what is none.
            while name := DECLARATOR.match(self, at):
                stop = self.until(name.end(), ",;)")
                init = self[name.end():stop].strip()
                of = self.type_of(init, name.end()) if kind == "auto" else \
                    plain_type(kind) + "[]" * init.startswith("[")
                same = re.fullmatch(r"=\s*(\w+)", init) if start[3] else None
                if of:
                    yield Name(name[1], of, const, constant, block if whole else stop, end,
                               same and same[1])
                if self[stop:stop + 1] != ",":
                    break
                at = stop + 1

    def type_of(self, init, at):
        """What an auto is that is initialised so; None if the text does not tell."""
        init = init.lstrip("=").strip()
        found = re.match(r"(\w+)(?:$|\s+[+-]\s)", init)
        if found:
            one = self.lookup(found[1], at)
            return one and one.type
        found = re.match(r"(\w+) \* (\w+)\(", init)
        if found and GIVES.get(found[2]) == "Rows":
            return "Rows"
        found = re.match(r"([A-Za-z_][\w:.]*)(<[^()]*>)?\s*[({]", init)
        if not found:
            return None
        gives = GIVES.get(found[1], found[1])
        return plain_type(gives + (found[2] or "")) if gives in ("Smem", "Hbm") else gives

    def lookup(self, name, at):
        """What a name means at a place; None if nothing that is known."""
        seen = [one for one in self.names.get(name, ()) if one.begin <= at < one.end]
        return max(seen, key=lambda one: one.begin, default=None)

    def like(self, one, at):
        """The likeliest other name of its type that the place sees: of those spelt most alike the
        one declared last. For a constant only one that is spelt alike. None if there is none."""
        others = [self.lookup(name, at) for name, of in self.names.items()
                  if name != one.name and any(other.type == one.type for other in of)]
        others = [other for other in others if other and other.type == one.type != "type" and
                  other.constant == one.constant and self.root(other, at) != self.root(one, at)]
        best = max(others, default=None,
                   key=lambda other: (alike(one.name, other.name), other.begin, other.name))
        return best if best and (not one.constant or alike(one.name, best.name) > 1) else None

    def root(self, one, at):
        """The name of what a name refers to in the end."""
        while one.same and self.lookup(one.same, at):
            one = self.lookup(one.same, at)
        return one.same or one.name


def plain_type(kind):
    kind = re.sub(r"\s+", " ", re.sub(r"\b(?:const|typename)\b", "", kind)).strip()
    return re.sub(r"\s*([<>,])\s*", r"\1", kind)


def alike(a, b):
    """How much two names have in common."""
    shared = set(a.split("_")) & set(b.split("_"))
    return 2 * len(shared) + (max(len(a), len(b)) <= 2) + (a[0].lower() == b[0].lower()) + \
        (a[-1] == b[-1])


def marks(text, spans):
    """For each place of a text, whether it is in one of [begin, end)."""
    found = bytearray(len(text))
    for begin, end in spans:
        found[begin:end] = b"\1" * (end - begin)
    return found
