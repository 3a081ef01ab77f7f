#!/usr/bin/env python3
"""Draws the pictures of README and docs: the live page, the first command in a terminal, and a page of two runs.

    cargo build --release && scripts/make_pictures.py [--binary target/release/gpt2] [--out docs/images]

Needs chromium and chromedriver. --screens FOLDER draws the terminal at 80 and 140 columns, light and dark, into a folder of your choice.
"""

import argparse
import base64
import html
import json
import os
import re
import subprocess
import tempfile
import time
from pathlib import Path
from urllib.request import Request, urlopen

PROMPT = "O Romeo, Romeo! wherefore art thou Romeo?"
LIGHT = ("#ffffff", "#1f2328")
DARK = ("#0d1117", "#e6edf3")
# The height of a line and the width of a column in CSS pixels.
LINE, COLUMN = 18, 7.83


def terminal(binary: str, columns: int, colors: tuple[str, str]) -> tuple[str, int]:
    """What the first command prints at this width, as HTML, and how many lines that is."""
    environment = os.environ | {"COLUMNS": str(columns), "COLORTERM": "truecolor"}
    command = [binary, "--quiet", "attention", "--color", "always", PROMPT]
    text = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    background, ink = colors
    lines = f'$ gpt2 attention "{PROMPT}"\n{text}'
    style = f"margin:0;padding:12px;width:{columns}ch;white-space:pre-wrap;overflow-wrap:anywhere;background:{background};color:{ink};font:13px/{LINE}px 'DejaVu Sans Mono',monospace"
    page = f'<!doctype html><meta charset="utf-8"><body style="margin:0;background:{background}"><pre style="{style}">{spans(lines)}</pre>'
    plain = re.sub("\x1b\\[[0-9;]*m", "", lines)
    return page, sum(max(1, -(-len(line) // columns)) for line in plain.splitlines())


def spans(text: str) -> str:
    """Terminal colors as HTML."""
    out = ""
    for part in re.split("(\x1b\\[[0-9;]*m)", text):
        code = re.fullmatch("\x1b\\[38;2;([0-9;]+);48;2;([0-9;]+)m", part)
        if code:
            ink, background = ("rgb(" + rgb.replace(";", ",") + ")" for rgb in code.groups())
            out += f'<span style="color:{ink};background:{background}">'
        elif part == "\x1b[0m":
            out += "</span>"
        else:
            out += html.escape(part)
    return out


def draw(page: str, to: Path, width: int, height: int, choices: str = "") -> None:
    """Takes a picture of an HTML page."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "page.html"
        source.write_text(page)
        command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-device-scale-factor=1"]
        command += [f"--window-size={width},{height}", "--virtual-time-budget=6000", f"--screenshot={to.resolve()}", f"file://{source}{choices}"]
        subprocess.run(command, check=True, capture_output=True)
    print(f"wrote {to}, {to.stat().st_size // 1024} KiB")


class Driver:
    """A page in Chromium whose model takes real time to answer, which --virtual-time-budget does not wait for."""

    def __init__(self, width: int, height: int):
        self.process = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True)
        port = next(found[1] for line in self.process.stdout if (found := re.search(r"successfully on port (\d+)", line)))
        self.address = f"http://127.0.0.1:{port}/session"
        options = {"args": ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-device-scale-factor=1"]}
        session = self.ask("", {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}})
        self.address += "/" + session["sessionId"]
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.ask("/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": metrics})

    def ask(self, what: str, body: dict | None):
        data = None if body is None else json.dumps(body).encode()
        with urlopen(Request(self.address + what, data, {"Content-Type": "application/json"})) as answer:
            return json.load(answer)["value"]

    def until(self, expression: str) -> None:
        end = time.monotonic() + 60
        while not self.ask("/execute/sync", {"script": f"return {expression}", "args": []}):
            if time.monotonic() > end:
                raise SystemExit(f"error: still not true after 60 s: {expression}")
            time.sleep(0.05)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        urlopen(Request(self.address, method="DELETE")).close()
        self.process.terminate()
        self.process.wait()


def draw_live(binary: str, to: Path, width: int, height: int, state: str) -> None:
    """Takes a picture of the live page in a state, as an address has it."""
    with tempfile.TemporaryDirectory() as folder, Driver(width, height) as page:
        source = Path(folder) / "live.html"
        subprocess.run([binary, "--quiet", "live", "--out", str(source)], check=True)
        page.ask("/url", {"url": f"file://{source}#{state}"})
        page.until("document.getElementById('live').dataset.state === 'shown'")
        page.until("!document.querySelector('#overview [role=option]:not([data-drawn])')")
        # The status tells how long this machine took.
        page.ask("/execute/sync", {"script": "document.getElementById('live-status').textContent = ''", "args": []})
        to.write_bytes(base64.b64decode(page.ask("/screenshot", None)))
    print(f"wrote {to}, {to.stat().st_size // 1024} KiB")


def draw_terminal(binary: str, columns: int, colors: tuple[str, str], to: Path) -> None:
    page, lines = terminal(binary, columns, colors)
    draw(page, to, round(columns * COLUMN) + 24, (lines + 1) * LINE + 24)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/release/gpt2")
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    parser.add_argument("--screens", type=Path)
    args = parser.parse_args()
    if args.screens:
        args.screens.mkdir(parents=True, exist_ok=True)
        for columns in (80, 140):
            for name, colors in (("light", LIGHT), ("dark", DARK)):
                draw_terminal(args.binary, columns, colors, args.screens / f"{columns}-{name}.png")
        return
    args.out.mkdir(parents=True, exist_ok=True)
    draw_live(args.binary, args.out / "live.png", 1400, 860, "text=gold+kite+moth+lamp+gold+kite+moth&head=1.2&token=13&guide=off")
    draw_terminal(args.binary, 80, DARK, args.out / "terminal.png")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        compare = ["--compare", "--ablate", "0.3", "--with", "effect,lens", "--html", str(page)]
        prompt = " lord fair which king come out of lord"
        subprocess.run([args.binary, "--quiet", "attention", *compare, prompt], check=True, capture_output=True)
        draw(page.read_text(), args.out / "compare.png", 1400, 860, "#head=1.2&run=both&guide=off")


if __name__ == "__main__":
    main()
