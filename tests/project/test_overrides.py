"""Overrides: values that Hydra's grammar does not take, and the quoted form that the message shows."""

import re
import subprocess
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from pipeline.core.errors import ConfigError
from pipeline.project.compose import build_config, jobs_of
from pipeline.project.overrides import check_grammar, quotes_hint
from pipeline.project.params import Params, read_params
from pipeline.sweep import check_arguments
from tests.conftest import DEFAULTS

REFUSED = [
    "模型",
    "modèle",
    "a#b",
    "it's",
    'say "hi"',
    "both ' and \"",
    "a(b)",
    "(a)",
    "{a",
    "{a}",
    "[a",
    "a]",
    "a=b",
    "=b",
    "a;b",
    "a&b",
    "a!b",
    "a`b",
    "a<b>",
    "a~b",
    "back\\slash # end\\",
    "$HOME#",
]
"""Texts that no override takes without quotes."""


def shown(message: str, place: str) -> str:
    """Return the override that a message shows for a place."""
    found = re.search(rf"In {re.escape(place)}: (.*)", message, re.DOTALL)
    assert found, message
    return found[1]


def in_params(line: str, folder: Path) -> list[str]:
    """Return the overrides of a params.yaml with a line that a message shows."""
    (folder / "params.yaml").write_text(f"datasets:\n- code\noverrides:\n- provider=openrouter\n{line}\n")
    return read_params(folder / "params.yaml").overrides


def in_shell(word: str) -> list[str]:
    """Return the arguments that a real shell makes of a word that a message shows."""
    command = ["sh", "-c", f"printf '%s\\0' {word}"]
    printed = subprocess.run(command, capture_output=True, check=True).stdout.decode()
    return printed.split("\0")[:-1]


@pytest.mark.parametrize("text", REFUSED)
def test_the_quoted_form_in_the_message_composes_in_params(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_config(Params(["code"], ["provider=openrouter", f"provider.model={text}"]))
    message = str(caught.value)
    assert f"override {f'provider.model={text}'!r} does not parse" in message
    assert "a value with such characters wants quotes" in message
    overrides = in_params(shown(message, "params.yaml"), tmp_path)
    assert build_config(Params(["code"], overrides)).provider.model == text


@pytest.mark.parametrize("text", REFUSED)
def test_the_quoted_form_in_the_message_composes_in_a_sweep(text: str) -> None:
    with pytest.raises(ConfigError, match="wants quotes") as caught:
        check_arguments(["-m", f"provider.model={text}"])
    (word,) = in_shell(shown(str(caught.value), "the shell"))
    check_arguments(["-m", word])
    ((override,),) = jobs_of([word])
    assert build_config(Params(["code"], ["provider=openrouter", override])).provider.model == text


def test_a_sweep_gets_quotes_around_those_of_its_values_that_need_them() -> None:
    with pytest.raises(ConfigError) as caught:
        check_arguments(["-m", "provider.model=模型,plain,a#b"])
    (word,) = in_shell(shown(str(caught.value), "the shell"))
    assert word == "provider.model='模型',plain,'a#b'"
    configs = [build_config(Params(["code"], ["provider=openrouter", *job])) for job in jobs_of([word])]
    assert [config.provider.model for config in configs] == ["模型", "plain", "a#b"]


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("provider.model=a,b", "a,b"),
        ("provider.model={a: b}", "{a: b}"),
        ("provider.model=[a]", "[a]"),
        ("provider.model=123", "123"),
        ("provider.model=true", "true"),
    ],
)
def test_a_text_that_hydra_reads_as_another_value_is_shown_with_quotes(
    tmp_path: Path, override: str, text: str
) -> None:
    with pytest.raises(ConfigError, match="wants quotes") as caught:
        build_config(Params(["code"], ["provider=openrouter", override]))
    overrides = in_params(shown(str(caught.value), "params.yaml"), tmp_path)
    assert build_config(Params(["code"], overrides)).provider.model == text


@pytest.mark.parametrize("text", ["a b", "a:b", "a: b", "x/y:free", "a@b", "100%", "a|b", "a*?", "a\\b"])
def test_a_text_that_needs_no_quotes_composes(text: str) -> None:
    assert build_config(Params(["code"], ["provider=openrouter", f"provider.model={text}"])).provider.model == text


@pytest.mark.parametrize("value", ["'it's'", '"模" #"'])
def test_quotes_that_the_user_wrote_are_not_quoted_again(tmp_path: Path, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_config(Params(["code"], ["provider=openrouter", f"provider.model={value}"]))
    overrides = in_params(shown(str(caught.value), "params.yaml"), tmp_path)
    assert build_config(Params(["code"], overrides)).provider.model == value[1:-1]


@pytest.mark.parametrize("override", ["模型=1", "provider.model=a${b", "a b=c#"])
def test_nothing_is_shown_where_quotes_do_not_help(override: str) -> None:
    with pytest.raises(ConfigError, match="does not parse") as caught:
        check_grammar([override], "params.yaml")
    assert "quotes" not in str(caught.value)


def test_a_word_that_a_space_cut_off_is_told_of_quotes() -> None:
    with pytest.raises(ConfigError, match="'model' has no `=`: write KEY=VALUE, with quotes if VALUE has spaces"):
        check_arguments(["-m", "provider.model=my", "model"])


@given(st.text(st.characters(exclude_categories=["C"]), max_size=12).filter(lambda text: "${" not in text))
def test_any_quoted_text_is_that_text_again(text: str) -> None:
    whole = text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text
    line = shown(quotes_hint(f"key={text}", "params.yaml", "advice"), "params.yaml")
    (override,) = YAML(typ="safe").load(line)
    assert OverridesParser.create().parse_override(override).value() == whole


@pytest.mark.parametrize(
    ("arguments", "jobs"),
    [
        (["a=1,2", "b=x"], [["a=1", "b=x"], ["a=2", "b=x"]]),
        (["a=1,2", "b=range(1,3)"], [["a=1", "b=1"], ["a=1", "b=2"], ["a=2", "b=1"], ["a=2", "b=2"]]),
        (["+a='x y',true"], [["+a='x y'"], ["+a=True"]]),
        (["audit=glob(*)", "~c"], [["audit=default", "~c"], ["audit=strict", "~c"]]),
        (["a=1,2", "a=3"], [["a=3"]]),
        (["a=[1,2]", "b={x: 1}"], [["a=[1,2]", "b={x: 1}"]]),
    ],
)
def test_jobs_are_those_of_hydras_own_sweeper(arguments: list[str], jobs: list[list[str]]) -> None:
    assert jobs_of(arguments) == jobs


def test_the_choices_are_those_of_the_shipped_conf() -> None:
    assert len(jobs_of(["target=glob(*)"])) == len(list((DEFAULTS / "conf/target").glob("*.yaml")))
