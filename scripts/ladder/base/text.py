"""Formats numbers for people to read, and the lessons' Markdown for a terminal."""

from __future__ import annotations

import re

NO_VALUE = "–"


def in_units(value: float | None, units: list[str]) -> str:
    """Returns a value, given in units[0], to three digits. Each unit is 1000 times the one before;
    the first that leaves at most three digits before the point is used. None becomes NO_VALUE."""
    if value is None:
        return NO_VALUE
    for unit in units[:-1]:
        text = three_digits(value)
        if len(text.split(".")[0]) <= 3:
            return f"{text} {unit}"
        value /= 1000
    return f"{three_digits(value)} {units[-1]}"


def three_digits(value: float) -> str:
    """Returns a number to three digits; integers below 1000 stay as they are."""
    if isinstance(value, int) and value < 1000:
        return str(value)
    for decimals in (2, 1):
        text = f"{value:.{decimals}f}"
        if len(text.replace(".", "")) <= 3:
            return text
    return f"{value:.0f}"


def bytes_text(count: float | None) -> str:
    """Returns a number of bytes in B, kB, MB, GB or TB, which are powers of 1000."""
    return in_units(None if count is None else round(count), ["B", "kB", "MB", "GB", "TB"])


def counts_text(count: str, *numbers: int) -> list[str]:
    """Returns values of the count whose key is `count` as texts in one style: bytes in B, kB, …;
    others exactly if all are below 100,000 (or a million, if one is 0), else in k, M, …"""
    exact = max(numbers) < (100_000 if all(numbers) else 1_000_000)
    return [bytes_text(number) if number and count.endswith("_bytes") else f"{number:,}"
            if exact or not number else in_units(number, ["", "k", "M", "G", "T"]).replace(" ", "")
            for number in numbers]


def time_text(milliseconds: float | None) -> str:
    """Returns a time given in milliseconds in µs, ms or s."""
    return in_units(None if milliseconds is None else milliseconds * 1000, ["µs", "ms", "s"])


def rate_text(number: float | None) -> str:
    """Returns a rate or a ratio to three digits, or two below 0.1, without a unit."""
    if number is None:
        return NO_VALUE
    return f"{number:.2g}" if number < 0.1 else three_digits(number)


def plain(text: str) -> str:
    """Returns Markdown as plain text for a terminal: links, formulas and code lose their markup."""
    parts: list[str] = re.split(r"^```.*\n", text, flags=re.MULTILINE)
    for i in range(0, len(parts), 2):  # the parts between are fenced code, which stays as it is
        part: str = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", parts[i])
        part = re.sub(r"\$([^$]+)\$", lambda match: formula(str(match[1])), part)
        parts[i] = part.replace("`", "")
    return "".join(parts).strip("\n ")


def formula(tex: str) -> str:
    """Returns a TeX formula as plain text; knows only the commands that exercises use."""
    tex = re.sub(r"\\frac(\w|\{\w+\})(\w|\{\w+\})", r"\1/\2", tex)
    for old, new in (("\\cdot", "·"), ("\\infty", "∞"), ("\\mathrm", ""), ("\\circ", "∘"),
                     ("\\le", "≤"), ("\\approx", "≈"), ("\\lVert", "‖"), ("\\rVert", "‖"),
                     ("\\alpha", "α"), ("\\hat O", "Ô"), ("\\sqrt", "√"), ("^\\top", "ᵀ"),
                     ("\\hat V", "V̂"), ("{,}", ","), ("\\", ""), ("{", ""), ("}", "")):
        tex = tex.replace(old, new)
    return tex
