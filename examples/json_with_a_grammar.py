# needs: xgrammar
"""Semantic and syntactic control together: JSON that keeps to a schema, and whose one field is positive."""

import json

from scone.decode import Scone, SconeConfig, Verifier
from scone.grammar import Grammar, JsonField

SCHEMA = {
    "type": "object",
    "properties": {
        "stars": {"type": "integer", "minimum": 1, "maximum": 5},
        "review": {"type": "string", "pattern": "^I [a-z ,']{12,50}[.]$"},
    },
    "required": ["stars", "review"],
}
positive = Verifier.from_pretrained("embedded:sentiment", target="positive")
engine = Scone.from_pretrained(verifier=positive.reading(JsonField("review")))  # the verifier is shown that field alone
grammar = Grammar(engine, json_schema=SCHEMA)  # or regex=..., ebnf=...

prompts = ["A guest writes about the hotel. JSON: ", "A reader writes about the book. JSON: "]
plain = engine.with_config(SconeConfig.plain()).generate(prompts, max_new_tokens=40, seed=1, logits_processor=[grammar])
steered = engine.generate(prompts, max_new_tokens=40, seed=1, logits_processor=[grammar])
for out in (plain, steered):
    for text, score in zip(out.continuations, out.scores):
        print(f"{score:.2f}  {json.loads(text)['review']}")
