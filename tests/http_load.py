"""Clients that ask a service at the same time: `python tests/http_load.py http://127.0.0.1:8000`."""

import argparse
import http.client
import io
import json
import threading
import time
import urllib.parse

import numpy as np


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def post(connection, path, body, kind="application/x-npy"):
    """The status and the answer of a request."""
    connection.request("POST", path, body, {"Content-Type": kind})
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def connect(url):
    address = urllib.parse.urlsplit(url)
    return http.client.HTTPConnection(address.hostname, address.port, timeout=60)


def load(url, samples, clients, seconds):
    """Let each client ask for one sample after the other.

    Returns the latency of each request in seconds, the answers as pairs of the index of a sample
    and the outputs, and the errors.
    """
    bodies = [npy(sample) for sample in samples]
    latencies, answers, errors = [], [], []
    end = time.perf_counter() + seconds

    def ask(seed):
        random = np.random.default_rng(seed)
        connection = connect(url)
        try:
            while time.perf_counter() < end:
                index = int(random.integers(len(bodies)))
                begin = time.perf_counter()
                status, answer = post(connection, "/predict", bodies[index])
                latencies.append(time.perf_counter() - begin)
                if status == 200:
                    answers.append((index, answer["predict"]))
                else:
                    errors.append((status, answer))
        except Exception as e:
            errors.append(repr(e))
        finally:
            connection.close()

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return latencies, answers, errors


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    connection = connect(options.url)
    connection.request("GET", "/health")
    (spec,) = json.loads(connection.getresponse().read())["inputs"]
    samples = np.random.default_rng(0).normal(size=(100, *spec["shape"])).astype(spec["dtype"])
    latencies, _, errors = load(options.url, samples, options.clients, options.seconds)
    p50, p99 = np.percentile(latencies, [50, 99]) * 1e3
    print(
        f"{options.clients} clients, {options.seconds:g} s: {len(latencies)} requests "
        f"({len(latencies) / options.seconds:.0f}/s), p50 {p50:.1f} ms, p99 {p99:.1f} ms, "
        f"{len(errors)} errors"
    )


if __name__ == "__main__":
    main()
