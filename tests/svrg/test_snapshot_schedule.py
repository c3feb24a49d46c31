"""The epochs of the snapshots, against counting."""

import pytest
from gluon_svrg.svrg.snapshot_schedule import SnapshotSchedule


@pytest.mark.parametrize("stop", [None, 4, 7])
@pytest.mark.parametrize("start", [0, 1, 3])
@pytest.mark.parametrize("every", [1, 2, 3])
def test_epochs_against_counting(every, start, stop):
    schedule = SnapshotSchedule(every, start, stop)
    since, snapshots = None, 0  # epochs since the last snapshot
    for epoch in range(12):
        assert schedule.num_snapshots_before(epoch) == snapshots
        is_over = stop is not None and epoch >= stop
        since = None if is_over else since + 1 if since is not None else None
        is_new = not is_over and epoch >= start and (since is None or since == every)
        since = 0 if is_new else since
        snapshots += is_new
        assert schedule.is_over(epoch) == is_over
        assert schedule.is_snapshot_epoch(epoch) == is_new
        # An earlier snapshot is still used, unless it is replaced or SVRG has ended.
        assert schedule.keeps_snapshot(epoch) == (not is_new and not is_over)
        if since is not None:
            assert schedule.last_snapshot_epoch(epoch) == epoch - since


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((0, 0, None), ValueError, "update_freq must be a positive integer, got 0"),
        ((1.5, 0, None), TypeError, "update_freq must be a positive integer, got 1.5"),
        ((1, -1, None), ValueError, "start_epoch must be a non-negative integer, got -1"),
        ((1, 2, 2), ValueError, "stop_epoch must be greater than start_epoch, got 2 and 2"),
    ],
)
def test_bad_numbers_are_errors(arguments, error, message):
    with pytest.raises(error, match=message):
        SnapshotSchedule(*arguments)
