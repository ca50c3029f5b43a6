"""Dialogues that ask for a short function in Python or JavaScript."""

from dataclasses import dataclass
from random import Random

from pipeline.standin.corpus.dialogue import Dialogue, maybe_system, seam, user


@dataclass(frozen=True, slots=True)
class _Task:
    does: str
    """A verb phrase for the function, with {a} and {b} for its arguments."""
    names: tuple[str, ...]
    python: str
    javascript: str
    pair: bool = True
    """True if the function takes two arguments."""


_TASKS = (
    _Task("adds {a} and {b}", ("add", "plus", "sum_of"), "{a} + {b}", "{a} + {b}"),
    _Task("subtracts {b} from {a}", ("subtract", "minus"), "{a} - {b}", "{a} - {b}"),
    _Task("multiplies {a} by {b}", ("multiply", "times"), "{a} * {b}", "{a} * {b}"),
    _Task("divides {a} by {b}", ("divide", "ratio"), "{a} / {b}", "{a} / {b}"),
    _Task("gives the larger of {a} and {b}", ("larger", "max_of"), "max({a}, {b})", "Math.max({a}, {b})"),
    _Task("gives the smaller of {a} and {b}", ("smaller", "min_of"), "min({a}, {b})", "Math.min({a}, {b})"),
    _Task("says whether {a} equals {b}", ("same", "equal"), "{a} == {b}", "{a} === {b}"),
    _Task("squares {a}", ("square", "power"), "{a} * {a}", "{a} * {a}", pair=False),
    _Task("doubles {a}", ("double", "twice"), "2 * {a}", "2 * {a}", pair=False),
    _Task("says whether {a} is even", ("is_even", "even"), "{a} % 2 == 0", "{a} % 2 === 0", pair=False),
    _Task("gives the length of {a}", ("length", "size"), "len({a})", "{a}.length", pair=False),
    _Task("gives the first item of {a}", ("first", "head"), "{a}[0]", "{a}[0]", pair=False),
)
_ARGUMENTS = ("x", "y", "a", "b", "n", "m", "left", "right", "value", "other")
_ASKS = (
    "Write a {language} function {name} that {does}.",
    "Please write {name}, a {language} function that {does}.",
    "I need a {language} function called {name} that {does}.",
    "How do I write a {language} function {name} that {does}?",
)
_BEFORE = ("Here it is:\n\n", "Here is the function:\n\n", "")
_AFTER = ("", "", "\n\nCall it with {call}.", "\n\nIt returns {expression}.")


def _python(rng: Random, name: str, arguments: str, expression: str) -> str:
    comment = f'    """Return {expression}."""\n' if rng.random() < 0.3 else ""
    if rng.random() < 0.25:
        return f"```python\ndef {name}({arguments}):\n{comment}    result = {expression}\n    return result\n```"
    return f"```python\ndef {name}({arguments}):\n{comment}    return {expression}\n```"


def _javascript(rng: Random, name: str, arguments: str, expression: str) -> str:
    if rng.random() < 0.3:
        return f"```javascript\nconst {name} = ({arguments}) => {expression};\n```"
    return f"```javascript\nfunction {name}({arguments}) {{\n  return {expression};\n}}\n```"


def _thought(rng: Random, language: str, name: str, pair: bool, a: str, b: str, expression: str) -> str:
    takes = f"{a} and {b}" if pair else a
    steps = [
        rng.choice(
            (
                f"The user wants a {language} function.",
                f"We need {name} in {language}.",
                f"A short {language} function will do.",
            )
        ),
        rng.choice(
            (
                f"It takes {takes}.",
                f"The function {name} takes {takes}.",
                f"The arguments are {takes}." if pair else f"The argument is {a}.",
            )
        ),
        rng.choice((f"The result is `{expression}`.", f"It should return `{expression}`.")),
    ]
    if rng.random() < 0.4:
        steps.append(rng.choice(("No loop is needed.", "That is one line.", "Keep it short.")))
    return " ".join(steps)


def code(rng: Random) -> Dialogue:
    """Return one dialogue of this kind; every choice comes from ``rng``."""
    task, language = rng.choice(_TASKS), rng.choice(("Python", "JavaScript"))
    a, b = rng.sample(_ARGUMENTS, 2)
    name = rng.choice(task.names)
    expression = (task.python if language == "Python" else task.javascript).format(a=a, b=b)
    arguments = f"{a}, {b}" if task.pair else a
    block = (_python if language == "Python" else _javascript)(rng, name, arguments, expression)
    call = f"`{name}(2, 3)`" if task.pair else f"`{name}(2)`"
    content = rng.choice(_BEFORE) + block + rng.choice(_AFTER).format(call=call, expression=f"`{expression}`")
    thought, content = seam(rng, _thought(rng, language, name, task.pair, a, b, expression), content)
    ask = rng.choice(_ASKS).format(language=language, name=name, does=task.does.format(a=a, b=b))
    return Dialogue(messages=maybe_system(rng, [user(ask)]), reasoning=thought, content=content)
