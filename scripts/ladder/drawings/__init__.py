"""The course's pictures of shapes: what stays on chip, what streams past, who owns which part.

Each is drawn by the function of its name, into scripts/results/drawings/NAME.svg; what it shows is
the text that a page gives with it.
"""
