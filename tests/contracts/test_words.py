"""No word of a client is in the text of an error, which may end in a log."""

import importlib
import pkgutil
from types import ModuleType

import pytest
from pydantic import BaseModel, ValidationError

import api.protocol
import scheduler.contract
from scheduler.contract import GenerationRequest

pytestmark = pytest.mark.contracts

SECRET = "xylophone7731"


def of_a_client(package: ModuleType) -> set[type[BaseModel]]:
    modules = [
        importlib.import_module(f"{package.__name__}.{found.name}") for found in pkgutil.iter_modules(package.__path__)
    ]
    values = [value for module in modules for value in vars(module).values() if isinstance(value, type)]
    return {value for value in values if issubclass(value, BaseModel) and value is not BaseModel}


@pytest.mark.parametrize("package", [api.protocol, scheduler.contract], ids=lambda package: package.__name__)
def test_every_type_made_of_a_client_s_words_hides_them_in_its_errors(package: ModuleType) -> None:
    kinds = of_a_client(package)
    assert len(kinds) > 5
    assert [kind.__name__ for kind in kinds if not kind.model_config.get("hide_input_in_errors")] == []


def test_a_request_that_does_not_fit_its_type_says_nothing_of_its_text() -> None:
    with pytest.raises(ValidationError) as caught:
        GenerationRequest.model_validate({"model": "m", "max_tokens": SECRET, "messages": [{"role": SECRET}]})
    assert SECRET not in str(caught.value)
