"""The former place of `why_not_locked`."""

from gluon_svrg.data.training_data import why_not_locked as why_not_locked
