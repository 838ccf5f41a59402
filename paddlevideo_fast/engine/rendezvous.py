"""The ranks meet before Paddle connects them: Paddle itself waits without end, and in silence, for one that is missing.

The first rank listens where Paddle's own store will listen afterwards; the others report there and wait for its word.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Mapping, Sequence

WAIT_SECONDS = 100.0
_MORE_SECONDS = 5.0  # the others wait longer, to hear from the first who is missing
_PAUSE_SECONDS = 0.2
_GO = b"go"


class RendezvousError(RuntimeError):
    """The ranks do not come together; the message names who or what is missing, the address, and what to check."""


def meeting_point(environment: Mapping[str, str] = os.environ) -> tuple[str, int]:
    """Returns host and port where Paddle will connect the ranks, by the rules of ``init_parallel_env``."""
    parts = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT")
    address = ":".join(parts) if all(parts) else environment.get("PADDLE_MASTER")
    host, _, port = (address or environment["PADDLE_TRAINER_ENDPOINTS"].split(",")[0]).rpartition(":")
    return host, int(port)


def meet(rank: int, size: int, host: str, port: int, endpoints: Sequence[str], seconds: float) -> None:
    """Returns once all ranks are there.

    Args:
        rank: This process.
        size: Number of ranks.
        host: Address of the first rank.
        port: Free port there; free again afterwards.
        endpoints: ``host:port`` of each rank, to name those that are missing.
        seconds: How long to wait.

    Raises:
        RendezvousError: A rank is missing, the first cannot be reached, or its port is taken.
    """
    deadline = time.monotonic() + seconds
    if rank:
        _report(rank, size, host, port, seconds, deadline + _MORE_SECONDS)
    else:
        _assemble(size, host, port, endpoints, seconds, deadline)


def _assemble(size: int, host: str, port: int, endpoints: Sequence[str], seconds: float, deadline: float) -> None:
    try:
        server = socket.create_server(("", port), backlog=size)
    except OSError as error:
        raise RendezvousError(
            f"the ranks are to meet at port {port} of {host}, which this process cannot open: "
            f"{os.strerror(error.errno)}. Another program may hold it (ss -ltnp 'sport = :{port}' shows which: perhaps "
            "a run that has not ended); the launcher takes a free port by itself unless --master or --start_port "
            "names one"
        ) from None
    with contextlib.ExitStack() as connections:
        present: dict[int, socket.socket] = {}
        with server:
            while len(present) < size - 1 and (left := deadline - time.monotonic()) > 0:
                server.settimeout(left)
                with contextlib.suppress(OSError, ValueError):  # time is up, or a stranger at the port
                    connection = connections.enter_context(server.accept()[0])
                    connection.settimeout(min(left, 2.0))
                    word, number, of, total = connection.recv(64).split()
                    if (word, of, int(total)) == (b"rank", b"of", size) and 0 < int(number) < size:
                        present[int(number)] = connection
        # Only now that the port is closed may the others look for Paddle's store there.
        missing = [number for number in range(1, size) if number not in present]
        message = _describe_missing(missing, size, host, port, endpoints, seconds) if missing else ""
        for connection in present.values():
            with contextlib.suppress(OSError):
                connection.sendall(message.encode() or _GO)
    if missing:
        raise RendezvousError(message)


def _report(rank: int, size: int, host: str, port: int, seconds: float, deadline: float) -> None:
    problem = "no answer"
    while (left := deadline - time.monotonic()) > 0:
        try:
            with socket.create_connection((host, port), timeout=min(left, 10.0)) as connection:
                connection.settimeout(left)
                connection.sendall(b"rank %d of %d\n" % (rank, size))
                answer = b"".join(iter(lambda: connection.recv(4096), b"")).decode(errors="replace")  # noqa: B023
        except OSError as error:
            problem = "timed out" if isinstance(error, TimeoutError) else error.strerror or str(error)
        else:
            if answer == _GO.decode():
                return
            if answer.startswith("rank"):
                raise RendezvousError(answer)
            problem = "something answers there that is not the first rank of this run"
        time.sleep(_PAUSE_SECONDS)
    raise RendezvousError(
        f"rank {rank} cannot reach rank 0 at {host}:{port} within {seconds:.0f} s: {problem}. "
        + _what_to_check(host, port)
    )


def _describe_missing(
    missing: Sequence[int], size: int, host: str, port: int, endpoints: Sequence[str], seconds: float
) -> str:
    names = [f"{number} ({endpoints[number]})" if number < len(endpoints) else str(number) for number in missing]
    names = [*names[:8], f"{len(names) - 8} more"] if len(names) > 8 else names
    return (
        f"rank{'s' if len(missing) > 1 else ''} {', '.join(names)} of {size} did not come to {host}:{port} within "
        f"{seconds:.0f} s. {_what_to_check(host, port)}"
    )


def _what_to_check(host: str, port: int) -> str:
    return (
        "Check that every node was started, with the same addresses and number of processes, and what its workerlog "
        f"says; that the port is open from there (nc -vz {host} {port}; a firewall may block it); and that {host} is "
        "the first node's address in the network they share: where its host name stands for 127.0.0.1 or 127.0.1.1, "
        "the launcher needs --host IP, and GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME the name of the interface"
    )
