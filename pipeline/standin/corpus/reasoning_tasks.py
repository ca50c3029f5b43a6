"""Dialogues that need a few steps of thought: small sums, comparisons, times, sequences."""

from collections.abc import Callable
from random import Random

from pipeline.standin.corpus.dialogue import NAMES, Dialogue, maybe_system, seam, user

THINGS = ("apples", "books", "coins", "stamps", "cards", "eggs", "shells", "pens")
TaskTexts = tuple[str, list[str], str]
"""Question, steps of thought, answer."""


def _gain(rng: Random) -> TaskTexts:
    name, things, a, b = rng.choice(NAMES), rng.choice(THINGS), rng.randint(2, 12), rng.randint(2, 9)
    verb, again = rng.choice((("gets", "getting"), ("buys", "buying"), ("finds", "finding")))
    ask = rng.choice(
        (f"How many {things} does {name} have now?", f"How many {things} are there now?", "How many is that?")
    )
    steps = [
        rng.choice((f"{name} starts with {a} {things}.", f"At first there are {a} {things}.")),
        rng.choice(
            (
                f"After {again} {b} more, the sum is {a} + {b} = {a + b}.",
                f"Then {b} more come in, and {a} + {b} = {a + b}.",
            )
        ),
    ]
    return (
        f"{name} has {a} {things} and {verb} {b} more. {ask}",
        steps,
        rng.choice((f"{name} has {a + b} {things}.", f"The answer is {a + b}.")),
    )


def _loss(rng: Random) -> TaskTexts:
    name, other = rng.sample(NAMES, 2)
    things, b = rng.choice(THINGS), rng.randint(2, 9)
    a = b + rng.randint(2, 9)
    verb = rng.choice(("gives", "lends", "sells"))
    steps = [
        rng.choice((f"{name} starts with {a} {things}.", f"We begin with {a} {things}.")),
        rng.choice(
            (f"{other} takes {b}, so {a} - {b} = {a - b} stay.", f"Taking {b} away leaves {a} - {b} = {a - b}.")
        ),
    ]
    ask = rng.choice((f"How many {things} are left?", f"How many does {name} keep?"))
    return (
        f"{name} has {a} {things} and {verb} {b} to {other}. {ask}",
        steps,
        rng.choice((f"{name} has {a - b} {things} left.", f"The answer is {a - b}.")),
    )


def _older(rng: Random) -> TaskTexts:
    first, second = rng.sample(NAMES, 2)
    a, b = rng.sample(range(5, 20), 2)
    older, high, low = (first, a, b) if a > b else (second, b, a)
    steps = [
        rng.choice((f"{first} is {a} and {second} is {b}.", f"The ages are {a} and {b}.")),
        rng.choice(
            (f"{high} is more than {low}, so it is {older}.", f"Since {high} is greater than {low}, {older} is older.")
        ),
    ]
    ask = rng.choice(("Who is older?", "Which of them is older?"))
    return (
        f"{first} is {a} years old and {second} is {b}. {ask}",
        steps,
        rng.choice((f"{older} is older.", f"It is {older}, by {high - low} years.")),
    )


def _arrival(rng: Random) -> TaskTexts:
    start, hours = rng.randint(1, 14), rng.randint(2, 8)
    vehicle = rng.choice(("train", "bus", "ship"))
    steps = [
        rng.choice((f"The {vehicle} leaves at {start}:00.", f"It starts at {start}:00.")),
        rng.choice(
            (
                f"Adding {hours} hours gives {start} + {hours} = {start + hours}.",
                f"It needs {hours} hours: {start} + {hours} = {start + hours}.",
            )
        ),
    ]
    ask = rng.choice(("When does it arrive?", "At what time does it arrive?"))
    return (
        f"A {vehicle} leaves at {start}:00 and needs {hours} hours. {ask}",
        steps,
        rng.choice((f"It arrives at {start + hours}:00.", f"At {start + hours}:00.")),
    )


def _sequence(rng: Random) -> TaskTexts:
    start, step = rng.randint(1, 12), rng.randint(2, 9)
    shown = [start + step * n for n in range(4)]
    after = shown[-1] + step
    steps = [
        rng.choice((f"The step from {shown[0]} to {shown[1]} is {step}.", f"Each number grows by {step}.")),
        rng.choice(
            (f"So after {shown[-1]} comes {shown[-1]} + {step} = {after}.", f"Then {shown[-1]} + {step} = {after}.")
        ),
    ]
    listed = ", ".join(map(str, shown))
    return (
        rng.choice((f"What comes next: {listed}?", f"Continue the list {listed}.")),
        steps,
        rng.choice((f"Next is {after}.", f"The next number is {after}.")),
    )


def _share(rng: Random) -> TaskTexts:
    things, people, each = rng.choice(THINGS), rng.randint(2, 6), rng.randint(2, 8)
    total = people * each
    steps = [
        rng.choice(
            (f"There are {total} {things} for {people} people.", f"We split {total} into {people} equal parts.")
        ),
        rng.choice((f"{total} / {people} = {each}.", f"Each part is {total} / {people} = {each}.")),
    ]
    ask = rng.choice(("How many does each one get?", "How many for each?"))
    return (
        f"{people} friends share {total} {things}. {ask}",
        steps,
        rng.choice((f"Each one gets {each} {things}.", f"The answer is {each}.")),
    )


_TOPICS: tuple[Callable[[Random], TaskTexts], ...] = (_gain, _loss, _older, _arrival, _sequence, _share)
_OPENINGS = ("Let me think.", "We need to be careful here.", "The question is simple.", "First, what do we know?")
_CLOSINGS = (
    "That answers the question.",
    "Let me check once more: yes, that is right.",
    "So that is the answer.",
    "Good.",
)


def reasoning(rng: Random) -> Dialogue:
    """Return one dialogue of this kind; every choice comes from ``rng``."""
    question, steps, answer = rng.choice(_TOPICS)(rng)
    opening = [rng.choice(_OPENINGS)] if rng.random() < 0.6 else []
    closing = [rng.choice(_CLOSINGS)] if rng.random() < 0.5 or not opening else []
    thought, content = seam(rng, " ".join([*opening, *steps, *closing]), answer)
    return Dialogue(messages=maybe_system(rng, [user(question)]), reasoning=thought, content=content)
