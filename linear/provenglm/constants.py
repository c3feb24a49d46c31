"""The constants of the solver that could have other values, in the order of its loop.

What follows from arithmetic, such as the margins of a proof, stands where it is used.
"""


# Which way is taken.

SMALL_HESSIAN = 1e8
"""Multiplications for one Hessian of all rows, up to which Newton's method is exact."""

SMALL_DATA = 8_000_000
"""Numbers of features, zeros included, up to which all are copied to float64."""

MOST_WEIGHTS = 2500
"""Weights up to which a Hessian is a matrix."""

FEW_ROWS_OF_A_FEATURE = 4
"""With fewer rows for each feature the sample of a Hessian is nearly all rows. On 3,000 x 2,400
conjugate gradients took a tenth of a Hessian's time; on 8,000 x 1,000 between a fifth of it and ten
times as much, depending on the condition number."""

WEIGHTS_OF_SQUARES = 400
"""Weights up to which the Hessian of a squared loss with an L1 penalty is that of all rows: it is
needed once, and then the optimum is proven. With 300 it took the time of 9 passes."""

DUAL_CURVATURE = 1e4
"""The mean of |x|^2 / n l2 up to which the dual is taken. With raw counts of words it took 0.7 of
the seconds of conjugate gradients at 1,500, of 11 classes 0.3, and 0.6 at 15,000. At 150,000 the
point that was handed over was so far off that Newton's method took 10 times as long."""

DUAL_CURVATURE_OF_DENSE = 2.0
"""The same of dense rows, centred, which have other ways. At 0.08 Fashion-MNIST took as many CPU
seconds as by conjugate gradients with a sample's Hessian, at 0.8 three quarters, at 8 half of them,
and ends with a proof. Noise with a teacher's labels took 0.6 to 1.5 of the other ways' seconds at
3, and 2 to 11 times as many at 30."""

FEW_ROWS_OF_A_CLASS = 30
"""With fewer rows for each class dense rows may have as large a curvature as sparse ones. Few rows
then decide what a class is, which no mean over all rows knows: 20 of each of 1,000 clusters took 7
epochs at 600, and steps in a Kronecker product did not arrive. With 67 rows of each class those
were faster."""

ROWS_OF_A_DIMENSION = 100
"""Rows for each effective dimension, from which on products with a sample's Hessian are near
enough."""

COPY_BYTES = 4e9
"""Bytes of a copy of dense rows in float32, at most."""

SPARSE_PRODUCT = 400
"""A multiplication of SciPy's product of sparse matrices, in those of a dense product in BLAS."""


# Coordinates.

LEAST_MEASURED_ROWS = 256
"""Rows that coordinates are taken from with an L1 penalty and many features, at least."""

MEASURED_NUMBERS = 1 << 20
"""Numbers of such a sample: of 1,000 x 5,000 all rows took half of the time."""

FEW_ROWS = 20
"""Rows that a feature's variance has to come from, or it is measured over all rows: (sum x^2)^2 /
sum x^4."""

HEAVY = 0.3
"""A sparse column with more than this part of the variance of all lighter ones together sets every
step's length."""


# The sample.

LEAST_ROWS = 2000
"""Rows of a sample, at least."""

ROWS_OF_A_FEATURE = 10
"""Rows of a sample for each feature, at least; twice as many where they cost no more than three
passes."""

SAMPLE_OF_A_PASS = 16
"""A sample's Hessian is made of as many rows as make it half as dear as a pass, in BLAS, where a
multiplication of a product of matrices costs a 32nd of one of a pass."""

SAMPLE_NUMBERS = 32_000_000
"""Numbers of sparse rows that are drawn and dense then, at most: 256 MB."""

RARE = 0.1
"""A group of targets with a smaller share is drawn more often than it occurs."""

EVERY_BLOCK = 8
"""One of so many blocks on disk is in the part that a start is taken from."""

ROWS_BESIDE_A_PART = 250
"""Rows of a sample for each feature where there is such a part, which leads further."""

LARGER_PART = 16
"""A part of so many times the sample's rows is worth reading."""


# The start.

GROWTH = 4
"""From one part of the sample to the next, on the way to a start."""


ERROR_OF_A_START = 0.02
"""Of the sample's error: the decrement at which its optimum is near enough for a start."""


# The metric of a sample's Hessian.

CHANGED = 0.05
"""Of the curvature, on average: less, and a new Hessian would be the old one."""

SECANTS = 20
"""Steps and changes of the gradient that correct a metric."""

STEPS_OF_A_RATE = 10
"""Steps whose gains, beside those of as many before them, tell how fast a run in a Kronecker
product arrives."""


