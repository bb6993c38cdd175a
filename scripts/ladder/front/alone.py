"""Implements scripts/run --alone: writes a step, and the parts of common/ that it needs, as one
file that nvcc compiles by itself. In that file, alone.cu replaces the contract (rung.h) and the
harness. The I/O type, head size and tile are fixed, so the file needs no plan; for a backward step
it contains only the backward pass. alone() puts the file together. Sources are edited as text; the
patterns rely on clang-format's layout, and on DEFINITION, which matches one definition."""

from __future__ import annotations

import os
import re
import textwrap
from typing import Container

from ladder.base.console import BAD_USAGE, GOOD, CommandError
from ladder.base.files import ROOT, read, write_whole
from ladder.base.sources import DEFINITION, Source, defined, find, names_of, read_sources

COMMAND = "scripts/run"
NVCC = "nvcc -O3 -std=c++20 -arch=native -o"
FRAME = os.path.join(ROOT, "scripts/ladder/front/alone.cu")
HEAD_SIZE = 64  # of the workload in FRAME
TILE = 64 * 128  # elements of the largest tile that fits into 99 KB, which every GPU from 8.0 has
PARTS = {"split_kv": 4}  # step → the number of parts into which it splits the keys; others: 1
TYPE = re.compile(r"^(?:struct|class|enum|using) ", re.MULTILINE)


def value(text: str, start: int) -> str:
    """Returns the C++ expression at text[start], without the comma, semicolon or bracket after."""
    depth, end = 0, start
    while end < len(text) and (depth > 0 or text[end] not in ",;)}"):
        depth += (text[end] in "({[") - (text[end] in ")}]")
        end += 1
    return text[start:end]


def words(code: str) -> set[str]:
    """Returns the code's identifiers, except those in std::, and the string "f(n" for each call of
    f with n arguments, so that needed() can tell overloads apart."""
    code, before = re.sub(r"//.*|\bstd::\w+", "", code), ""
    found = set(re.findall(r"\w+", code))
    while code != before:  # removes the innermost brackets first
        before, code = code, re.sub(r"<\w[\w:,& ]*>|[\[{][^][(){}]*[]}]", "", code)
        found.update(f"{call[1]}({call[2].count(',') + 1}"
                     for call in re.finditer(r"(\w+)\(([^][(){}]*)\)", code))
        code = re.sub(r"\([^][(){}]*\)", "", code)
    return found


def resolve(text: str, used: Container[str]) -> str:
    """Returns the text with #ifdef and #ifndef resolved, where the names in `used` count as
    defined, and without the code for GPUs before 8.0."""
    def chosen(block: re.Match[str]) -> str:
        first = block[3] == ">=" if block[3] else (block[2] in used) != bool(block[1])
        return block[4] if first else block[5] or ""

    return re.sub(r"(?m)^#if(?:(n?)def (\w+)| __CUDA_ARCH__ (>=|<) 800)\n((?:.*\n)*?)"
                  r"(?:#else.*\n((?:.*\n)*?))?#endif\n", chosen, text)


def inner(text: str) -> str:
    """Returns what a file's namespace ladder contains, without the lines that enclose it."""
    return text.partition("namespace ladder")[2].partition("\n")[2].rpartition("}  // namespace")[0]


def common(path: str, seen: set[str]) -> str:
    """Returns the code of a header of common/ for the GPU, preceded by that of the headers that it
    includes. Leaves out the simulator's headers and those in `seen`, and adds its own to `seen`."""
    file = os.path.join(ROOT, "common", path)
    if path in seen or "/sim/" in path or not os.path.exists(file):
        return ""
    seen.add(path)
    text = resolve(read(file), ())
    # Removes headings of sections, and members and comments that only the harness needs.
    return "".join(common(other, seen) for other in re.findall('#include "(.*)"', text)) + \
        re.sub(r"// -----.*\n|/// GPUs before 8\.0 .*\n|  DType dtype = .*\n|(?<=0\.125f;)     |"
               r"  bool operator==.*\n\n?", "", inner(text))


def body(source: Source) -> str:
    """Returns the code of a step's own headers, then that of its file without the registration."""
    return re.sub(r"(?m)^(?:\}  // )?namespace(?: \{)?\n|^const Register (?:.*\n)*?\}\};\n", "",
                  "".join(map(inner, (*source.headers.values(), source.text))))


def file_of(source: Source) -> str:
    return f"{source.rung[:2]}_{source.step}"


