"""Serve a model directory over HTTP; requests that come at the same time share a batch.

    python recipes/serve.py runs/nag/model --port 8000
    curl localhost:8000/health
    curl --data-binary @cat.png -H 'Content-Type: image/png' localhost:8000/classes
    curl -d '{"data": [[...]]}' -H 'Content-Type: application/json' localhost:8000/predict

A request has a sample, or a batch of them: as JSON by the names of the inputs; as an array that
``numpy.save`` wrote (``application/x-npy``) for a model of one input; or as an image, for a model
that was exported with its normalization. ``/predict`` answers with the outputs, ``/classes`` with
names and probabilities.

It needs FastAPI and uvicorn: ``pip install 'gluon-svrg[serve]'``. There is no encryption and no
password: let a proxy that has both stand before it.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple, NoReturn

import numpy as np
from gluon_svrg.deploy import Predictor

try:
    import uvicorn
    from fastapi import FastAPI, HTTPException, Request, Response
except ImportError as error:
    raise SystemExit(f"{error}: `pip install 'gluon-svrg[serve]'`") from error

IMAGES = {"image/png": ".png", "image/jpeg": ".jpg"}


class Job(NamedTuple):
    """A request that waits for its answer: a batch for each input, maybe of a single sample."""

    arrays: list[np.ndarray]
    is_sample: bool
    answer: asyncio.Future


class Batcher:
    """Runs the requests that wait as one batch, in a thread of its own.

    While a batch runs, the next requests gather. If none runs, the first request waits for
    `max_wait` seconds for others.

    Parameters
    ----------
    call : callable
        Takes a batch for each input, and returns an answer for all samples.
    rows_of : callable
        Takes such an answer and an index or a slice, and returns that part as plain data.
    executor : Executor
        Of one thread.
    max_batch : int
        The greatest number of samples that run at once.
    max_wait : float
        In seconds.
    max_waiting : int
        The greatest number of requests that wait; more are refused.
    """

    def __init__(
        self,
        call: Callable[..., Any],
        rows_of: Callable[[Any, int | slice], Any],
        executor: ThreadPoolExecutor,
        max_batch: int,
        max_wait: float,
        max_waiting: int,
    ) -> None:
        self.call = call
        self.rows_of = rows_of
        self.executor = executor
        self.max_batch = max_batch
        self.max_wait = max_wait
        self.queue: asyncio.Queue[Job] = asyncio.Queue(max_waiting)

    async def answer(self, arrays: list[np.ndarray], is_sample: bool) -> Any:
        """Return the part of the answer that is these samples'."""
        job = Job(arrays, is_sample, asyncio.get_running_loop().create_future())
        try:
            self.queue.put_nowait(job)
        except asyncio.QueueFull:
            message = f"{self.queue.maxsize} requests wait already: try again in a second"
            raise HTTPException(503, message, {"Retry-After": "1"}) from None
        return await job.answer

    async def run(self) -> None:
        """Answer requests until it is cancelled."""
        following: Job | None = None  # it did not fit into the batch before
        while True:
            jobs = [following or await self.queue.get()]
            following = None
            if self.queue.empty():
                await asyncio.sleep(self.max_wait)
            count = len(jobs[0].arrays[0])
            while not self.queue.empty():
                job = self.queue.get_nowait()
                count += len(job.arrays[0])
                if count > self.max_batch:
                    following = job
                    break
                jobs.append(job)
            await self.run_batch(jobs)

    async def run_batch(self, jobs: list[Job]) -> None:
        """Answer these requests; if the batch fails, each of them alone."""
        batch = [
            np.concatenate(arrays) for arrays in zip(*(job.arrays for job in jobs), strict=True)
        ]
        try:
            loop = asyncio.get_running_loop()
            answer = await loop.run_in_executor(self.executor, lambda: self.call(*batch))
        except Exception as e:
            if len(jobs) > 1:
                for job in jobs:
                    await self.run_batch([job])
            elif not jobs[0].answer.done():
                jobs[0].answer.set_exception(e)
            return
        begin = 0
        for job in jobs:
            end = begin + len(job.arrays[0])
            if not job.answer.done():  # else the client has gone
                rows = begin if job.is_sample else slice(begin, end)
                job.answer.set_result(self.rows_of(answer, rows))
            begin = end


def rows_of_outputs(outputs: Any, rows: int | slice) -> Any:
    """Return rows of outputs that may be nested, such as those of a network with two outputs."""
    if isinstance(outputs, np.ndarray):
        return outputs[rows].tolist()
    return None if outputs is None else [rows_of_outputs(part, rows) for part in outputs]


def rows_of_classes(classes: Any, rows: int | slice) -> Any:
    """Return the classes of some samples, each as a dict of name and probability."""
    found = classes[rows]
    if isinstance(rows, slice):
        return [rows_of_classes([row], 0) for row in found]
    return [prediction._asdict() for prediction in found]


