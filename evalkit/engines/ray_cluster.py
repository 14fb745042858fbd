"""A Ray cluster, joined or started on this machine: what it has, and the room for a model copy in it."""

from __future__ import annotations

import logging
import os
import socket
import time
from typing import Any

from gtpo.common.errors import UserError
from gtpo.common.log import LOG

CONNECT_S = 5.0
PLACE_S = 60.0
"""Seconds to wait until other users of a cluster have left enough of it."""

OBJECT_STORE_BYTES = 256 * 2**20
"""Of a cluster that is started here: completions are small and are fetched at once."""

_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "1",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "30",
    "RAY_worker_niceness": "0",
}
"""What Ray reads from the environment, unless the user has set it: no usage reports and warnings, an end after half a
minute without the cluster's head, and copies of the same priority as everything else (Ray's own default is 15).
"""


def join(address: str | None) -> bool:
    """Join the cluster at `address` (`auto`, HOST:PORT), or start one on this machine; return whether that was done.

    A program that has joined a cluster before goes on with it. Raises UserError where nothing answers.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import ray

    if ray.is_initialized():
        return False
    if address is not None:
        address = _checked_address(address)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        options |= {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    for attempt in (1, 2):
        try:
            ray.init(address=address or "local", **options)
            _quiet_ray()
            return True
        except Exception as error:  # Ray itself raises no more than Exception where its node does not come up in time
            first = " ".join(str(error).split())[:300]
            if attempt == 1 and address is None:  # on a busy machine its services come up too late
                LOG.info("Ray did not start (%s): once more", first)
                continue
            what = f"no Ray cluster answers at {address}" if address else "Ray does not start on this machine"
            raise UserError(f"{what} ({first})") from None
    raise AssertionError("unreachable")


def _quiet_ray() -> None:
    """Keep Ray from writing a paragraph to stdout for each process that dies: what follows is said by the engine.

    Ray has no setting for it; `log_to_driver` is about what the processes themselves print.
    """
    from ray._private import worker

    worker.print_to_stdstream = lambda *arguments, **options: None


def head_answers() -> bool:
    """Return whether the cluster's head is there; without it Ray's own calls wait, and then end the process."""
    import ray

    host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
    except OSError:
        return False
    return True


def _cluster_of_this_machine() -> str:
    """Return HOST:PORT of what `auto` means to Ray: RAY_ADDRESS, a cluster that runs here, or the last that did."""
    from ray._private.services import canonicalize_bootstrap_address

    try:
        found: str | None = canonicalize_bootstrap_address("auto")
    except (ConnectionError, ValueError):
        found = None
    if found is None:
        raise UserError("--ray-address auto: no Ray cluster runs on this machine; `ray start --head` starts one")
    return found


def _checked_address(address: str) -> str:
    """Return HOST:PORT. UserError for what cannot be one, where nothing listens, and for `auto` without a cluster.

    Ray itself ends the process where the cluster that it finds is gone.
    """
    hint = ""
    if address == "auto":
        address, hint = _cluster_of_this_machine(), "; `ray start --head` starts one on this machine"
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdecimal():
        raise UserError(
            f'--ray-address is auto, or HOST:PORT of the head node (e.g. 10.0.0.1:6379), found "{address}". Run the '
            "command on a node of the cluster"
        )
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise UserError(f"no Ray cluster answers at {address} ({error}){hint}") from None
    return address


def unit(size: int) -> dict[str, float]:
    """Return what one model copy takes: a core and `size` GPUs; `size` cores where no node has a GPU."""
    import ray

    return {"CPU": 1, "GPU": size} if ray.cluster_resources().get("GPU", 0) > 0 else {"CPU": size}


def capacity(needed: dict[str, float]) -> tuple[int, str]:
    """Return how many copies the nodes that are alive hold when nothing else runs, and what these nodes have."""
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    copies = sum(int(min(node.get(name, 0) // amount for name, amount in needed.items())) for node in nodes)
    kind = "GPU" if "GPU" in needed else "CPU"
    return copies, " + ".join(f"{node.get(kind, 0):g}" for node in nodes) + f" {kind}s"


def place(copies: int | None, needed: dict[str, float]) -> list[Any]:
    """Reserve room for `copies` model copies, each on one node; return the placement groups.

    copies: None for as many as the GPUs hold; without GPUs one on each node. needed: `unit`.

    Raises UserError where they do not fit.
    """
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    most, there = capacity(needed)
    wanted = copies or (most if "GPU" in needed else min(most, len([n for n in ray.nodes() if n["Alive"]])))
    if wanted > most or wanted == 0:
        each = " and ".join(f"{amount:g} {name}{'s' if amount > 1 else ''}" for name, amount in needed.items())
        raise UserError(
            f"--data-parallel-size {max(wanted, 1)} does not fit: each copy needs {each} on one node, and the nodes "
            f"have {there}, room for {most}"
        )
    groups = [placement_group([needed], strategy="STRICT_PACK") for _ in range(wanted)]
    end = time.monotonic() + PLACE_S
    placed = sum(group.wait(max(0.0, end - time.monotonic())) for group in groups)
    if placed < wanted:
        for group in groups:
            remove_placement_group(group)
        raise UserError(
            f"the cluster is busy: it has had room for {placed} of {wanted} copies within {PLACE_S:.0f} s. Wait, or "
            "use a smaller --data-parallel-size"
        )
    return groups
