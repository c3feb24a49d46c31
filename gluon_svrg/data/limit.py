"""The former place of `first_batches`."""

from gluon_svrg.data.training_data import first_batches as first_batches
