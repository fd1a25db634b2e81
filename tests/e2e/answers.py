"""What tests of reused prompts look at in an answer, and long prompts for them."""

BEGINNING = "Once upon a time " * 20


def essence(answer):
    """What must not depend on where a prompt's computation came from."""
    choice = answer["choices"][0]
    return choice["text"], choice["logprobs"], choice["finish_reason"]


def cached(answer):
    """Prompt tokens that were taken over."""
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def warm_and_cold(serve, tokens):
    """The answers to a text that begins with all of an earlier one: with what was computed of that, and without."""
    # All that it leaves behind is its prompt: the one token of its answer is not computed.
    first = serve.complete(BEGINNING, 1)
    longer = BEGINNING + "there was"
    warm = serve.complete(longer, tokens, logprobs=2)
    cold = serve.complete(longer, tokens, logprobs=2, cache_prompt=False)
    assert cached(warm) == first["usage"]["prompt_tokens"] and cached(cold) == 0
    assert essence(warm) == essence(cold)
    return warm, cold


def long_text(line, piece, least):
    """A text made of pieces with at least so many tokens, and how many it has."""
    text = ""
    while True:
        text += piece
        tokens = len(line.http.post("/tokenize", json={"content": text}).json()["tokens"])
        if tokens >= least:
            return text, tokens
