"""Which tests run, of those of both distributions."""

import itertools
from collections import defaultdict

FEW, FEW_SLOW = 3, 2


def pytest_addoption(parser):  # noqa: D103
    parser.addoption(
        "--cover",
        choices=["few", "pairs", "all"],
        default="all",
        help=f"of a test with parameters: {FEW} cases ({FEW_SLOW} if it is marked slow or full), "
        "enough for each pair of values once (tests marked slow: each value), or all",
    )


def pytest_collection_modifyitems(config, items):  # noqa: D103
    cover = config.getoption("--cover")
    if cover == "all":
        return
    cases = defaultdict(list)
    for item in items:
        cases[item.nodeid.partition("[")[0]].append(item)
    choose = spread if cover == "few" else paired
    kept = {item for tests in cases.values() for item in choose(tests)}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def spread(tests):
    """Return a few cases of a test, from the first to the last."""
    is_slow = any(tests[0].get_closest_marker(name) for name in ("slow", "full"))
    number = FEW_SLOW if is_slow else FEW
    if len(tests) <= number:
        return tests
    return [tests[place * (len(tests) - 1) // (number - 1)] for place in range(number)]


def paired(tests):
    """Return cases that have each pair of two parameters' values; of slow tests, each value."""
    seen, kept = set(), []
    for test in tests:
        params = test.callspec.params if hasattr(test, "callspec") else {}
        values = [(name, repr(value)) for name, value in sorted(params.items())]
        size = 1 if test.get_closest_marker("slow") else min(2, len(values))
        tuples = set(itertools.combinations(values, size))
        if not tuples or tuples - seen:
            kept.append(test)
            seen |= tuples
    return kept
