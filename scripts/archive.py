#!/usr/bin/env python3
"""Packs a folder into an archive, .tar.gz or .zip: the same bytes for the same files, with SOURCE_DATE_EPOCH as their date.

    SOURCE_DATE_EPOCH=0 scripts/archive.py FOLDER FOLDER.tar.gz
"""

import argparse
import gzip
import os
import tarfile
import time
import zipfile
from pathlib import Path


def pack_zip(files: list[Path], parent: Path, archive: Path, date: int) -> None:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        for path in files:
            entry = zipfile.ZipInfo(path.relative_to(parent).as_posix(), time.gmtime(date)[:6])
            entry.compress_type = zipfile.ZIP_DEFLATED
            packed.writestr(entry, path.read_bytes())


def pack_tar(files: list[Path], parent: Path, archive: Path, date: int) -> None:
    with archive.open("wb") as out, gzip.GzipFile("", "wb", 9, out, mtime=date) as zipped:
        with tarfile.open(fileobj=zipped, mode="w") as packed:
            for path in files:
                entry = tarfile.TarInfo(path.relative_to(parent).as_posix())
                entry.size, entry.mtime = path.stat().st_size, date
                entry.mode = 0o755 if os.access(path, os.X_OK) else 0o644
                with path.open("rb") as content:
                    packed.addfile(entry, content)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("archive", type=Path)
    args = parser.parse_args()
    files = sorted(path for path in args.folder.rglob("*") if path.is_file())
    if not files:
        parser.error(f"{args.folder}: expected a folder with files")
    if not args.archive.name.endswith((".tar.gz", ".zip")):
        parser.error(f"{args.archive}: expected a name that ends with .tar.gz or .zip")
    date = os.environ.get("SOURCE_DATE_EPOCH", "")
    if not date.isdecimal():
        parser.error(f"SOURCE_DATE_EPOCH: expected seconds since 1970, found {date!r}")
    pack = pack_zip if args.archive.suffix == ".zip" else pack_tar
    pack(files, args.folder.parent, args.archive, int(date))


if __name__ == "__main__":
    main()
