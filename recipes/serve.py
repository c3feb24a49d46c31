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
import hashlib
import io
import json
import math
import resource
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any, ClassVar, NamedTuple, NoReturn

import numpy as np
from gluon_svrg.deploy import Predictor

try:
    import uvicorn
    from fastapi import FastAPI, HTTPException, Request, Response
    from starlette.requests import ClientDisconnect
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError as error:
    raise SystemExit(f"{error}: `pip install 'gluon-svrg[serve]'`") from error

IMAGES = {"image/png": ".png", "image/jpeg": ".jpg"}
# A body or an array of outputs above this goes through a thread, or it would keep other clients
# waiting: up to here it takes a few milliseconds.
SMALL = 2**16
# An image may have this many times the pixels of the model's, within the bounds: to decode the
# most takes about a second.
PIXELS_PER_PIXEL, LEAST_PIXELS, MOST_PIXELS = 1024, 2**20, 2**25
# Of a JPEG; progressive ones have about ten. Each takes the time of a whole image, and a few bytes.
MOST_SCANS = 100


class Connection(H11Protocol):
    """A connection whose client may not wait for ever, nor keep others from connecting.

    uvicorn limits only the time between two requests, and answers 503 beyond a number of
    connections, though most of them may be idle. Here a connection is closed after `max_seconds`
    without a whole header, or in which the client reads nothing of its answer. A new one beyond
    `max_connections` takes the place of that whose client has been waited for longest.
    """

    max_seconds: ClassVar[float]
    max_connections: ClassVar[int]
    # Those that wait for their clients, the longest first.
    waiting: ClassVar[dict[Connection, None]] = {}
    timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Make room for it if there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            longest = next(iter(self.waiting), self)
            self.waiting.pop(longest, None)  # it is closed a moment later
            longest.transport.abort()
        self.note()

    def note(self, is_fresh: bool = False) -> None:
        """Note whether the client is waited for; `is_fresh` restarts its time limit."""
        is_open, is_answering = self.cycle is not None and not self.cycle.response_complete, False
        if is_open:
            is_answering = not self.flow.write_paused  # else it does not read
        if is_answering and not self.cycle.more_body:
            self.waiting.pop(self, None)
        else:
            self.waiting.setdefault(self)
        # A body that is not whole has a time of its own, with an answer: a 408.
        if self.timer is not None and (is_answering or is_fresh):
            self.timer.cancel()
            self.timer = None
        if self.timer is None and not is_answering:
            self.timer = self.loop.call_later(self.max_seconds, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        """Note whether the request is whole."""
        super().data_received(data)
        self.note()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self.note(is_fresh=True)

    def pause_writing(self) -> None:
        """Note that the client does not read."""
        super().pause_writing()
        self.note()

    def resume_writing(self) -> None:
        """Note that the client reads."""
        super().resume_writing()
        self.note()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        super().connection_lost(exc)
        self.waiting.pop(self, None)
        if self.timer is not None:
            self.timer.cancel()


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
        return outputs[rows]
    return None if outputs is None else [rows_of_outputs(part, rows) for part in outputs]


def rows_of_classes(classes: Any, rows: int | slice) -> Any:
    """Return the classes of some samples, each as a dict of name and probability."""
    found = classes[rows]
    if isinstance(rows, slice):
        return [rows_of_classes([row], 0) for row in found]
    return [prediction._asdict() for prediction in found]


def size_of(found: Any) -> int:
    """Return how many numbers or classes an answer has."""
    if isinstance(found, np.ndarray):
        return found.size
    return sum(map(size_of, found)) if isinstance(found, list) else 1


def text_of(found: Any) -> str:
    """Return an answer as JSON, in pieces: while Python writes a piece, no other thread runs.

    Raises
    ------
    ValueError
        If a number is NaN or infinite, for which JSON has no text.
    """
    if isinstance(found, np.ndarray) and (found.ndim <= 1 or found.size <= SMALL):
        found = found.tolist()
    elif isinstance(found, (list, np.ndarray)):
        return f"[{', '.join(map(text_of, found))}]"
    try:
        return json.dumps(found, allow_nan=False)
    except ValueError as e:
        raise ValueError(
            "the outputs have NaN or infinite numbers, for which JSON has no text: the input is "
            "perhaps much larger than the training data; scale it as in training"
        ) from e


def array_of_lists(content: Any, dtype: str) -> np.ndarray:
    """Return nested lists as an array, in pieces, as `text_of` writes them."""
    if not isinstance(content, list) or not content:
        return np.asarray(content, dtype)
    if isinstance(content[0], list):
        return np.stack([array_of_lists(part, dtype) for part in content])
    pieces = range(0, len(content), SMALL)
    return np.concatenate([np.asarray(content[i : i + SMALL], dtype) for i in pieces])


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
    executor : Executor
        Reads bodies that are not small.
    """

    def __init__(
        self,
        predictor: Predictor,
        max_bytes: int,
        max_batch: int,
        max_seconds: float,
        executor: ThreadPoolExecutor,
    ) -> None:
        self.predictor = predictor
        self.inputs = predictor.card["inputs"]
        self.max_bytes = max_bytes
        self.max_batch = max_batch
        self.max_seconds = max_seconds
        self.executor = executor

    async def read(self, request: Request) -> tuple[list[np.ndarray], bool]:
        """Return a batch for each input, and whether the request had a single sample."""
        try:
            body = await asyncio.wait_for(self.body_of(request), self.max_seconds)
        except asyncio.TimeoutError:
            message = f"the body took longer than {self.max_seconds:g} seconds: send it faster"
            raise HTTPException(408, message) from None
        kind = request.headers.get("content-type", "application/json").partition(";")[0].strip()
        if kind not in IMAGES and len(body) <= SMALL:
            return self.arrays_of(body, kind)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.executor, self.arrays_of, body, kind)

    def arrays_of(self, body: bytes, kind: str) -> tuple[list[np.ndarray], bool]:
        """Return a batch for each input of a body, and whether it had a single sample."""
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
        self.check_image(body)
        with tempfile.NamedTemporaryFile(suffix=suffix) as file:
            file.write(body)
            file.flush()
            try:
                return self.predictor.read_images(file.name, resize=True)[0]
            except ValueError as e:
                message = str(e).replace(repr(file.name), "the image")
                raise ValueError(message.replace(file.name, "the image")) from e

    def check_image(self, body: bytes) -> None:
        """Refuse what would take long to decode, by its header."""
        from PIL import Image

        *_, height, width = self.inputs[0]["shape"]
        most = min(max(LEAST_PIXELS, PIXELS_PER_PIXEL * height * width), MOST_PIXELS)
        try:
            with Image.open(io.BytesIO(body), formats=("JPEG", "PNG")) as image:
                found = image.width * image.height
        except Exception:  # `read_images` says what is wrong
            return
        if found > most:
            raise HTTPException(
                413,
                f"the image has {found} pixels, the model takes {width} x {height} and this "
                f"service reads up to {most}: send a smaller one",
            )
        if (scans := body.count(b"\xff\xda")) > MOST_SCANS:
            raise HTTPException(413, f"the image has {scans} scans: save it as a plain JPEG")

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
        is_small = len(body) <= SMALL
        numbers: dict[str, Any] = {}
        if not is_small:
            self.check_json(body)
            # Calls of Python's, between which other threads run.
            numbers = {"parse_float": lambda text: float(text), "parse_int": lambda text: int(text)}
        try:
            content = json.loads(body, **numbers)
        except (ValueError, RecursionError) as e:
            raise ValueError(f"the body is no JSON ({e}): send an object of inputs") from e
        names = [spec["name"] for spec in self.inputs]
        if not isinstance(content, dict) or set(content) != set(names):
            raise ValueError(f"the body must be an object of the inputs {names}: name each of them")
        try:
            make = np.asarray if is_small else array_of_lists
            return [make(content[spec["name"]], spec["dtype"]) for spec in self.inputs]
        except (ValueError, TypeError, OverflowError) as e:
            raise ValueError(f"an input is no array of numbers ({e}): send nested lists") from e

    def check_json(self, body: bytes) -> None:
        """Refuse a body with more lists than the largest batch has: they would take seconds."""
        most = SMALL + sum(self.max_batch * int(np.prod(x["shape"][:-1])) for x in self.inputs) * 2
        found = body.count(b"[") + body.count(b"{")
        if found > most:
            raise HTTPException(
                413, f"the body has {found} lists, a batch has up to {most}: send fewer samples"
            )

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
    others = ThreadPoolExecutor(2)  # read large bodies, write large answers
    limits = (executor, options.max_batch, options.max_wait / 1000, options.max_waiting)
    reader = Reader(predictor, options.max_bytes, options.max_batch, options.timeout, others)

    def classes(*arrays: np.ndarray) -> Any:
        return predictor.classes(*arrays, top=options.top)

    batchers = {
        "/predict": Batcher(predictor.predict, rows_of_outputs, *limits),
        "/classes": Batcher(classes, rows_of_classes, *limits),
    }

    async def answer(request: Request) -> Response:
        try:
            arrays, is_sample = await reader.read(request)
        except ClientDisconnect:
            return Response(status_code=499)  # nginx's code for its log: the client is gone
        try:
            found = await batchers[request.url.path].answer(arrays, is_sample)
            if size_of(found) <= SMALL:
                text = text_of(found)
            elif await request.is_disconnected():
                return Response(status_code=499)
            else:
                text = await asyncio.get_running_loop().run_in_executor(others, text_of, found)
        except (ValueError, TypeError) as e:
            raise HTTPException(422, str(e)) from e
        name = request.url.path[1:]
        return Response(f'{{"{name}": {text}}}', media_type="application/json")

    files = json.dumps(predictor.card["files"], sort_keys=True).encode()
    # Which of several exports it is.
    model = {
        "date": predictor.card.get("date"),
        "versions": predictor.card.get("versions"),
        "sha256": hashlib.sha256(files).hexdigest(),
    }

    async def health() -> dict[str, Any]:
        return {
            "status": "ok",
            "engine": predictor.engine,
            "model": model,
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
        others.shutdown()

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
    parser.add_argument(
        "--timeout", type=positive_seconds, default=30, help="seconds that a client may take"
    )
    return parser.parse_args(arguments)


def positive_seconds(text: str) -> float:
    """Read an option that is a time."""
    with suppress(ValueError):
        if 0 < (seconds := float(text)) < float("inf"):
            return seconds
    raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, got {text!r}")


def connection_limit() -> int:
    """Return how many connections there may be: half of the descriptors are for other files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, min(soft, 2**14) // 2)


class Server(uvicorn.Server):
    """uvicorn's server; clients that connect at the same moment wait in the system's queue."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Make the queue long again, which uvicorn has made as long as asyncio accepts at once."""
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(2048)


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
    Connection.max_seconds, Connection.max_connections = options.timeout, connection_limit()
    config = uvicorn.Config(
        make_app(predictor, options),
        http=Connection,
        ws="none",
        access_log=False,
        log_level="error",  # no line for each client that makes a mistake
        # asyncio accepts up to `backlog` connections at once, before it can close the first.
        backlog=max(1, Connection.max_connections // 8),
        timeout_keep_alive=math.ceil(options.timeout),
        timeout_graceful_shutdown=30,
    )
    with suppress(KeyboardInterrupt):  # uvicorn passes it on after its last answer
        Server(config).run(sockets=[listener])


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # before it served
        sys.exit(130)
