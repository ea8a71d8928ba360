"""What importing tilery costs, beyond numpy, and the first calls on the CPU; each in fresh processes.

python benchmarks/start.py --out benchmarks/results/start.csv
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from pathlib import Path
from statistics import median

RUNS = 9
OPERANDS = "a = numpy.ones((256, 256), 'f4'); "
# what: setup, and what is timed
QUESTIONS = {
    "import numpy": ("pass", "import numpy"),
    "import tilery, numpy being there": ("import numpy", "import tilery"),
    "the same, and tilery.gemm looked up": ("import numpy", "import tilery; tilery.gemm"),
    "import of the table": ("import tilery", "import tilery._table"),
    "first f32 GEMM of 256 cubed on the CPU": (f"import numpy, tilery; {OPERANDS}tilery.gemm", "tilery.gemm(a, a)"),
    "the second": (f"import numpy, tilery; {OPERANDS}tilery.gemm(a, a)", "tilery.gemm(a, a)"),
}


def milliseconds(setup: str, timed: str) -> float:
    program = f"import time; {setup}; t = time.perf_counter(); {timed}; print((time.perf_counter() - t) * 1e3)"
    command = [sys.executable, "-c", program]
    return median(float(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(RUNS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="the CSV to write")
    out = parser.parse_args().out
    lines = [f"# python {platform.python_version()}, {os.cpu_count()} cores, median of {RUNS} fresh processes"]
    lines += [f"# command: python {' '.join(sys.argv)}", "what,ms"]
    for what, (setup, timed) in QUESTIONS.items():
        lines.append(f'"{what}",{milliseconds(setup, timed):.2f}')
        print(lines[-1], flush=True)
    if out:
        out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