class Reader:
    """Makes arrays of a request; what is wrong with it ends in one sentence and its status.

    Parameters
    ----------
    predictor : Predictor
        Its card says what the arrays have to be.
    max_bytes : int
        The greatest body.
    max_batch : int
        The greatest number of samples of a request.
    max_seconds : float
        How long a client may take to send the body.
    """

    def __init__(
        self, predictor: Predictor, max_bytes: int, max_batch: int, max_seconds: float = 30
    ) -> None:
        self.predictor = predictor
        self.inputs = predictor.card["inputs"]
        self.max_bytes = max_bytes
        self.max_batch = max_batch
        self.max_seconds = max_seconds

    async def read(self, request: Request) -> tuple[list[np.ndarray], bool]:
        """Return a batch for each input, and whether the request had a single sample."""
        try:
            body = await asyncio.wait_for(self.body_of(request), self.max_seconds)
        except asyncio.TimeoutError:
            message = f"the body took longer than {self.max_seconds:g} seconds: send it faster"
            raise HTTPException(408, message) from None
        kind = request.headers.get("content-type", "application/json").partition(";")[0].strip()
        try:
            if kind in IMAGES:
                found = [self.image_of(body, IMAGES[kind])]
            elif kind == "application/x-npy":
                found = [self.array_of(body)]
            elif kind == "application/json":
                found = self.json_of(body)
            else:
                known = ", ".join(["application/json", "application/x-npy", *IMAGES])
                raise HTTPException(415, f"the content type {kind!r} is not read: use {known}")
            return self.checked(found)
        except (ValueError, TypeError, OverflowError, RecursionError, ImportError) as e:
            raise HTTPException(422, str(e)) from e

    async def body_of(self, request: Request) -> bytes:
        """Return the body, of which no more than the limit is read."""
        message = f"the body has more than {self.max_bytes} bytes: send fewer samples at once"
        if int(request.headers.get("content-length", 0)) > self.max_bytes:
            raise HTTPException(413, message)
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > self.max_bytes:
                raise HTTPException(413, message)
        return bytes(body)

    def image_of(self, body: bytes, suffix: str) -> np.ndarray:
        """Return the input for an image, resized if it has another size than the model takes."""
        with tempfile.NamedTemporaryFile(suffix=suffix) as file:
            file.write(body)
            file.flush()
            try:
                return self.predictor.read_images(file.name, resize=True)[0]
            except ValueError as e:
                message = str(e).replace(repr(file.name), "the image")
                raise ValueError(message.replace(file.name, "the image")) from e

    def array_of(self, body: bytes) -> np.ndarray:
        """Return the array of an .npy file; its header is compared with the bytes that follow."""
        file = io.BytesIO(body)
        npy: Any = np.lib.format
        try:
            version = npy.read_magic(file)
            if version != (1, 0):
                raise ValueError(f"it is of version {version}")
            shape, is_fortran, dtype = npy.read_array_header_1_0(file)
            if is_fortran or dtype.hasobject:
                raise ValueError("it is in Fortran's order, or of objects")
            return np.frombuffer(body, dtype, offset=file.tell()).reshape(shape)
        except Exception as e:  # NumPy's parser raises exceptions of any type
            raise ValueError(
                f"the body is no array of numpy.save ({' '.join(str(e).split())}): write it with "
                "numpy.save"
            ) from e

    def json_of(self, body: bytes) -> list[np.ndarray]:
        """Return the array of each input."""
        try:
            content = json.loads(body)
        except (ValueError, RecursionError) as e:
            raise ValueError(f"the body is no JSON ({e}): send an object of inputs") from e
        names = [spec["name"] for spec in self.inputs]
        if not isinstance(content, dict) or set(content) != set(names):
            raise ValueError(f"the body must be an object of the inputs {names}: name each of them")
        try:
            return [np.asarray(content[spec["name"]], spec["dtype"]) for spec in self.inputs]
        except (ValueError, TypeError, OverflowError) as e:
            raise ValueError(f"an input is no array of numbers ({e}): send nested lists") from e

    def checked(self, arrays: list[np.ndarray]) -> tuple[list[np.ndarray], bool]:
        """Return the arrays as batches, and whether they were a single sample."""
        if len(arrays) != len(self.inputs):
            raise ValueError(
                f"the model has {len(self.inputs)} inputs: send JSON, which names them"
            )
        is_sample = arrays[0].ndim == len(self.inputs[0]["shape"])
        batches = []
        for array, spec in zip(arrays, self.inputs, strict=True):
            name, shape = spec["name"], tuple(spec["shape"])
            if is_sample:
                array = array[None]
            if array.shape[1:] != shape:
                given = array.shape[1:] if is_sample else array.shape
                raise ValueError(
                    f"{name} must have the shape {shape}, or {shape_of('N', *shape)} for N "
                    f"samples, got {given}: send it in the shape of the training data"
                )
            if len(array) != len(arrays[0]) and not is_sample:
                raise ValueError(
                    f"{name} has {len(array)} samples and {self.inputs[0]['name']} has "
                    f"{len(arrays[0])}: send the same number for each input"
                )
            if array.dtype.kind not in "fiu":
                raise ValueError(f"{name} is of {array.dtype}: send integers or floating point")
            if not np.isfinite(array).all():
                place = np.argwhere(~np.isfinite(array))[0]
                raise ValueError(
                    f"{name} has {array[tuple(place)]} in sample {place[0]}, at "
                    f"{shape_of(*place[1:])}: replace such numbers as in training"
                )
            batches.append(array.astype(spec["dtype"], copy=False))
        count = len(batches[0])
        if not 1 <= count <= self.max_batch:
            status = 413 if count else 422
            way_out = "send several requests" if count else "send at least one"
            raise HTTPException(
                status, f"a request has 1 to {self.max_batch} samples, not {count}: {way_out}"
            )
        return batches, is_sample


