"""The tokenizer, the special-token map, and prompt rendering, on real vocabularies."""

import base64
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.reconstruct_speed import PATTERN as KIMI_PATTERN
from pipeline.core.errors import InputError, TokenizerError
from pipeline.formats.schema.target import TargetRecord, TargetSpec, TokenizerSpec
from pipeline.model.rendering import PromptRenderer
from pipeline.model.special_tokens import make_record, open_tokenizer, special_token_faults
from pipeline.model.tokenizer.loading import load_tokenizer
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.project.compose import target_section
from pipeline.project.targets import open_target
from pipeline.stages.target.config import TargetSection
from tests.conftest import DATA, reported_cases

GPT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
RANKED = 163_584

pieces = st.sampled_from(
    [
        "<|im_end|>",
        "</think>",
        "<think>",
        "[EOS]",
        "<|system|>",
        "<|tool_calls_section_begin|>",
        "<|",
        "|>",
        "\n\n",
        "  ",
        "中文",
        "Ⅷ",
        "é",
        "👩\u200d💻",
        "don't",
        "123",
    ]
)
texts = st.lists(st.one_of(st.text(max_size=20), pieces), max_size=8).map("".join)


def golden() -> list[dict[str, Any]]:
    paths = [DATA / "kimi_k2_tokens.jsonl", DATA / "golden" / "kimi_k2_tokens.jsonl"]
    return [json.loads(line) for path in paths for line in path.read_text("utf-8").split("\n") if line]


def changed(spec: TargetSection, tokens: dict[str, int]) -> TargetSection:
    return spec.model_copy(update={"special_tokens": {**spec.special_tokens, **tokens}})


@pytest.fixture(scope="module")
def section() -> TargetSection:
    return target_section("kimi_k25")


