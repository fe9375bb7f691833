"""Steer the replies of a chat: a conversation goes in as messages, the verifier judges the reply alone."""

from scone.decode import Scone, SconeConfig

engine = Scone.from_pretrained(target="positive")
conversation = [{"role": "user", "content": "It has rained for a week. What do you say?"}]

plain = engine.with_config(SconeConfig.plain()).generate(conversation, max_new_tokens=20, seed=2)
steered = engine.generate(conversation, max_new_tokens=20, seed=2)
print(f"plain   {plain.scores[0]:.2f}  {plain.texts[0]}")
print(f"steered {steered.scores[0]:.2f}  {steered.texts[0]}")

conversation += [
    {"role": "assistant", "content": steered.texts[0]},
    {"role": "user", "content": "And tomorrow?"},
]
print(f"then          {engine.generate(conversation, max_new_tokens=15, seed=0).texts[0]}")
