"""Run one benchmark and write its rows: ``python -m benchmarks NAME --json FILE --md FILE``."""

import argparse
import importlib
import json
import pkgutil
import time
from pathlib import Path
from types import ModuleType

import benchmarks
from benchmarks.parts import report


def find_module(names: list[str]) -> ModuleType | None:
    """The benchmark that the command line names, None where it names none."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("name", nargs="?")
    parser.add_argument("--json")
    parser.add_argument("--md")
    name = parser.parse_known_args()[0].name
    return importlib.import_module(f"benchmarks.{name}") if name in names else None


def main() -> None:
    """Parse the command line, run the benchmark, print its rows and write them where asked."""
    found = pkgutil.iter_modules(benchmarks.__path__)
    names = sorted(m.name for m in found if m.name not in ("__main__", "parts"))
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=benchmarks.__doc__)
    parser.add_argument("name", choices=names, help="which question to measure; some have options: NAME --help")
    parser.add_argument("parts", nargs="*", help="of a benchmark that has parts, the ones to measure; all by default")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--md", type=Path, help="write a page with rows, machine, versions and date to this file")
    module = find_module(names)
    own = module is not None and hasattr(module, "add_arguments")  # options of its own, which its `run` takes together
    if module is not None and own:
        parser.description, parser.formatter_class = module.__doc__, argparse.RawDescriptionHelpFormatter
        module.add_arguments(parser)
    options = parser.parse_intermixed_args()
    assert module is not None
    started = time.perf_counter()
    rows = module.run(*options.parts, options=options) if own else module.run(*options.parts)
    seconds = time.perf_counter() - started
    if not rows:
        return
    for row in rows:
        print(f"{row['metric']:<60} {row['ours']:.4g}  {row['peer_name']} {row['peer']:.4g}  ratio {row['ratio']:.3f}")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(report.finite(rows), indent=1, allow_nan=False) + "\n", encoding="utf8")
    if options.md:
        make_table = getattr(module, "make_table", report.make_table)
        report.write_markdown(options.md, options.name, make_table(rows), seconds)


if __name__ == "__main__":
    main()