def needed(text: str, used: set[str]) -> str:
    """Returns the text without the definitions, and members of structs, that neither the words
    `used` (from words()) nor other definitions use. An overload counts as used if its parameters'
    types are used and some call passes a number of arguments that it accepts."""
    everything = DEFINITION.findall(text)
    types = set().union(*(names_of(one) for one in everything if TYPE.search(one)))
    names = [name for one in everything for name in names_of(one)]

    def is_used(one: str, by: set[str]) -> bool:
        """Returns whether the words `by` use the definition `one`."""
        head = re.sub("//.*", "", one).partition("{\n")[0]
        called = names_of(one).union(re.findall(r", (\w+) =", head.partition("(")[0]))
        if TYPE.search(one) or all(names.count(name) < 2 for name in called):
            return not called or bool(called & by)
        name, parameters = min(called), head.partition("(")[2]
        most = next(n for n in range(1, 99) if f"{name}({n}" in words(head))
        return types & words(parameters) <= by and any(
            f"{name}({n}" in by for n in range(most - parameters.count(" = "), most + 1))

    kept: dict[str, set[str]] = {}
    while more := {one: words(one) for one in everything if one not in kept
                   and is_used(one, used.union(*kept.values()))}:
        kept.update(more)

    def left(found: re.Match[str]) -> str:
        """Returns what is left of a definition: nothing, all, or a struct's members in use."""
        head, begin, rest = found[0].partition("{\n")
        if found[0] not in kept or not begin or not TYPE.search(head):
            return found[0] if found[0] in kept else ""
        members, end, rest = rest.rpartition("}")
        others = used.union(*(kept[one] for one in kept if one != found[0]))
        members = needed(re.sub("(?m)^  ", "", members), others)
        return head + begin + textwrap.indent(members, "  ") + end + rest

    return DEFINITION.sub(left, text)


def direct(text: str, parts: int, name: str) -> tuple[str, str, str]:
    """Turns the host function of a step's pass, `name` ("forward" or "backward"), which reads a
    Plan and dispatches on type and sizes, into a template that computes the plan's values itself.
    Returns the step's new text, the template's arguments for the main program in FRAME, and the
    statements that allocate the workspace there. `parts` is the plan's number of parts."""
    there = defined(text)
    run, plan = there[name], there["plan" if name == "forward" else "backward_plan"]
    planned = re.sub(r"(?m)^  if \(plan\.parts > 1\)\n?.*\n", "", plan) if parts == 1 else plan
    values = {field[1]: value(planned, field.end())
              for field in re.finditer(r"\.(\w+) = ", planned)} | {"parts": str(parts)}
    if smem := re.search(r"\[&\]\(int.*\) \{\s+return ([^;]*);", planned):
        values["smem_bytes"] = smem[1]
    parameters = max(re.findall(r"\[&\]<(class T.*)>\(\) \{\n", run), key=len)
    named = {"parts": "kParts", "smem_bytes": "smem", "head_dim": "Dh"}
    if "Br" in parameters:
        named.update(block_q="Br", block_kv="Bc")

    def given(code: str, rest: str = "") -> str:
        """Returns the code with the plan's values, after the plan's variables that it uses."""
        for statement, variable in reversed(re.findall(
                r"(?m)^(  (?:const )?int\w* (?!Dh\b)(\w+) = [^;]*;).*\n", planned)):
            if re.search(rf'(?<![."])\b{variable}\b', code):
                code = f"{statement}\n{code}"
        return re.sub(r"plan\.(\w+)", lambda field: named.get(field[1], field[1]),
                      code.replace("device.smem_bytes", "99 * 1024") + rest)

    constants = "".join(f"  const int {named.get(asked, asked)} = {values[asked]};\n"
                        for asked in dict.fromkeys(re.findall(r"plan\.(\w+)", run))
                        if named.get(asked) not in ("Br", "Bc", "Dh"))
    lines = re.sub(r"(?m)^  with_.*\{\n((?:    .*\n|\n)*)  \}\);\n",
                   lambda lines: re.sub("(?m)^  ", "", lines[1]), run.partition("{\n")[2])
    new = f"template <{parameters}>\nvoid {name}(const Problem& p, Arrays& a) {{\n" + \
        re.sub(r"  const int (\w+) = \1;\n", "", given(constants, lines))

    arguments = {"T": "T", "Dh": str(HEAD_SIZE), "kIoBytes": "sizeof(T)", "kParts": str(parts)}
    if tiles := re.search(r"with_tile<(\w+)", run):
        sizes = re.findall(r"\{(\d+), (\d+), (\d+)\}", there[tiles[1]])
        least = min(int(most) for most, _, _ in sizes if int(most) >= HEAD_SIZE)
        arguments["Br"], arguments["Bc"] = next(
            (Br, Bc) for most, Br, Bc in sizes if int(most) == least and int(Br) * int(Bc) <= TILE)
    workspace = given("".join(f"  allocate({array}, {size});\n" for array, size in re.findall(
        r'\{("\w+"), ((?:[^{}]|\{[^{}]*\})*)\}', values.get("workspace", ""))))
    return (text.replace(run, new).replace(plan, ""),
            ", ".join(arguments[word] for word in re.findall(r"(\w+)(?:,|$)", parameters)),
            re.sub(r"\b(Dh|Br|Bc|kIoBytes|kParts)\b", lambda word: arguments[word[1]], workspace))


