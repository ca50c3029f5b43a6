"""The checks, the fields of the configuration and the shipped thresholds agree."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

import pytest

from pipeline.project.file_audit import load_section
from pipeline.stages.audit import checks
from pipeline.stages.audit.checks.catalog import BY_NAME, CHECKS
from pipeline.stages.audit.checks.check import Complaint
from pipeline.stages.audit.config import AuditSection, laid_over
from tests.conftest import DEFAULTS

SHIPPED = sorted(path.stem for path in (DEFAULTS / "conf/audit").glob("*.yaml"))


def test_every_check_has_its_entry_in_the_config_and_every_entry_its_check() -> None:
    assert [name for name in AuditSection.model_fields if name != "gate"] == [check.name for check in CHECKS]


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_thresholds_are_valid_and_complete(name: str) -> None:
    section = load_section(name)
    assert section.model_fields_set == set(AuditSection.model_fields)
    for check in CHECKS:
        settings = section.check(check.name)
        assert settings.model_fields_set == set(type(settings).model_fields), check.name


def test_default_yaml_says_what_the_code_defaults_to() -> None:
    assert load_section("default").model_dump(exclude={"gate"}) == AuditSection().model_dump(exclude={"gate"})


def test_every_function_that_complains_is_listed_once_under_its_own_name() -> None:
    """A check that is written and not listed would never run."""
    written = {
        function.__name__: function
        for module in pkgutil.iter_modules(checks.__path__, f"{checks.__name__}.")
        for function in vars(importlib.import_module(module.name)).values()
        if inspect.isfunction(function)
        and not function.__name__.startswith("_")
        and inspect.signature(function).return_annotation == Iterator[Complaint]
    }
    assert {check.name: check.run for check in CHECKS} == written
    assert len(BY_NAME) == len(CHECKS)


def test_a_dataset_s_own_keys_are_laid_over_the_shared_ones_key_by_key() -> None:
    shared = {"gate": {"min_accepted": 20, "admit": ["a"]}, "cost": {"max_rate": 0.1}}
    found = laid_over(shared, {"gate": {"admit": []}, "cost": {"prices": {"x": 1}}})
    assert found == {"gate": {"min_accepted": 20, "admit": []}, "cost": {"max_rate": 0.1, "prices": {"x": 1}}}
    assert laid_over(shared, {}) == shared
