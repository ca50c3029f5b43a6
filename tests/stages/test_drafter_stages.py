"""The stages extract, train, evaluate and export in turn, on a target of random weights."""

import json
from pathlib import Path

import pytest
import torch

from pipeline.core.files.json_file import read_json
from pipeline.drafter.checkpoint import load_drafter
from pipeline.drafter.unroll import plan_unroll, unroll
from pipeline.formats.loss_mask import weights_of
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.weights.ends import open_ends
from pipeline.stages.evaluate import stage as evaluate
from pipeline.stages.evaluate.config import EvaluateSection
from pipeline.stages.export import stage as export
from pipeline.stages.train import stage as train
from pipeline.stages.train.data import open_corpus
from tests.stages.export.engine_loaders import load_as_sglang, load_as_vllm
from tests.tiny import Build, random_rows, train_settings

pytestmark = pytest.mark.slow


def test_what_is_extracted_trained_and_measured_is_what_an_engine_computes(tmp_path: Path, kimi: TargetRecord) -> None:
    build = Build(tmp_path, kimi, vocab_size=kimi.vocab_size)
    build.extract(random_rows([(f"row-{number}", 4, 12 + number) for number in range(6)], vocab_size=500))
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "export"
    settings = train.Config(train=train_settings(epochs=1), names=["data"])
    hidden = {"data": build.hidden()}
    train.run(
        settings,
        stamps=build.stamps,
        hidden=hidden,
        record=build.record,
        model=build.model,
        checkpoint=checkpoint,
        log=tmp_path / "log.csv",
    )

    questions = [
        {"messages": [{"role": "user", "content": text}], "dataset": name}
        for name, text in (("sums", "2 + 2?"), ("words", "Say hello."))
    ]
    (tmp_path / "heldout.jsonl").write_text("".join(json.dumps(question) + "\n" for question in questions))
    section = EvaluateSection(
        path=str(tmp_path / "heldout.jsonl"), anchors=1, draft_tokens=3, max_new_tokens=8, threads=1
    )
    evaluate.run(
        evaluate.Config(evaluate=section, digest=None),
        checkpoint=checkpoint,
        record=build.record,
        model=build.model,
        eval=tmp_path / "eval.json",
    )
    measured = read_json(tmp_path / "eval.json")
    assert measured["identical_to_plain_greedy"] == measured["prompts"] == 2
    assert set(measured["datasets"]) == {"sums", "words"}
    assert measured["anchors"]["oracle"] == 4
    assert measured["rounds"] == sum(part["rounds"] for part in measured["datasets"].values())

    export.run(export.Config(), checkpoint=checkpoint, eval=tmp_path / "eval.json", record=build.record, export=out)
    ends = open_ends(build.model)
    drafter = load_drafter(checkpoint, ends.embedding, ends.source.sha256)
    corpus = open_corpus(build.stamps, hidden, ["data"], ends.source.sha256, 0, weights_of("completion+tools"))
    pack = corpus.packed(corpus.training[:1])
    with torch.no_grad():
        ours = drafter.logits(next(unroll(drafter, pack.aux, plan_unroll(pack, 1, every_row=True))))
        for engine in (load_as_sglang(out / "sglang"), load_as_vllm(out / "vllm")):
            torch.testing.assert_close(
                engine.logits(pack.aux[:-1], drafter.embed(pack.token_ids[1:])), ours, atol=2e-5, rtol=1e-5
            )
    card = (out / "README.md").read_text()
    assert all(digest in card for digest in (drafter.config.trained_on["data"], ends.source.sha256))
