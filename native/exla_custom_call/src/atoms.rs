//! Every atom that the NIF knows. None is ever made from a string that a caller gave.

use pjrt_runtime::ErrorCode;

rustler::atoms! {
    absent,
    aborted,
    already_exists,
    api_version,
    attributes,
    backend_config,
    buffer,
    bytes,
    cancelled,
    client,
    compile,
    custom_call,
    data_loss,
    deadline_exceeded,
    dictionary,
    error,
    failed_precondition,
    graph,
    infinity,
    internal,
    invalid_argument,
    library,
    mlir_attributes,
    module_attributes,
    name,
    nan,
    neg_infinity,
    nil,
    not_found,
    ok,
    operation_attributes,
    other,
    out_of_range,
    parameter_attributes,
    permission_denied,
    plugin,
    resource_exhausted,
    result_attributes,
    run,
    spec,
    text,
    token,
    r#type = "type",
    unauthenticated,
    unavailable,
    unimplemented,
    unknown,
}

/// The atom of a field's name, one of the core's own.
pub(crate) fn field(name: &str) -> rustler::Atom {
    match name {
        "api_version" => api_version(),
        "attributes" => attributes(),
        "backend_config" => backend_config(),
        "dictionary" => dictionary(),
        "mlir_attributes" => mlir_attributes(),
        "module_attributes" => module_attributes(),
        "operation_attributes" => operation_attributes(),
        "parameter_attributes" => parameter_attributes(),
        "result_attributes" => result_attributes(),
        _ => nil(),
    }
}

/// The atom of XLA's status code.
pub(crate) fn code(code: ErrorCode) -> rustler::Atom {
    match code {
        ErrorCode::Ok => ok(),
        ErrorCode::Cancelled => cancelled(),
        ErrorCode::Unknown => unknown(),
        ErrorCode::InvalidArgument => invalid_argument(),
        ErrorCode::DeadlineExceeded => deadline_exceeded(),
        ErrorCode::NotFound => not_found(),
        ErrorCode::AlreadyExists => already_exists(),
        ErrorCode::PermissionDenied => permission_denied(),
        ErrorCode::ResourceExhausted => resource_exhausted(),
        ErrorCode::FailedPrecondition => failed_precondition(),
        ErrorCode::Aborted => aborted(),
        ErrorCode::OutOfRange => out_of_range(),
        ErrorCode::Unimplemented => unimplemented(),
        ErrorCode::Internal => internal(),
        ErrorCode::Unavailable => unavailable(),
        ErrorCode::DataLoss => data_loss(),
        ErrorCode::Unauthenticated => unauthenticated(),
        _ => other(),
    }
}
