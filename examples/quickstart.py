"""Steer a language model towards positive sentiment, and see what steering changed."""

from scone.decode import Scone, SconeConfig

engine = Scone.from_pretrained(target="positive")  # the models that come with pip; any Hub id or folder works too
prompts = ["We waited an hour for a table, and then the food", "My first week at the new job"]

plain = engine.with_config(SconeConfig.plain()).generate(prompts, max_new_tokens=20, seed=1)
steered = engine.generate(prompts, max_new_tokens=20, seed=1)

for before, after, was, became in zip(plain.texts, steered.texts, plain.scores, steered.scores):
    print(f"plain   {was:.2f}  {before}")
    print(f"steered {became:.2f}  {after}\n")

step = engine.next_token("The movie was", seed=0)  # one step, nothing drawn
print("   token         p     q    p*")
for token, log_p, q, log_p_star in zip(step.tokens, step.log_p, step.q, step.log_p_star):
    word = engine.lm_tokenizer.decode(token)
    print(f"{word!r:>12}  {log_p.exp():.3f}  {q:.2f}  {log_p_star.exp():.3f}")
