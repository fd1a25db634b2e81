"""JSON that is asked for: schemas, how an answer is held to one, and records to go on with."""

import json
import random
import re
from pathlib import Path

from jsonschema import Draft202012Validator

from paceline import SOAK
from prompts import SEED

SCHEMAS = json.loads((Path(__file__).parent / "schemas.json").read_text())


def share(count):
    """All schemas in a soak, else so many, chosen by the seed."""
    return SCHEMAS if SOAK else random.Random(SEED).sample(SCHEMAS, count)


# What the records are about: keys, and values to begin with.
TOPICS = {
    ("name", "age", "city"): ["Ann", 31, "Oslo", "Bob", 45, "Rome", "Eve", 27],
    ("id", "colour", "price"): [1, "red", 9.5, 2, "blue", 12.0, 3, "green"],
    ("title", "author", "year"): ["Emma", "Austen", 1815, "Dracula", "Stoker", 1897, "Ulysses", "Joyce"],
    ("from", "to", "minutes"): ["A", "B", 12, "B", "C", 7, "C", "D"],
    ("key", "value", "key2", "value2"): ["a", "a", "b", "b", "c", "c", "d", "d"],
}
# How a record is written: what begins it, stands between its parts, and ends it.
LAYOUTS = [
    ('{"', '": ', ', "', "}, "),
    ('{"', '":', ',"', "},"),
    ('{\n  "', '": ', ',\n  "', "\n},\n"),
    ('  {"', '" : ', ', "', "},\n"),
    ('{"', '": ', ', "', "}\n"),
]


def records():
    """Fifty lists of records whose keys come again and again, each broken off behind one; all in a soak, else six."""
    prompts = []
    for keys, values in TOPICS.items():
        for begin, colon, comma, end in LAYOUTS:
            for n in (2, 3):
                said = [values[i % len(values) :] + values[: i % len(values)] for i in range(n)]
                rows = [begin + comma.join(f"{key}{colon}{json.dumps(own)}" for key, own in zip(keys, row)) for row in said]
                prompts.append("[" + end.join(rows) + end)
    assert len(prompts) == 50
    return prompts if SOAK else random.Random(SEED).sample(prompts, 6)


def question(case):
    """What a schema is asked with."""
    return f"{case['ask']} Answer in JSON."


def outside_of_strings(text):
    return re.sub(r'"(?:[^"\\]|\\.)*"', "", text)


def check(text, schema):
    """Parses, validates, and has white space in strings only."""
    Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(json.loads(text))
    assert not re.search(r"\s", outside_of_strings(text)), text
