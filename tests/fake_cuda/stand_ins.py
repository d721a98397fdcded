"""Usage: stand_ins.py TORCH_LIB FOLDER COMPILER LIBRARY... Makes FOLDER/libstand_ins.so, which is preloaded after the
LIBRARYs, so that LibTorch's CUDA libraries load where NVIDIA's are not: for each of those that is named and is no
LIBRARY it brings a stand-in, whose functions say that they are not there."""
import pathlib
import re
import subprocess
import sys

OF_LIBTORCH = ("torch_cuda", "torch_cuda_linalg", "torch_nvshmem", "c10_cuda", "caffe2_nvrtc")
REALLY_THERE = {"libcupti.so.13"}  # LibTorch is not loaded without it, on no machine.
NVIDIA = re.compile(r"lib(cu|nccl|nvrtc|nvshmem|nvJit)\w*\.so")
REFUSED = 801  # cudaErrorNotSupported; a failure in each of the libraries.


def lines_of(*argv):
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.splitlines()


def sonames(library, kind):
    return re.findall(rf"\({kind}\).*\[(.+)\]", "\n".join(lines_of("readelf", "-d", library)))


def symbols(library, which):
    return {line.split()[-1] for line in lines_of("nm", "-D", which, library)}


def home_of(symbol, needed):
    """The library that a symbol is looked for in: by its version, else by its name."""
    name, _, version = symbol.partition("@")
    if version in needed:
        return version
    homes = [library for library in needed if name.lower().startswith(re.match(r"lib([a-z]+)", library)[1])]
    return max(homes, key=len, default=None)


def make(folder, compiler, soname, versions, functions):
    source = folder / f"{soname}.cpp"
    source.write_text("#include <cstdio>\n" + "".join(
        f'extern "C" int {name}() {{ std::fputs("fake CUDA: {name} is not there\\n", stderr); return {REFUSED}; }}\n'
        for name in sorted(functions)))
    script = folder / f"{soname}.map"
    script.write_text("".join(f"{version} {{ *; }};\n" for version in sorted(versions)) or "{ global: *; };\n")
    subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", folder / soname, source, f"-Wl,-soname,{soname}",
                    f"-Wl,--version-script={script}"], check=True)


def main(torch_lib, folder, compiler, *ours):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    libraries = [path for name in OF_LIBTORCH if (path := pathlib.Path(torch_lib) / f"lib{name}.so").exists()]
    named = {soname for library in libraries for soname in sonames(library, "NEEDED") if NVIDIA.match(soname)}
    there = REALLY_THERE | {soname for library in ours for soname in sonames(library, "SONAME")}
    defined = {symbol.partition("@")[0] for library in ours for symbol in symbols(library, "--defined-only")}
    missing = {soname: set() for soname in named - there}
    versions = {soname: set() for soname in missing}
    for symbol in set().union(*(symbols(library, "--undefined-only") for library in libraries)):
        home = home_of(symbol, missing)
        if home is None:
            continue
        name, _, version = symbol.partition("@")
        if version:
            versions[home].add(version)
        if name not in defined:
            missing[home].add(name)
    for soname, functions in missing.items():
        make(folder, compiler, soname, versions[soname], functions)
    subprocess.run([compiler, "-shared", "-o", folder / "libstand_ins.so", "-Wl,--no-as-needed",
                    *(folder / soname for soname in sorted(missing)), f"-Wl,-rpath,{folder}"], check=True)


main(*sys.argv[1:])
