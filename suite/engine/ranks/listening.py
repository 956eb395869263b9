"""Address at which rank 0 listens."""

import ipaddress
import socket


def find_own_host(address: str) -> str:
    """Return the IP address of this host that an address names; only there rank 0 has to listen.

    Args:
        address: host:port, as the other ranks see it.

    Returns:
        The IP address. An empty text, which means all of them, if the name leads to another address here than on the
        other hosts: to a gateway's, or to one of this host's loopback.
    """
    host = address.rpartition(":")[0].strip("[]")
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        own = str(place[0])
        if ipaddress.ip_address(own).is_loopback and host not in (own, "localhost"):
            return ""  # Debian gives a host's own name the address 127.0.1.1
        with socket.socket(family, kind) as probe:
            probe.bind((own, 0))
    except (OSError, ValueError):
        return ""
    return own


def listen_at(address: str) -> socket.socket:
    """Return a socket that listens at an address of this host, or on all of them (see `find_own_host`).

    Raises:
        OSError: if the port cannot be used.
    """
    host, port = find_own_host(address), int(address.rpartition(":")[2])
    if host or not socket.has_dualstack_ipv6():
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    return socket.create_server((host, port), family=socket.AF_INET6, dualstack_ipv6=True)
