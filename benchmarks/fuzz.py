"""Damage model directories, checkpoints, .npy and Parquet files, seal them again, and read them.

Whatever is in a file, reading it ends with a ValueError or an OSError, or with the right numbers:
no signal, no hang above ten seconds, no other exception. The numbers of a model are right if they
are those of the undamaged one, where the damage leaves graph and arrays as they are, and else if
they have the shape that its card says, and come out a second time. Each case is read in a process
that has loaded MXNet already. Run it by ``make fuzz``; it ends with 1 if there is a finding.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gluon_svrg as gs
import mxnet as mx
import numpy as np
from gluon_svrg.arrays import params as params_format
from gluon_svrg.checkpoint import storage
from gluon_svrg.deploy.graph import OPERATORS
from gluon_svrg.deploy.model_dir import _sealed
from gluon_svrg.linear import Chunks, GLMClassifier
from mxnet import gluon

X = np.random.default_rng(0).normal(size=(3, 3, 8, 8)).astype("float32")
ATTRIBUTES = [0, -1, -3, 1, 2, 3, 5, 16, 1000, 10**8]
NUMBERS = [0, 1, 2, 7, 100, -1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1]


def changed_bytes(content: bytes, rng: random.Random) -> bytes:
    """Return the bytes with one damage: a flip, a number, a cut, a piece moved."""
    data = bytearray(content)
    place = rng.randrange(max(1, len(data)))
    kind = rng.randrange(5)
    if kind == 0:
        data[place] ^= 1 << rng.randrange(8)
    elif kind == 1:
        size = rng.choice([4, 8])
        value = rng.choice(NUMBERS) % 2 ** (8 * size)
        # The lengths are at the beginning of an array: look there more often.
        place = place if rng.random() < 0.5 else rng.randrange(min(200, len(data)))
        data[place : place + size] = value.to_bytes(size, "little")
    elif kind == 2:
        del data[place:]
    elif kind == 3:
        data[place:place] = data[: rng.randrange(64)]
    else:
        data[place : place + rng.randrange(64)] = b""
    return bytes(data)


def changed_json(value: Any, rng: random.Random) -> Any:
    """Return JSON with one of its values, names or items changed."""
    places: list[tuple[Any, Any]] = []

    def walk(item: Any) -> None:
        pairs = item.items() if isinstance(item, dict) else enumerate(item)
        for key, child in list(pairs):
            places.append((item, key))
            if isinstance(child, dict | list):
                walk(child)

    value = json.loads(json.dumps(value))
    walk(value)
    owner, key = rng.choice(places)
    old = owner[key]
    choices = [
        *NUMBERS,
        "",
        "x",
        None,
        True,
        [],
        {},
        [old],
        -1.5,
        1e308,
        str(2**70),
        "(1,)",
        "None",
    ]
    if isinstance(old, str):
        choices += ["_NDArray", "Custom", "gather_nd", "Reshape", "RNN", "Embedding", "Pooling"]
        choices += [rng.choice(sorted(OPERATORS)), old + "x", "(9999999999,)", "../x", "/dev/zero"]
    if isinstance(old, int):
        choices += [old + 1, old - 1, old + 7]
    if isinstance(old, str) and any(letter.isdigit() for letter in old):
        choices = [with_another_number(old, rng) for _ in range(20)] + choices
    if rng.random() < 0.1:
        del owner[key]
    else:
        owner[key] = rng.choice(choices)
    return value


def with_another_number(text: str, rng: random.Random) -> str:
    """Return the text of an attribute, such as ``(3, 3)``, with its numbers replaced."""
    number = rng.choice([*ATTRIBUTES, *NUMBERS])
    if rng.random() < 0.5:
        return re.sub("-?[0-9]+", str(number), text)
    return rng.choice([str(number), f"({number},)", f"({number}, {number}, {number}, 1)", "()"])


def changed_attribute(graph: Any, rng: random.Random) -> Any:
    """Return a graph with another value of an attribute, also one that it did not have."""
    node = rng.choice([node for node in graph["nodes"] if node["op"] != "null"])
    attrs = node.setdefault("attrs", {})
    name = rng.choice([*attrs, *attrs, "num_group", "pad", "dilate", "axis", "num_args", "no_bias"])
    attrs[name] = with_another_number(attrs.get(name, "1"), rng)
    return graph


def changed_arrays(folder: Path, rng: random.Random) -> None:
    """Give a parameter another shape or dtype; half the time the card's shapes change, too."""
    path = folder / "model-0000.params"
    arrays = params_format.from_bytes(path.read_bytes())
    name = rng.choice([*arrays])
    shape = list(arrays[name].shape)
    shape[rng.randrange(len(shape))] = rng.choice([1, 2, 7, 100, 1000])
    dtype = rng.choice(["float32", "float32", "float64", "float16", "int8", "int32", "int64"])
    arrays[name] = mx.nd.ones(shape if rng.random() < 0.7 else arrays[name].shape, dtype=dtype)
    path.write_bytes(params_format.to_bytes(arrays))
    if rng.random() < 0.5:
        card = json.loads((folder / "model.json").read_text())
        for one in ([spec["shape"] for spec in card["inputs"]], card["outputs"]["shapes"]):
            picked = rng.choice(one)
            picked[rng.randrange(len(picked))] = rng.choice([1, 2, 7, 100, 1000])
        (folder / "model.json").write_text(json.dumps(card))


