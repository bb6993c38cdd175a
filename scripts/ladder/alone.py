"""Writes a step, and what it needs of common/, as one file that nvcc alone compiles: what
scripts/run --alone does. In it alone.cu stands for the contract (rung.h) and for the harness."""

import os
import re
import sys

from ladder.console import BAD_USAGE, GOOD, Stop, run_command
from ladder.files import ROOT, read, write_whole
from ladder.sources import find, read_sources

NVCC = "nvcc -O3 -arch=native -std=c++20 --expt-relaxed-constexpr -o"
FRAME = os.path.join(ROOT, "scripts/ladder/alone.cu")
# At namespace scope, as clang-format leaves it: comment, head, and on the head's last line all the
# rest or a brace, whose fellow begins a line.
DEFINITION = re.compile(
    r"(?:^//.*\n)*(?:^(?![#/}\n]|namespace).*[^;{}\n]\n)*?"
    r"^(?![#/}\n]|namespace)(?:.*\{(?: *//.*)?\n(?:.*\n)*?\}.*|.*[;}](?: *//.*)?)\n", re.MULTILINE)


def words(code):
    return set(re.findall(r"\w+", re.sub(r"//.*", "", code)))


def name_of(definition):
    """None: an operator's."""
    code = re.sub(r"//.*|template <.*>\n|\b(__launch_bounds__|alignas|__align__)\(.*?\) (?=\w)", "",
                  definition)
    found = re.search(r"(?:struct|class) (\w+)|(\w+)(?: =|\[|\()", code.partition("operator")[0])
    return found and (found[1] or found[2])


def definitions(path, seen):
    """Of a header of common/ for the GPU and, before, of those that it includes."""
    if path in seen or "/sim/" in path:
        return []
    seen.add(path)
    text = read(os.path.join(ROOT, "common", path))
    return [one for other in re.findall('#include "(.*)"', text)
            for one in definitions(other, seen)] + DEFINITION.findall(text)


def resolve(text, used):
    """#ifdef NAME: where NAME is used."""
    return re.sub(r"(?m)^#if(n?)def (\w+)\n((?:.*\n)*?)(?:#else\n((?:.*\n)*?))?#endif\n",
                  lambda found: found[3] if (found[2] in used) != bool(found[1]) else found[4] or "",
                  text)


def body(text):
    """A step's file from its first definition on, without what tells the harness of it."""
    text = text.partition("namespace ladder::MACHINE {\n")[2]
    return re.sub(r"const Register step\{.*?\}\};\n\n", "", text, flags=re.DOTALL)


def alone(sources, source):
    """The text of the file."""
    headers, step = source.text, body(source.text)
    for other in re.findall(r'\.forward_of = "(\w+/\w+)"', source.text):
        forward = find(sources, other)  # all of it, in a namespace of its name
        name = forward.variant
        headers += forward.text
        step = (f"\nnamespace {name} {{\n" +
                body(forward.text).replace("namespace ladder::MACHINE", f"namespace {name}") +
                f"using {name}::plan, {name}::forward, {name}::traffic;\n{step}")
    includes, opening, frame = read(FRAME).partition("\n\n")[2].partition("namespace ladder")
    frame = resolve(opening + frame, words(step))
    theirs, seen = {name_of(one) for one in DEFINITION.findall(frame)}, set()
    common = {one: name_of(one) for path in re.findall('#include "(.*)"', headers)
              for one in definitions(path, seen) if name_of(one) not in theirs}
    used, kept = words(frame + step), set()
    while more := {one for one, name in common.items()
                   if one not in kept and (name is None or name in used)}:
        kept |= more
        used |= words("".join(more))
    frame = frame.replace('#include "common"\n', "".join(f"\n{one}" for one in common if one in kept))

    head = re.sub("//   build/bin/.*", f"//   {NVCC} {source.alone} {source.alone}.cu",
                  source.text.partition("\n\n#include")[0])
    own = "".join(dict.fromkeys(re.findall("#include <.*>\n", headers)))
    return (f"{head}\n\n{own}{resolve(includes, used)}{frame}".replace('#include "step"\n', step)
            .replace("ladder::MACHINE", "ladder::gpu"))


def steps():
    """All steps' files, with what they are called by themselves."""
    sources = read_sources(os.path.join(ROOT, "build/bin"))
    for source in sources:
        source.text = "\n".join([*source.lines, ""])
        source.variant = re.search(r'\.name = "(\w+)"', source.text)[1]
        source.alone = f"{source.rung[:2]}_{source.variant}"
        source.portable = not re.search(r"\.exact_architecture|\.baseline", source.text)
    return sources


def main():
    if len(sys.argv) != 2:
        raise Stop("--alone takes a step and nothing else, such as 00 or 05/rows", BAD_USAGE)
    sources = steps()
    source = find(sources, sys.argv[1])
    if not source.portable:
        command = re.search("//   (build/bin/.*)", source.text)[1]
        raise Stop(f"--alone {sys.argv[1]}: only steps that every GPU runs can stand alone; "
                   f"scripts/run, then {command} runs this one", BAD_USAGE)
    path = os.path.join(ROOT, "build/alone", source.alone)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    text = alone(sources, source)
    write_whole(f"{path}.cu", text)
    shown = os.path.relpath(path)
    print(f"{shown}.cu: {source.path} and what it needs, {len(text.splitlines())} lines\n\n"
          f"{NVCC} {shown} {shown}.cu && {os.path.join('.', shown)}")
    return GOOD


if __name__ == "__main__":
    sys.exit(run_command("scripts/run", main))
