"""A page that shows how a text was steered: plain and steered side by side, candidate by candidate."""

from pathlib import Path

from scone.decode import Scone, SconeConfig

engine = Scone.from_pretrained(target="positive")
prompt = "The hotel was"

plain = engine.with_config(SconeConfig.plain()).generate(prompt, max_new_tokens=8, seed=1, explain=True)
steered = engine.generate(prompt, max_new_tokens=8, seed=1, explain=True)

both = plain.trace.labelled("plain") + steered.trace.labelled("steered")
Path("trace.html").write_text(both.to_html(title=prompt), encoding="utf-8")
print("written: trace.html; open it in a browser, and use the arrow keys")

for step in both.to_dict()["texts"][1]["steps"]:  # the same as data
    read = {future["text"] for candidate in step["candidates"] for future in candidate["futures"]}
    print(f"{step['text']!r:>14}  φ {step['score']:.2f}  {len(step['candidates'])} candidates, {len(read)} futures")
