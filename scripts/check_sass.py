#!/usr/bin/env python3
"""Shows that a kernel over Hbm<T> is the kernel over raw T* __restrict__, instruction by instruction.

Compiles a rung three times: as it is; with every Hbm<T> replaced by T* __restrict__; and, so that
the comparison is seen to be able to fail, with plain T*. Disassembles all three and compares the
machine code (SASS) of each kernel, bit for bit. Without cuobjdump, it compares the PTX instead.

Exit status: 0 the same, 1 different, 2 could not compare.
"""

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

from ladder.console import Parser, printable
from ladder.files import ROOT

FLAGS = ["-std=c++20", "--expt-relaxed-constexpr", "-I", os.path.join(ROOT, "common")]
HBM = re.compile(r"\bHbm<([^<>]+)>")
VARIANTS = {"Hbm<T>": None, "T* __restrict__": r"\1* __restrict__", "T*": r"\1*"}


def stop(message):
    print(f"scripts/check_sass.py: {printable(message)}", file=sys.stderr)
    sys.exit(2)


def find_tool(name):
    """A program of the CUDA Toolkit: on PATH, or where the toolkit is."""
    toolkits = [os.environ[v] for v in ("CUDA_HOME", "CUDA_PATH") if v in os.environ]
    folders = ":".join(f"{toolkit}/bin" for toolkit in [*toolkits, "/usr/local/cuda"])
    return shutil.which(name) or shutil.which(name, path=folders)


def architecture():
    """That of the GPU present, as CMake chooses it, else sm_90a."""
    try:
        asked = subprocess.run(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"],
                               capture_output=True, text=True)
    except OSError:
        return "sm_90a"
    found = re.match(r"(\d+)\.(\d+)\s", asked.stdout)
    if asked.returncode or not found:
        return "sm_90a"
    return "sm_" + "".join(found.groups()).replace("90", "90a")


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        stop(f"{' '.join(command)}\nended with status {done.returncode}:\n{done.stderr}")
    return done.stdout


def short_name(symbol, kernels):
    """ladder::gpu::(anonymous namespace)::scores<__half>, mangled, as scores<fp16>."""
    for kernel in kernels:
        found = re.search(rf"{len(kernel)}{kernel}(?:I(.+?)EE?v|E)", symbol)
        if found:
            types = (found[1] or "").replace("6__half", "fp16 ").replace("13__nv_bfloat16", "bf16 ")
            types = re.sub(r"L[ib](\d+)E", r"\1 ", types)
            return f"{kernel}<{', '.join(types.split())}>" if types else kernel
    return None


def sass(listing, kernels):
    """Kernel → its instructions, each as text and encoding; addresses are left out."""
    code, instructions = {}, None
    for line in listing.splitlines():
        function = re.match(r"\s*Function : (\S+)", line)
        first = re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;\s*/\* (0x[0-9a-f]+) \*/", line)
        more = re.match(r"\s*/\* (0x[0-9a-f]+) \*/", line)
        if function:
            name = short_name(function[1], kernels)
            instructions = code.setdefault(name, []) if name else None
        elif instructions is not None and first:
            instructions.append(f"{re.sub(r'_Z[$]?[A-Za-z0-9_]+', 'SYMBOL', first[1])}  {first[2]}")
        elif instructions and more:
            instructions[-1] += f" {more[1]}"
    return code


def ptx(listing, kernels):
    """Kernel → its instructions; declarations and names are left out."""
    code = {}
    for symbol, body in re.findall(r"\.entry (\w+)\(.*?\n\{\n(.*?)\n\}\n", listing, re.DOTALL):
        name = short_name(symbol, kernels)
        lines = [line.strip() for line in body.replace(symbol, "KERNEL").splitlines()]
        code[name] = [line for line in lines if line and not line.startswith((".", "//"))]
    return code


def compiled(source, nvcc, cuobjdump, arch, folder, kernels):
    path = os.path.join(folder, "attention.cu")
    with open(path, "w", encoding="utf-8") as file:
        file.write(source)
    kind = "cubin" if cuobjdump else "ptx"
    output = os.path.join(folder, f"attention.{kind}")
    run([nvcc, f"-{kind}", f"-arch={arch}", *FLAGS, "-o", output, path])
    if cuobjdump:
        return sass(run([cuobjdump, "-sass", output]), kernels)
    with open(output, encoding="utf-8") as file:
        return ptx(file.read(), kernels)


def main():
    description, epilog = __doc__.split("\n\n", 1)
    parser = Parser(description=description, epilog=epilog)
    first = min(glob.glob(os.path.join(ROOT, "[0-9][0-9]_*/attention.cu")))
    parser.add_argument("source", nargs="?", default=first,
                        help=f"the rung's file (default: {os.path.relpath(first, ROOT)})")
    parser.add_argument("--arch", help="such as sm_80 (default: that of the GPU present, else sm_90a)")
    parser.add_argument("--ptx", action="store_true", help="compare the PTX, also with cuobjdump")
    options = parser.parse_args()

    nvcc = find_tool("nvcc")
    if not nvcc:
        stop("nvcc is missing: install the CUDA Toolkit, or put it on PATH or in CUDA_HOME")
    cuobjdump = None if options.ptx else find_tool("cuobjdump")
    arch = options.arch or architecture()
    try:
        with open(options.source, encoding="utf-8") as file:
            source = file.read()
    except OSError as error:
        stop(f"{options.source}: {error.strerror}")
    if not HBM.search(source):
        stop(f"{options.source} has no Hbm<T>")
    kernels = re.findall(r"__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\(", source)

    code = {}
    with tempfile.TemporaryDirectory() as scratch:
        for number, (variant, replacement) in enumerate(VARIANTS.items()):
            folder = os.path.join(scratch, str(number))
            os.mkdir(folder)
            text = HBM.sub(replacement, source) if replacement else source
            code[variant] = compiled(text, nvcc, cuobjdump, arch, folder, kernels)
    ours, raw, plain = code.values()
    if not ours or ours.keys() != raw.keys() or not all(ours.values()):
        stop("found no kernels to compare, or not the same ones")

    what = "SASS" if cuobjdump else "PTX"
    if not cuobjdump and not options.ptx:
        print("cuobjdump is missing: comparing PTX, which the assembler makes SASS of.")
    print(f"{os.path.relpath(options.source, ROOT)}, {what} for {arch}, Hbm<T> against")
    print(f"{'kernel':<24}{'instructions':>12}   {'T* __restrict__':<17}T* (for contrast)")
    for name in ours:
        count = sum(not line.endswith(":") for line in ours[name])  # PTX has labels too
        words = ["same" if ours[name] == other.get(name) else "different" for other in (raw, plain)]
        print(f"{name:<24}{count:>12}   {words[0]:<17}{words[1]}")
    if ours == plain:
        stop("T* gives the same code too, so the comparison shows nothing")
    print("same" if ours == raw else "different")
    return 0 if ours == raw else 1


if __name__ == "__main__":
    sys.exit(main())