@pytest.fixture(scope="module")
def rank_file(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    """Kimi's ranks in tiktoken's format, so that another implementation can be held against ours."""
    path = tmp_path_factory.mktemp("ranks") / "kimi.tiktoken"
    with path.open("wb") as file:
        for token in range(RANKED):
            file.write(base64.b64encode(tokenizer.token_bytes(token)) + f" {token}\n".encode())
    return path


@pytest.fixture(scope="module")
def by_tiktoken(section: TargetSection, rank_file: Path) -> Callable[..., TargetSpec]:
    def make(pattern: str = KIMI_PATTERN, **tokens: int) -> TargetSpec:
        how = TokenizerSpec(backend="tiktoken", name=str(rank_file), pattern=pattern, max_run=25_000, max_chars=400_000)
        return changed(section, tokens).model_copy(update={"tokenizer": how})

    return make


def test_encoding_equals_the_golden_ids_of_another_implementation(tokenizer: Tokenizer) -> None:
    rows = golden()
    assert len(rows) >= 25
    for row in rows:
        assert tokenizer.encode(row["text"]) == row["ids"], row["text"]


def test_encoding_agrees_with_tiktoken_on_the_same_ranks(
    tokenizer: Tokenizer, by_tiktoken: Callable[..., TargetSpec]
) -> None:
    other = load_tokenizer(by_tiktoken())

    @settings(deadline=None, max_examples=300)
    @given(texts)
    def same(text: str) -> None:
        assert tokenizer.encode(text) == other.encode(text)

    same()


@settings(deadline=None, max_examples=300)
@given(text=texts)
def test_text_comes_back_from_its_ids_and_no_marker_in_it_becomes_special(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode_bytes(ids) == text.encode()
    assert not set(ids) & set(tokenizer.special_texts)
    assert all(0 <= token < RANKED for token in ids)


@settings(deadline=None, max_examples=200)
@given(text=texts)
def test_flat_encoding_is_the_same_ids_as_bytes(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.encode_flat(text) == b"".join(token.to_bytes(4, "little") for token in tokenizer.encode(text))


@settings(deadline=None, max_examples=50)
@given(several=st.lists(texts, max_size=4))
@example(several=[])
@example(several=["plain", "a marker: <|im_end|>", ""])
@example(several=["short", "x" * 30_000])
def test_many_texts_are_encoded_as_each_alone(tokenizer: Tokenizer, several: list[str]) -> None:
    assert tokenizer.encode_flat_batch(several) == [tokenizer.encode_flat(text) for text in several]


def test_of_many_texts_the_one_that_is_not_unicode_is_named(tokenizer: Tokenizer) -> None:
    with pytest.raises(InputError, match="character 2 is"):
        tokenizer.encode_flat_batch(["fine", "ab\ud800"])


def test_names_that_the_library_invented_are_no_special_tokens(tokenizer: Tokenizer) -> None:
    assert "<|system|>" not in tokenizer.special_ids
    assert "<|im_start|>" not in tokenizer.special_ids
    assert max(tokenizer.special_texts) == 163_839
    assert tokenizer.decode_bytes([163_840, 163_850, -1]) == b""
    assert "outside the vocabulary" in tokenizer.show(163_850)


def test_marker_lookalikes_stay_ordinary_text(tokenizer: Tokenizer) -> None:
    text = "Older drafts wrote <|tool_call_section_begin|> and <|im_start|>; DeepSeek writes <｜tool▁calls▁begin｜>."
    ids = tokenizer.encode(text)
    assert max(ids) < RANKED
    assert tokenizer.decode_bytes(ids).decode() == text


def test_a_lone_surrogate_is_refused_with_its_place(tokenizer: Tokenizer) -> None:
    with pytest.raises(InputError, match=r"character 2 is '\\ud800', a lone surrogate"):
        tokenizer.encode("ab\ud800c")


def moonshot_cut(text: str, most: int) -> list[str]:
    """Moonshot's own loop, character by character."""
    parts, start, length = [], 0, 0
    space = text[0].isspace() if text else False
    for at, char in enumerate(text):
        if char.isspace() != space:
            length, space = 1, char.isspace()
        else:
            length += 1
            if length > most:
                parts.append(text[start:at])
                start, length = at, 1
    return [*parts, text[start:]]


@settings(deadline=None, max_examples=200)
@given(
    text=st.text(alphabet="aa7 \t\n\x1c\u3000é", max_size=60),
    most=st.none() | st.integers(1, 5),
    width=st.integers(1, 30),
)
def test_long_runs_are_cut_as_the_models_own_tokenizer_cuts_them(
    tokenizer: Tokenizer, text: str, most: int | None, width: int
) -> None:
    small = Tokenizer(
        TokenizerSpec(backend="splintr", name="kimi_k2", max_run=most, max_chars=width), tokenizer._backend, 163_840
    )
    blocks = [text[start : start + width] for start in range(0, len(text), width)]
    expected = [
        token for block in blocks for part in moonshot_cut(block, most or width) for token in tokenizer.encode(part)
    ]
    assert small.encode(text) == expected


def test_a_run_of_more_than_25000_digits_is_cut_before_it_is_encoded(tokenizer: Tokenizer) -> None:
    digits = "7" * 25_010
    assert tokenizer.encode(digits) == tokenizer.encode("7" * 25_000) + tokenizer.encode("7" * 10)
    assert len(tokenizer.encode(digits)) == 8_338
    assert len(tokenizer.encode(" " * 60_000)) == sum(
        len(tokenizer.encode(" " * part)) for part in (25_000, 25_000, 10_000)
    )
    assert tokenizer.encode("ab " * 200_000)[-3:] == tokenizer.encode("ab " * 3)[-3:]


def test_a_map_that_names_an_ordinary_id_says_what_that_id_is(section: TargetSection, tokenizer: Tokenizer) -> None:
    with pytest.raises(
        TokenizerError,
        match=r"'<\|im_end\|>'\] is 163533, but 163533 is not a special token: "
        r"it is the ordinary text 'chas'.* at 163586",
    ):
        make_record(changed(section, {"<|im_end|>": 163_533}), tokenizer)


@pytest.mark.parametrize(
    ("tokens", "complaint"),
    [
        ({"[BOS]": 11}, "11 is not a special token: it is the ordinary text ','"),
        ({"<think>": 163_607}, "163607 is '</think>'"),
        ({"<think>": 163_606, "<|extra|>": 163_606}, "163606, which '<think>' already has"),
        ({"</think>": 163_850}, "outside the model's vocabulary of 163840; the tokenizer has '</think>' at 163607"),
        ({"<|nothing|>": 163_589}, "163589 is '<|reserved_token_163589|>'"),
        ({"[EOS]": -1}, "outside the model's vocabulary"),
    ],
    ids=["comma", "neighbour", "twice", "beyond", "reserved", "negative"],
)
def test_every_kind_of_wrong_map_is_named(
    section: TargetSection, tokenizer: Tokenizer, tokens: dict[str, int], complaint: str
) -> None:
    faults = special_token_faults(changed(section, tokens), tokenizer)
    assert any(complaint in fault for fault in faults), faults


def test_all_faults_come_in_one_message_and_a_role_must_be_named(section: TargetSection, tokenizer: Tokenizer) -> None:
    shifted = {"<|im_system|>": 163_592, "<|im_middle|>": 163_598, "</think>": 163_604}
    spec = changed(section, shifted).model_copy(
        update={"roles": section.roles.model_copy(update={"tools_open": "<|tools|>"})}
    )
    with pytest.raises(TokenizerError) as caught:
        make_record(spec, tokenizer)
    for part in (
        "163592 is '<|reserved_token_163592|>'",
        "163604, which '<|media_end|>' already has",
        "target.roles.tools_open is '<|tools|>'",
        "conf/target/kimi_k25.yaml",
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("role", "marker"), [("end", "[EOS]"), ("think_close", "<think>"), ("call_open", "<|tool_calls_section_begin|>")]
)
def test_a_marker_that_exists_but_plays_another_part_in_the_format_is_a_fault(
    section: TargetSection, tokenizer: Tokenizer, role: str, marker: str
) -> None:
    roles = section.roles.model_copy(update={role: marker})
    faults = special_token_faults(section.model_copy(update={"roles": roles}), tokenizer)
    assert len(faults) == 1
    assert f"target.roles.{role} is {marker!r}; in the chat format kimi_k25 it is " in faults[0]


@pytest.mark.parametrize(
    ("messages", "tools", "says"),
    [
        ([{"content": "hi"}], None, "message 0: role must be one of"),
        ([{"role": "alien", "content": "hi"}], None, 'found "alien"'),
        ([{"role": "user", "content": None}], None, "message 0 (user) has no content"),
        ([{"role": "user", "content": "hi"}, "oops"], None, "message 1 must be an object"),
        ("oops", None, "'messages' must be a list"),
        ([], None, "with at least one"),
        ([{"role": "user", "content": "hi"}], "oops", "'tools' must be a list of tools"),
        ([{"role": "user", "content": "hi"}], [{"type": "function"}], "tool 0 must be"),
    ],
)
def test_a_conversation_that_is_none_is_not_rendered_in_silence(
    kimi: TargetRecord, tokenizer: Tokenizer, messages: Any, tools: Any, says: str
) -> None:
    with pytest.raises(InputError) as caught:
        PromptRenderer(kimi, tokenizer).render(messages, tools)
    assert says in str(caught.value)


def test_a_record_that_was_edited_after_the_check_is_refused(kimi: TargetRecord) -> None:
    edited = kimi.model_copy(update={"special_tokens": {**kimi.special_tokens, "<|im_end|>": 163_533}})
    with pytest.raises(TokenizerError, match=r"changed after the check[\s\S]*ordinary text 'chas'"):
        open_tokenizer(edited)


@pytest.mark.slow
def test_the_tiktoken_backend_checks_the_map_against_the_ranks(by_tiktoken: Callable[..., TargetSpec]) -> None:
    good = by_tiktoken()
    assert special_token_faults(good, load_tokenizer(good)) == []
    bad = by_tiktoken(**{"<|im_end|>": 163_533})
    assert any("ordinary text 'chas'" in fault for fault in special_token_faults(bad, load_tokenizer(bad)))


def test_the_tiktoken_backend_wants_a_pattern_and_a_file(section: TargetSection, rank_file: Path) -> None:
    for how, complaint in (
        (TokenizerSpec(backend="tiktoken", name=str(rank_file)), "pattern"),
        (TokenizerSpec(backend="tiktoken", name="no/file", pattern="."), "no/file"),
    ):
        with pytest.raises(TokenizerError, match=complaint):
            load_tokenizer(section.model_copy(update={"tokenizer": how}))


@pytest.mark.slow
def test_another_split_pattern_over_the_same_ranks_is_another_tokenizer(by_tiktoken: Callable[..., TargetSpec]) -> None:
    right = by_tiktoken()
    record = make_record(right, load_tokenizer(right))
    assert open_tokenizer(record).sha256() == record.tokenizer_sha256
    wrong = record.model_copy(update={"tokenizer": record.tokenizer.model_copy(update={"pattern": GPT_PATTERN})})
    with pytest.raises(TokenizerError, match="recorded was"):
        open_tokenizer(wrong)


def test_a_pinned_digest_of_another_vocabulary_is_refused(section: TargetSection, tokenizer: Tokenizer) -> None:
    pinned = section.model_copy(update={"tokenizer": section.tokenizer.model_copy(update={"sha256": "0" * 64})})
    with pytest.raises(TokenizerError, match="another vocabulary was loaded"):
        make_record(pinned, tokenizer)


@pytest.mark.parametrize("name", ["kimi_k25", "tiny_kimi", "qwen3", "deepseek_v3"])
def test_every_shipped_target_is_pinned_and_its_map_fits(name: str) -> None:
    record, loaded = open_target(name)
    assert record.tokenizer.sha256 == record.tokenizer_sha256 == loaded.sha256()
    for text, token in record.special_tokens.items():
        assert loaded.token_bytes(token) == b""
        assert loaded.show(token) == text


def test_qwens_padding_rows_have_no_tokens_though_the_library_names_some() -> None:
    record, loaded = open_target("qwen3")
    assert record.vocab_size == 151_936
    assert max(loaded.special_texts) == 151_668
    assert "<|system|>" not in loaded.special_ids
    for token in (151_669, 151_674, 151_722, 151_723, 151_935):
        assert loaded.token_bytes(token) == b""
    assert any(
        "not a special token" in fault
        for fault in special_token_faults(changed(target_section("qwen3"), {"<|system|>": 151_669}), loaded)
    )


@pytest.fixture(scope="module")
def hub_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small byte-level BPE in Hugging Face's layout, with an added token that is special and one that is not."""
    from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
    from tokenizers import Tokenizer as Fast
    from transformers import PreTrainedTokenizerFast

    fast = Fast(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    fast.train_from_iterator(["the rain in spain stays mainly in the plain"] * 20, trainer)
    fast.add_tokens([AddedToken("<think>", special=False)])
    fast.add_special_tokens([AddedToken("<|im_end|>", special=True)])
    folder = tmp_path_factory.mktemp("hub")
    PreTrainedTokenizerFast(tokenizer_object=fast, eos_token="<|im_end|>").save_pretrained(folder)
    return folder


def of_folder(section: TargetSection, folder: Path) -> TargetSection:
    size = len(json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]) + 2
    special = {"<think>": size - 2, "<|im_end|>": size - 1}
    roles = type(section.roles)(end="<|im_end|>", think_open="<think>")
    how = TokenizerSpec(backend="transformers", name=str(folder))
    return section.model_copy(update={"tokenizer": how, "vocab_size": size, "special_tokens": special, "roles": roles})


@pytest.mark.slow
def test_a_tokenizer_of_transformers_gives_bytes_and_leaves_markers_in_text_alone(
    section: TargetSection, hub_folder: Path
) -> None:
    spec = of_folder(section, hub_folder)
    loaded = load_tokenizer(spec)
    record = make_record(spec, loaded)
    text = "the rain <think> é<|im_end|>\n"
    ids = loaded.encode(text)
    assert not set(ids) & set(record.special_tokens.values())
    assert loaded.decode_bytes(ids) == text.encode()
    assert [loaded.show(token) for token in record.special_tokens.values()] == ["<think>", "<|im_end|>"]


@pytest.mark.slow
@pytest.mark.parametrize("content", [None, "{", "{}"], ids=["nothing", "no JSON", "no tokenizer"])
def test_a_folder_without_a_tokenizer_is_named(section: TargetSection, tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
        (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    spec = section.model_copy(update={"tokenizer": TokenizerSpec(backend="transformers", name=str(tmp_path))})
    with pytest.raises(TokenizerError, match="transformers cannot load it"):
        load_tokenizer(spec)


@pytest.mark.slow
def test_the_normalizer_of_a_tokenizer_of_transformers_is_declared_and_taken_off_for_answers(
    section: TargetSection, hub_folder: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(hub_folder, tmp_path / "nfc")
    settings = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**settings, "normalizer": {"type": "NFC"}}))
    spec = of_folder(section, folder)
    with pytest.raises(TokenizerError, match=r"normalizes with \['NFC'\], but .* declares \[\]"):
        load_tokenizer(spec)
    declared = spec.tokenizer.model_copy(update={"normalizer": "NFC"})
    loaded = load_tokenizer(spec.model_copy(update={"tokenizer": declared}))
    for text in ("cafe\u0301", "\u1112\u1161\u11ab", "q\u0323\u0307", "\u212b \ufb01"):
        assert loaded.decode_bytes(loaded.encode(text)).decode() == text


@pytest.mark.slow
def test_a_tokenizer_of_the_hub_needs_a_revision_before_anything_slow_is_loaded(
    section: TargetSection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    spec = section.model_copy(update={"tokenizer": TokenizerSpec(backend="transformers", name="moonshotai/Kimi-K2.5")})
    with pytest.raises(TokenizerError, match=r"target\.revision is null"):
        load_tokenizer(spec)


@pytest.mark.parametrize("content", [b"", b"!!! not base64\n"], ids=["empty", "no ranks"])
def test_a_damaged_rank_file_is_named(section: TargetSection, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.tiktoken").write_bytes(content)
    spec = section.model_copy(
        update={"tokenizer": TokenizerSpec(backend="tiktoken", name=str(tmp_path / "x.tiktoken"), pattern=".")}
    )
    with pytest.raises(TokenizerError, match=r"x\.tiktoken: not a tiktoken rank file"):
        load_tokenizer(spec)


def test_an_unknown_bundled_vocabulary_is_named(section: TargetSection) -> None:
    spec = section.model_copy(update={"tokenizer": TokenizerSpec(backend="splintr", name="kimi_k9")})
    with pytest.raises(TokenizerError, match="kimi_k9"):
        load_tokenizer(spec)


def rendered(
    record: TargetRecord,
    tokenizer: Tokenizer,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None = None,
) -> str:
    return "".join(map(tokenizer.show, PromptRenderer(record, tokenizer).render(messages, tools)))


def test_a_kimi_prompt_opens_the_reasoning_and_declares_tools(kimi: TargetRecord, tokenizer: Tokenizer) -> None:
    tool = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
    assert rendered(kimi, tokenizer, [{"role": "user", "content": "Hi"}], [tool]) == (
        "<|im_system|>tool_declare<|im_middle|># Tools\n\n## functions\nnamespace functions {\n// Weather\n"
        "type get_weather = (_: {\n  city: string\n}) => any;\n}\n<|im_end|>"
        "<|im_user|>user<|im_middle|>Hi<|im_end|><|im_assistant|>assistant<|im_middle|><think>"
    )


def test_finished_turns_lose_their_reasoning_and_the_turn_with_an_open_call_keeps_it(
    kimi: TargetRecord, tokenizer: Tokenizer
) -> None:
    call = {"id": "functions.find:0", "type": "function", "function": {"name": "find", "arguments": '{"q": "ferry"}'}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "reasoning_content": "Small sum.", "content": "2"},
        {"role": "user", "content": "Find a ferry."},
        {"role": "assistant", "reasoning_content": "Search it.", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "functions.find:0", "content": "none"},
    ]
    assert rendered(kimi, tokenizer, messages) == (
        "<|im_system|>system<|im_middle|>Be kind.<|im_end|><|im_user|>user<|im_middle|>1+1?<|im_end|>"
        "<|im_assistant|>assistant<|im_middle|><think></think>2<|im_end|>"
        "<|im_user|>user<|im_middle|>Find a ferry.<|im_end|>"
        "<|im_assistant|>assistant<|im_middle|><think>Search it.</think>"
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.find:0"
        '<|tool_call_argument_begin|>{"q": "ferry"}<|tool_call_end|><|tool_calls_section_end|><|im_end|>'
        "<|im_system|>tool<|im_middle|>## Return of functions.find:0\nnone<|im_end|>"
        "<|im_assistant|>assistant<|im_middle|><think>"
    )


@pytest.mark.parametrize(
    "case", [case for case in reported_cases("2") if "prompt_segments" in case["expect"]], ids=lambda case: case["id"]
)
def test_a_reported_prompt_is_rendered_as_expected(
    kimi: TargetRecord, tokenizer: Tokenizer, case: dict[str, Any]
) -> None:
    request = case["context"]["request"]
    ids = PromptRenderer(kimi, tokenizer).render(request["messages"], request["tools"])
    assert ids == [
        token
        for kind, what in case["expect"]["prompt_segments"]
        for token in ([what] if kind == "special" else tokenizer.encode(what))
    ]


def test_markers_in_a_prompt_are_parsed_as_the_engine_parses_them(kimi: TargetRecord, tokenizer: Tokenizer) -> None:
    ids = PromptRenderer(kimi, tokenizer).render(
        [{"role": "user", "content": "x<|im_end|>y<|reserved_token_163600|><|im_start|>"}]
    )
    assert ids.count(163_586) == 2
    assert 163_600 in ids
    assert max(ids) < 163_840


IMAGE = {"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}}


def test_a_prompt_that_cannot_be_rendered_is_refused_in_words(kimi: TargetRecord, tokenizer: Tokenizer) -> None:
    messages = [{"role": "user", "content": [IMAGE]}]
    with pytest.raises(InputError, match="only text can be rendered"):
        PromptRenderer(kimi, tokenizer).render(messages)
