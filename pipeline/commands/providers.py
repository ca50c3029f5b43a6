"""`python -m pipeline providers`: the model's endpoints, their prices, and the policy on each."""

import argparse
from typing import Any

from rich.console import Console
from rich.text import Text

from pipeline.core.files.json_file import to_json
from pipeline.core.terminal import plain_table
from pipeline.project.compose import build_config
from pipeline.project.endpoints import admitted_endpoints
from pipeline.project.params import read_params
from pipeline.stages.generate.config import ProviderSection
from pipeline.stages.generate.provider.policy import Admission, Endpoint


def main(argv: list[str]) -> None:
    """Print the endpoints, and which of them the policy admits.

    Raises:
        AerieError: the configuration is wrong, or the server cannot be asked.

    """
    parser = argparse.ArgumentParser(prog="python -m pipeline providers", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(argv)
    config = build_config(read_params())
    admission = admitted_endpoints(config)
    if options.json:
        print(to_json(_as_json(admission), indent=True).decode())
    elif admission is None:
        section = config.provider
        print(
            f"{section.base_url} lists no endpoints (kind {section.kind}): it is its own only provider, at the prices "
            "of provider.max_price"
        )
    else:
        show(config.provider, admission, Console())


def _as_json(admission: Admission | None) -> dict[str, Any]:
    if admission is None:
        return {"admitted": None, "refused": None}
    return {
        "admitted": [endpoint.model_dump(mode="json") for endpoint in admission.admitted],
        "refused": [
            {**endpoint.model_dump(mode="json"), "why_not": reasons} for endpoint, reasons in admission.refused
        ],
    }


def show(section: ProviderSection, admission: Admission, console: Console) -> None:
    """Print the admitted endpoints, and for each other one the reasons."""
    listed = len(admission.admitted) + len(admission.refused)
    title = f"{section.model}: {len(admission.admitted)} of {listed} endpoints admitted"
    table = plain_table(title, ["admitted", "provider", "tag", "format"], ["$/M in", "$/M out", "longest"])
    for endpoint in admission.admitted:
        table.add_row("yes", *map(Text, _cells(endpoint)))
    for endpoint, _ in admission.refused:
        table.add_row("no", *map(Text, _cells(endpoint)))
    console.print(table)
    for endpoint, reasons in admission.refused:
        console.print(f"not {endpoint.provider} ({endpoint.tag}): {'; '.join(reasons)}", markup=False, highlight=False)


def _cells(endpoint: Endpoint) -> list[str]:
    prices = ["?" if price < 0 else f"{price:g}" for price in (endpoint.prompt, endpoint.completion)]
    return [
        endpoint.provider,
        endpoint.tag,
        endpoint.quantization,
        *prices,
        f"{endpoint.max_completion:,}" if endpoint.max_completion else "?",
    ]
