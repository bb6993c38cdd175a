"""Numbers that people read."""

NO_VALUE = "–"


def in_units(value, units, factor=1000.0):
    """Three digits (fewer of a whole number of the smallest unit) and the first of the units that
    leaves fewer than four before the point."""
    if value is None:
        return NO_VALUE
    for unit in units:
        text = three_digits(value)
        if len(text.split(".")[0]) <= 3 or unit == units[-1]:
            return f"{text} {unit}"
        value /= factor


def three_digits(value):
    if isinstance(value, int) and value < 1000:
        return str(value)
    for decimals in (2, 1):
        text = f"{value:.{decimals}f}"
        if len(text.replace(".", "").lstrip("-")) <= 3:
            return text
    return f"{value:.0f}"


def bytes_text(count):
    return in_units(count, ["B", "kB", "MB", "GB", "TB"])


def time_text(milliseconds):
    return in_units(None if milliseconds is None else milliseconds * 1000, ["µs", "ms", "s"])


def rate_text(number):
    """Of TFLOP/s, or of one number over another."""
    if number is None:
        return NO_VALUE
    return f"{number:.2g}" if number < 0.1 else three_digits(number)
