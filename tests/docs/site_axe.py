"""Let axe-core judge pages of the built manual in Chromium: `python tests/docs/site_axe.py SITE axe.min.js PAGE...`.

Each page is judged in light and in dark. The exit code is 1 where axe finds a violation, whose elements are printed.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_RUN = """<script src="{axe}"></script><script>
addEventListener("load", () => setTimeout(() => axe.run().then(result => {{
  const element = node => node.target.join(" ") + " " + node.html.slice(0, 90);
  const found = result.violations.map(rule => [rule.id, rule.help, rule.nodes.map(element)]);
  document.documentElement.setAttribute("data-axe", JSON.stringify(found));
}}), 500));
</script></body>"""


def violations(page: Path, axe: Path, *, dark: bool) -> list[tuple[str, str, list[str]]]:
    """Return what axe finds in a page: the rule, its sentence, and the elements."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    judged = page.with_name("judged-by-axe.html")
    judged.write_text(
        page.read_text(encoding="utf-8").replace("</body>", _RUN.format(axe=axe.as_uri())), encoding="utf-8"
    )
    with tempfile.TemporaryDirectory() as profile:
        command = [
            *(browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--dump-dom"),
            *("--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={profile}", "--virtual-time-budget=20000"),
            *("--window-size=1400,1000", f"--blink-settings=preferredColorScheme={0 if dark else 1}", judged.as_uri()),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    judged.unlink()
    found = re.search(r'data-axe="([^"]*)"', done.stdout)
    if found is None:
        raise SystemExit(f"{page}: axe did not answer")
    return [tuple(each) for each in json.loads(html.unescape(found[1]))]


def main() -> int:
    """Judge the pages that are named; return the exit code."""
    site, axe, bad = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), 0
    for name in sys.argv[3:]:
        for dark in (False, True):
            for rule, text, nodes in violations(site / name, axe, dark=dark):
                bad += 1
                print(f"{name} ({'dark' if dark else 'light'}): {rule}: {text}", *nodes[:4], sep="\n    ")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
