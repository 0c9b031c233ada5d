"""Run one benchmark and write its rows: ``python -m benchmarks NAME --json FILE --md FILE``."""

import argparse
import importlib
import json
import pkgutil
from pathlib import Path

import benchmarks
from benchmarks.parts import report


def main() -> None:
    """Parse the command line, run the benchmark, print its rows and write them where asked."""
    found = pkgutil.iter_modules(benchmarks.__path__)
    names = sorted(m.name for m in found if not m.ispkg and m.name != "__main__")
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=benchmarks.__doc__)
    parser.add_argument("name", choices=names, help="which question to measure")
    parser.add_argument("parts", nargs="*", help="of a benchmark that has parts, the ones to measure; all by default")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--md", type=Path, help="write them as a page of Markdown with machine, versions and date")
    options = parser.parse_args()
    module = importlib.import_module(f"benchmarks.{options.name}")
    rows = module.run(*options.parts)
    if not rows:
        return
    for row in rows:
        print(f"{row['metric']:<60} {row['ours']:.4g}  {row['peer_name']} {row['peer']:.4g}  ratio {row['ratio']:.3f}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf8")
    if options.md:
        body = getattr(module, "table", report.table)(rows)
        options.md.write_text(report.page(options.name, body), encoding="utf8")


main()