def what_is_computed(folder: Path) -> Any:
    """Return all that the numbers of a model follow from; names of operators do not count."""
    graph = json.loads((folder / "model-symbol.json").read_text())
    arrays = params_format.from_bytes((folder / "model-0000.params").read_bytes())
    return (
        [{**node, "name": node["op"] == "null" and node["name"]} for node in graph["nodes"]],
        graph["heads"],
        {name: (array.dtype, array.asnumpy().tolist()) for name, array in arrays.items()},
        (folder / "model.onnx").read_bytes() if (folder / "model.onnx").exists() else None,
    )


def seal_model(folder: Path) -> None:
    try:
        card = json.loads((folder / "model.json").read_text())
        card.pop("sha256", None)
        has_onnx = "model.onnx" in card["files"]
        for name in ("model-symbol.json", "model-0000.params", *["model.onnx"] * has_onnx):
            content = (folder / name).read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            card["files"][name] |= {"bytes": len(content), "sha256": digest}
    except (ValueError, LookupError, TypeError, AttributeError):
        return
    (folder / "model.json").write_text(_sealed(card))


def damage_model(folder: Path, rng: random.Random) -> None:
    names = ["model.json", "model-symbol.json", "model-symbol.json", "model-0000.params"]
    if (folder / "model.onnx").exists():
        names.append("model.onnx")
    name = rng.choice(names)
    path = folder / name
    kind = rng.random()
    if kind < 0.25:
        graph = folder / "model-symbol.json"
        graph.write_text(json.dumps(changed_attribute(json.loads(graph.read_text()), rng)))
    elif kind < 0.4:
        changed_arrays(folder, rng)
    elif name.endswith(".json") and rng.random() < 0.85:
        path.write_text(json.dumps(changed_json(json.loads(path.read_text()), rng)))
    else:
        path.write_bytes(changed_bytes(path.read_bytes(), rng))
    seal_model(folder)


def damage_checkpoint(folder: Path, rng: random.Random) -> None:
    (path,) = folder.glob("epoch-*")
    manifest = json.loads((path / "manifest.json").read_text())
    manifest.pop("sha256", None)
    name = rng.choice([*manifest["files"], "manifest"])
    if name == "manifest":
        manifest = changed_json(manifest, rng)
    else:
        content = changed_bytes((path / name).read_bytes(), rng)
        if name.endswith(".npz") and rng.random() < 0.7:
            content = changed_archive((path / name).read_bytes(), rng)
        (path / name).write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        manifest["files"][name] = {"bytes": len(content), "sha256": digest}
    (path / "manifest.json").write_text(storage._text_of(manifest))


def changed_archive(content: bytes, rng: random.Random) -> bytes:
    """Return an .npz whose text has one value changed."""
    import io

    with np.load(io.BytesIO(content)) as archive:
        arrays = {name: archive[name] for name in archive.files}
    text = changed_json(json.loads(arrays["meta"].tobytes()), rng)
    arrays["meta"] = np.frombuffer(json.dumps(text).encode(), "uint8")
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def make_estimator() -> gs.Estimator:
    mx.random.seed(0)
    net = gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(gluon.nn.Dense(4, in_units=3), gluon.nn.BatchNorm(in_channels=4))
        net.add(gluon.nn.Dense(2, in_units=4))
    net.initialize()
    trainer = gs.SVRGTrainer(net.collect_params(), "nag", {"learning_rate": 0.1, "momentum": 0.9})
    return gs.Estimator(net, gluon.loss.SoftmaxCELoss(), trainer=trainer)


