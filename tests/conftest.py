"""One seed for every test."""

import gluon_svrg as gs
import pytest


@pytest.fixture(autouse=True)
def _seed():
    gs.seed_everything(0)
