"""The text of a source, as the rules for mistakes take it, and where in it they may plant."""

import bisect
import functools
import re

from ladder.mutate.names import Names, parameters_before


class Code(str):
    """The masked text of a source, as the rules take it. `whole`: the text itself."""

    def __new__(cls, whole):
        code = super().__new__(cls, masked(whole))
        code.whole = whole
        return code

    @functools.cached_property
    def names(self):
        return Names(self)

    @functools.cached_property
    def closes(self):
        """{where a bracket opens: where it closes}."""
        found, open_ones = {}, []
        for bracket in re.finditer(r"[()\[\]{}]", self):
            if bracket[0] in "([{":
                open_ones.append(bracket.start())
            elif open_ones:
                found[open_ones.pop()] = bracket.start()
        return found

    @functools.cached_property
    def opens(self):
        return {close: at for at, close in self.closes.items()}

    def until(self, at, ends):
        """The first of these characters from a place on that stands in no bracket; else the end."""
        while at < len(self) and self[at] not in ends:
            at = self.closes.get(at, at) + 1
        return at

    def one_line(self, begin, end):
        """What stands there, on one line, without comments and the preprocessor's lines."""
        here = zip(self.whole[begin:end], self[begin:end], self.quoted[begin:end])
        return " ".join("".join(whole if quoted else kept for whole, kept, quoted in here).split())

    @functools.cached_property
    def quoted(self):
        marks = bytearray(len(self))
        for found in PATTERN.finditer(self.whole):
            if found[0][0] in "\"'":
                marks[found.start():found.end()] = b"\1" * len(found[0])
        return marks


PATTERN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])*\''
                     r'|^[ \t]*#(?:[^\n\\]|\\.|\\\n)*', re.S | re.M)


def masked(text):
    """The text with comments, literals and the preprocessor's lines as spaces."""
    return PATTERN.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def bodies(text):
    """[begin, end) of the bodies of what runs on the device."""
    found = []
    for start in re.finditer(r"\b__(?:global|device)__\b", text):
        at = text.until(start.end(), "{;")
        if text[at:at + 1] == "{" and not (found and at < found[-1][1]):
            found.append((at + 1, text.closes[at]))
    return found


def host_bodies(text):
    """[begin, end) of the bodies of all functions."""
    found = []
    for begin, end in sorted(text.names.blocks):
        inside = found and begin < found[-1][1]
        if not inside and parameters_before(text, begin, text.opens):
            found.append((begin + 1, end))
    return found


def constants(text):
    """[begin, end) of what the compiler must know: there is no choosing while the program runs."""
    found = []
    for start in re.finditer(r"\b(?:constexpr|static_assert|using|template)\b", text):
        if start[0] == "constexpr" and re.search(r"\bif\s*$", text[:start.start()]):
            begin = text.index("(", start.end())
            found.append((start.start(), text.closes[begin]))
            continue
        at = text.until(start.end(), ";{")
        # What a constant is initialised with, in braces; not the body of a function.
        if text[at:at + 1] == "{" and start[0] == "constexpr" and ")" not in text[start.end():at]:
            at = text.closes[at]
        found.append((start.start(), at))
    # The arguments of a template: the one < that has no space before it.
    for start in re.finditer(r"(?<=\w)<(?=[^\s=<])", text):
        at, depth = start.end(), 1
        while at < len(text) and depth and text[at] not in ";{":
            depth += {"<": 1, ">": -1}.get(text[at], 0)
            at = text.closes[at] + 1 if text[at] == "(" else at + 1
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
