"""What every type of the contract is: frozen, and strict about its fields; and the version of the wire."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

Version = Literal[2]  # a field of this type refuses what another version wrote
CONTRACT_VERSION: Version = 2
TASK_NAME = "corral.generate"
LEVELS = range(10)


class Frozen(BaseModel):
    """An immutable value; unknown fields are refused, so two versions that differ are noticed at once.

    Its errors name the field and never show the value: they may end in a log, and the value may be a prompt.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