def fitted(folder: Path, epochs: int, resume: str | None) -> list[np.ndarray]:
    data = gs.data.ArrayLoader(X.reshape(-1, 3)[:16], np.arange(16.0) % 2, batch_size=4)
    estimator = make_estimator()
    handlers = [gs.CheckpointHandler(folder, keep_last=1), gs.SVRGHandler(), gs.EMAHandler(0.5)]
    estimator.fit(data, epochs=epochs, event_handlers=handlers, resume=resume, verbose=0)
    return [p.data().asnumpy() for p in estimator.net.collect_params().values()]


class Kind:
    """A kind of file: how one is made, damaged and read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder


class Layers(gluon.HybridBlock):
    """Has other operators than a convolutional network."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.up = gluon.nn.Conv2DTranspose(4, 3, in_channels=3)
            self.norm = gluon.nn.GroupNorm(2)
            self.recurrent = gluon.rnn.LSTM(6, layout="NTC", input_size=10)
            self.layer_norm = gluon.nn.LayerNorm()

    def hybrid_forward(self, F: Any, x: Any) -> Any:  # noqa: N803  # MXNet names it
        one, other = F.split(self.norm(self.up(x)), num_outputs=2, axis=1)
        rows = F.concat(one, other, dim=1).reshape((0, -1, 10))
        rows = self.layer_norm(self.recurrent(rows))
        chosen = F.where(rows > 0, rows, F.zeros_like(rows))
        return F.softmax(F.transpose(chosen, axes=(0, 2, 1)).slice_axis(axis=2, begin=0, end=3))


class NumPyLayers(gluon.HybridBlock):
    """Has the operators of MXNet's NumPy mode."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.dense = gluon.nn.Dense(12, in_units=192)
            self.norm = gluon.nn.LayerNorm()

    def hybrid_forward(self, F: Any, x: Any) -> Any:  # noqa: N803  # MXNet names it
        rows = self.norm(self.dense(F.np.reshape(x, (-1, 192))))
        cube = F.np.reshape(rows, (-1, 3, 4))
        one, other = cube[:, :, :2], cube[:, :, 2:]
        both = F.np.concatenate([F.np.tile(one, (1, 1, 2)), F.np.cumsum(other, axis=2)], axis=2)
        both = F.np.where(both > 0.1, F.np.swapaxes(both, 1, 2).swapaxes(1, 2), both / 3.0)
        scaled = both * F.np.arange(6.0) - F.np.clip(both, -0.5, 0.5)
        turned = F.np.transpose(scaled, (0, 2, 1))
        products = F.np.matmul(scaled, turned)
        highest = F.np.moveaxis(F.np.broadcast_to(F.np.max(products, axis=2, keepdims=True),
                                                  (-2, 3, 2)), 1, 2)  # fmt: skip
        stacked = F.np.stack([F.np.std(products, axis=2), F.np.mean(products, axis=1)], axis=1)
        return F.np.sum(highest, axis=1) + stacked[:, 0, :] + F.npx.relu(stacked[:, 1, :])


class Models(Kind):
    """Model directories."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        net = gluon.nn.HybridSequential()
        net.add(gluon.nn.Conv2D(4, 3), gluon.nn.BatchNorm(), gluon.nn.Activation("relu"))
        net.add(gluon.nn.MaxPool2D(), gluon.nn.Dense(5))
        net.initialize()
        gs.deploy.export(net, folder / "conv", X, normalization=([0.5] * 3, [1.0] * 3))
        layers = Layers()
        layers.initialize()
        gs.deploy.export(layers, folder / "layers", X)
        mx.npx.set_np()
        numpy_layers = NumPyLayers()
        numpy_layers.initialize()
        gs.deploy.export(numpy_layers, folder / "numpy", X)
        mx.npx.reset_np()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gs.deploy.quantize(folder / "conv", folder / "int8", X)
        self.right = {
            path.name: (what_is_computed(path), gs.deploy.Predictor(path).predict(X))
            for path in folder.iterdir()
        }

    def damage(self, rng: random.Random) -> None:
        self.name = rng.choice(sorted(self.right))
        damage_model(self.folder / self.name, rng)

    def read(self) -> None:
        path = self.folder / self.name
        predictor = gs.deploy.Predictor(path)
        found = predictor.predict(X)
        assert found.shape == (len(X), *predictor.card["outputs"]["shapes"][0])
        np.testing.assert_array_equal(predictor.predict(X), found)
        predictor.predict(np.concatenate([X] * 3))
        computed, right = self.right[self.name]
        if what_is_computed(path) == computed:
            np.testing.assert_array_equal(found, right)


