"""Run one benchmark and write its rows: ``python -m benchmarks NAME --json FILE``."""

import argparse
import importlib
import json
import pkgutil
from pathlib import Path

import benchmarks


def main() -> None:
    """Parse the command line, run the benchmark, print its rows and write them where asked."""
    names = sorted(m.name for m in pkgutil.iter_modules(benchmarks.__path__) if m.name != "__main__")
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=benchmarks.__doc__)
    parser.add_argument("name", choices=names, help="which question to measure")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    options = parser.parse_args()
    rows = importlib.import_module(f"benchmarks.{options.name}").run()
    for row in rows:
        print(f"{row['metric']:<60} {row['ours']:.4g}  {row['peer_name']} {row['peer']:.4g}  ratio {row['ratio']:.3f}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf8")


main()