def alone(source: Source) -> str:
    """Returns the text of a step's self-contained file: FRAME with the step's pass, and what it
    needs of common/, at the lines #include "step" and "common"."""
    step, frame = body(source), read(FRAME).partition("\n\n")[2]
    name = "backward" if "backward" in defined(step) else "forward"
    step, arguments, workspace = direct(step, PARTS.get(source.step, 1), name)
    frame = resolve(frame, words(step)).replace('#include "workspace"\n', workspace)
    frame = frame.replace("run(p, a)", f"{name}<{arguments}>(p, a)")
    step = re.sub(r'launch(?:<\S+>)?\("\w+",\s', "launch(", needed(step, words(frame)))
    step = re.sub(r"(?m)^( *launch.*)\n +(.*;)$", lambda lines: lines[0] if len(lines[0]) > 109
                  else f"{lines[1]} {lines[2]}", step)
    step = step.replace("grid_blocks(", "ceil_div(").replace("const Arrays& a", "Arrays& a")

    own, seen = set().union(*map(names_of, DEFINITION.findall(frame))), set[str]()
    shared = DEFINITION.sub(
        lambda found: "" if names_of(found[0]) & own or "e4m3" in words(found[0]) else found[0],
        "".join(common(path, seen) for text in (*source.headers.values(), source.text)
                for path in re.findall('#include "(.*)"', text)))
    text = frame.replace('#include "common"\n', needed(shared, words(frame + step)))
    text = text.replace('#include "step"\n', step)
    text = re.sub(r"(?m)^( *)(?=constexpr [\w:<>*& ]+\()", r"\1__host__ __device__ ", text)
    text = re.sub(r"(?m)^  (?=.{99}.*\}$)(.*\{) (.*) \}$", r"  \1\n    \2\n  }", text)
    standard = {*re.findall(r"#include <\w+>\n", text + source.text),
                "#include <bit>\n" if "std::bit_" in text else ""}
    text = re.sub(r"(#include <\w+>\n)+", "".join(sorted(standard)), text, count=1)
    head = re.sub("//   build/bin/.*", f"//   {NVCC} {file_of(source)} {file_of(source)}.cu",
                  source.text.partition("\n\n#include")[0])
    return re.sub(r"\n{3,}", "\n\n", f"{head}\n\n{text}")


def portable(source: Source) -> bool:
    """Returns whether the source registers a step that runs on every GPU."""
    return bool(source.step) and ".exact_architecture = true" not in source.text


def main(words: list[str]) -> int:
    if len(words) != 1:
        raise CommandError("--alone takes one step, such as 00 or 05/rows, and nothing else",
                           BAD_USAGE)
    sources = read_sources()
    source = find(sources, words[0])
    if not portable(source):
        command = re.findall("//   (build/bin/.*)", source.text)[0]
        raise CommandError(f"--alone {words[0]}: only steps that every GPU runs can stand alone; "
                           f"after scripts/run, {command} runs this one", BAD_USAGE)
    path = os.path.join(ROOT, "build/alone", file_of(source))
    text = alone(source)
    write_whole(f"{path}.cu", text)
    shown = os.path.relpath(path)
    print(f"{shown}.cu: {source.path} and what it needs, {len(text.splitlines())} lines\n\n"
          f"{NVCC} {shown} {shown}.cu && {os.path.join('.', shown)}")
    return GOOD
