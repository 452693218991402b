"""Where do trained networks lie? In one .npz file for each machine, with what they were made from.

Training belongs to a command (`neocpu calibrate --learned`), never to a run: all ranks of a run
read the same file, and place tables alike.
"""

import io
import json
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from neocpu.core.errors import ConfigError
from neocpu.core.types import Tree
from neocpu.plan.learned.cost_nets import CommNet, ComputeNet
from neocpu.plan.learned.features import Scaling
from neocpu.plan.learned.nets import Array
from neocpu.plan.learned.policy import PlacementPolicy
from neocpu.plan.machines.machine_file import THIS_MACHINE, this_machine_path

VERSION = 1
SUFFIX = ".learned.npz"


@dataclass(frozen=True)
class Networks:
    """Trained networks of one machine.

    machine : its name. batch : samples of a step that they were trained at; costs grow with it.
    compute : of sets of tables. comm : (forward, backward) exchanges by number of ranks. policy :
    of AutoShard; None where it was not trained. facts : how they were made, and how good they are.
    """

    machine: str
    batch: int
    compute: ComputeNet
    comm: Mapping[int, tuple[CommNet, CommNet]] = field(default_factory=dict)
    policy: PlacementPolicy | None = None
    facts: Tree = field(default_factory=dict)


def networks_path(machine: str) -> Path:
    """The file of a machine's networks by its name, which need not exist: HOST.learned.npz for
    this machine, in the folder of its own file.
    """
    own_path = this_machine_path()
    if machine == THIS_MACHINE:
        return own_path.with_name(own_path.stem + SUFFIX)
    return own_path.with_name(re.sub(r"[^A-Za-z0-9.-]", "-", machine).strip(".") + SUFFIX)


def pack(networks: Networks) -> bytes:
    """The networks as the bytes of an .npz file."""
    arrays: dict[str, Array] = {}
    units: dict[str, float] = {}
    header = {
        "version": VERSION,
        "machine": networks.machine,
        "batch": networks.batch,
        "facts": dict(networks.facts),
        "units": units,
        "policy": networks.policy is not None,
    }

    def keep(name: str, net: ComputeNet | CommNet) -> None:
        units[name] = net.unit
        arrays[f"{name}.mean"] = net.scaling.mean
        arrays[f"{name}.deviation"] = net.scaling.deviation
        _keep_all(arrays, name, net.parameters)

    keep("compute", networks.compute)
    for ranks, (forward, backward) in sorted(networks.comm.items()):
        for name, net in ((f"forward-{ranks}", forward), (f"backward-{ranks}", backward)):
            keep(name, net)
            arrays[f"{name}.largest"] = net.largest
    if networks.policy is not None:
        _keep_all(arrays, "policy", networks.policy.parameters)
    buffer = io.BytesIO()
    text = np.array(json.dumps(header))
    # into memory first, so that the file is written in one piece
    np.savez(buffer, header=text, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def _keep_all(arrays: dict[str, Array], name: str, parameters: list[Array]) -> None:
    for i, parameter in enumerate(parameters):
        arrays[f"{name}.{i}"] = parameter


def load(path: Path, machine: str = THIS_MACHINE) -> Networks:
    """Read the networks of a machine.

    Raises ConfigError where there is no such file, naming the command that makes one, or where it
    is none of ours.
    """
    if not path.exists():
        option = "" if machine == THIS_MACHINE else f" --machine {machine}"
        raise ConfigError(
            f"the learned planners have no networks for {machine}: {path} does not exist; "
            f"`neocpu calibrate --learned{option}` trains and writes them"
        )
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as data:
            # without pickles: a file of networks may come from anywhere
            arrays = {name: data[name] for name in data.files}
        header = json.loads(str(arrays.pop("header")))
        if header["version"] != VERSION:
            raise ConfigError(f"{path}: networks of version {header['version']}, not {VERSION}")
        return _unpack(header, arrays)
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise ConfigError(
            f"{path}: not a file of learned networks: {type(error).__name__} {error}"
        ) from error


def _unpack(header: Mapping[str, Any], arrays: Mapping[str, Array]) -> Networks:
    # weights that are drawn here give shapes only; the stored ones replace them
    rng = np.random.default_rng(0)
    units = header["units"]
    scaling = _scaling(arrays, "compute")
    compute = ComputeNet(rng, scaling, units["compute"])
    compute.parameters = _taken(arrays, "compute", compute.parameters)
    comm: dict[int, tuple[CommNet, CommNet]] = {}
    for ranks in sorted(int(name.split("-")[1]) for name in units if name.startswith("forward-")):
        pair = []
        for name, offsets in ((f"forward-{ranks}", True), (f"backward-{ranks}", False)):
            net = CommNet(ranks, offsets, rng, units[name])
            net.scaling = _scaling(arrays, name)
            net.largest = arrays[f"{name}.largest"].astype(np.float64)
            net.parameters = _taken(arrays, name, net.parameters)
            pair.append(net)
        comm[ranks] = (pair[0], pair[1])
    policy = None
    if header["policy"]:
        policy = PlacementPolicy(rng)
        policy.parameters = _taken(arrays, "policy", policy.parameters)
    return Networks(
        machine=header["machine"],
        batch=header["batch"],
        compute=compute,
        comm=comm,
        policy=policy,
        facts=header["facts"],
    )


def _scaling(arrays: Mapping[str, Array], name: str) -> Scaling:
    mean = arrays[f"{name}.mean"].astype(np.float64)
    return Scaling(mean, arrays[f"{name}.deviation"].astype(np.float64))


def _taken(arrays: Mapping[str, Array], name: str, shapes: list[Array]) -> list[Array]:
    """The stored parameters, of the shapes that the code has."""
    stored = [arrays[f"{name}.{i}"] for i in range(len(shapes))]
    for i, (array, shape) in enumerate(zip(stored, shapes)):
        if array.shape != shape.shape:
            raise ValueError(f"{name}.{i} has shape {array.shape}, expected {shape.shape}")
    return stored
