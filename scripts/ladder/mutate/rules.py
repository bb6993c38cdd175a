"""Finds what could be changed in a source of kernels: one small mistake each."""

import collections
import re

from ladder.mutate.code import KEYWORDS, TYPE, Code, marks

# A change: the text [begin, end) of a file becomes `planted`, which has both what was there, as
# {was}, and what the mistake makes of it; the mutant's number takes the place of {id} and chooses.
# `was` and `now` say it to people, `line` is the line that it begins in, less its comment, `nth`
# tells apart what is the same in all of these. `operator`: the type of M{id}, if there is one.
# `inserted`: (where, whether before what begins there, text) of a second change, or None.
Mutant = collections.namedtuple(
    "Mutant", "file rule line was now nth begin end planted operator inserted",
    defaults=[None, None])


def key(mutant):
    """What tells a mutant from all others, and stays the same while the lines around it change."""
    return "\t".join([mutant.file, mutant.line, mutant.was, mutant.now, str(mutant.nth)])


# ---- the rules: each yields (begin, end, now, planted) and, of an operator, its type ----

TRUE, FALSE = "ladder::mutant::on({id}) || ({was})", "!ladder::mutant::on({id}) && ({was})"
LEFT_OUT = "if (ladder::mutant::on({id})) {{}} else {was}"
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
    start = re.compile(r"(?<=[;{})])\s*((?:return|break|continue)(?=;)"
                       r"|(?!return|else|for|if|while|do|const|auto|using|case|switch|typename)"
                       r"[A-Za-z_][\w.:]*(?:<[\w\s,.()*/+-]*>)?(?=[(\[.]| [-+*/%|&^]?= ))")
    for found in start.finditer(text):
        begin = found.start(1)
        end = end_of_statement(text, begin)
        if end:
            yield begin, end, "(left out)", LEFT_OUT


def end_of_statement(text, at):
    at = text.until(at, ";})]")
    return at + 1 if text[at:at + 1] == ";" else 0


def guard(text):
    """An `if` that is always taken, or never."""
    for begin, end in conditions(text):
        yield begin, end, "true", TRUE
        yield begin, end, "false", FALSE


def conditions(text):
    for found in re.finditer(r"\bif \(", text):
        yield found.end(), text.closes[found.end() - 1]


# What an operand of && or || ends at, and what it begins after.
STOP = re.compile(r"[)\]};,?]|[&|]{2}|(?<!:):(?!:)|\Z")
STOP_BEFORE = re.compile(r"[(\[{;,?]|(?<=&)&|(?<=\|)\||(?<![=!<>])=(?!=)")


def conjunct(text):
    """One of several conditions dropped."""
    for found in re.finditer(r" (&&|\|\|)\s", text):
        now, planted = ("true", TRUE) if found[1] == "&&" else ("false", FALSE)
        begin, end = found.span()
        while begin - 1 in text.opens or not STOP_BEFORE.match(text, begin - 1):
            begin = text.opens.get(begin - 1, begin - 1)
        while end in text.closes or not STOP.match(text, end):
            end = text.closes.get(end, end) + 1
        begin = re.compile(r"\s*(?:return\b\s*)?").match(text, begin).end()
        yield begin, found.start(), now, f"({planted})"
        yield found.end(), len(text[:end].rstrip()), now, f"({planted})"


def number(text):
    """Another number: one more; a maximum that starts at 0."""
    for found in re.finditer(r"(?<![\w.])(?<!\w[eEpP][-+])(\d+)(?![\w.])", text):
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


SYNCHRONISES = re.compile(
    r"\b(?:__sync(?:threads|warp)\w*|named_barrier_\w+"
    r"|cp_async_(?:wait|commit)\w*|wgmma_(?:wait|commit|fence)\w*|tma_store_(?:wait|commit)\w*"
    r"|fence_\w+)\b"
    r"|[.>](?:wait|acquire|release|arrive\w*)\(")
DECLARES = re.compile(rf"(?:const|constexpr|auto|using|static|struct|static_assert|typename)\b"
                      rf"|(?!(?:{'|'.join(sorted(KEYWORDS))})\b)"
                      rf"{TYPE}(?:\s*[&*]\s*|\s+)[A-Za-z_]\w*\s*(?:[=;,{{\[(])")


# What a commit puts into a group, and what waits for one.
STARTS = re.compile(r"copy_async|cp_async|tma_|bulk_|wgmma_(?!fence)|wait")
# What works on registers alone, its own or those of a warp's lanes.
ON_REGISTERS = set("""any_above as_operand as_permuted_operand ceil_div exp2 exp2_columns exp2_rows
fill_rows finite_or_zero for_each if inverse_or_zero keys kv_row make_rows max max_over_lanes min
mul mul_rows q_row row_max row_max_in_lane row_sum row_sum_in_lane sees static_cast
sum_over_lanes wgmma_fence""".split())
# Who has the tensor cores: it orders no memory, and if it is wrong that only costs time.
TURN = re.compile(r"(?:if \([^()]*\) )?(?:begin|end)_turn\(")


