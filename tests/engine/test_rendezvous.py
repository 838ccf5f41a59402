"""The ranks find each other, or say who or what is missing and where."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from launched import ROOT, clean_environment

from paddlevideo_fast.engine.rendezvous import RendezvousError, meet, meeting_point

HOST = "127.0.0.1"


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def endpoints(size: int) -> list[str]:
    return [f"10.0.0.{number + 1}:6070" for number in range(size)]


def together(size: int, port: int, ranks, seconds: float = 5.0) -> dict[int, str | None]:
    """What each of some ranks meets with: None, or the words of its error."""

    def one(rank: int) -> str | None:
        try:
            meet(rank, size, HOST, port, endpoints(size), seconds)
        except RendezvousError as error:
            return str(error)
        return None

    with ThreadPoolExecutor(size) as pool:
        return dict(zip(ranks, pool.map(one, ranks)))


def test_all_come_in_any_order_and_the_port_is_free_again(port):
    assert set(together(5, port, [3, 1, 0, 4, 2]).values()) == {None}
    with socket.create_server((HOST, port)):
        pass


def test_those_who_wait_know_whom_they_miss(port):
    start = time.monotonic()
    said = together(5, port, [0, 1, 3], seconds=1.0)
    assert time.monotonic() - start < 4
    for words in said.values():
        assert words.startswith(
            f"ranks 2 (10.0.0.3:6070), 4 (10.0.0.5:6070) of 5 did not come to {HOST}:{port} within 1 s"
        )
        assert all(hint in words for hint in (f"nc -vz {HOST} {port}", "--host IP", "GLOO_SOCKET_IFNAME"))


def test_a_first_rank_that_does_not_come(port, monkeypatch):
    monkeypatch.setattr("paddlevideo_fast.engine.rendezvous._MORE_SECONDS", 0.0)
    words = together(2, port, [1], seconds=0.5)[1]
    assert words.startswith(f"rank 1 cannot reach rank 0 at {HOST}:{port} within 0 s: Connection refused. Check")


def test_a_name_that_stands_for_no_address(port, monkeypatch):
    monkeypatch.setattr("paddlevideo_fast.engine.rendezvous._MORE_SECONDS", 0.0)
    with pytest.raises(
        RendezvousError, match=r"rank 0 at no-such-host.invalid:\d+ .*: .*(known|resolution|associated)"
    ):
        meet(1, 2, "no-such-host.invalid", port, endpoints(2), 0.5)


def test_a_port_that_another_program_holds(port, monkeypatch):
    monkeypatch.setattr("paddlevideo_fast.engine.rendezvous._MORE_SECONDS", 0.0)
    with socket.create_server(("", port)) as other:

        def answer() -> None:
            while True:
                try:
                    connection, _ = other.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(64)
                    connection.sendall(b"220 mail ready")

        threading.Thread(target=answer, daemon=True).start()
        said = together(2, port, [0, 1], seconds=1.0)
        other.shutdown(socket.SHUT_RDWR)
    assert f"port {port} of {HOST}, which this process cannot open: Address already in use" in said[0]
    assert "ss -ltnp" in said[0]
    assert "not the first rank of this run" in said[1]


def test_strangers_at_the_port_are_passed_over(port):
    def knock() -> None:
        for words in (b"", b"GET / HTTP/1.1\r\n\r\n", b"rank 1 of 7\n", b"rank 9 of 2\n", b"rank x of 2\n", b"\xff\n"):
            with socket.create_connection((HOST, port), timeout=5) as connection:
                connection.sendall(words)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(meet, 0, 2, HOST, port, endpoints(2), 10.0)
        time.sleep(0.3)
        knock()
        assert not first.done()
        meet(1, 2, HOST, port, endpoints(2), 10.0)
        first.result()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"PADDLE_TRAINER_ENDPOINTS": "10.0.0.1:6070,10.0.0.2:6071"}, ("10.0.0.1", 6070)),
        ({"PADDLE_TRAINER_ENDPOINTS": "10.0.0.1:6070", "PADDLE_MASTER": "10.0.0.3:5000"}, ("10.0.0.3", 5000)),
        ({"PADDLE_MASTER": "10.0.0.3:5000", "MASTER_ADDR": "node", "MASTER_PORT": "7"}, ("node", 7)),
        ({"PADDLE_MASTER": "10.0.0.3:5000", "MASTER_ADDR": "node"}, ("10.0.0.3", 5000)),
    ],
)
def test_the_meeting_point_is_where_paddle_connects(environment, expected):
    assert meeting_point(environment) == expected


START = """
import sys
from paddlevideo_fast.engine import distributed, rendezvous
rendezvous.WAIT_SECONDS = float(sys.argv[1])
print(distributed.start_ranks())
"""


def test_a_process_whose_peer_never_starts_ends(port):
    """With Paddle alone it waits without end."""
    places = f"{HOST}:{port},{HOST}:{port + 1}"
    environment = clean_environment(
        PADDLE_TRAINER_ID="0", PADDLE_TRAINERS_NUM="2", PADDLE_TRAINER_ENDPOINTS=places, PADDLE_DISTRI_BACKEND="gloo",
        PADDLE_CURRENT_ENDPOINT=places.split(",")[0],
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", START, "1"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert f"rank 1 ({HOST}:{port + 1}) of 2 did not come to {HOST}:{port} within 1 s" in done.stderr
