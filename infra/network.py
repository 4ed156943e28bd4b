"""Addresses and ports of this machine.

Owns: which addresses only this machine can reach, and the choice of a free port.
Never: listens or connects for a part.
"""

import socket
from ipaddress import IPv6Address, ip_address

LOOPBACK = "127.0.0.1"


def is_loopback(host: str) -> bool:
    """Only this machine can reach a listener on `host`: 127.0.0.0/8, ::1, or the name localhost (RFC 6761)."""
    if host.lower() == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def free_port(host: str = LOOPBACK) -> int:
    """A port nobody listens on at this moment. Raises OSError when `host` is no address of this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
