"""Tests of the measuring scripts, with a made-up GPU and clock, and with stand-ins for the programs they call."""

import sys
import unittest
from pathlib import Path


def run() -> int:
    """The exit status: 1 if a test fails."""
    top = Path(__file__).resolve().parents[2]
    tests = unittest.defaultTestLoader.discover(str(Path(__file__).parent), top_level_dir=str(top))
    found = unittest.TextTestRunner(stream=sys.stderr, verbosity=2).run(tests)
    return 0 if found.wasSuccessful() and found.testsRun else 1
