"""The page's script where a browser's DOM is not needed: its stream and its form, run by Node."""

import shutil
import subprocess

import pytest

from tests.doubles.processes import REPOSITORY

NODE = shutil.which("node") or ""
pytestmark = [pytest.mark.unit, pytest.mark.skipif(not NODE, reason="needs Node")]
SCRIPT = REPOSITORY / "api" / "pages" / "ui.js"

# As much of a browser as the script touches. `ticks` are its intervals; a stream says nothing, and ends when aborted.
BROWSER = """
const assert = require("node:assert");
const nodes = {}, kept = {}, asked = [], ticks = [];
let now = 1e12, status = 401, sent = "", submit;
const made = () => ({
  hidden: true, value: "", textContent: "", focus() {},
  addEventListener(what, f) { if (what === "submit") submit = f; },
});
const node = (id) => nodes[id] ??= made();
globalThis.document = { getElementById: node, body: { classList: { toggle() {}, add() {} } } };
globalThis.sessionStorage = { getItem: (name) => kept[name], setItem: (name, value) => { kept[name] = value; } };
globalThis.setInterval = (f) => ticks.push(f);
globalThis.setTimeout = (f) => setImmediate(f);
Date.now = () => now;
globalThis.fetch = async (url, options) => {
  new Headers(options.headers);
  asked.push(options);
  const ends = (to) => {
    if (sent) to.enqueue(new TextEncoder().encode(sent));
    options.signal?.addEventListener("abort", () => to.error(new Error("aborted")));
  };
  return { status, ok: status === 200, body: new ReadableStream({ start: ends }) };
};
const settled = async () => { for (let n = 0; n < 50; n += 1) await new Promise(setImmediate); };
const give = (key) => { node("secret").value = key; submit({ preventDefault() {} }); };
"""


def plays(scene: str) -> None:
    script = f"{BROWSER}\n{SCRIPT.read_text()}\n(async () => {{ await settled(); {scene}; process.exit(0); }})();"
    played = subprocess.run([NODE, "-"], input=script, text=True, capture_output=True, timeout=60, check=False)
    assert played.returncode == 0, played.stderr[-2000:]


def test_a_stream_that_has_gone_silent_is_asked_for_again() -> None:
    plays(
        """
        status = 200; give("a-key"); await settled();
        assert.equal(asked.length, 2);
        now += 10000; ticks[0](); await settled();
        assert.equal(asked.length, 2);
        now += 10000; ticks[0](); await settled();
        assert.equal(asked.length, 3);
        """
    )


def test_a_stream_that_cannot_be_drawn_is_closed_before_the_next_is_asked_for() -> None:
    """A browser has six connections to a server, and each open stream costs the gateway a look a second."""
    plays(
        """
        status = 200; sent = "data: {}\\n\\n"; give("a-key");
        for (let n = 0; n < 100 && asked.length < 4; n += 1) await settled();
        assert.ok(asked.length > 3);
        assert.ok(asked.slice(1, -1).every((one) => one.signal.aborted));
        """
    )


@pytest.mark.parametrize(
    ("ms", "words"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1000, "1.0 s"),
        (59_900, "59.9 s"),
        (119_600, "2 min 0 s"),
        (3_599_400, "59 min 59 s"),
    ],
)
def test_times_are_told_as_people_read_them(ms: int, words: str) -> None:
    plays(f'assert.equal(seconds({ms}), "{words}")')


def test_a_median_of_an_even_number_lies_between_its_two() -> None:
    """`corral top` tells it so too."""
    plays("assert.deepEqual([[], [3], [9, 1], [5, 1, 9]].map(median), [undefined, 3, 5, 5])")


def test_a_key_that_no_header_can_carry_is_told_and_asked_for_again() -> None:
    plays(
        """
        give("schl\u00fcssel \u2026"); await settled();
        assert.equal(node("wrong").textContent, "That key is not known here.");
        assert.deepEqual([node("key").hidden, asked.length], [false, 1]);
        """
    )


def test_the_form_is_there_only_while_nothing_is_asked() -> None:
    plays(
        """
        assert.equal(node("key").hidden, false);
        give("a-key");
        assert.equal(node("key").hidden, true);
        """
    )
