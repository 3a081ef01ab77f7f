#!/usr/bin/env python3
"""Compiles a file of CUDA kernels into a library for the processor.

The file is preprocessed with the headers in include/, then three things of CUDA's language are rewritten: `__global__` goes
away, a `__shared__` variable becomes a reference to memory that the driver gives each block, and a line at the end registers
each kernel with the types of its parameters.

    kernels.py FOLDER                       compiles what the stand-in for nvcc noted there and is older than its sources
    kernels.py FOLDER SOURCE.. [-D.. -I..]  compiles these files; the library is named after the file
"""

import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
CAPABILITY = os.environ.get("CUDA_ON_CPU_CAPABILITY", "90")
# f16 and bf16 are read as other types, as on a GPU, where nothing relies on strict aliasing. An address that does not suit
# its type traps, since a GPU refuses it.
OPTIONS = f"""
    -std=c++17 -O2 -march=native -fPIC -fno-strict-aliasing -fno-math-errno -ffp-contract=off -w
    -fsanitize=alignment -fsanitize-undefined-trap-on-error -DCUDA_ON_CPU_CAPABILITY={CAPABILITY}
""".split()

# What stands in parentheses, a few of them deep.
INSIDE = r"[^()]*"
for _ in range(4):
    INSIDE = rf"(?:[^()]|\({INSIDE}\))*"
SHARED = re.compile(rf"\b(extern\s+|static\s+)?\b__shared__\s+((?:[^;()\[\]]|\({INSIDE}\))+?)\b(\w+)\s*((?:\[[^;]*\])?)\s*;")
BOUNDS = re.compile(rf"__launch_bounds__\s*(\({INSIDE}\))")
KERNEL = re.compile(rf"(?:{BOUNDS.pattern}\s*)?\b__global__\b(?:\s|\w|{BOUNDS.pattern})*?\b(?!__launch_bounds__)(?P<name>\w+)\s*\(")
ALIGNED = re.compile(rf"\balignas\s*\(({INSIDE})\)")


def compiler():
    """The C++ compiler."""
    return shlex.split(os.environ.get("CUDA_ON_CPU_CXX", "g++"))


def shared_variable(found):
    """The declaration of a shared variable as a reference to what the driver gives the block."""
    storage, kind, name, sizes = found.groups()
    aligned = ALIGNED.search(kind)
    kind = ALIGNED.sub("", kind).strip()
    if "," in re.sub(r"<[^<>]*>|\([^()]*\)", "", kind) or re.search(r"\]\s*,", sizes):
        raise SystemExit(f"cuda-on-cpu: give each shared variable a declaration of its own: {found.group(0)}")
    if storage and storage.startswith("extern"):
        return f"{kind} *const {name} = cuda_on_cpu::dynamic_shared<{kind}>();"
    whole = f"cuda_on_cpu_type_of_{name}"
    align = aligned.group(1) if aligned else f"alignof({whole})"
    return (
        f"typedef {kind} {whole} {sizes}; "
        f'static cuda_on_cpu::SharedVariable cuda_on_cpu_of_{name} = {{"{name}", sizeof({whole}), {align}, {{}}, {{}}}}; '
        f"{whole} &{name} = *static_cast<{whole} *>(cuda_on_cpu_shared(&cuda_on_cpu_of_{name}));"
    )


def rewrite(text):
    """The preprocessed file as C++, with its kernels registered."""
    lines = []
    for found in KERNEL.finditer(text):
        bounds = BOUNDS.search(found.group(0))
        most = f"cuda_on_cpu::first_of{bounds.group(1)}" if bounds else "0"
        name = found.group("name")
        lines.append(
            f"static cuda_on_cpu::Registration cuda_on_cpu_kernel_{name}"
            f'(cuda_on_cpu::Entry<&{name}>::make("{name}", {most}), cuda_on_cpu_kernels);'
        )
    text = SHARED.sub(shared_variable, text)
    if left := re.search(r"\b__shared__\b", text):
        line = text[text.rfind("\n", 0, left.start()) + 1 :].split("\n", 1)[0]
        raise SystemExit(f"cuda-on-cpu: this shared variable is not understood: {line.strip()}")
    text = BOUNDS.sub("", text)
    text = re.sub(r"\b__global__\b", "", text)
    head = '\nextern "C" { cuda_on_cpu::Kernel *cuda_on_cpu_kernels = nullptr; unsigned cuda_on_cpu_capability = CUDA_ON_CPU_CAPABILITY; }\n'
    return text + head + "\n".join(lines) + "\n"


def compile_kernels(source, passed, name, folder):
    """Compiles `source` into `folder`/`name`.so."""
    folder.mkdir(parents=True, exist_ok=True)
    include = ["-include", str(HERE / "include/cuda_on_cpu/language.hpp"), f"-I{HERE / 'include'}"]
    first = [*compiler(), *OPTIONS, *include, *passed, "-x", "c++", "-E", str(source)]
    text = subprocess.run(first, capture_output=True, text=True, check=False)
    if text.returncode:
        raise SystemExit(f"cuda-on-cpu: {source} is not understood:\n{text.stderr}")
    partial = folder / f"{name}.{os.getpid()}.partial"
    rewritten = folder / f"{name}.cpp"
    rewritten.write_text(rewrite(text.stdout))
    # Functions of this library win over those of the same name in others.
    second = [*compiler(), *OPTIONS, "-shared", "-Wl,-Bsymbolic", "-x", "c++", str(rewritten), "-o", str(partial)]
    done = subprocess.run(second, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"cuda-on-cpu: {source} does not compile:\n{done.stderr[:6000]}")
    partial.rename(folder / f"{name}.so")
    rewritten.unlink()


def note(source, passed, name, folder):
    """Writes down what `folder`/`name`.so is to be made of."""
    folder.mkdir(parents=True, exist_ok=True)
    made_of = {"source": str(source), "passed": passed, "capability": CAPABILITY}
    path = folder / f"{name}.json"
    text = json.dumps(made_of) + "\n"
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def compile_what_is_old(folder, names=None):
    """Compiles what was noted, unless the library is newer than the files beside the source and than the compiler's own."""
    own = [*HERE.glob("include/**/*"), HERE / "kernels.py"]
    jobs = []
    for noted in sorted(folder.glob("*.json")):
        if names and noted.stem not in names:
            continue
        made_of = json.loads(noted.read_text())
        source = pathlib.Path(made_of["source"])
        library = noted.with_suffix(".so")
        sources = [path for path in [*source.parent.glob("*.cu*"), *own, noted] if path.suffix != ".cu" or path == source]
        if not library.exists() or any(path.stat().st_mtime > library.stat().st_mtime for path in sources):
            jobs.append((source, made_of["passed"], noted.stem, folder))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(lambda job: compile_kernels(*job), jobs):
            pass
    return len(jobs)


def main():
    """Compiles what the arguments say."""
    words = sys.argv[1:]
    if words and words[0] in ("-h", "--help"):
        print(__doc__)
        return
    if not words or words[0].startswith("-"):
        sys.exit(__doc__)
    folder = pathlib.Path(words[0])
    sources = [pathlib.Path(word).resolve() for word in words[1:] if not word.startswith("-")]
    for source in sources:
        note(source, [word for word in words[1:] if word.startswith("-")], source.stem, folder)
    compile_what_is_old(folder, [source.stem for source in sources] or None)


if __name__ == "__main__":
    main()
