//! Every atom that the NIF knows. None is ever made from a string that a caller gave.

rustler::atoms! {
    absent,
    api_version,
    attributes,
    backend_config,
    bytes,
    dictionary,
    graph,
    mlir_attributes,
    module_attributes,
    name,
    nil,
    operation_attributes,
    other,
    parameter_attributes,
    result_attributes,
    spec,
    text,
    token,
    r#type = "type",
}

/// The atom of a field's name, one of the core's own.
pub(crate) fn field(name: &str) -> rustler::Atom {
    match name {
        "api_version" => api_version(),
        "attributes" => attributes(),
        "backend_config" => backend_config(),
        "mlir_attributes" => mlir_attributes(),
        "module_attributes" => module_attributes(),
        "operation_attributes" => operation_attributes(),
        "parameter_attributes" => parameter_attributes(),
        "result_attributes" => result_attributes(),
        _ => nil(),
    }
}
