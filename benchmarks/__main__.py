"""Run one benchmark and write its rows: ``python -m benchmarks NAME --json FILE --md FILE``."""

import argparse
import importlib
import json
import pkgutil
import time
from pathlib import Path

import benchmarks
from benchmarks import _report


def main() -> None:
    """Parse the command line, run the benchmark, print its rows and write them where asked."""
    names = sorted(m.name for m in pkgutil.iter_modules(benchmarks.__path__) if not m.name.startswith("_"))
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=benchmarks.__doc__)
    parser.add_argument("name", choices=names, help="which question to measure")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--md", type=Path, help="write a page with rows, machine, versions and date to this file")
    options = parser.parse_args()
    started = time.perf_counter()
    rows = importlib.import_module(f"benchmarks.{options.name}").run()
    seconds = time.perf_counter() - started
    for row in rows:
        print(f"{row['metric']:<60} {row['ours']:.4g}  {row['peer_name']} {row['peer']:.4g}  ratio {row['ratio']:.3f}")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf8")
    if options.md:
        _report.write_markdown(options.md, options.name, rows, seconds)


if __name__ == "__main__":
    main()