def shape_of(*sizes: Any) -> str:
    """Return sizes as NumPy prints a shape, names without quotes."""
    return f"({', '.join(map(str, sizes))}{',' if len(sizes) == 1 else ''})"


def make_app(predictor: Predictor, options: argparse.Namespace) -> FastAPI:
    """Return the service of a model."""
    executor = ThreadPoolExecutor(1)  # one batch after the other: each uses all cores
    limits = (executor, options.max_batch, options.max_wait / 1000, options.max_waiting)
    reader = Reader(predictor, options.max_bytes, options.max_batch)

    def classes(*arrays: np.ndarray) -> Any:
        return predictor.classes(*arrays, top=options.top)

    batchers = {
        "/predict": Batcher(predictor.predict, rows_of_outputs, *limits),
        "/classes": Batcher(classes, rows_of_classes, *limits),
    }

    async def answer(request: Request) -> Response:
        arrays, is_sample = await reader.read(request)
        try:
            found = await batchers[request.url.path].answer(arrays, is_sample)
        except (ValueError, TypeError) as e:
            raise HTTPException(422, str(e)) from e
        name = request.url.path[1:]
        return Response(json.dumps({name: found}), media_type="application/json")

    async def health() -> dict[str, Any]:
        return {
            "status": "ok",
            "engine": predictor.engine,
            "inputs": predictor.card["inputs"],
            "class_names": predictor.card["class_names"],
            "waiting": sum(batcher.queue.qsize() for batcher in batchers.values()),
        }

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(batcher.run()) for batcher in batchers.values()]
        yield
        for task in tasks:  # no request is left: uvicorn has waited for them
            task.cancel()
        executor.shutdown()

    app = FastAPI(title="gluon_svrg", lifespan=lifespan)
    app.add_api_route("/health", health, methods=["GET"])
    for path in batchers:
        app.add_api_route(path, answer, methods=["POST"])
    return app


def positive(text: str) -> int:
    """Read an option that is a number of things."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, got {text!r}")
    return int(text)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", help="the model directory")
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 for other machines, too")
    parser.add_argument("--port", type=int, default=8000, help="0 for any that is free")
    parser.add_argument("--engine", default="auto", help="auto, mxnet or onnxruntime")
    parser.add_argument("--top", type=positive, default=1, help="classes per sample")
    parser.add_argument("--max-batch", type=positive, default=64, help="samples that run at once")
    parser.add_argument("--max-wait", type=float, default=2, help="ms to wait for other requests")
    parser.add_argument("--max-waiting", type=positive, default=256, help="requests; then a 503")
    parser.add_argument(
        "--max-bytes", type=positive, default=2**24, help="of a request; then a 413"
    )
    return parser.parse_args(arguments)


def end(reason: str) -> NoReturn:
    """End the process before it has begun to serve."""
    print(f"error: {reason}", file=sys.stderr)
    sys.exit(2)


def main() -> None:
    """Serve until SIGTERM or Ctrl-C; the requests that are there then are still answered."""
    options = parse()
    try:
        predictor = Predictor.load(
            options.directory, batch_size=options.max_batch, engine=options.engine
        )
    except (ValueError, ImportError, OSError) as e:
        end(str(e))
    names = predictor.card["class_names"] or []
    if names and options.top > len(names):
        end(f"--top is {options.top}, the model has {len(names)} classes: ask for fewer")
    try:
        listener = socket.create_server((options.host, options.port))
    except (OSError, OverflowError) as e:
        end(f"cannot listen on {options.host}:{options.port} ({e}): give another --port")
    for size in (1, options.max_batch):  # MXNet plans a size when it is first run
        predictor(*(np.zeros((size, *x["shape"]), x["dtype"]) for x in predictor.card["inputs"]))
    host, port = listener.getsockname()[:2]
    print(f"http://{host}:{port} by {predictor.engine}: {predictor.engine_reason}", flush=True)
    config = uvicorn.Config(
        make_app(predictor, options),
        access_log=False,
        log_level="warning",
        timeout_keep_alive=30,
        timeout_graceful_shutdown=30,
    )
    with suppress(KeyboardInterrupt):  # uvicorn passes it on after its last answer
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # before it served
        sys.exit(130)
