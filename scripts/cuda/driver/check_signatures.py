#!/usr/bin/env python3
"""Holds the driver's functions against NVIDIA's cuda.h of 12.4 and 13.0: the number of parameters, and of each whether it is a
pointer and how many bytes it has.

    scripts/cuda/driver/check_signatures.py [CUDA.H ..]

Without arguments, pip fetches the two headers from NVIDIA's wheels on PyPI (3 MB).
"""

import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
WHEELS = ["nvidia-cuda-runtime-cu12==12.4.127", "nvidia-cuda-runtime==13.0.96"]
# Handles are pointers to structs; a device is a number, and an address on it 8 bytes.
EIGHT = {"size_t", "uintptr_t", "uint64_t", "int64_t", "cuuint64_t", "CUdeviceptr", "CUdeviceptr_v2"}
EIGHT |= {"unsigned long long", "long long"}
FOUR = {"int", "unsigned", "unsigned int", "CUdevice", "CUdevice_v1", "cuuint32_t", "float"}
HANDLES = {"CUcontext", "CUmodule", "CUfunction", "CUstream", "CUevent", "CUmemoryPool", "CUgraph", "CUgraphExec", "CUmemPool"}


def kind(parameter):
    """What a parameter is in a call: `pointer`, or its bytes."""
    if "*" in parameter or "[" in parameter:
        return "pointer"
    words = [word for word in re.findall(r"\w+", parameter) if word not in ("const", "struct", "enum")]
    names = [" ".join(words), " ".join(words[:-1])]
    for name in names:
        if name in HANDLES:
            return "pointer"
        if name in EIGHT:
            return "8 bytes"
        if name in FOUR or re.match(r"CU\w+(_enum|_attribute|_v1)?$", name):
            return "4 bytes"
        if name in ("unsigned char", "char"):
            return "1 byte"
    return "unknown " + parameter.strip()


def parameters(text):
    """The kinds of a parameter list."""
    return [] if text.strip() in ("", "void") else [kind(part) for part in text.split(",")]


def headers(folder):
    """The cuda.h of both versions, fetched."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", folder]
    subprocess.run([*pip, *WHEELS], check=True)
    for wheel in sorted(Path(folder).glob("*.whl")):
        with zipfile.ZipFile(wheel) as opened:
            name = next(name for name in opened.namelist() if name.endswith("/cuda.h"))
            yield wheel.name.split("-py3")[0], opened.read(name).decode()


def main():
    """Compares, and exits with 1 if a function differs."""
    if sys.argv[1:2] in (["-h"], ["--help"]):
        print(__doc__)
        return
    ours = {}
    for source in ("driver.cpp", "transfers.cpp", "graphs.cpp"):
        text = (HERE / "src" / source).read_text()
        for name, inside in re.findall(r"^EXPORT (cu\w+)\(([^)]*)\)", text, re.MULTILINE):
            ours[name] = parameters(inside)
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        given = [(path, Path(path).read_text()) for path in sys.argv[1:]] or headers(folder)
        for version, text in given:
            theirs = {}
            for name, inside in re.findall(r"CUresult\s+CUDAAPI\s+(cu\w+)\(([^)]*)\)\s*;", text):
                theirs.setdefault(name, inside)  # declarations of the past come last
            found = 0
            for name, own in sorted(ours.items()):
                declared = theirs.get(name) or theirs.get(re.sub("_v2$", "", name))  # macros give the name its _v2
                if declared is None:
                    continue  # those of the profiler have a header of their own
                expected = parameters(declared)
                found += 1
                if own != expected:
                    print(f"{version}: {name} takes {expected}, but here {own}")
                    wrong += 1
            print(f"{version}: {found} of {len(ours)} functions are in its cuda.h, {wrong} differ")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
