"""The private names of MXNet 1.9.1 that this package reads or writes, each with its reason.

Nothing outside this package names one, but the subclasses that override MXNet's own hooks
(`SVRGTrainer`, `BatchProcessor`, and those in `optimizer/`). The functions are in the files of
their owners.
"""

from gluon_svrg._mxnet.block import (
    BlockState as BlockState,
    ExpectedOutput as ExpectedOutput,
    arguments_of as arguments_of,
    array_from_numpy as array_from_numpy,
    arrays_of as arrays_of,
    auxiliary_states_of as auxiliary_states_of,
    axis_of_classes as axis_of_classes,
    call_by_itself as call_by_itself,
    children_of as children_of,
    copy_from_numpy as copy_from_numpy,
    expected_output as expected_output,
    finish_initialization as finish_initialization,
    forget_graph as forget_graph,
    forgotten_forward as forgotten_forward,
    forward_outside_of_training as forward_outside_of_training,
    full_data as full_data,
    has_data as has_data,
    has_gradient as has_gradient,
    has_shape as has_shape,
    has_static_shape as has_static_shape,
    inputs_of as inputs_of,
    is_differentiable as is_differentiable,
    is_fresh as is_fresh,
    labels_are_probabilities as labels_are_probabilities,
    labels_are_signed as labels_are_signed,
    last_operator as last_operator,
    list_data as list_data,
    mark_fresh as mark_fresh,
    names_of_own_parameters as names_of_own_parameters,
    override_row_source as override_row_source,
    own_graphs as own_graphs,
    own_parameters_of as own_parameters_of,
    parameters_by_structure as parameters_by_structure,
    set_arrays as set_arrays,
    storage_types as storage_types,
)
from gluon_svrg._mxnet.callbacks import (
    callback_errors as callback_errors,
)
from gluon_svrg._mxnet.dataloader import (
    arrays_in_order as arrays_in_order,
    batch_sampler_of as batch_sampler_of,
    batchify_of as batchify_of,
    carries_samples_over as carries_samples_over,
    dataset_of as dataset_of,
    has_workers as has_workers,
    load_in_this_process as load_in_this_process,
)
from gluon_svrg._mxnet.estimator import (
    check_metrics_of_handlers as check_metrics_of_handlers,
    suggested_metric as suggested_metric,
)
from gluon_svrg._mxnet.kinds import (
    as_current as as_current,
    as_legacy as as_legacy,
    check_kind as check_kind,
    is_of_numpy as is_of_numpy,
    kept_as_legacy as kept_as_legacy,
    legacy_mode as legacy_mode,
    mode_of_thread as mode_of_thread,
    numpy_shapes as numpy_shapes,
)
from gluon_svrg._mxnet.lazy_scipy import (
    LazyModule as LazyModule,
)
from gluon_svrg._mxnet.mapped_array import (
    MappedArray as MappedArray,
)
from gluon_svrg._mxnet.numpy_2 import (
    text_of as text_of,
)
from gluon_svrg._mxnet.symbol import (
    inferred_shapes as inferred_shapes,
    inferred_types as inferred_types,
    onnx_translator as onnx_translator,
    reason_of as reason_of,
)
from gluon_svrg._mxnet.trainer import (
    UPDATE_COUNTS as UPDATE_COUNTS,
    contexts_of as contexts_of,
    forget_kvstore as forget_kvstore,
    forget_states as forget_states,
    halve_loss_scale as halve_loss_scale,
    has_fresh_gradient as has_fresh_gradient,
    has_kvstore as has_kvstore,
    has_kvstore_that_updates as has_kvstore_that_updates,
    kvstore_arguments as kvstore_arguments,
    left_out as left_out,
    legacy_gradients as legacy_gradients,
    listed_parameters as listed_parameters,
    loss_scale_of as loss_scale_of,
    loss_scaler_state as loss_scaler_state,
    name_of_stale as name_of_stale,
    optimizer_of as optimizer_of,
    parameters_of as parameters_of,
    scales_losses as scales_losses,
    set_loss_scaler_state as set_loss_scaler_state,
    set_update_counts as set_update_counts,
    step_scale as step_scale,
    takes_row_sparse as takes_row_sparse,
    trained_parameters as trained_parameters,
    undo_step_scale as undo_step_scale,
    update_counts as update_counts,
    updaters_in_use as updaters_in_use,
    updates_on_kvstore as updates_on_kvstore,
    watch_plain_trainers as watch_plain_trainers,
)
