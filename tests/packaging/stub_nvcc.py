"""Stands in for nvcc: same options, same dependency file, an empty fatbin, and a line per call in $STUB_NVCC_LOG."""

import os
import re
import struct
import sys
from pathlib import Path

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def closure(source: Path, folder: Path) -> list[Path]:
    found: list[Path] = []
    wanted = [source]
    while wanted:
        path = wanted.pop()
        if path not in found:
            found.append(path)
            for name in INCLUDE.findall(path.read_text(encoding="utf-8")):
                beside = path.parent / name
                wanted.append(beside if beside.exists() else folder / name)
    return found


def main(args: list[str]) -> None:
    if args == ["--version"]:
        print(f"Cuda compilation tools, release {os.environ.get('STUB_NVCC_VERSION', '13.0')}, V13.0.88")
        return
    out = Path(args[args.index("-o") + 1])
    files = closure(Path(args[-1]), Path(args[args.index("-I") + 1]))
    target, *sources = (str(path).replace(" ", r"\ ") for path in (out, *files))
    Path(args[args.index("-MF") + 1]).write_text(f"{target} : {' '.join(sources)}\n", encoding="utf-8")
    body = bytes(64)
    out.write_bytes(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body)
    flags = " ".join(os.environ.get(f"NVCC_{word}_FLAGS", "") for word in ("PREPEND", "APPEND")).strip()
    with Path(os.environ["STUB_NVCC_LOG"]).open("a", encoding="utf-8") as log:
        log.write(f"{out.parent.name}/{out.stem} {flags}".rstrip() + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
