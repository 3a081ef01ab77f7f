#!/usr/bin/env python3
"""Write tests/data/circuits: a small GPT-2 and what TransformerLens and nnsight compute with it, in float64.

TransformerLens 2 and 4 do not share an environment, and version 2 needs an older transformers, so make three:

    python3 -m venv /tmp/nns && /tmp/nns/bin/pip install torch==2.11.0 transformers==5.23.0 nnsight==0.8.1
    python3 -m venv /tmp/tl2 && /tmp/tl2/bin/pip install torch==2.11.0 transformer_lens==2.18.0 pyarrow==21.0.0
    python3 -m venv /tmp/tl4 && /tmp/tl4/bin/pip install torch==2.11.0 transformers==5.23.0 transformer_lens==4.3.0
    python3 scripts/make_circuit_reference.py --nnsight /tmp/nns/bin/python \
        --tl2 /tmp/tl2/bin/python --tl4 /tmp/tl4/bin/python

(The newest pyarrow refuses the numpy 1.26 that TransformerLens 2 asks for.) This script itself needs no package. All
is offline, seeded and on one thread, so on one machine a second run writes the same bytes; --check fails if not.
"""

import argparse
import hashlib
import json
import os
import subprocess
import tempfile
from pathlib import Path

from circuit_reference.readme import readme

SCRIPTS = Path(__file__).resolve().parent
FOLDER = SCRIPTS.parent / "tests" / "data" / "circuits"
MODEL = "import circuit_reference.model as base; base.FOLDER.mkdir(exist_ok=True); base.write_model()"


def digests() -> dict[str, str]:
    files = sorted(path for path in FOLDER.rglob("*") if path.is_file())
    return {str(path.relative_to(FOLDER)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--nnsight", "--tl2", "--tl4"):
        parser.add_argument(name, required=True, metavar="PYTHON")
    parser.add_argument("--check", action="store_true", help="fail if a byte changes")
    args = parser.parse_args()
    before = digests()
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "OMP_NUM_THREADS": "1"}
    run = lambda *command: subprocess.run(command, cwd=SCRIPTS, env=environment, check=True)

    run(args.nnsight, "-c", MODEL)
    facts = {}
    stages = (("lens", args.tl2), ("weights", args.tl2), ("discovery", args.tl2), ("bridge", args.tl4), ("checks", args.nnsight))
    with tempfile.TemporaryDirectory() as temporary:
        for stage, python in stages:
            path = Path(temporary) / f"{stage}.json"
            run(python, "-c", f"from circuit_reference import {stage}; {stage}.main()", str(path))
            facts[stage] = json.loads(path.read_text())
    (FOLDER / "README.md").write_text(readme(facts))

    after = digests()
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    print(f"changed: {', '.join(changed) or 'nothing'}; {sum(f.stat().st_size for f in FOLDER.rglob('*'))} bytes")
    if args.check and changed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
