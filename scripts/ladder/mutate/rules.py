"""Finds what could be changed in a source of kernels: one small mistake each."""

import bisect
import collections
import re

# A change: the text [begin, end) of a file becomes `planted`, which has both what was there, as {was},
# and what the mistake makes of it; the mutant's number takes the place of {id} and chooses.
# `was` and `now` say it to people, `line` is the line that it begins in, less its comment, `nth`
# tells apart what is the same in all of these. `operator`: the type of M{id}, if there is one.
Mutant = collections.namedtuple("Mutant", "file rule line was now nth begin end planted operator")


def key(mutant):
    """What tells a mutant from all others, and stays the same while the lines around it change."""
    return "\t".join([mutant.file, mutant.line, mutant.was, mutant.now, str(mutant.nth)])


# ---- the text, and where in it ----


def masked(text):
    """The text with comments, literals and the preprocessor's lines as spaces."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
                         r'|^[ \t]*#(?:[^\n\\]|\\.|\\\n)*', re.S | re.M)
    return pattern.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def closing(text, at):
    """Where the bracket that opens at `at` closes."""
    pairs = {"(": ")", "[": "]", "{": "}"}
    open_ones = []
    for i in range(at, len(text)):
        if text[i] in pairs:
            open_ones.append(pairs[text[i]])
        elif open_ones and text[i] == open_ones[-1]:
            open_ones.pop()
            if not open_ones:
                return i
    raise ValueError(f"a bracket that never closes: {text[at:at + 40]!r}")


def bodies(text):
    """[begin, end) of the bodies of what runs on the device."""
    found = []
    for start in re.finditer(r"\b__(?:global|device)__\b", text):
        at, depth = start.end(), 0
        while at < len(text) and not (depth == 0 and text[at] in "{;"):
            depth += {"(": 1, ")": -1}.get(text[at], 0)
            at += 1
        if at < len(text) and text[at] == "{" and not (found and at < found[-1][1]):
            found.append((at + 1, closing(text, at)))
    return found


def constants(text):
    """[begin, end) of what the compiler must know: there is no choosing while the program runs."""
    found = []
    for start in re.finditer(r"\b(?:constexpr|static_assert|using|template)\b", text):
        if start[0] == "constexpr" and re.search(r"\bif\s*$", text[:start.start()]):
            begin = text.index("(", start.end())
            found.append((start.start(), closing(text, begin)))
            continue
        at, depth = start.end(), 0
        while at < len(text) and not (depth == 0 and text[at] in ";{"):
            depth += {"(": 1, ")": -1}.get(text[at], 0)
            at += 1
        # What a constant is initialised with, in braces; not the body of a function.
        if text[at:at + 1] == "{" and start[0] == "constexpr" and ")" not in text[start.end():at]:
            at = closing(text, at)
        found.append((start.start(), at))
    # The arguments of a template: the one < that has no space before it.
    for start in re.finditer(r"(?<=\w)<(?=[^\s=<])", text):
        at, depth = start.end(), 1
        while at < len(text) and depth and text[at] not in ";{":
            depth += {"<": 1, ">": -1}.get(text[at], 0)
            at = closing(text, at) + 1 if text[at] == "(" else at + 1
        found.append((start.start(), at))
    return found


class Spans:
    """[begin, end) in order, to look places up in."""

    def __init__(self, spans):
        self.spans = sorted(spans)
        self.begins = [begin for begin, _ in self.spans]

    def __contains__(self, at):
        before = self.spans[:bisect.bisect_right(self.begins, at)]
        return any(at < end for _, end in before)


# ---- the rules: each yields (begin, end, now, planted) and, of an operator, its type ----

OPERATORS = {"<": ("<=", "Less", ">"), "<=": ("<", "LessEqual", ">="),
             ">": (">=", "Greater", "<"), ">=": (">", "GreaterEqual", "<="),
             "==": ("!=", "Equal", "=="), "!=": ("==", "NotEqual", "!="),
             "+": ("-", "Plus", "+"), "-": ("+", "Minus", "-"), "*": ("+", "Times", "*"),
             "/": ("*", "Over", "/"), "%": ("(nothing)", "Modulo", "%")}


def operator(text):
    """Another operator, its neighbour where there is one. clang-format puts spaces around those
    that have two operands, and around no others."""
    for found in re.finditer(r"(?<=[\w)\]}]) ([<>]=?|[!=]=|[-+*/%])\s+(?=[\w({!~-])", text):
        was = found[1]
        now, kind, then = OPERATORS[was]
        yield found.start(1), found.end(1), now, "{was} M{id} " + then, kind


def statement(text):
    """A statement left out: a call, an assignment, a return that returns nothing, a break."""
    start = re.compile(r"(?<=[;{})])\s*(?:(?<=\))\s+)?((?:return|break|continue)(?=;)"
                       r"|(?!return|else|for|if|while|do|const|auto|using|case|switch|typename)"
                       r"[A-Za-z_][\w.:]*(?:<[\w\s,.()*/+-]*>)?(?=[(\[.]| [-+*/%|&^]?= ))")
    for found in start.finditer(text):
        begin = found.start(1)
        if text[:begin].rstrip().endswith(")") and not ends_control(text, begin):
            continue
        end = end_of_statement(text, begin)
        if end is None:
            continue
        yield begin, end, "(left out)", "if (ladder::mutant::on({id})) {{}} else {was}"


def ends_control(text, at):
    """Whether the bracket that closes just before `at` is that of an if or a loop."""
    close = text[:at].rstrip()
    depth = 0
    for i in range(len(close) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(close[i], 0)
        if depth == 0:
            return re.search(r"\b(?:if|for|while)(?: constexpr)?\s*$", close[:i]) is not None
    return False


def end_of_statement(text, at):
    while at < len(text):
        if text[at] in "([{":
            at = closing(text, at)
        elif text[at] == ";":
            return at + 1
        elif text[at] in "})]":
            return None
        at += 1
    return None


def guard(text):
    """An `if` that is always taken, or never."""
    for found in re.finditer(r"\bif \(", text):
        begin, end = found.end(), closing(text, found.end() - 1)
        yield begin, end, "true", "ladder::mutant::on({id}) || ({was})"
        yield begin, end, "false", "!ladder::mutant::on({id}) && ({was})"


def conjunct(text):
    """One of several conditions dropped."""
    for found in re.finditer(r" (&&|\|\|)\s", text):
        for begin, end in (operand_before(text, found.start()), operand_after(text, found.end())):
            if found[1] == "&&":
                yield begin, end, "true", "(ladder::mutant::on({id}) || ({was}))"
            else:
                yield begin, end, "false", "(!ladder::mutant::on({id}) && ({was}))"


def operand_before(text, at):
    """[begin, end) of the operand of && or || that ends at `at`."""
    depth, i = 0, at
    while i > 0:
        here = text[i - 1]
        depth += {")": 1, "]": 1, "}": 1, "(": -1, "[": -1, "{": -1}.get(here, 0)
        if depth < 0 or depth == 0 and (here in ";,?" or text[i - 2:i] in ("&&", "||") or
                                        here == "=" and text[i - 2] not in "=!<>" and
                                        text[i] != "="):
            break
        if depth == 0 and here == ":" and text[i - 2:i] != "::" and text[i] != ":":
            break
        i -= 1
    begin = i + len(re.match(r"\s*(?:return\b\s*)?", text[i:at])[0])
    return begin, at


def operand_after(text, at):
    depth, i = 0, at
    while i < len(text):
        here = text[i]
        if depth == 0 and (here in ")]};,?:" and text[i:i + 2] != "::" and text[i - 1:i + 1] != "::"
                           or text[i:i + 2] in ("&&", "||")):
            break
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(here, 0)
        i += 1
    return at, at + len(text[at:i].rstrip())


def number(text):
    """Another number: one more; a maximum that starts at 0."""
    for found in re.finditer(r"(?<![\w.])(\d+)(?![\w.])", text):
        if re.search(r"<\s*$", text[:found.start()]) and re.match(r"\s*>", text[found.end():]):
            continue  # of a template
        now = str(int(found[1]) + 1)
        yield (*found.span(1), now, "ladder::mutant::number({id}, {was}, " + now + ")")
    for found in re.finditer(r"-(?:INFINITY|FLT_MAX)\b", text):
        yield (*found.span(), "0", "ladder::mutant::number({id}, float({was}), 0.0f)")


CALLS = {"max": "min", "min": "max", "fmaxf": "fminf", "warp_max": "warp_sum",
         "row_max": "row_sum", "atomicAdd": "ladder::mutant::plain_add",
         "atomic_add_pair": "ladder::mutant::plain_add_pair"}


def call(text):
    """Another function: the least for the largest, a plain addition for an atomic one."""
    for found in re.finditer(r"(?<![\w.:])(" + "|".join(CALLS) + r")(?=\()", text):
        other = CALLS[found[1]]
        yield (*found.span(1), other.rpartition(":")[2],
               "LADDER_MUTANT_CALL({id}, {was}, " + other + ")")


RULES = [operator, statement, guard, conjunct, number, call]


def mutants(file, text):
    """Every mutant of a source, `file` being its path from the root, in the order of the text."""
    code = masked(text)
    device, fixed = Spans(bodies(code)), Spans(constants(code))
    found, seen, spans = [], collections.Counter(), set()
    for rule in RULES:
        for begin, end, now, planted, *operators in rule(code):
            if begin not in device or begin in fixed or (begin, end, now) in spans:
                continue
            spans.add((begin, end, now))
            line = text[text.rfind("\n", 0, begin) + 1:text.find("\n", begin)]
            line = re.sub(r"//.*", "", line).strip()
            was = " ".join(text[begin:end].split())
            found.append(Mutant(file, rule.__name__, line, was, now, seen[line, was, now], begin,
                                end, planted, *operators or [None]))
            seen[line, was, now] += 1
    return sorted(found, key=lambda m: (m.begin, m.end, m.now))
