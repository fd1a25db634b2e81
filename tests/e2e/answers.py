"""What tests of reused prompts look at in an answer, and long prompts for them."""


def essence(answer):
    """What must not depend on where a prompt's computation came from."""
    choice = answer["choices"][0]
    return choice["text"], choice["logprobs"], choice["finish_reason"]


def cached(answer):
    """Prompt tokens that were taken over."""
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def long_text(line, piece, least):
    """A text made of pieces with at least so many tokens, and how many it has."""
    text = ""
    while True:
        text += piece
        tokens = len(line.http.post("/tokenize", json={"content": text}).json()["tokens"])
        if tokens >= least:
            return text, tokens
