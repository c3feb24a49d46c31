from mxnet.gluon.contrib import estimator as estimator
