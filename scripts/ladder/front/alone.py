"""Writes a step, with the code that it needs from common/, as one file that nvcc alone compiles,
for scripts/run --alone. In that file, alone.cu replaces the contract (rung.h) and the harness."""

from __future__ import annotations

import os
import re
from typing import Container

from ladder.base.console import BAD_USAGE, GOOD, CommandError
from ladder.base.files import ROOT, read, write_whole
from ladder.base.sources import DEFINITION, Source, find, names_of, read_sources

COMMAND = "scripts/run"
NVCC = "nvcc -O3 -arch=native -std=c++20 --expt-relaxed-constexpr -o"
FRAME = os.path.join(ROOT, "scripts/ladder/front/alone.cu")


def words(code: str) -> set[str]:
    """Returns the words of C++ code, without comments."""
    return set(re.findall(r"\w+", re.sub(r"//.*", "", code)))


def definitions(path: str, seen: set[str]) -> list[str]:
    """Returns the definitions, as compiled for the GPU, of a header of common/, after those of the
    headers that it includes. `seen` keeps a header from being read twice."""
    if path in seen or "/sim/" in path:
        return []
    seen.add(path)
    text = resolve(read(os.path.join(ROOT, "common", path)), ())
    return [definition for other in re.findall('#include "(.*)"', text)
            for definition in definitions(other, seen)] + DEFINITION.findall(text)


def resolve(text: str, used: Container[str]) -> str:
    """Returns the text with its #ifdef and #ifndef decided: the names in `used` are defined."""
    def chosen(block: re.Match[str]) -> str:
        return block[3] if (block[2] in used) != bool(block[1]) else block[4] or ""

    return re.sub(r"(?m)^#if(n?)def (\w+)\n((?:.*\n)*?)(?:#else\n((?:.*\n)*?))?#endif\n", chosen,
                  text)


def body(source: Source) -> str:
    """Returns a step's definitions, without its registration, after those of its own headers."""
    *headers, text = (text.partition("namespace ladder::MACHINE {\n")[2]
                      for text in (*source.headers.values(), source.text))
    return "".join(header.rpartition("}  // namespace ladder")[0] for header in headers) + \
        re.sub(r"const Register step\{.*?\}\};\n\n", "", text, flags=re.DOTALL)


def includes(source: Source) -> str:
    """Returns the #include lines, except those of headers of the step's folder."""
    own = {os.path.basename(path) for path in source.headers}
    return "".join(line + "\n" for text in (*source.headers.values(), source.text)
                   for line in text.splitlines()
                   if (name := re.match('#include ["<](.*)[">]', line)) and name[1] not in own)


def file_of(source: Source) -> str:
    """Returns the name of a step's single file, without .cu, such as "01_tile"."""
    return f"{source.rung[:2]}_{source.step}"


def alone(sources: list[Source], source: Source) -> str:
    """Returns the text of a step's single file."""
    headers, step = includes(source), body(source)
    for other in re.findall(r'\.forward_of = "(\w+/\w+)"', source.text):
        forward = find(sources, other)  # goes into a namespace of its step's name
        name = forward.step
        headers += includes(forward)
        step = (f"\nnamespace {name} {{\n" +
                body(forward).replace("namespace ladder::MACHINE", f"namespace {name}") +
                f"using {name}::plan, {name}::forward, {name}::traffic;\n{step}")

    frame = resolve(read(FRAME).partition("\n\n")[2], words(step))
    own = set().union(*map(names_of, DEFINITION.findall(frame)))
    seen: set[str] = set()
    common = {definition: names for path in re.findall('#include "(.*)"', headers)
              for definition in definitions(path, seen)
              if not (names := names_of(definition)) & own}
    used, kept = words(frame + step), set()
    while more := {definition for definition, names in common.items()
                   if definition not in kept and (not names or names & used)}:
        kept |= more
        used |= words("".join(more))

    head = re.sub("//   build/bin/.*", f"//   {NVCC} {file_of(source)} {file_of(source)}.cu",
                  source.text.partition("\n\n#include")[0])
    standard = "".join(dict.fromkeys(re.findall("#include <.*>\n", headers)))
    inlined = "".join("\n" + definition for definition in common if definition in kept)
    frame = frame.replace('#include "common"\n', inlined).replace('#include "step"\n', step)
    return f"{head}\n\n{standard}{frame}".replace("ladder::MACHINE", "ladder::gpu")


def portable(source: Source) -> bool:
    """Returns whether the file registers a step that every GPU runs."""
    return bool(source.step) and ".exact_architecture = true" not in source.text


def main(words: list[str]) -> int:
    if len(words) != 1:
        raise CommandError("--alone takes one step, such as 00 or 05/rows, and nothing else; "
                           f"given: {' '.join(words) or 'nothing'}", BAD_USAGE)
    sources = read_sources()
    source = find(sources, words[0])
    if not portable(source):
        command = re.findall("//   (build/bin/.*)", source.text)[0]
        raise CommandError(f"--alone {words[0]}: only a step that every GPU runs can be written as "
                           f"one file; after scripts/run, {command} runs this one", BAD_USAGE)
    path = os.path.join(ROOT, "build/alone", file_of(source))
    text = alone(sources, source)
    write_whole(f"{path}.cu", text)
    shown = os.path.relpath(path)
    print(f"{shown}.cu: {source.path} and the code it needs, {len(text.splitlines())} lines\n\n"
          f"{NVCC} {shown} {shown}.cu && {os.path.join('.', shown)}")
    return GOOD
