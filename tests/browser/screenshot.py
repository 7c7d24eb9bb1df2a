"""Draw the README's picture: python tests/browser/screenshot.py WAREHOUSE PICTURE.png [RUN]."""

import shutil
import subprocess
import sys
import time
import urllib.request

from playwright.sync_api import sync_playwright

from dashboards.launch import command, environment

PORT = 8599


def main(warehouse: str, picture: str, run: str = "") -> None:
    server = subprocess.Popen(command(PORT), env=environment(warehouse), stdout=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{PORT}"
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(f"{address}/_stcore/health", timeout=5).close()
                break
            except OSError:
                time.sleep(0.2)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1320, "height": 1160}, device_scale_factor=1.25)
            page.goto(f"{address}/?run={run}")
            page.wait_for_selector("[data-testid=stVegaLiteChart] canvas, [data-testid=stVegaLiteChart] svg.marks")
            page.wait_for_selector("[data-testid=stApp][data-test-script-state=notRunning]")
            page.wait_for_timeout(1500)  # fonts and table cells
            page.screenshot(path=picture)
            browser.close()
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
