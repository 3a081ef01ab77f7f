#!/usr/bin/env python3
"""Packs a folder into FOLDER.tar.gz or FOLDER.zip, the same bytes for the same files: names in order, one date for all.

    scripts/archive.py FOLDER ARCHIVE

The date is SOURCE_DATE_EPOCH.
"""

import gzip
import os
import sys
import tarfile
import time
import zipfile
from pathlib import Path


def main() -> None:
    if len(sys.argv) != 3 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__.strip())
    folder, archive = Path(sys.argv[1]), Path(sys.argv[2])
    date = int(os.environ["SOURCE_DATE_EPOCH"])
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
            for path in files:
                name = path.relative_to(folder.parent).as_posix()
                entry = zipfile.ZipInfo(name, time.gmtime(date)[:6])
                entry.compress_type = zipfile.ZIP_DEFLATED
                packed.writestr(entry, path.read_bytes())
        return
    with archive.open("wb") as out, gzip.GzipFile("", "wb", 9, out, mtime=date) as zipped:
        with tarfile.open(fileobj=zipped, mode="w") as packed:
            for path in files:
                entry = tarfile.TarInfo(path.relative_to(folder.parent).as_posix())
                entry.size, entry.mtime = path.stat().st_size, date
                entry.mode = 0o755 if os.access(path, os.X_OK) else 0o644
                with path.open("rb") as content:
                    packed.addfile(entry, content)


if __name__ == "__main__":
    main()
