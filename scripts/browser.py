#!/usr/bin/env python3
"""Opens an HTML report in a headless Chromium, and controls the browser through its debugging pipe.

    scripts/browser.py shot PAGE PNG WIDTH HEIGHT [light|dark]   takes a screenshot; HEIGHT 0 captures the whole page
    scripts/browser.py look PAGE [WORD...]                       inspects the page, and prints the results as JSON

`look` reports the page's network requests, its errors and policy violations, its overflow on a narrow screen, its
colours, its text, and the results of a search for each WORD.
"""

import base64
import json
import os
import select
import subprocess
import sys
import tempfile
import time

# `--no-sandbox`, because Chromium refuses to run its sandbox as root. The page is a local file that Proctor wrote.
OPTIONS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
]

# Timeout for one response of the browser, in seconds.
PATIENCE = 100


class Browser:
    """A Chromium with one page, controlled by JSON messages that end with a zero byte."""

    def __init__(self, profile):
        to_browser, self.write_end = os.pipe()
        self.read_end, from_browser = os.pipe()

        def hand_over():
            # Chromium expects its pipe ends at descriptors 3 and 4, which may already be in use here.
            ends = os.dup(to_browser), os.dup(from_browser)
            high = [os.dup2(end, 100 + i) for i, end in enumerate(ends)]
            for number, end in zip((3, 4), high):
                os.dup2(end, number)

        command = ["chromium", *OPTIONS, f"--user-data-dir={profile}", "about:blank"]
        self.process = subprocess.Popen(
            command, preexec_fn=hand_over, close_fds=False, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self.buffer, self.last, self.events = b"", 0, []
        self.session = None
        targets = self.ask("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self.session = self.ask("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method, **params):
        self.last += 1
        message = {"id": self.last, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.hear()
            if answer.get("id") == self.last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def hear(self):
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.read_end], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                raise RuntimeError(f"the browser did not answer within {PATIENCE} s")
            more = os.read(self.read_end, 1 << 20)
            if not more:
                raise RuntimeError("the browser exited")
            self.buffer += more
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def value(self, expression):
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def screen(self, width, height, scheme="light", scripts=True):
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.ask("Emulation.setEmulatedMedia", features=[feature])
        self.ask("Emulation.setScriptExecutionDisabled", value=not scripts)

    def open(self, page):
        self.events.clear()
        self.ask("Page.navigate", url="file://" + os.path.abspath(page))
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self.hear())

    def close(self):
        self.session = None
        try:
            self.ask("Browser.close")
        except (RuntimeError, OSError):
            pass
        self.process.wait(PATIENCE)


def shot(browser, page, png, width, height, scheme="light"):
    browser.screen(width, height or 800, scheme)
    browser.open(page)
    if not height:
        height = browser.value("Math.ceil(document.documentElement.getBoundingClientRect().height)")
        browser.screen(width, height, scheme)
    data = browser.ask("Page.captureScreenshot", format="png")["data"]
    with open(png, "wb") as file:
        file.write(base64.b64decode(data))


SETTLE = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


def search(browser, words):
    browser.value(
        f"words.value = {json.dumps(words)}; words.dispatchEvent(new Event('input')); {SETTLE}"
    )
    return {
        "shown": browser.value("[...document.querySelectorAll('details.step')].filter(step => !step.hidden).map(step => step.querySelector('.step-name').textContent)"),
        "said": browser.value("found.textContent"),
        "marks": browser.value("CSS.highlights.get('found').size"),
    }


def overflow(browser):
    """Opens all details, and returns by how many pixels the page is wider than the screen."""
    browser.value("document.querySelectorAll('details').forEach(it => { it.open = true; })")
    return browser.value("document.documentElement.scrollWidth - innerWidth")


def colours(browser, page, scheme):
    browser.screen(1200, 800, scheme)
    browser.open(page)
    return browser.value("[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]")


def look(browser, page, words):
    seen = {}
    browser.screen(320, 640)
    browser.open(page)
    seen["overflow"] = overflow(browser)
    seen["text"] = browser.value("document.body.innerText")
    seen["searches"] = {word: search(browser, word) for word in words}
    seen["title"] = browser.value("document.title")
    seen["verdict"] = browser.value("document.documentElement.dataset.verdict")
    seen["ids"] = browser.value("[...document.querySelectorAll('[id]')].map(it => it.id)")
    seen["broken"] = browser.value("[...document.querySelectorAll('a')].map(a => a.getAttribute('href').slice(1)).filter(id => !document.getElementById(id))")
    seen["scripts"] = browser.value("document.scripts.length")
    seen["tags"] = browser.value("[...new Set([...document.querySelectorAll('*')].map(it => it.localName))].sort()")
    seen["handlers"] = browser.value("[...document.querySelectorAll('*')].flatMap(it => it.getAttributeNames()).filter(name => name.startsWith('on') || name === 'style').length")
    requests = [event["params"]["request"]["url"] for event in browser.events if event.get("method") == "Network.requestWillBeSent"]
    seen["requests"] = [url for url in requests if not url.startswith(("file://", "data:"))]
    said = [event["params"] for event in browser.events if event.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")]
    seen["complaints"] = [json.dumps(entry) for entry in said]
    browser.value("document.body.setAttribute('style', 'color: red')")
    seen["policy_holds"] = browser.value("getComputedStyle(document.body).color") != "rgb(255, 0, 0)"
    seen["colours"] = {scheme: colours(browser, page, scheme) for scheme in ("light", "dark")}
    browser.screen(1200, 800, scripts=False)
    browser.open(page)
    seen["without_scripts"] = {
        "filter": browser.value("document.getElementById('filter') === null || document.getElementById('filter').hidden"),
        "text": browser.value("document.body.innerText.length"),
    }
    return seen


def main(arguments):
    with tempfile.TemporaryDirectory() as profile:
        browser = Browser(profile)
        try:
            match arguments:
                case ["shot", page, png, width, height, *scheme]:
                    shot(browser, page, png, int(width), int(height), *scheme)
                case ["look", page, *words]:
                    json.dump(look(browser, page, words), sys.stdout, indent=1)
                case _:
                    print(__doc__, file=sys.stderr)
                    return 2
        finally:
            browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
