#!/usr/bin/env python3
"""torch_stub.py TORCH OUT: lets a build of PyTorch for CUDA be imported where CUDA's 3 GB of libraries are not.

`pip install --no-deps torch` brings torch alone. Its objects name CUDA's libraries; this writes stand-ins for them into
the folder OUT, which have every symbol that is asked of them (each returns 0) and nothing else. Then

    LD_LIBRARY_PATH=OUT python3 -c 'import os, sys; sys.setdlopenflags(os.RTLD_LAZY | os.RTLD_GLOBAL); import torch'

works for tensors on the CPU, which is all that an engine's storage needs. TORCH is the package's folder. Needs gcc, nm
and readelf.
"""

import collections
import glob
import os
import re
import subprocess
import sys
import tempfile

CUDA = re.compile(
    r"^lib(cu(blas|blasLt|dart|dnn|fft|file|pti|rand|solver|sparse|sparseLt)"
    r"|nccl|nvrtc|nvshmem_host|nvJitLink|nvToolsExt|cuda)\b.*\.so"
)
NAME = re.compile(r"^(__cuda|cu[a-zA-Z]|nccl|nvrtc|nvJitLink|nvshmem|cufile|cupti|nvtx|nvml)")


def run(*args):
    return subprocess.run(args, capture_output=True, text=True).stdout


def symbols(objects):
    """The libraries that objects name, the symbols they have, and those they ask for, by version."""
    needed, has, asks = set(), set(), collections.defaultdict(set)
    for o in objects:
        needed |= {n for n in re.findall(r"\(NEEDED\).*\[(.+?)\]", run("readelf", "-d", o)) if CUDA.match(n)}
        for line in run("nm", "-D", o).splitlines():
            m = re.match(r"^\s*[0-9a-f]*\s+(\w)\s+(\S+)$", line)
            if not m:
                continue
            name, _, version = m[2].partition("@")
            if m[1] in "Uu":
                asks[version.lstrip("@")].add(name)
            elif m[1] in "TtWwVBDRi":
                has.add(name)
    return needed, has, asks


def home(version, libraries):
    """The library that symbols of a version are of."""
    if version in libraries:
        return version
    for n in libraries:
        if version and n.split(".so")[0][3:].lower() in version.lower():
            return n
    wanted = "libcudart" if version else "libcudnn"
    return next((n for n in sorted(libraries) if n.startswith(wanted)), min(libraries))


def main(torch, out):
    os.makedirs(out, exist_ok=True)
    needed, has, asks = symbols(glob.glob(os.path.join(torch, "lib", "*.so*")))
    libraries = {n: collections.defaultdict(set) for n in needed}
    for version, names in asks.items():
        for name in names:
            if NAME.match(name) and name not in has:
                libraries[home(version, libraries)][version].add(name)
    with tempfile.TemporaryDirectory() as d:
        for library, versions in libraries.items():
            source, script = os.path.join(d, "x.c"), os.path.join(d, "x.map")
            with open(source, "w", encoding="utf-8") as f:
                f.writelines(f"void *{n}(void) {{ return 0; }}\n" for v in versions.values() for n in sorted(v))
                f.write("\n")
            named = {v: names for v, names in versions.items() if v}
            with open(script, "w", encoding="utf-8") as f:
                f.writelines(f"{v} {{ global: {'; '.join(sorted(names))}; }};\n" for v, names in named.items())
            command = ["gcc", "-w", "-fno-builtin", "-shared", "-fPIC", "-o", os.path.join(out, library), source]
            command += [f"-Wl,-soname,{library}"] + ([f"-Wl,--version-script={script}"] if named else [])
            subprocess.check_call(command)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
