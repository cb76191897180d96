"""Let axe-core judge pages of the built manual in Chromium: `python tests/docs/site_axe.py SITE axe.min.js [PAGE...]`.

Without a PAGE, every page is judged, each in light and in dark. One Chromium goes through all of them: a server on this
machine adds axe to each page, which sends its result and then opens the next one. The exit code is 1 where axe finds a
violation, whose elements are printed, or where a page does not answer.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any, Final

_SETTLE_MS: Final = 500
"""How long a page may still move after it has loaded: colours in a transition are those of no theme."""
_PATIENCE_SECONDS: Final = 120
_RUN: Final = """<script src="/_axe.js"></script><script>
addEventListener("load", () => setTimeout(async () => {{
  const result = await axe.run();
  const element = node => node.target.join(" ") + " " + node.html.slice(0, 90);
  const found = result.violations.map(rule => [rule.id, rule.help, rule.nodes.map(element)]);
  await fetch("/_found", {{method: "POST", body: JSON.stringify([{page}, found])}});
  if ({following} !== null) location.replace({following});
}}, {settle}));
</script></body>"""
Found = list[tuple[str, str, list[str]]]
"""What axe finds in a page: the rule, its sentence, and the elements."""


class _Handler(SimpleHTTPRequestHandler):
    """The pages of a site with axe in each, axe itself, and the results."""

    def __init__(self, *request: Any, site: Path, axe: Path, pages: Sequence[str], results: Queue[Any]) -> None:
        self._axe, self._pages, self._results, self._site = axe, pages, results, site
        super().__init__(*request, directory=str(site))

    def do_GET(self) -> None:
        """Answer with a file of the site."""
        name = self.path.lstrip("/")
        if name == "_axe.js":
            self._answer(self._axe.read_bytes(), "text/javascript")
        elif name in self._pages:
            self._answer(self._judged(name).encode(), "text/html; charset=utf-8")
        else:
            super().do_GET()

    def do_POST(self) -> None:
        """Take the result of a page."""
        self._results.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self._answer(b"", "text/plain")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is that of http.server
        """Print nothing for a request."""

    def _judged(self, name: str) -> str:
        place = self._pages.index(name)
        following = f"/{self._pages[place + 1]}" if place + 1 < len(self._pages) else None
        script = _RUN.format(page=json.dumps(name), following=json.dumps(following), settle=_SETTLE_MS)
        return (self._site / name).read_text(encoding="utf-8").replace("</body>", script)

    def _answer(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def judge(site: Path, axe: Path, pages: Sequence[str], *, dark: bool) -> Iterator[tuple[str, Found]]:
    """Yield each page with what axe finds in it; where a page does not answer, that is the end."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    results: Queue[tuple[str, Found]] = Queue()
    handler = partial(_Handler, site=site, axe=axe, pages=pages, results=results)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, tempfile.TemporaryDirectory() as profile:
        Thread(target=server.serve_forever, daemon=True).start()
        command = [
            *(browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", f"--user-data-dir={profile}"),
            *("--window-size=1400,1000", f"--blink-settings=preferredColorScheme={0 if dark else 1}"),
            *("--remote-debugging-port=0", f"http://127.0.0.1:{server.server_port}/{pages[0]}"),
        ]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                for _ in pages:
                    name, violations = results.get(timeout=_PATIENCE_SECONDS)
                    yield name, [(rule, text, nodes) for rule, text, nodes in violations]
            except Empty:
                pass
            finally:
                process.terminate()
        server.shutdown()


def report(site: Path, axe: Path, pages: Sequence[str], *, dark: bool) -> int:
    """Print what axe finds in each page as soon as it is known; return how many faults there are."""
    theme, bad, left = "dark" if dark else "light", 0, list(pages)
    for name, found in judge(site, axe, pages, dark=dark):
        left.remove(name)
        bad += len(found)
        for rule, text, nodes in found:
            print("\n    ".join([f"{name} ({theme}): {rule}: {text}", *nodes[:4]]), flush=True)
    for name in left:
        print(f"{name} ({theme}): axe did not answer")
    return bad + len(left)


def main() -> int:
    """Judge the pages that are named, or all; return the exit code."""
    site, axe = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    pages = sys.argv[3:] or sorted(str(page.relative_to(site)) for page in site.rglob("*.html"))
    with ThreadPoolExecutor(2) as pool:  # a Chromium each
        themes = [pool.submit(report, site, axe, pages, dark=dark) for dark in (False, True)]
        bad = sum(theme.result() for theme in themes)
    print(f"axe: {len(pages)} pages in light and dark, {bad} faults")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