class Checkpoints(Kind):
    """Checkpoints, continued from."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        fitted(folder / "c", 1, None)

    def damage(self, rng: random.Random) -> None:
        damage_checkpoint(self.folder / "c", rng)

    def read(self) -> None:
        fitted(self.folder / "c", 2, "auto")


class Npy(Kind):
    """Arrays of `Chunks`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        np.save(folder / "x.npy", X.reshape(-1, 8).astype("float64"))

    def damage(self, rng: random.Random) -> None:
        path = self.folder / "x.npy"
        content = path.read_bytes()
        damaged = changed_bytes(content[:128], rng)
        path.write_bytes(damaged + content[128:] if rng.random() < 0.8 else damaged)

    def read(self) -> None:
        Chunks([str(self.folder / "x.npy")])


class Parquet(Kind):
    """Parquet files of `Chunks`."""

    def __init__(self, folder: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        super().__init__(folder)
        columns = {f"c{i}": X.ravel()[:500] + i for i in range(4)}
        pq.write_table(pa.table({**columns, "y": np.arange(500) % 2}), folder / "x.parquet")

    def damage(self, rng: random.Random) -> None:
        path = self.folder / "x.parquet"
        path.write_bytes(changed_bytes(path.read_bytes(), rng))

    def read(self) -> None:
        path = str(self.folder / "x.parquet")
        chunks = Chunks.from_parquet(path, columns=[f"c{i}" for i in range(4)])
        GLMClassifier(max_iter=3).fit(chunks, np.arange(500) % 2)


KINDS: dict[str, tuple[type[Any], int]] = {
    "models": (Models, 3000),
    "checkpoints": (Checkpoints, 1000),
    "npy": (Npy, 700),
    "parquet": (Parquet, 300),
}


def outcome_of(read: Callable[[], None], patience: float) -> str:
    """Run `read` in a process of its own for `patience` seconds; return how that ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        code = b"no error"
        try:
            warnings.simplefilter("ignore")
            read()
        except (ValueError, OSError):
            code = b"refused"
        except FloatingPointError:  # numbers that are not finite, noticed in training
            code = b"refused"
        except BaseException as e:
            code = f"{type(e).__name__}: {str(e)[:200]}".encode()
        os.write(writing, code)
        os._exit(0)
    os.close(writing)
    end = time.monotonic() + patience
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(reading)
            return "hang"
        time.sleep(0.002)
    text = os.read(reading, 4096).decode(errors="replace")
    os.close(reading)
    if os.WIFSIGNALED(status):
        return f"signal {os.WTERMSIG(status)}"
    return text or "no answer"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kind", choices=KINDS, nargs="+", default=list(KINDS))
    parser.add_argument("--cases", type=int, help="of each kind (default: 3000, 1000, 700, 300)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--patience", type=float, default=10.0, help="seconds for a case (10)")
    options = parser.parse_args()
    findings = 0
    for name in options.kind:
        kind, number = KINDS[name]
        with tempfile.TemporaryDirectory() as temporary:
            original, folder = Path(temporary, "original"), Path(temporary, "case")
            original.mkdir()
            made = kind(original)
            made.folder = folder
            counts: Counter[str] = Counter()
            for case in range(options.cases or number):
                shutil.rmtree(folder, ignore_errors=True)
                shutil.copytree(original, folder)
                made.damage(random.Random(f"{options.seed} {name} {case}"))
                outcome = outcome_of(made.read, options.patience)
                counts[outcome] += 1
                if outcome not in ("refused", "no error"):
                    findings += 1
                    print(f"{name} {case}: {outcome}", flush=True)
        print(f"{name}: {dict(counts.most_common(8))}", flush=True)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
