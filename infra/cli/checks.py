"""What must be true before anything is started.

Owns: the check of ports, data folder, store, disk, keys, broker address, model and warm-up files, each with its remedy.
Never: changes anything but making the data folder and the store's.
"""

import errno
import shutil
import socket
import tempfile
from contextlib import closing
from pathlib import Path

from infra import config, machine, model_setting, store_folder, warm_files
from infra.cli import console
from infra.config import Settings
from infra.errors import ConfigError, StartError
from infra.network import is_loopback
from infra.warm_files import WarmFile

LEAST_FREE_BYTES = 512 * 2**20  # the demo model takes 250 MB, the broker's log the same again


def port(host: str, number: int, part: str, remedy: str) -> int:
    """The port itself, or any free one for 0. Raises StartError that says who holds it and what to do."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror:
        raise StartError(part, f"{host} is no address of this machine; give another --host") from None
    with closing(socket.socket(family, kind, protocol)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            raise StartError(part, _why_not(error, host, number, remedy)) from None
        return int(probe.getsockname()[1])


def _why_not(error: OSError, host: str, number: int, remedy: str) -> str:
    if error.errno == errno.EADDRINUSE:
        holder = machine.listener_of(number)
        return f"port {number} is taken{f' by {holder}' if holder else ''}; stop that program, or {remedy}"
    if error.errno == errno.EACCES:
        return f"port {number} is not open to your user; {remedy}"
    return f"cannot listen on {host}:{number} ({error.strerror}); give another --host or {remedy}"


def data_dir(folder: Path) -> None:
    """Make the data folder. Raises StartError when it cannot be written or its disk is nearly full."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise StartError("data folder", f"{folder}: {error.strerror}; give another --data-dir") from None
    free = shutil.disk_usage(folder).free
    if free < LEAST_FREE_BYTES:
        wanted = console.size(LEAST_FREE_BYTES)
        raise StartError(
            "data folder",
            f"{folder}: only {console.size(free)} of disk are free, {wanted} are needed; "
            "make room or give another --data-dir",
        )


def store(settings: Settings) -> None:
    """Make the folder of saved caches, unless it is off. Raises StartError when nothing can be saved there, which costs
    prefills but no answer."""
    folder = settings.store_folder
    trouble = store_folder.trouble(folder) if folder is not None else ""
    if trouble:
        raise StartError("store", f"{trouble}; no caches are saved until store_dir is corrected or room is made")


def doors(settings: Settings, flower: bool = True) -> None:
    """Raises ConfigError when something would be open to other machines without a key or password."""
    if not is_loopback(settings.host) and not config.api_keys(settings):
        raise ConfigError(
            f"--host {settings.host}: other machines could use it without a key; set CORRAL_API_KEYS=NAME:KEY "
            "(for a key: openssl rand -hex 16), or keep to 127.0.0.1"
        )
    if flower and not is_loopback(settings.flower_host) and not settings.flower_password.get_secret_value():
        raise ConfigError(
            f"CORRAL_FLOWER_HOST={settings.flower_host}: other machines could read the queues; "
            "set CORRAL_FLOWER_PASSWORD=USER:PASSWORD, or keep to 127.0.0.1"
        )


def warm(settings: Settings) -> list[WarmFile]:
    """The files to warm up with. Raises ConfigError that names a missing or bad one."""
    return warm_files.read(settings.warm)


def model(name: str) -> str:
    """The model with a path made absolute. Raises StartError when it cannot be one."""
    read = model_setting.read(name)
    return str(read) if isinstance(read, Path) else name
