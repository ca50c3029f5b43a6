"""A forecast of a build: the prompts that each dataset would ask, and their cost. It sends no prompt."""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.core.errors import ConfigError
from pipeline.core.files.scratch import scratch_folder
from pipeline.core.home import store_folder
from pipeline.formats.build_folder import BUILD
from pipeline.project.endpoints import list_endpoints
from pipeline.project.settings import BuildConfig
from pipeline.stages.generate.ledger.accounts import charged, usual_rate, usual_tokens
from pipeline.stages.generate.ledger.connection import empty, opened_or_empty
from pipeline.stages.generate.ledger.records import Charge
from pipeline.stages.generate.ledger.restore import restorable_keys
from pipeline.stages.generate.limits.money import Price, to_usd
from pipeline.stages.generate.provider.policy import Admission
from pipeline.stages.generate.provider.server import admission_of, identity
from pipeline.stages.generate.requests.request import RequestBuilder
from pipeline.stages.generate.requests.survey import Survey, survey
from pipeline.stages.prompts.stage import Config as PromptsConfig
from pipeline.stages.prompts.stage import run as make_prompts

MODEL = Path("build/target/model")
"""The stand-in target's weights."""

_BYTES_A_TOKEN = 4
"""Rule of thumb: bytes of JSON for one prompt token. Only estimates use it, never a cap."""


@dataclass(frozen=True, slots=True)
class DatasetPlan:
    """The forecast for one dataset."""

    name: str
    survey: Survey
    admission: Admission
    spent: Charge
    usual_tokens: float | None
    """Mean completion tokens of the dataset's answers so far; None before the first answer."""
    max_tokens: int

    def tokens(self) -> tuple[int, int]:
        """Return the estimated prompt and completion tokens."""
        usual = self.max_tokens if self.usual_tokens is None else self.usual_tokens
        return self.survey.prompt_bytes // _BYTES_A_TOKEN, round(self.survey.new * usual)

    def dollars(self, price: Price) -> tuple[float, float]:
        """Return the estimated and the worst-case dollars at a price."""
        prompt, completion = self.tokens()
        estimated = self.survey.new * price.request + prompt * price.prompt + completion * price.completion
        return to_usd(estimated), to_usd(self.survey.worst_case(price))


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """The forecast for a build."""

    datasets: list[DatasetPlan]
    answers_per_second: float | None
    """Rate of the model's last run; None before the first run."""


def plan_build(config: BuildConfig, names: Sequence[str]) -> BuildPlan:
    """Survey the named datasets under the present configuration; no names means all of them.

    Raises:
        AerieError: a name is unknown, a prompt file cannot be read, the server cannot be asked for its prices, or it
            has no admitted endpoint.

    """
    if unknown := sorted(set(names) - set(config.names)):
        raise ConfigError(f"no dataset {unknown} in params.yaml; there are {config.names}")
    endpoints = list_endpoints(config.provider)
    with opened_or_empty(store_folder()) as ledger, empty() as nothing, scratch_folder() as folder:
        # before the stand-in is trained, the ledger cannot have its answers
        answered = ledger if config.provider.kind != "embedded" or MODEL.exists() else nothing
        datasets = []
        for name in names or config.names:
            builder = _request_builder(config, name)
            datasets.append(
                DatasetPlan(
                    name,
                    _survey(config, name, builder, answered, folder),
                    admission_of(
                        config.provider, endpoints, needs=builder.parameters(), max_tokens=builder.most_tokens
                    ),
                    charged(ledger, "pretend" if config.provider.kind == "embedded" else "real", name),
                    usual_tokens(ledger, name),
                    builder.most_tokens,
                )
            )
        return BuildPlan(datasets, usual_rate(ledger, config.provider.model))


def _request_builder(config: BuildConfig, name: str) -> RequestBuilder:
    section = config.datasets[name]
    return RequestBuilder(
        section.sampling,
        config.provider,
        send_tools=section.send_tools,
        identity=identity(config.provider, MODEL) if MODEL.exists() else None,
    )


def _survey(
    config: BuildConfig, name: str, builder: RequestBuilder, ledger: sqlite3.Connection, folder: Path
) -> Survey:
    """Look up one dataset's prompts, whether or not the build is up to date."""
    prompts = folder / f"{name}.jsonl"
    dataset = config.datasets[name]
    section = PromptsConfig(
        prompts=dataset.prompts, send_tools=dataset.send_tools, chat=config.target.chat, digest=None
    )
    make_prompts(section, prompts=prompts, summary=folder / f"{name}.json")
    found = survey(prompts, builder, ledger)
    pulled = BUILD / name / "responses.jsonl"
    if found.new and pulled.exists():  # generate takes another clone's answers from it
        return survey(prompts, builder, ledger, elsewhere=restorable_keys(pulled))
    return found
