"""The progress of a download: tqdm's bar if tqdm is installed, else a line that looks like it."""

from __future__ import annotations

import sys
import time
from typing import Any


class Downloads:
    """Called by the native half with what happens to a file."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._file = ""
        self._size: int | None = None
        self._start = self._last = 0.0

    def __call__(self, kind: str, file: str, number: int, total: int | None) -> None:
        if kind == "fetching":
            self._file, self._size, self._start, self._bar = file, total, time.monotonic(), None
            try:
                from tqdm.auto import tqdm

                self._bar = tqdm(total=total, initial=number, desc=file, unit="B", unit_scale=True)
            except ImportError:
                self._line(number)
        elif kind == "received":
            if self._bar is not None:
                self._bar.update(number - self._bar.n)
            elif time.monotonic() - self._last > 0.1:
                self._line(number)
        elif kind == "fetched":
            if self._bar is not None:
                self._bar.close()
            else:
                self._line(self._size or 0)
                print(file=sys.stderr)
        elif kind == "waiting":
            print(f"{file}: another process fetches it; waiting for that", file=sys.stderr)

    def _line(self, have: int) -> None:
        now = time.monotonic()
        self._last = now
        rate = have / max(now - self._start, 1e-9)
        if self._size:
            share = have / self._size
            bar = ("#" * round(10 * share)).ljust(10)
            text = f"{self._file}: {share:4.0%}|{bar}| {have / 1e6:.1f}M/{self._size / 1e6:.1f}M [{rate / 1e6:.1f}MB/s]"
        else:
            text = f"{self._file}: {have / 1e6:.1f}M [{rate / 1e6:.1f}MB/s]"
        print(f"\r{text}", end="", file=sys.stderr, flush=True)
