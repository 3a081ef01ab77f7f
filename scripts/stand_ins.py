"""Runs a script as Python would, with stand-ins for packages that are not installed, so that all of it but those is read.

    python scripts/stand_ins.py SCRIPT [ARGUMENT...]

Everything of a stand-in is a stand-in: the script's own lines at the top of each file run, and so does its --help.
"""

import importlib.abc
import importlib.machinery
import runpy
import sys
from pathlib import Path
from unittest.mock import MagicMock

# What the scripts need and their first lines say how to install. A name that is not here is an error as ever.
PACKAGES = ["bertviz", "circuitsvis", "gguf", "lm_eval", "matplotlib", "nnsight", "numpy", "peft", "pyarrow", "safetensors", "tokenizers",
            "torch", "transformer_lens", "transformers"]  # fmt: skip


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Comes last, so that a package that is installed comes first."""

    def find_spec(self, name, path=None, target=None):
        known = name.split(".")[0] in PACKAGES
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if known else None

    def create_module(self, spec):
        module = MagicMock(name=spec.name)
        module.__path__ = []
        module.__spec__ = spec
        return module

    def exec_module(self, module):
        pass


if __name__ == "__main__":
    sys.meta_path.append(StandIns())
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
