"""The audit's checks: small pure functions over a batch of rows, listed in `registry.CHECKS`.

To add one: write it under ``@check`` in the module of its kind, give it a field in `pipeline/stages/audit/config.py` and an entry in
conf/audit/default.yaml, and plant its fault in tests/stages/audit/. Importing this package registers every check.
"""

from pipeline.stages.audit.checks import structure  # isort: skip - reports list the seven structural checks first
from pipeline.stages.audit.checks import sanity  # isort: skip
from pipeline.stages.audit.checks import provenance  # isort: skip
from pipeline.stages.audit.checks import tools  # isort: skip
from pipeline.stages.audit.checks import billing  # isort: skip
from pipeline.stages.audit.checks import degeneration  # isort: skip
from pipeline.stages.audit.checks import contamination  # isort: skip
from pipeline.stages.audit.checks import duplicates  # isort: skip
from pipeline.stages.audit.checks.registry import CHECKS, Across, Check, Complaint

__all__ = [
    "CHECKS",
    "Across",
    "Check",
    "Complaint",
    "billing",
    "contamination",
    "degeneration",
    "duplicates",
    "provenance",
    "sanity",
    "structure",
    "tools",
]
