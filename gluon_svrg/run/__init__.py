"""What a run is: its position, its history, the figure that is watched, one batch."""

from gluon_svrg import _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__)
