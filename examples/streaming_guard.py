"""A guard for streams: show a text while it is written, a few words behind, and stop before anything toxic is shown."""

from collections.abc import Iterator

from scone.decode import Scone, Verifier

WINDOW = 30  # characters that are judged before they are shown
BOUND = 0.5  # how probably clean a text must be


def guarded(pieces: Iterator[str], clean: Verifier, prompt: str = "") -> Iterator[str]:
    """The pieces while prompt and text so far are clean; a text that is not ends with what was shown of it."""
    written = shown = ""
    for piece in pieces:
        written += piece
        if clean.score(prompt + written) < BOUND:
            yield " [withheld]"
            return
        safe = written[:-WINDOW] if len(written) > WINDOW else ""
        yield safe[len(shown) :]
        shown = max(shown, safe, key=len)
    yield written[len(shown) :]


clean = Verifier.from_pretrained("embedded:toxicity", target="clean")
engine = Scone.from_pretrained(verifier=clean)
prompt = "She looked at the mess and said:"

for name, strength in (("plain", 0), ("steered", engine.config.strength)):
    print(f"{name:>8}: {prompt}", end="")
    stream = engine.with_config(strength=strength).stream(prompt, max_new_tokens=25, seed=1)
    for shown in guarded(stream, clean, prompt):
        print(shown, end="", flush=True)
    print()