def moved(text):
    """A statement moved by one across one that orders: a barrier, a wait, a commit, a release. Of
    the two the one that orders is moved, which comes to the same. Not across what it doesn't
    order, see unordered()."""
    orders = re.compile(SYNCHRONISES.pattern + "".join(
        rf"|^{name}\(" for name, span in text.lambdas.items() if SYNCHRONISES.search(text, *span)))
    for begin, end in text.blocks:
        inside = list(statements(text, begin + 1, end))
        which = [orders_memory(text, first, last, orders) for first, last in inside]
        for i, (first, last) in enumerate(inside):
            if not which[i]:
                continue
            copy = text.one_line(first, last)
            for other, word in ((i - 1, "before"), (i + 1, "after")):
                if not 0 <= other < len(inside) or which[other] and other < i:
                    continue
                at, stop = inside[other]
                if re.match(r"(?:return|break|continue)\b", text[at:]) or \
                        unordered(text, inside[i], inside[other]):
                    continue
                neighbour = text.one_line(at, stop)
                yield (first, last, f"({word} {neighbour[:60]}{'…' * (len(neighbour) > 60)})",
                       LEFT_OUT, None,
                       (at if word == "before" else stop, word == "before",
                        " if (ladder::mutant::on({id})) {" + copy + "} "))


def unordered(text, first, second):
    """Whether nothing depends on the order of two statements, of which the first orders memory."""
    a, b = (text[slice(*span)] for span in (first, second))
    # With the bodies of the lambdas that they call.
    whole = [[span, *(text.lambdas[name] for name in re.findall(r"(\w+)\(", text[slice(*span)])
                      if name in text.lambdas)] for span in (first, second)]
    if TURN.match(a) or TURN.match(b):
        return True
    if re.match(r"(?:cp_async|tma_store|wgmma)_commit", a):
        return not any(STARTS.search(text, *span) for span in whole[1])
    if re.match(r"\w+\.acquire\(", a) and second < first:  # sooner it only waits for longer
        return True
    if all(re.fullmatch(r"\w+\.wait\(\);", one) for one in (a, b)):
        return True
    if re.search(r"\b(?:return|break|continue)\b", b):
        return False
    for begin, end in whole[1]:
        calls = set(re.findall(r"(\w+)(?:<[\w\s,]*>)?\(", text[begin:end]))
        if re.search(r"[\w)]\[", text[begin:end]) or calls - ON_REGISTERS - set(text.lambdas):
            return False
    a_names, b_names = ({text.root(one, found.start()) for span in spans
                         for found, one in uses(text, *span)
                         if not one.const and one.type not in ("int", "Problem")}
                        for spans in whole)
    return not a_names & b_names


def statements(text, at, end):
    """[begin, end) of the statements of a block."""
    while (at := text.skip(at)) < end and (stop := end_of_any(text, at)):
        yield at, stop
        at = stop


def end_of_any(text, at):
    """Where a statement ends, with all that it controls."""
    if text[at] == "{":
        return text.closes[at] + 1
    head = re.compile(r"(if|for|while|switch)(?: constexpr)?\s*(?=\()").match(text, at)
    if not head:
        return end_of_statement(text, at)
    at = end_of_any(text, text.skip(text.closes[head.end()] + 1))
    other = text.skip(at)
    more = head[1] == "if" and at and text.startswith("else", other)
    return end_of_any(text, text.skip(other + len("else"))) if more else at


def orders_memory(text, begin, end, orders):
    """Whether a statement is a call that orders, or an `if` with one."""
    if text.startswith("if (", begin):
        begin = text.skip(text.closes[begin + 3] + 1)
    statement = text[begin:end]
    return not re.match(r"(?:if|for|while|return|\{)", statement) and \
        not DECLARES.match(statement) and orders.search(statement) is not None


FIELDS = {"N": ["N_kv"], "N_kv": ["N"], "H": ["Hk", "B"], "Hk": ["H", "B"], "B": ["H"],
          "row": ["column", "head"], "column": ["row"], "head": ["tile", "row"], "tile": ["head"],
          "full": ["free"], "free": ["full"], "x": ["y"], "y": ["x"], "z": ["y"],
          "stage": ["round"], "round": ["stage"]}


USE = re.compile(r"(?<![\w.:>])[A-Za-z_]\w*\b(?!\s*(?:\(|::|<\w))")


