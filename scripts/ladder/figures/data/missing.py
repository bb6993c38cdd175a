"""What cannot be shown, and series of what can."""


class Missing(Exception):
    """A figure, or a series of one, cannot be drawn, and why."""


def need(panels, what="nothing to show"):
    if not panels:
        raise Missing(what)
    return panels


def series(entries, value):
    """x and y of a line against N; nothing where the value is not known."""
    points = {e.seqlen: value(e) for e in entries}
    points = {n: y for n, y in points.items() if y is not None}
    return {"x": sorted(points), "y": [points[n] for n in sorted(points)]}
