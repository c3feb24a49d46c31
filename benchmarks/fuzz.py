"""Damage model directories, checkpoints, .npy and Parquet files, seal them anew, and read them.

Whatever is in a file, reading it ends with a ValueError or an OSError, or with the right numbers:
no signal, no hang above ten seconds, no other exception. Each case is read in a process that has
loaded MXNet already. Run it by ``make fuzz``; it ends with 1 if there is a finding.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
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
from gluon_svrg.checkpoint import folder as checkpoints
from gluon_svrg.deploy.card import _sealed
from mxnet import gluon

PATIENCE = 10.0
X = np.random.default_rng(0).normal(size=(3, 3, 8, 8)).astype("float32")
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
        operators = ["_NDArray", "Custom", "gather_nd", "Reshape", "RNN", "Embedding", "Pooling"]
        choices += [*operators, old + "x", "(9999999999,)", "../x", "/dev/zero"]
    if isinstance(old, int):
        choices += [old + 1, old - 1, old + 7]
    if rng.random() < 0.1:
        del owner[key]
    else:
        owner[key] = rng.choice(choices)
    return value


def seal_model(folder: Path) -> None:
    try:
        card = json.loads((folder / "model.json").read_text())
        card.pop("sha256", None)
        for name in ("model-symbol.json", "model-0000.params"):
            content = (folder / name).read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            card["files"][name] |= {"bytes": len(content), "sha256": digest}
    except (ValueError, LookupError, TypeError, AttributeError):
        return
    (folder / "model.json").write_text(_sealed(card))


def damage_model(folder: Path, rng: random.Random) -> None:
    name = rng.choice(["model.json", "model-symbol.json", "model-symbol.json", "model-0000.params"])
    path = folder / name
    if name.endswith(".json") and rng.random() < 0.85:
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
    (path / "manifest.json").write_text(checkpoints._text_of(manifest))


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


class Models(Kind):
    """Model directories; a prediction that is no error has finite numbers or the right shape."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        net = gluon.nn.HybridSequential()
        net.add(gluon.nn.Conv2D(4, 3), gluon.nn.BatchNorm(), gluon.nn.Activation("relu"))
        net.add(gluon.nn.MaxPool2D(), gluon.nn.Dense(5))
        net.initialize()
        gs.deploy.export(net, folder / "m", X, normalization=([0.5] * 3, [1.0] * 3))

    def damage(self, rng: random.Random) -> None:
        damage_model(self.folder / "m", rng)

    def read(self) -> None:
        predictor = gs.deploy.Predictor(self.folder / "m")
        predictor.predict(X)


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
        from gluon_svrg.linear import Chunks

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
        from gluon_svrg.linear import Chunks, SVRGClassifier

        path = str(self.folder / "x.parquet")
        chunks = Chunks.from_parquet(path, columns=[f"c{i}" for i in range(4)])
        SVRGClassifier(max_iter=3).fit(chunks, np.arange(500) % 2)


KINDS: dict[str, tuple[type[Any], int]] = {
    "models": (Models, 3000),
    "checkpoints": (Checkpoints, 1000),
    "npy": (Npy, 700),
    "parquet": (Parquet, 300),
}


def outcome_of(read: Callable[[], None]) -> str:
    """Run `read` in a process of its own; return how that ended."""
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
    end = time.monotonic() + PATIENCE
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
                outcome = outcome_of(made.read)
                counts[outcome] += 1
                if outcome not in ("refused", "no error"):
                    findings += 1
                    print(f"{name} {case}: {outcome}", flush=True)
        print(f"{name}: {dict(counts.most_common(8))}", flush=True)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
