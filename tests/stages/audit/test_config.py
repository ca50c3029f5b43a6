"""Checks, config fields and shipped thresholds stay together."""

import pytest

from pipeline.commands.audit import load_section
from pipeline.stages.audit.checks.catalog import CHECKS
from pipeline.stages.audit.checks.registry import check
from pipeline.stages.audit.config import AuditSection, laid_over
from tests.conftest import DEFAULTS

SHIPPED = sorted(path.stem for path in (DEFAULTS / "conf/audit").glob("*.yaml"))


def test_every_check_has_its_entry_in_the_config_and_every_entry_its_check() -> None:
    assert [name for name in AuditSection.model_fields if name != "gate"] == list(CHECKS)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_thresholds_are_valid_and_complete(name: str) -> None:
    section = load_section(name)
    assert section.model_fields_set == set(AuditSection.model_fields)
    for check_name in CHECKS:
        assert section.check(check_name).model_fields_set == set(type(section.check(check_name)).model_fields), (
            check_name
        )


def test_default_yaml_says_what_the_code_defaults_to() -> None:
    assert load_section("default").model_dump(exclude={"gate"}) == AuditSection().model_dump(exclude={"gate"})


def test_a_check_name_cannot_be_taken_twice() -> None:
    with pytest.raises(ValueError, match="already taken by round_trip"):
        check("round_trip", "again")(lambda _batch, _settings: [])


def test_a_dataset_s_own_keys_are_laid_over_the_shared_ones_key_by_key() -> None:
    shared = {"gate": {"min_accepted": 20, "admit": ["a"]}, "cost": {"max_rate": 0.1}}
    found = laid_over(shared, {"gate": {"admit": []}, "cost": {"prices": {"x": 1}}})
    assert found == {"gate": {"min_accepted": 20, "admit": []}, "cost": {"max_rate": 0.1, "prices": {"x": 1}}}
    assert laid_over(shared, {}) == shared
