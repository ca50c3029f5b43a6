"""`python -m pipeline compose`: compose conf/ and params.yaml into build/config.json, config.yaml and code.json."""

from pipeline.core.errors import ConfigError
from pipeline.project.compose import remove_stale, write_documents
from pipeline.project.settings import CONF, PARAMS


def main(argv: list[str]) -> None:
    """Write the composed files and say what they hold.

    Raises:
        ConfigError: conf/, params.yaml or the code cannot be built from; nothing is written.

    """
    if argv:
        raise ConfigError(f"python -m pipeline compose: takes no arguments (edit {PARAMS} and {CONF}/); found {argv}")
    config = write_documents()
    for path in remove_stale(config.names):
        print(f"removed {path}: its dataset is no longer in {PARAMS}")
    print(
        f"composed {len(config.names)} datasets: {', '.join(config.names)}; "
        f"target {config.target.name}, provider {config.provider.kind}"
    )
