"""`model.generate(..., custom_generate=<this folder's parent>, trust_remote_code=True)`: SConE's decoding loop."""

from scone.decode import Scone, SconeConfig, Verifier


def generate(model, *, tokenizer=None, verifier="embedded:sentiment", target=None, config=None, seed=0, **arguments):
    """What `model.generate` returns, steered towards texts that `verifier` calls `target`.

    tokenizer: the model's
    verifier: a Hub id, a folder, "embedded:sentiment" or a `scone.decode.Verifier`; then `target` is None
    config: a `scone.decode.SconeConfig`
    All other arguments are those of `generate`.
    """
    if tokenizer is None:
        raise ValueError("tokenizer must be the tokenizer of the model, got None")
    if not isinstance(verifier, Verifier):
        target = "positive" if target is None and verifier == "embedded:sentiment" else target
        verifier = Verifier.from_pretrained(verifier, target=target)
    engine = Scone(model, None, verifier, SconeConfig() if config is None else config, lm_tokenizer=tokenizer)
    given = {name: value for name, value in arguments.items() if value is not None}
    return model.generate(**given, custom_generate=engine.custom_generate, seed=seed)
