"""The private names of MXNet 1.9.1 that this package reads or writes, each with its reason.

Nothing outside this room names one, but the subclasses that override MXNet's own hooks
(`SVRGTrainer`, `BatchProcessor`, and those in `optimizer/`, which a kvstore's server loads before
there is a Gluon to import). The functions are in the files of their owners.
"""

from gluon_svrg._mxnet.block import SAME_NUMBERS as SAME_NUMBERS
from gluon_svrg._mxnet.block import (
    BlockState as BlockState,
)
from gluon_svrg._mxnet.block import (
    KnownLoss as KnownLoss,
)
from gluon_svrg._mxnet.block import (
    arguments_of as arguments_of,
)
from gluon_svrg._mxnet.block import (
    arrays_of as arrays_of,
)
from gluon_svrg._mxnet.block import (
    auxiliary_states_of as auxiliary_states_of,
)
from gluon_svrg._mxnet.block import (
    axis_of_classes as axis_of_classes,
)
from gluon_svrg._mxnet.block import (
    call_by_itself as call_by_itself,
)
from gluon_svrg._mxnet.block import (
    children_of as children_of,
)
from gluon_svrg._mxnet.block import (
    copy_from_numpy as copy_from_numpy,
)
from gluon_svrg._mxnet.block import (
    data_of as data_of,
)
from gluon_svrg._mxnet.block import (
    finish_initialization as finish_initialization,
)
from gluon_svrg._mxnet.block import (
    forget_graph as forget_graph,
)
from gluon_svrg._mxnet.block import (
    forgotten_forward as forgotten_forward,
)
from gluon_svrg._mxnet.block import (
    forward_outside_of_training as forward_outside_of_training,
)
from gluon_svrg._mxnet.block import (
    has_data as has_data,
)
from gluon_svrg._mxnet.block import (
    has_gradient as has_gradient,
)
from gluon_svrg._mxnet.block import (
    has_shape as has_shape,
)
from gluon_svrg._mxnet.block import (
    has_static_shape as has_static_shape,
)
from gluon_svrg._mxnet.block import (
    is_differentiable as is_differentiable,
)
from gluon_svrg._mxnet.block import (
    is_fresh as is_fresh,
)
from gluon_svrg._mxnet.block import (
    known_loss as known_loss,
)
from gluon_svrg._mxnet.block import (
    mark_fresh as mark_fresh,
)
from gluon_svrg._mxnet.block import (
    names_of_own_parameters as names_of_own_parameters,
)
from gluon_svrg._mxnet.block import (
    override_row_source as override_row_source,
)
from gluon_svrg._mxnet.block import (
    own_graphs as own_graphs,
)
from gluon_svrg._mxnet.block import (
    own_parameters_of as own_parameters_of,
)
from gluon_svrg._mxnet.block import (
    parameters_by_place as parameters_by_place,
)
from gluon_svrg._mxnet.block import (
    set_arrays as set_arrays,
)
from gluon_svrg._mxnet.block import (
    storage_types as storage_types,
)
from gluon_svrg._mxnet.block import (
    whole_data as whole_data,
)
from gluon_svrg._mxnet.callbacks import (
    callback_errors as callback_errors,
)
from gluon_svrg._mxnet.kinds import (
    as_current as as_current,
)
from gluon_svrg._mxnet.kinds import (
    as_legacy as as_legacy,
)
from gluon_svrg._mxnet.kinds import (
    check_kind as check_kind,
)
from gluon_svrg._mxnet.kinds import (
    is_of_numpy as is_of_numpy,
)
from gluon_svrg._mxnet.kinds import (
    kept_as_legacy as kept_as_legacy,
)
from gluon_svrg._mxnet.kinds import (
    legacy_mode as legacy_mode,
)
from gluon_svrg._mxnet.kinds import (
    mode_of_thread as mode_of_thread,
)
from gluon_svrg._mxnet.kinds import (
    numpy_shapes as numpy_shapes,
)
from gluon_svrg._mxnet.late import (
    Late as Late,
)
from gluon_svrg._mxnet.memory import (
    Memory as Memory,
)
from gluon_svrg._mxnet.numpy_2 import (
    text_of as text_of,
)
from gluon_svrg._mxnet.others import (
    batch_sampler_of as batch_sampler_of,
)
from gluon_svrg._mxnet.others import (
    batchify_of as batchify_of,
)
from gluon_svrg._mxnet.others import (
    carries_samples_over as carries_samples_over,
)
from gluon_svrg._mxnet.others import (
    check_metrics_of_handlers as check_metrics_of_handlers,
)
from gluon_svrg._mxnet.others import (
    dataset_of as dataset_of,
)
from gluon_svrg._mxnet.others import (
    has_workers as has_workers,
)
from gluon_svrg._mxnet.others import (
    inferred_shapes as inferred_shapes,
)
from gluon_svrg._mxnet.others import (
    inferred_types as inferred_types,
)
from gluon_svrg._mxnet.others import (
    load_in_this_process as load_in_this_process,
)
from gluon_svrg._mxnet.others import (
    onnx_translator as onnx_translator,
)
from gluon_svrg._mxnet.others import (
    reason_of as reason_of,
)
from gluon_svrg._mxnet.others import (
    suggested_metric as suggested_metric,
)
from gluon_svrg._mxnet.trainer import UPDATE_COUNTS as UPDATE_COUNTS
from gluon_svrg._mxnet.trainer import (
    call_with_first_plain_trainer as call_with_first_plain_trainer,
)
from gluon_svrg._mxnet.trainer import (
    contexts_of as contexts_of,
)
from gluon_svrg._mxnet.trainer import (
    forget_kvstore as forget_kvstore,
)
from gluon_svrg._mxnet.trainer import (
    forget_states as forget_states,
)
from gluon_svrg._mxnet.trainer import (
    halve_loss_scale as halve_loss_scale,
)
from gluon_svrg._mxnet.trainer import (
    has_fresh_gradient as has_fresh_gradient,
)
from gluon_svrg._mxnet.trainer import (
    has_kvstore as has_kvstore,
)
from gluon_svrg._mxnet.trainer import (
    has_kvstore_that_updates as has_kvstore_that_updates,
)
from gluon_svrg._mxnet.trainer import (
    is_run_by_servers as is_run_by_servers,
)
from gluon_svrg._mxnet.trainer import (
    kvstore_arguments as kvstore_arguments,
)
from gluon_svrg._mxnet.trainer import (
    kvstore_type as kvstore_type,
)
from gluon_svrg._mxnet.trainer import (
    legacy_gradients as legacy_gradients,
)
from gluon_svrg._mxnet.trainer import (
    loss_scale_of as loss_scale_of,
)
from gluon_svrg._mxnet.trainer import (
    loss_scaler_state as loss_scaler_state,
)
from gluon_svrg._mxnet.trainer import (
    optimizer_of as optimizer_of,
)
from gluon_svrg._mxnet.trainer import (
    parameters_of as parameters_of,
)
from gluon_svrg._mxnet.trainer import (
    scales_losses as scales_losses,
)
from gluon_svrg._mxnet.trainer import (
    set_loss_scaler_state as set_loss_scaler_state,
)
from gluon_svrg._mxnet.trainer import (
    set_update_counts as set_update_counts,
)
from gluon_svrg._mxnet.trainer import (
    step_scale as step_scale,
)
from gluon_svrg._mxnet.trainer import (
    takes_row_sparse as takes_row_sparse,
)
from gluon_svrg._mxnet.trainer import (
    trained_parameters as trained_parameters,
)
from gluon_svrg._mxnet.trainer import (
    update_counts as update_counts,
)
from gluon_svrg._mxnet.trainer import (
    updaters_in_use as updaters_in_use,
)
from gluon_svrg._mxnet.trainer import (
    updates_on_kvstore as updates_on_kvstore,
)
