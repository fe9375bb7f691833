"""Your own verifier: any function of texts will do, and it combines with classifiers."""

import re

from scone.decode import Scone, SconeConfig, Verifier

SEA = re.compile(r"\b(sea|ships?|waves?|harbou?r|sailors?|ocean|beach|boats?|shore|water)\b", re.IGNORECASE)


def maritime(texts):
    """φ: how far a text speaks of the sea, 0 to 1; three words suffice."""
    return [min(1.0, (0.1 + len(SEA.findall(text))) / 3) for text in texts]


verifier = Verifier.from_callable(maritime, strength=12)
engine = Scone.from_pretrained(verifier=verifier)
prompts = ["On the first day of our holiday we", "My grandfather told me about"]

plain = engine.with_config(SconeConfig.plain()).generate(prompts, max_new_tokens=25, seed=0)
steered = engine.generate(prompts, max_new_tokens=25, seed=0)
for out in (plain, steered):
    for text, score in zip(out.texts, out.scores):
        print(f"{score:.2f}  {text}")

kind = Verifier.from_pretrained("embedded:sentiment", target="positive")
both = Scone((engine.lm, engine.lm_tokenizer), verifier=verifier & kind)  # the LM is not loaded again
print(*both.generate(prompts, max_new_tokens=25, seed=0).texts, sep="\n")