# Conjugate gradients.

MOST_FORCING = 0.3
"""What they leave of the gradient, in the preconditioner's metric, at most."""

LEAST_FORCING = 0.02
"""The same where steps gain much."""

SAMPLE_FORCING = 0.1
"""What they leave with a sample's Hessian. Passes on Fashion-MNIST, L2 1e-4 and 1e-5: 9.7 and 25.1;
with 0.2 11.1 and 25.9, with 0.3 11.8 and 26.3."""

MOST_STEPS = 200
"""Products for one step or one system with a sample's Hessian or with a working set, at most."""

PART_OF_A_STEP = 32
"""Of all rows in memory, one of so many has the Hessian of a step. With 16 Fashion-MNIST took 12.4
and 28.3 passes."""


# The length of a step.

SLOPE = 0.3
"""Of the slope along a step: what may be left of it where the step ends."""

SHORT = 0.3
"""After a shorter step more caution is needed."""

FIRST_CAUTION = 0.05
"""The part of the way to its target by which a row's mean is moved for its curvature, at first."""


# Coordinate descent and the working set.

ALL_FEATURES = 300
"""Features up to which all are taken at once."""

LEAST_JOINING = 100
"""Features that join at a time, at least. With 400 text took between 0.8 and 1.2 times as long."""

KEPT_NUMBERS = 1 << 24
"""Numbers of columns that are kept for their products with others, at most: 128 MB."""

LAST_SWEEP = 0.09
"""The same by columns. With 0.01 text took 1 to 1.3 times as long."""

ROUND = 6
"""Sweeps of a round: the first is over the set, the others over what is not 0. Of 4 and of 10, text
took between 0.9 and 1.1 times as long."""

PAIRS_OF_A_NUMBER = 30.0
"""Other numbers in its row, for each number, up to which the products of all columns with each
other are made. On text it is 8; the time of a fit falls by a third."""

PRODUCTS_BEFORE_PAIRS = 40
"""Products of a step before those of the columns with each other are made: it takes as long."""


# The dual, row by row.

OF_BIAS = 0.1
"""By how much a row's step moves its own score by way of the intercept, for a residual of 1, at
least. On text with C from 0.1 to 100, 0.03 took as many epochs, 0.3 up to 3 more, and 1 twice as
many."""

PART_OF_BIAS = 0.005
"""The same beside what the step moves it by way of the weights. On 1,000 classes with a mean
curvature of 300 the intercepts stood still with 0.1 alone; 22 epochs were enough with 1.5. Text
with C = 100 takes as many epochs with 0.5."""

SLOW = 0.5
"""`SLOW_EPOCHS` that together leave more of the distance are the last: Newton's method goes on.
0.25 and 0.7 were not better."""

SLOW_EPOCHS = 8
"""With 4 epochs raw counts of words took up to 1.7 times as long."""


# The proof and the end.

MARGIN = 0.05
"""The estimate says enough at this part of the distance that is asked for."""

TRIES = 3
"""Proofs that are tried, each at a smaller estimate and with more rows; then the estimate
decides."""

LARGEST_PROOF = 2e10
"""Multiplications for the Hessian of a proof, at most: about a second."""

SAFETY = 1.5
"""A proof by the sample's rows is tried when the bound should be enough by this factor."""

PENALTY_OF_A_GAP = 1e-4
"""Of the curvature: with a smaller penalty a proof by a Newton step is there long before the
duality gap is, which is about the curvature over the penalty times as large."""


# The scale of Huber's loss.


# Folds that go together.


GROUPS_OF_ROWS = 64
"""Groups of rows in the same training sets, each with products of the features, at most."""

BYTES_OF_GROUPS = 1 << 28
"""Bytes of all these products, at most."""

STEPS_OF_PRODUCTS = 5
"""Steps to a point by these products, before the solver itself takes over: as a rule it is one."""


# Blocks of rows.

BLOCK_BYTES = 3 << 19
"""Bytes of a block, converted: read for the scores, it is still in a core's cache for the
gradient."""

BLOCK_ROWS = 4096
"""Rows of a block of a Hessian's sum, at most."""

PART_ROWS = 1 << 16
"""Of what has a number for each row, where such arrays are long."""

LEAST_BLOCK_ROWS = 64
"""Rows of a block, at least."""

LONG_ROWS = 1 << 20
"""Rows on disk from which on what has a number for each is processed in parts."""

SMALL = 1 << 20
"""Numbers in the data. To ask BLAS for its threads costs 20 ms: smaller data leave it alone."""
