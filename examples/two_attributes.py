"""Two attributes at once, each with a strength of its own: about food, and not toxic."""

from scone.decode import Scone, SconeConfig, Verifier

food = Verifier.from_pretrained("embedded:topic", target="food", strength=20)
toxic = Verifier.from_pretrained("embedded:toxicity", target="toxic", strength=8)
engine = Scone.from_pretrained(verifier=food & ~toxic)

prompts = ["Listen to me, you little", "Last week my sister told me about"]
plain = engine.with_config(SconeConfig.plain()).generate(prompts, max_new_tokens=20, seed=0)
steered = engine.generate(prompts, max_new_tokens=20, seed=0)

for name, out in (("plain", plain), ("steered", steered)):
    about_food, clean = food.score(out.texts), (~toxic).score(out.texts)
    print(name)
    for text, f, c in zip(out.texts, about_food, clean):
        print(f"  food {f:.2f}  not toxic {c:.2f}  {text!r}")
