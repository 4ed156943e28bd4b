"""The text of the store's atomic steps.

Owns: where `*.lua` lies and how it is read. Each file says its keys, arguments, returns and invariant.
Never: runs one.
"""

from importlib.resources import files


def text(name: str) -> str:
    """The source of `scheduler/lua/<name>.lua`."""
    return files("scheduler").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")
