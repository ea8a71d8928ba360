"""Stands in for nvcc and g++: same options, same dependency files, empty images, and a line per call in $STUB_LOG."""

import os
import re
import struct
import sys
from pathlib import Path

INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)
ELF = struct.Struct("<16sHHIQQQIHHHHHH")


def closure(source: Path, folder: Path, host: bool) -> list[Path]:
    """The files that a source includes; those of the host device in angle brackets, which nvcc does not reach."""
    found: list[Path] = []
    wanted = [source]
    while wanted:
        path = wanted.pop()
        if path not in found:
            found.append(path)
            for name in INCLUDE.findall(path.read_text(encoding="utf-8")):
                there = [place / name for place in (path.parent, folder) if (place / name).exists()]
                wanted += there[:1] if host or not name.startswith("host/") else []
    return found


def write_dependencies(args: list[str], source: str, host: bool) -> None:
    files = closure(Path(source), Path(args[args.index("-I") + 1]), host)
    target, *sources = (str(path).replace(" ", r"\ ") for path in (args[args.index("-MT") + 1], *files))
    Path(args[args.index("-MF") + 1]).write_text(f"{target} : {' '.join(sources)}\n", encoding="utf-8")


def log(text: str) -> None:
    with Path(os.environ["STUB_LOG"]).open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")


def nvcc(args: list[str], out: Path) -> None:
    write_dependencies(args, args[-1], False)
    body = bytes(64)
    out.write_bytes(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body)
    flags = " ".join(os.environ.get(f"NVCC_{word}_FLAGS", "") for word in ("PREPEND", "APPEND")).strip()
    log(f"{out.parent.name}/{out.stem} {flags}".rstrip())


def cxx(args: list[str], out: Path) -> None:
    """An object file holds the names of its kernels, the library those of all."""
    if "-c" in args:
        source = args[args.index("c++") + 1]
        write_dependencies(args, source, True)
        names = re.findall(r"/(\w+)\.cu\"", Path(source).read_text(encoding="utf-8"))
        out.write_text("".join(f"\0{name}\0" for name in names))
        log(f"host/{out.stem}")
    else:
        objects = [Path(arg).read_bytes() for arg in args if arg.endswith(".o")]
        header = ELF.pack(b"\x7fELF\2\1\1", 3, 62, 1, 0, 0, 0, 0, 64, 0, 0, 64, 0, 0)
        out.write_bytes(header + b"".join(objects))
        if objects:  # not the trial of the linker
            log(f"host/{out.name}")


def main(program: str, args: list[str]) -> None:
    if args == ["--version"]:
        print(f"Cuda compilation tools, release {os.environ.get('STUB_NVCC_VERSION', '13.0')}, V13.0.88")
    elif args == ["-dumpversion"]:
        print(os.environ.get("STUB_CXX_VERSION", "12"))
    else:
        {"nvcc": nvcc, "g++": cxx}[program](args, Path(args[args.index("-o") + 1]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
