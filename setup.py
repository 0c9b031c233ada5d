"""Build of the native cores; everything else about the package is in pyproject.toml.

A core uses neither Python's nor torch's symbols, hence a library without an ABI in its name and a wheel for every
Python 3. Where it does not compile, the package is built without it, and torch operations do its work.
"""

import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError

# Every machine of an architecture runs them and gets the same bits: no instructions beyond the baseline, and no
# rearranged or fused arithmetic, whatever CFLAGS says.
UNIX_FLAGS = ["-std=c++17", "-O3", "-fno-fast-math", "-ffp-contract=off", "-fvisibility=hidden", "-fno-exceptions"]
# Sums of scores may be taken in any order, in the widest vectors at hand.
VECTOR_FLAGS = ["-ffp-contract=fast", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math"]
MSVC_FLAGS = ["/std:c++17", "/O2", "/fp:precise"]
EXTRA_FLAGS = {"dasgrad.scoring.native.measures": VECTOR_FLAGS}


def core(name: str) -> Extension:
    """The library of a module's name, from the source file beside it and the headers in its folder."""
    source = Path("src", *name.split(".")).with_suffix(".cpp")
    headers = sorted(map(str, source.parent.glob("*.h")))
    return Extension(name, sources=[str(source)], depends=headers, language="c++", optional=True)


class BuildCore(build_ext):
    """Compile a plain shared library, or go on without it."""

    def get_ext_filename(self, fullname):
        """Name the file as `dasgrad.shared_library` looks for it."""
        return str(Path(*fullname.split("."))) + (".core.dll" if sys.platform == "win32" else ".core.so")

    def get_export_symbols(self, ext):
        """Return nothing: the source marks what it exports, and there is no module to initialise."""
        return []

    def build_extension(self, ext):
        """Compile, or say what its absence means."""
        unix_flags = [*UNIX_FLAGS, *EXTRA_FLAGS.get(ext.name, [])]
        ext.extra_compile_args = MSVC_FLAGS if self.compiler.compiler_type == "msvc" else unix_flags
        try:
            super().build_extension(ext)
        except (BaseError, CCompilerError):
            self.warn("no working C++17 compiler: dasgrad is built without a native core, torch will do its work")
            raise  # `optional` turns this into a warning


class BuildWheel(bdist_wheel):
    """Tag the wheel for the platform alone, and for any platform if it holds no library."""

    def get_tag(self):
        """Return Python, ABI and platform tag."""
        built = any(Path(path).exists() for path in self.get_finalized_command("build_ext").get_outputs())
        return "py3", "none", super().get_tag()[2] if built else "any"


CORES = [core("dasgrad.sampling.native.segment_tree"), core("dasgrad.scoring.native.measures")]
setup(ext_modules=CORES, cmdclass={"build_ext": BuildCore, "bdist_wheel": BuildWheel})