def uses(text, *span):
    """(where, name) of all names used as values."""
    for found in USE.finditer(text, *span):
        one = text.lookup(found[0], found.start())
        if one and one.type not in ("type", "char*"):
            yield found, one


def written(text, found):
    """Whether something is stored in a name there."""
    after = re.compile(r"(?:\[[^\]]*\])?\s*(?:(?:[-+*/%&|^]|<<|>>)?=(?!=)|\+\+|--)")
    return after.match(text, found.end()) or \
        re.search(r"(?:\+\+|--|&)$", text.before(found.start()))


def variable(text):
    """A variable for another of the same type that is in scope, or a field for its neighbour."""
    headers = marks(text, [(found.end() - 1, text.closes[found.end() - 1])
                           for found in re.finditer(r"\bfor \(", text)])
    for found, one in uses(text):
        at, stores = found.start(), written(text, found)
        if headers[at] and (stores or re.match(r"\s*(?:[<>!=]=?)\s", text[found.end():])):
            continue  # of a loop that would never end
        other = text.like(one, at)
        if other and not (stores and other.const):
            plant = "number" if one.constant else "pick"
            yield (at, found.end(), other.name,
                   f"ladder::mutant::{plant}({{id}}, {{was}}, {other.name})")
    for found in re.finditer(r"(?<![\w.:>])([A-Za-z_]\w*(?:\.\w+)*\.)(\w+)\b(?!\s*[(<])", text):
        for other in FIELDS.get(found[2], ()):
            yield (*found.span(), found[1] + other,
                   f"ladder::mutant::pick({{id}}, {{was}}, {found[1]}{other})")


def rounding(text):
    """A rounding to the I/O type more, of a float or of the floats of some rows."""
    floats = [found for found, one in uses(text) if
              one.type in ("float", "Rows", "float[]", "Chunk") and not one.constant]
    floats += re.finditer(r"(?<![\w.])\w+\.scale\b", text)
    for found in floats:
        begin, end = found.span()
        if text[end:end + 1] == "[" and found[0] != "scale":
            end = text.closes[end] + 1
        if not text.lookup("T", begin) or written(text, found) or \
                re.match(r"\s*(?:[<>]=?|[!=]=)\s", text[end:]) or \
                re.search(r"\bT\($", text.before(begin)) and text[end:end + 1] == ")" or \
                re.search(r"\bpack<T>\([^()]*$", text.before(begin)):
            continue
        yield begin, end, "rounded", "ladder::mutant::rounded<T>({id}, {was})"


def padded(text):
    """The padded size of a head for the real one, and the other way round."""
    for found in re.finditer(r"(?<![\w.:])(?:Dh|p\.d)\b(?!\s*::)", text):
        size, problem = (text.lookup(name, found.start()) for name in ("Dh", "p"))
        if size and size.constant and problem and problem.type == "Problem":
            now = "p.d" if found[0] == "Dh" else "Dh"
            yield (*found.span(), now, f"ladder::mutant::number({{id}}, {{was}}, {now})")


def check(text):
    """A check of the sim that is never made, or one of whose conditions is left out."""
    ifs = []
    for begin, end in conditions(text):
        after = re.compile(r"\)(?:\s*\[\[\w+\]\])?\s*").match(text, end).end()
        body = text[after:end_of_any(text, after)]
        if re.search(r"\b(?:fault(?:_in|_of_load)?|fail|complain|note|refuse)\(|\bthrow\b", body):
            ifs.append((begin, end))
            yield begin, end, "false", FALSE
    within = marks(text, ifs)
    for mutant in conjunct(text):
        if within[mutant[0]]:
            yield mutant


RULES = [operator, statement, guard, conjunct, number, call, moved, variable, rounding, padded]
OF_REFERENCE = RULES[:5]
KINDS = RULES + [check]


def mutants(file, text):
    """Every mutant of a source, `file` being its path from the root, in the order of the text."""
    code = Code(text)
    rules = [check] if "/sim/" in file else OF_REFERENCE if "/harness/" in file else RULES
    within = marks(code, code.bodies() if rules is RULES else code.host_bodies())
    fixed = marks(code, code.constants())
    found, seen, spans = [], collections.Counter(), set()
    for rule in rules:
        for begin, end, now, planted, *more in rule(code):
            if not within[begin] or fixed[begin] or (begin, end, now) in spans:
                continue
            spans.add((begin, end, now))
            line = text[text.rfind("\n", 0, begin) + 1:text.find("\n", begin)]
            line = re.sub(r"//.*", "", line).strip()
            was = " ".join(text[begin:end].split())
            found.append(Mutant(file, rule.__name__, line, was, now, seen[line, was, now], begin,
                                end, planted, *more))
            seen[line, was, now] += 1
    return sorted(found, key=lambda m: (m.begin, m.end, m.now))
