"""The twenty prompts of the comparisons, and how a line is asked them: one at a time, greedily."""

import os
import random

from paceline import SOAK

SEED = int(os.environ.get("PACELINE_SEED", "1"))
# Tokens of the longer prompts at least: several chunks of prefill with both vocabularies.
LONG_TOKENS = 300

VILLAGE = (
    "In a village at the foot of the mountains lived a clockmaker who had never been late in his life. Every morning "
    "he opened his shutters at the same minute, and the baker across the road set her oven by him. "
)
SOIL = (
    "Soil forms where rock, water, air and living things meet. Frost and roots break the rock; rain carries the "
    "finest grains down; worms bring them up again. It takes a century to make the depth of a thumb. "
)
CODE = "def mean(values):\n    if not values:\n        raise ValueError('no values')\n    return sum(values) / len(values)\n\n"
REPORT = "2024-03-0{day} 07:1{day}: pump {day} started, pressure 4.{day} bar, temperature 5{day} degrees, no alarm.\n"

SHORT = [
    "The capital of France is",
    "Once upon a time there was a",
    "Water boils at",
    "Q: What is 12 times 12?\nA:",
    "Dear Sir or Madam,\n\nI am writing to",
    '{"name": "Ada", "born": 1815, "occupation": "',
    "<html>\n<head>\n<title>",
    "SELECT name, COUNT(*) FROM orders",
    "import os\nimport sys\n\ndef main():\n",
    "Die Hauptstadt von Deutschland ist",
    "La recette de la tarte aux pommes commence par",
    "日本で一番高い山は",
    "Ingredients:\n- 200 g flour\n- 3 eggs\n-",
    "1, 1, 2, 3, 5, 8, 13,",
    "A",
]
LONG = [
    VILLAGE * 8 + "One winter day the clock",
    SOIL * 9 + "In short, soil is",
    CODE * 12 + "def median(values):\n",
    "".join(REPORT.format(day=1 + day % 9) for day in range(14)) + "Summary: the pump",
    (VILLAGE + SOIL + CODE) * 4 + "The moral is that",
]
ALL = SHORT + LONG
# Thirty more, for the draft model's soak.
SUBJECTS = ["a lighthouse", "the number seven", "rain in spring", "an old clock", "copper wire", "a ferry"]
FORMS = [
    "The cat sat on {0}. The cat sat on {0}. The cat sat on",
    "1. {0}\n2. {0}\n3. {0}\n4.",
    "Q: What is {0}?\nA:",
    "Copy this line: {0} is here.\nCopy: {0} is here.\nCopy:",
    "The history of {0} begins",
]
FIFTY = ALL + [form.format(subject) for form in FORMS for subject in SUBJECTS]


def chosen():
    """All prompts and 64 tokens each in a soak; else a seeded share with one long prompt, and 24 tokens."""
    if SOAK:
        return ALL, 64
    pick = random.Random(SEED)
    return [*pick.sample(SHORT, 4), pick.choice(LONG)], 24


def ask(serve):
    """Text, tokens and their log-probabilities, to the last bit, of each answer."""
    prompts, tokens = chosen()
    answers = []
    for prompt in prompts:
        answer = serve.complete(prompt, tokens, logprobs=2)
        if prompt in LONG:
            assert answer["usage"]["prompt_tokens"] > LONG_TOKENS, answer["usage"]
        assert answer["usage"]["completion_tokens"] == tokens, answer["usage"]
        choice = answer["choices"][0]
        answers.append({"prompt": prompt[:40], "text": choice["text"], "logprobs": choice["logprobs"]})
    return answers
