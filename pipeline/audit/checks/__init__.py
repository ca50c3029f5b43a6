"""The audit's checks: small pure functions over a batch of rows, listed in `registry.CHECKS`.

To add one: write it under ``@check`` in the module of its kind, give it a field in `pipeline/audit/config.py` and an entry in
conf/audit/default.yaml, and plant its fault in tests/audit/. Importing this package registers every check.
"""

from pipeline.audit.checks import structure
from pipeline.audit.checks.registry import CHECKS, Check, Complaint

__all__ = ["CHECKS", "Check", "Complaint", "structure"]
