"""A headless browser for tests of pages: what it makes of a page, asked by a script that is added to a copy of it."""
import json
import pathlib
import re
import shutil
import subprocess
import tempfile

from patience import patience

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PROGRAM = next((path for path in map(shutil.which, NAMES) if path), None)
MISSING = "no headless browser (scripts/setup --browser installs one)"
# Answers go out through the document itself, which --dump-dom prints; '<' in them would end the element.
ANSWER = "<pre id=answer></pre><script>addEventListener('load',()=>{{let f=()=>{{{0}}};document.getElementById('answer')" \
         ".textContent=JSON.stringify(f()).replaceAll('<','\\\\u003c')}})</script>"


def run(arguments):
    with tempfile.TemporaryDirectory(prefix="ddprun_browser_") as profile:
        # As root, as in most containers, its sandbox cannot be had; the page is ours.
        command = [PROGRAM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
                   f"--user-data-dir={profile}", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=patience(120))


def ask(page, function, dark=False):
    """The value that the body of a JavaScript function returns on a copy of `page`."""
    text = re.sub(r"<meta http-equiv=.Content-Security-Policy.[^>]*>", "", pathlib.Path(page).read_text())
    with tempfile.TemporaryDirectory(prefix="ddprun_page_") as folder:
        copy = pathlib.Path(folder) / "page.html"
        copy.write_text(text.replace("</body>", ANSWER.format(function) + "</body>"))
        shade = ["--blink-settings=preferredColorScheme=0"] if dark else []
        done = run(["--window-size=1300,1400", *shade, "--dump-dom", copy.as_uri()])
    found = re.search(r"<pre id=.answer.>(.*?)</pre>", done.stdout, re.DOTALL)
    assert found and found[1], f"the browser says nothing: {done.returncode}\n{done.stderr[-2000:]}"
    text = found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    return json.loads(text)
