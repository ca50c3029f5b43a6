"""conf/ to build/config.json: every shipped config composes, and every mistake is named in one message."""

import io
import json
import re
import shutil
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from ruamel.yaml import YAML

from pipeline.commands import compose as compose_command
from pipeline.core.dvc_yaml import parse_dvc_yaml
from pipeline.core.errors import ConfigError
from pipeline.graph import BY_NAME
from pipeline.project.compose import build_config, target_section
from pipeline.project.hydra_yaml import as_hydra
from pipeline.project.params import Params, read_params
from pipeline.project.settings import BuildConfig, ambiguous_scalars
from tests.conftest import DEFAULTS, ROOT

GROUPS = {
    folder.name: sorted(file.stem for file in folder.glob("*.yaml"))
    for folder in (DEFAULTS / "conf").iterdir()
    if folder.is_dir()
}
DATASETS = GROUPS["dataset"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what compose reads, as the working folder."""
    for name in ("conf", "data"):
        shutil.copytree(DEFAULTS / name, tmp_path / name)
    shutil.copy(DEFAULTS / "params.yaml", tmp_path)
    for name in ("pipeline", "requirements.lock"):  # read only, and many files
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def mistake(*overrides: str, datasets: tuple[str, ...] = ("code",)) -> str:
    with pytest.raises(ConfigError) as caught:
        build_config(Params(list(datasets), list(overrides)))
    return str(caught.value)


@pytest.mark.parametrize(
    ("group", "choice"), [(g, c) for g, choices in GROUPS.items() if g != "dataset" for c in choices]
)
def test_every_shipped_choice_composes(project: Path, group: str, choice: str) -> None:
    """The audit with every dataset, since each may tighten it; the others with one, since no dataset speaks of them."""
    names = DATASETS if group == "audit" else ["code"]
    assert build_config(Params(names, [f"{group}={choice}"])).names == names


@pytest.mark.parametrize("name", DATASETS)
def test_every_shipped_dataset_composes_alone(project: Path, name: str) -> None:
    assert list(build_config(Params([name], [])).datasets) == [name]


@pytest.mark.parametrize("name", GROUPS["target"])
def test_every_shipped_target_stands_alone(project: Path, name: str) -> None:
    assert target_section(name).name == name


def is_shipped() -> bool:
    """Return whether nobody edited conf/, data/ or params.yaml of this clone."""
    for shipped in (path for path in DEFAULTS.rglob("*") if path.is_file()):
        own = ROOT / shipped.relative_to(DEFAULTS)
        if not own.is_file() or own.read_bytes() != shipped.read_bytes():
            return False
    return True


def test_the_composed_files_in_git_are_current(project: Path) -> None:
    """In a clone with an edited conf/ this is a question for `verify`: the edit may not be composed yet."""
    compose_command.main([])
    for name in ("config.json", "config.yaml", "code.json") if is_shipped() else ("code.json",):
        assert (project / "build" / name).read_bytes() == (ROOT / "build" / name).read_bytes(), (
            f"build/{name} is stale: run `make compose` and commit it"
        )


def test_every_key_is_written_even_when_null(project: Path) -> None:
    compose_command.main([])
    written = json.loads((project / "build/config.json").read_text())
    assert written == BuildConfig.model_validate(written).model_dump(mode="json")
    assert written["datasets"]["code"]["prompts"]["limit"] is None


def test_the_order_of_datasets_is_no_input(project: Path) -> None:
    assert build_config(Params(["tools", "code"], [])) == build_config(Params(["code", "tools"], []))


def test_an_override_reaches_its_key_and_a_group_choice_its_group(project: Path) -> None:
    config = build_config(
        Params(["code"], ["train.lr=3e-4", "target=kimi_k25", "datasets.code.sampling.temperature=0"])
    )
    assert (config.train.lr, config.target.name, config.datasets["code"].sampling.temperature) == (3e-4, "kimi_k25", 0)


def test_a_dataset_can_tighten_its_own_audit(project: Path) -> None:
    with (project / "conf/dataset/code.yaml").open("a") as file:
        file.write("audit:\n  gate:\n    min_accepted: 77\n")
    config = build_config(Params(["code", "tools"], []))
    assert config.datasets["code"].audit == {"gate": {"min_accepted": 77}}
    assert config.datasets["tools"].audit == {}


def test_a_dataset_s_own_audit_is_checked_as_it_will_be_used(project: Path) -> None:
    with (project / "conf/dataset/code.yaml").open("a") as file:
        file.write("audit: {gate: {min_accepted: few}, token_loop: {max_runs: 8}}\n")
    found = mistake()
    assert "2 mistakes" in found
    assert "datasets.code.audit.gate.min_accepted: Input should be a valid integer" in found
    assert (
        "datasets.code.audit.token_loop.max_runs: no such key; found 8; known here: "
        "['max_covered', 'max_phrases', 'max_run', 'max_share', 'min_tokens', 'severity']"
    ) in found
    assert "[conf/dataset/code.yaml]" in found


def test_a_changed_prompt_file_changes_its_digest_only(project: Path) -> None:
    before = build_config(Params(["code", "tools"], [])).inputs
    with (project / "data/code.jsonl").open("a") as file:
        file.write("\n")
    after = build_config(Params(["code", "tools"], [])).inputs
    assert {name for name in before if before[name] != after[name]} == {"code"}


def test_one_message_names_every_mistake_with_its_file(project: Path) -> None:
    edit(project / "conf/dataset/code.yaml", "temperature: 0.8", "temperature: hot")
    edit(project / "conf/dataset/code.yaml", "send_tools: false", "send_tools: false\nsend_tolls: true")
    edit(project / "conf/train/default.yaml", "algorithm: eagle3", "algorithm: eagle9")
    found = mistake("extract.max_length=0")
    assert "4 mistakes" in found
    assert "datasets.code.sampling.temperature: Input should be a valid number" in found
    assert "found 'hot'" in found
    assert "datasets.code.send_tolls: no such key" in found
    assert "'send_tools'" in found, "the keys that exist are named"
    assert "[conf/dataset/code.yaml]" in found
    assert "train.algorithm: Input should be 'eagle3'; found 'eagle9'  [conf/train/default.yaml]" in found
    assert "extract.max_length" in found
    assert "[params.yaml, override 'extract.max_length=0']" in found


def test_a_number_that_no_file_can_hold_is_a_mistake_with_its_place(project: Path) -> None:
    edit(project / "conf/dataset/code.yaml", "seed: 0", "seed: 36893488147419103232")
    assert (
        "datasets.code.sampling.seed: a whole number must fit 64 bits; "
        "found 36893488147419103232  [conf/dataset/code.yaml]"
    ) in mistake()
    assert "budget.completion_tokens: a whole number must fit 64 bits" in mistake(f"budget.completion_tokens={10**30}")


@pytest.mark.parametrize("url", ["http://user:hidden@127.0.0.1/v1", "http://127.0.0.1/v1?key=hidden"])
def test_credentials_in_an_address_are_refused_and_not_repeated(project: Path, url: str) -> None:
    found = mistake(f"provider.base_url='{url}'")
    assert "provider.base_url" in found
    assert "hidden" not in found


def test_a_mistake_in_what_datasets_share_is_named_once_with_its_own_file(project: Path) -> None:
    edit(project / "conf/audit/default.yaml", "min_accepted: 20", "min_accepted: 0.45")
    found = mistake(datasets=("code", "tools"))
    assert "has 1 mistake:" in found
    assert "audit.gate.min_accepted" in found
    assert "[conf/audit/default.yaml]" in found


def test_a_config_file_that_is_not_utf8_is_named(project: Path) -> None:
    (project / "conf/train/default.yaml").write_bytes(b"\xff\xfe")
    assert "conf/train/default.yaml: byte 0 is not UTF-8" in mistake()


def test_heads_that_do_not_divide_the_width_are_refused(project: Path) -> None:
    assert "width 96 must be a multiple of twice the heads, 10" in mistake("target.tiny.heads=5")


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("train.learning_rate=1", "there is no key 'train.learning_rate'"),
        ("train.lrr=1", "Did you mean train.lr?"),
        ("trian.lr=1", "there is no key 'trian'. Did you mean train? Known sections: ['audit', 'budget',"),
        ("lr=1", "Did you mean train.lr?"),
        ("names=[x]", "there is no key 'names'"),
        ("~train.lrr", "Did you mean train.lr?"),
        ("train.lr.x=1", "train.lr has no key 'x'"),
        ("datasets.cod.send_tools=true", "Did you mean datasets.code? Known in datasets: ['code']"),
        ("datasets.code.sampling.temprature=1", "Did you mean datasets.code.sampling.temperature?"),
        ("datasets.code.audit.gate.min_accepted=5", "write '+datasets.code.audit.gate.min_accepted=...'"),
        ("train/lr=1", "no config group 'train/lr' to choose from; groups: ['audit', 'evaluate',"),
        ("audit=strictt", "there is no conf/audit/strictt.yaml; conf/audit/ has ['default', 'strict']"),
        ("train.lr=1,2", "python -m pipeline.sweep"),
        ("~datasets.code", "an override takes away what `datasets` names: ['code']"),
        ("=3", "sets no key"),
    ],
)
def test_an_override_that_names_nothing_is_quoted_with_what_there_is(project: Path, override: str, says: str) -> None:
    found = mistake(override)
    assert says in found
    assert override in found or "takes away" in found
    assert "To append" not in found


def test_all_prompt_files_that_are_missing_are_named_at_once(project: Path) -> None:
    (project / "data/code.jsonl").unlink()
    (project / "data/heldout.jsonl").unlink()
    found = mistake()
    assert "datasets.code.prompts.path is 'data/code.jsonl', and there is no such file" in found
    assert "evaluate.path is 'data/heldout.jsonl', and there is no such file" in found


def test_an_empty_file_lacks_its_section(project: Path) -> None:
    (project / "conf/train/default.yaml").write_text("# nothing yet\n")
    assert "train.algorithm: Field required  [conf/train/default.yaml]" in mistake()


def test_an_override_of_hydras_own_settings_is_refused(project: Path) -> None:
    (project / "params.yaml").write_text("datasets: [code]\noverrides: [hydra.run.dir=x, train.lr=1]\n")
    with pytest.raises(ConfigError, match=r"'hydra.run.dir=x' sets up Hydra itself"):
        read_params()


def test_an_override_that_does_not_parse_is_named(project: Path) -> None:
    assert "train.lr=[1" in mistake("train.lr=[1")


def test_an_unknown_choice_lists_the_known(project: Path) -> None:
    found = mistake("target=kimi_k9")
    assert "kimi_k9" in found
    assert "kimi_k25" in found


def test_a_missing_prompt_file_is_named(project: Path) -> None:
    (project / "data/code.jsonl").rename(project / "data/code.jsonl.dvc")
    assert (
        "datasets.code.prompts.path is 'data/code.jsonl', and only data/code.jsonl.dvc is here: "
        "`dvc pull data/code.jsonl` brings it"
    ) in mistake()
    (project / "data/code.jsonl.dvc").unlink()
    assert "datasets.code.prompts.path is 'data/code.jsonl', and there is no such file" in mistake()


@pytest.mark.parametrize("path", ["/etc/passwd", "../code.jsonl", "data/../../x", "elsewhere/code.jsonl"])
def test_a_prompt_file_outside_data_is_refused(project: Path, path: str) -> None:
    assert "must lie under data/" in mistake(f"datasets.code.prompts.path={path}")


@pytest.mark.parametrize("text", ["a: on", "a: 010", "a: 12:30:45", "a: {b: [yes]}", "a: 0o10", "a: 2020-01-01"])
def test_a_scalar_that_dvc_reads_otherwise_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.yaml").write_text(text + "\n")
    assert len(ambiguous_scalars(tmp_path / "x.yaml")) == 1
    assert "put quotes around it" in ambiguous_scalars(tmp_path / "x.yaml")[0]


@pytest.mark.parametrize(
    "text", ["a: .nan", "a: 1e-5", "a: 'on'", "a: null", "a: true", "a: 1.5", "a: [x, 2]", "a: ${b}\nb: 1", "a: ''"]
)
def test_a_plain_scalar_is_not(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.yaml").write_text(text + "\n")
    assert ambiguous_scalars(tmp_path / "x.yaml") == []


def test_both_readers_are_as_the_libraries_themselves() -> None:
    scalars = [
        "on",
        "010",
        "1e-4",
        "1_000",
        ".inf",
        "~",
        "0x1F",
        "'${i}'",
        "12:30",
        "'010'",
        "[y, null]",
        "1.",
        "0o7",
        "!!str 5",
        "{1: a}",
        "|\n  x",
    ]
    odd = "".join(f"k{n}: {scalar}\n" for n, scalar in enumerate(scalars))
    for text in [*(path.read_text() for path in (DEFAULTS / "conf").rglob("*.yaml")), odd, "", "- a\n", "text\n"]:
        assert parse_dvc_yaml(text) == YAML(typ="safe").load(text)
        assert (as_hydra(text) or {}) == OmegaConf.to_container(OmegaConf.load(io.StringIO(text)), resolve=False)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("${train.lr", "no viable alternative at input"),
        ("&a [1, *a]", "conf/train/default.yaml: an alias (*) is inside the value that it repeats"),
        ("{[1]: a}", "conf/train/default.yaml: not the YAML 1.1 that Hydra reads"),
        ("\tx", "found character '\\t' that cannot start any token"),
    ],
)
def test_what_only_hydra_cannot_read_is_named(project: Path, line: str, says: str) -> None:
    edit(project / "conf/train/default.yaml", "algorithm:", f"other: {line}\nalgorithm:")
    assert says in mistake()


def test_a_key_in_the_config_is_refused_and_not_repeated(project: Path) -> None:
    found = mistake("+datasets.code.sampling.extra.token=sk-or-v1-EXAMPLEEXAMPLEEXAMPLE")
    assert "datasets.code.sampling.extra.token" in found
    assert "EXAMPLE" not in found


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("datasets: [a.b]\noverrides: []\n", "'a.b' is not a dataset name"),
        ("datasets: [7]\noverrides: []\n", "7 is not a dataset name"),
        ("datasets: [é]\noverrides: []\n", "'é' is not a dataset name"),
        ("datasets: [target]\noverrides: []\n", "the build itself uses the name 'target'"),
        ("datasets: []\noverrides: []\n", "at least one name"),
        ("datasets: [code, code]\noverrides: []\n", "named more than once: ['code']"),
        ("datasets: [nowhere]\noverrides: []\n", "'nowhere' has no file conf/dataset/nowhere.yaml; there are"),
        ("datasets: [code]\n", "needs exactly the keys `datasets` and `overrides`"),
        ("datasets: [code]\noverrides: train.lr=1\n", "needs a list of strings"),
        ("datasets: [code\n", "not YAML"),
        ("[]\n", "needs exactly the keys"),
    ],
)
def test_a_mistake_in_params_is_named(project: Path, text: str, says: str) -> None:
    (project / "params.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_params()
    assert says in str(caught.value)
    assert "params.yaml" in str(caught.value)


def test_params_missing_altogether(project: Path) -> None:
    (project / "params.yaml").unlink()
    with pytest.raises(ConfigError, match=r"params\.yaml is missing"):
        read_params()


def test_a_removed_dataset_leaves_no_stamp_for_train(project: Path) -> None:
    for name in ("code", "tools"):
        for file in (
            f"build/extracted/{name}.json",
            f"build/{name}/audit/summary.json",
            f"build/{name}/tokens.parquet",
        ):
            (project / file).parent.mkdir(parents=True, exist_ok=True)
            (project / file).write_text("{}")
    (project / "build/target").mkdir()
    (project / "build/target/metrics.json").write_text("{}")
    (project / "params.yaml").write_text("datasets: [code]\noverrides: []\n")
    compose_command.main([])
    left = {path.relative_to(project).as_posix() for path in (project / "build").rglob("*.json")}
    assert not {path for path in left if "tools" in path}
    assert {"build/extracted/code.json", "build/code/audit/summary.json", "build/target/metrics.json"} <= left
    assert (project / "build/tools/tokens.parquet").exists(), "what DVC tracks is DVC's to remove"


def test_a_mistake_writes_nothing(project: Path) -> None:
    compose_command.main([])
    before = {path: path.read_bytes() for path in (project / "build").rglob("*.json")}
    edit(project / "conf/train/default.yaml", "algorithm: eagle3", "algorithm: eagle9")
    with pytest.raises(ConfigError):
        compose_command.main([])
    assert {path: path.read_bytes() for path in (project / "build").rglob("*.json")} == before


def test_where_a_server_is_and_how_fast_it_is_asked_is_no_input_of_the_states(project: Path) -> None:
    here = build_config(Params(["code"], ["extract=vllm"]))
    there = build_config(
        Params(
            ["code"],
            ["extract=vllm", "engine.url=http://gpu7:8000/v1", "engine.concurrency=7", "engine.folder=/mnt/states"],
        )
    )
    assert there.extract == here.extract
    assert there.engine is not None
    assert there.engine.url == "http://gpu7:8000"
    stage = BY_NAME["extract"]
    assert (stage.keys, stage.aside) == ({"extract": "extract"}, {"engine": "engine"})
    assert build_config(Params(["code"], [])).engine is None


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["extract=vllm", "engine.folder=null"],
            r"engine: .*folder: vllm passes states as files.*override 'engine.folder=null'",
        ),
        (
            ["extract.backend=vllm"],
            r"engine: .*extract.backend is vllm, which needs this section: conf/extract/vllm.yaml has one"
            r".*conf/extract/default.yaml",
        ),
        (["extract=sglang", "extract.backend=transformers"], r"engine: .*uses no server"),
        (
            ["extract=sglang", "extract.layers=[0,4,6]"],
            r"SGLang returns the outputs of layers, so it cannot return layer 0",
        ),
        (["extract=sglang", "engine.url=gpu7:3000"], r"engine.url: .*must start with http"),
        (["extract=sglang", "engine.url='http://[::1/v1'"], r"engine.url: "),
        (["extract=sglang", "engine.url='http://gpu7:0'"], r"engine.url: .*names no host and port"),
        (["extract=sglang", "engine.url='http://gpu7:3000#x'"], r"engine.url: .*neither credentials nor a query"),
        (["extract=sglang", "engine.urls=x"], r"urls"),
        (["extract.backend=telepathy"], r"extract.backend"),
    ],
)
def test_a_backend_and_its_server_that_do_not_go_together_are_refused(
    project: Path, overrides: list[str], message: str
) -> None:
    assert re.search(message, mistake(*overrides), re.DOTALL)
