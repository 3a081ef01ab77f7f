#!/usr/bin/env python3
"""Caches and mirrors, both ways between `gpt2` and huggingface_hub's own client, on loopback.

    pip install huggingface_hub
    cargo build --release && cargo build --release -p gpt2-cli --example loopback_hub
    python scripts/compare_with_hub.py

Each row is one case. What one client fetches, the other reads without a request, byte for byte; a mirror that redirects is
followed by both or refused by both, and a token goes to the endpoint alone; both look for the cache in the same place. Exits 1 if any
row fails.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "models" / "tiny-shakespeare"
FILES = ("config.json", "model.safetensors", "tokenizer.json")
MODEL = "openai-community/gpt2"
FETCH = f"""
from huggingface_hub import hf_hub_download
for name in {FILES!r}: print(hf_hub_download({MODEL!r}, name))
"""
SCAN = """
from huggingface_hub import scan_cache_dir
found = scan_cache_dir()
assert len(found.repos) == 1 and not found.warnings, (found.repos, found.warnings)
"""
VARIABLES = ("HF_HOME=/tmp/h1", "XDG_CACHE_HOME=/tmp/x1", "HUGGINGFACE_HUB_CACHE=/tmp/o1", "HF_HUB_CACHE=/tmp/n1", "XDG_CACHE_HOME=~/x2", "HF_HOME=$HOME/h2", "NONE=1")  # fmt: skip


def mirror(origin, redirects):
    """A server in front of `origin`: it redirects what `redirects` says, and passes on the rest. It keeps the tokens it was sent."""
    tokens = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self):
            tokens.append(self.headers.get("Authorization"))
            code, host = redirects(self.command, self.path)
            if code:
                self.send_response(code)
                self.send_header("Location", host + self.path)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            request = urllib.request.Request(origin + self.path, method=self.command)
            for name in ("Range", "Accept-Encoding", "User-Agent"):
                if self.headers.get(name):
                    request.add_header(name, self.headers[name])
            opener = urllib.request.build_opener(NoRedirect)
            try:
                found = opener.open(request)
            except urllib.error.HTTPError as error:
                found = error
            body = found.read()
            self.send_response(found.status)
            for name, value in found.headers.items():
                if name.lower() not in ("connection", "transfer-encoding"):
                    self.send_header(name, value.replace(origin, f"http://{self.headers['Host']}"))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_HEAD = answer

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}", tokens


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None


class Clients:
    def __init__(self, given, home):
        self.given, self.home, self.rows, self.bad = given, home, 0, 0

    def environment(self, **variables):
        kept = {"PATH": os.environ["PATH"], "HOME": str(self.home), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        return kept | {name: str(value) for name, value in variables.items()}

    def python(self, code, **variables):
        return subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=self.environment(**variables), capture_output=True, text=True)

    def gpt2(self, *args, **variables):
        return subprocess.run([self.given.gpt2, *args], env=self.environment(**variables), capture_output=True, text=True)

    def row(self, name, good, detail=""):
        self.rows += 1
        self.bad += not good
        print(f"{name:<60} {'ok' if good else 'FAILED'}  {detail}", flush=True)


def same_bytes(cache):
    snapshot = next((cache / "models--openai-community--gpt2" / "snapshots").iterdir())
    return all((snapshot / name).read_bytes() == (DEMO / name).read_bytes() for name in FILES)


def last(done):
    return (done.stderr.strip().splitlines() or [""])[-1][:90]


def caches(clients, endpoint):
    for links in ("links", "no links"):
        more = {} if links == "links" else {"HF_HUB_DISABLE_SYMLINKS": "1"}
        ours, theirs = clients.home / f"ours {links}", clients.home / f"theirs {links}"
        done = clients.python(FETCH, HF_ENDPOINT=endpoint, HF_HUB_CACHE=theirs, **more)
        clients.row(f"Python fetches, {links}", done.returncode == 0 and same_bytes(theirs), last(done))
        if links == "no links":  # such a cache does not say the files' hashes: gpt2 asks for them, once
            done = clients.gpt2("forward", "--model", "gpt2", "-q", "O Romeo", HF_HUB_OFFLINE="1", HF_HUB_CACHE=theirs)
            clients.row("  gpt2 believes no file without its hash", done.returncode == 1 and "what its hash should be" in done.stderr, last(done))
            done = clients.gpt2("forward", "--model", "gpt2", "-q", "O Romeo", HF_ENDPOINT=endpoint, HF_HUB_CACHE=theirs)
            clients.row("  gpt2 asks for the hashes", done.returncode == 0, last(done))
        done = clients.gpt2("forward", "--model", "gpt2", "-q", "O Romeo", HF_HUB_OFFLINE="1", HF_HUB_CACHE=theirs)
        clients.row("  gpt2 reads it without a request", done.returncode == 0, last(done))
        done = clients.gpt2("verify-cache", "gpt2", HF_HUB_OFFLINE="1", HF_HUB_CACHE=theirs)
        clients.row("  and finds it whole", done.returncode == 0, last(done))
        done = clients.gpt2("download", "gpt2", "-q", HF_ENDPOINT=endpoint, HF_HUB_CACHE=ours, **more)
        clients.row(f"gpt2 fetches, {links}", done.returncode == 0 and same_bytes(ours), last(done))
        snapshots = list((ours / "models--openai-community--gpt2" / "snapshots").rglob("*.json"))
        clients.row("  as asked", all(path.is_symlink() == (links == "links") for path in snapshots))
        done = clients.python(SCAN + FETCH, HF_HUB_OFFLINE="1", HF_HUB_CACHE=ours)
        clients.row("  Python reads it without a request", done.returncode == 0, last(done))


def unfinished(clients, endpoint):
    """What one client left half done does not harm the other."""
    cache = clients.home / "half"
    blobs = cache / "models--openai-community--gpt2" / "blobs"
    blobs.mkdir(parents=True)
    import hashlib

    digest = hashlib.sha256((DEMO / "model.safetensors").read_bytes()).hexdigest()
    for name in (f"{digest}.incomplete", f"{digest}.1a2b3c4d.incomplete"):
        (blobs / name).write_bytes(b"\0" * 3000)
    done = clients.gpt2("download", "gpt2", "-q", HF_ENDPOINT=endpoint, HF_HUB_CACHE=cache)
    clients.row("gpt2 beside unfinished files of Python's", done.returncode == 0 and same_bytes(cache), last(done))
    done = clients.python(FETCH, HF_ENDPOINT=endpoint, HF_HUB_CACHE=cache)
    clients.row("  and Python after it", done.returncode == 0 and same_bytes(cache), last(done))


def mirrors(clients, endpoint):
    other = endpoint.replace("127.0.0.1", "localhost")
    is_file = lambda path: "/resolve/" in path and path.endswith(".safetensors")
    cases = {
        "a mirror that passes on": lambda *_: (None, None),
        "one that redirects files to another host (302)": lambda command, path: (302 if is_file(path) and command == "GET" else None, other),
        "one that redirects files to another host (307)": lambda command, path: (307 if is_file(path) and command == "GET" else None, other),
        "one that redirects everything (308)": lambda *_: (308, other),
    }
    for number, (name, redirects) in enumerate(cases.items()):
        found = []
        for client in ("python", "gpt2"):
            guard, seen = mirror(endpoint, lambda *_: (None, None))
            target = guard.replace("127.0.0.1", "localhost")
            address, sent = mirror(endpoint, lambda command, path: (redirects(command, path)[0], target))
            cache = clients.home / f"mirror-{number}-{client}"
            options = dict(HF_ENDPOINT=address, HF_HUB_CACHE=cache, HF_TOKEN="hf_secret")
            done = clients.python(FETCH, **options) if client == "python" else clients.gpt2("download", MODEL, "-q", **options)
            good = done.returncode == 0 and same_bytes(cache)
            leaked = [token for token in seen if token]
            found.append((good, bool(leaked), any(sent), last(done)))
        (theirs, their_leak, _, their_text), (ours, leak, sent, text) = found
        detail = f"huggingface_hub {'loads' if theirs else 'refuses'}, gpt2 {'loads' if ours else 'refuses'}; " + (text if not ours else their_text)
        clients.row(name, not leak and (ours or not theirs), detail)
        clients.row("  the token goes to the mirror alone", sent and not leak, "huggingface_hub sends it on" if their_leak else "")


def places(clients):
    asks = "from huggingface_hub import constants; print(constants.HF_HUB_CACHE)"
    for variable in VARIABLES:
        name, value = variable.split("=")
        theirs = clients.python(asks, **{name: value}).stdout.strip()
        done = clients.gpt2("forward", "--model", "gpt2", "O", **{name: value, "HF_HUB_OFFLINE": "1"})
        clients.row(f"the cache with {variable}", theirs != "" and theirs in done.stderr, theirs.replace(str(clients.home), "~"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpt2", type=Path, default=ROOT / "target/release/gpt2", help="the binary to test")
    parser.add_argument("--server", type=Path, default=ROOT / "target/release/examples/loopback_hub", help="the built example")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        served = Path(home) / "served"
        served.mkdir()
        for name in FILES:
            (served / name).write_bytes((DEMO / name).read_bytes())
        server = subprocess.Popen([given.server, served], stdout=subprocess.PIPE, text=True)
        try:
            endpoint = server.stdout.readline().strip().removeprefix("HF_ENDPOINT=")
            clients = Clients(given, Path(home))
            caches(clients, endpoint)
            unfinished(clients, endpoint)
            mirrors(clients, endpoint)
            places(clients)
        finally:
            server.kill()
    print(f"\n{clients.rows - clients.bad} of {clients.rows} as expected")
    return 1 if clients.bad else 0


if __name__ == "__main__":
    sys.exit(main())
